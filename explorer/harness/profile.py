"""What is known about a harness, read from one TOML file each.

Owns: the form of a profile, its checks, and which profile a command line means.
Must not know: rollouts, processes.

Texts of a profile may hold the placeholders of `PLACEHOLDERS`; `words` adds more, one
value per wire.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from explorer.errors import ConfigurationError

FOLDER = Path(__file__).with_name("profiles")
OVERLAY = Path(__file__).with_name("overlay")
WIRES = ("chat", "completions", "responses", "messages", "google")
FORMATS = ("json", "toml", "yaml")
ANY = "any"
PLACEHOLDERS = {
    "openai_base": "base address of the OpenAI wires, ending in `/v1`",
    "anthropic_base": "base address of `messages`, without `/v1`",
    "google_base": "base address of `google`, without `/v1beta`",
    "base": "the one of these that the chosen wire needs",
    "key": "the capture key",
    "model": "the engine's model name",
    "context": "the engine's context length (tokens)",
    "home": "a private folder that is removed afterwards",
    "overlay": "folder of the start-up overlay for clients in a sandbox",
}
_PLACEHOLDER = re.compile(r"\{([a-z_]+)\}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True, slots=True)
class ConfigFile:
    """A file that the harness reads, written into the private folder."""

    path: str
    format: str
    content: str
    wires: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Arguments:
    """Arguments put in behind the harness's own name, unless one of `unless` is given."""

    add: tuple[str, ...]
    unless: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Profile:
    """One harness.

    Attributes:
        name: as in `--harness`.
        title: as people call it.
        wires: what it can speak, the default first.
        commands: names of the program that mean this harness.
        env: variables for every wire.
        wire_env: more variables, by wire.
        unset: variables of the person that would send the calls elsewhere.
        words: more placeholders: name, then wire, then value.
        files: what is written for it.
        arguments: what is added to the command line.
        example: a command line that runs one task.
        version: a command that prints the version; `{program}` is the program itself.
        package: a Python package whose version is asked of the program's interpreter.
        needs: what must be installed for it.
        notes: what a person has to know.
        terminal_response: finds the id of the final response in standard output; the
            last match counts.
        trajectory: where it writes a trajectory (ATIF): a pattern of file names, relative
            to the working folder; empty when it writes none.
    """

    name: str
    title: str
    wires: tuple[str, ...]
    commands: tuple[str, ...]
    env: Mapping[str, str]
    wire_env: Mapping[str, Mapping[str, str]]
    unset: tuple[str, ...]
    words: Mapping[str, Mapping[str, str]]
    files: tuple[ConfigFile, ...]
    arguments: tuple[Arguments, ...]
    example: str
    version: tuple[str, ...]
    package: str
    needs: str
    notes: str
    terminal_response: re.Pattern[str] | None
    trajectory: str

    def environment(self, wire: str) -> dict[str, str]:
        """The variables for `wire`, placeholders and all."""
        return {**self.env, **self.wire_env.get(wire, {})}

    def files_for(self, wire: str) -> tuple[ConfigFile, ...]:
        """The files for `wire`."""
        return tuple(file for file in self.files if wire in file.wires)

    def runs(self, command: tuple[str, ...]) -> bool:
        """Whether `command` starts the harness itself, and not a script around it."""
        return program_name(command[program_at(command)]) in self.commands

    def wire_or_default(self, wire: str | None) -> str:
        """`wire`, or the default one.

        Raises:
            ConfigurationError: the harness does not speak it.
        """
        if wire is None:
            return self.wires[0]
        if wire not in self.wires:
            raise ConfigurationError(
                f"{self.title} does not speak {wire}; --wire may be {', '.join(self.wires)}"
            )
        return wire


class _Reader:
    """A table of the file, read with errors that name the file and the key."""

    def __init__(self, table: Mapping[str, Any], where: str) -> None:
        self._table = dict(table)
        self._where = where

    def fail(self, key: str, why: str) -> ConfigurationError:
        return ConfigurationError(f"harness profile {self._where}: `{key}` {why}")

    def text(self, key: str, default: str | None = None) -> str:
        value = self._table.pop(key, default)
        if not isinstance(value, str) or (default is None and not value.strip()):
            raise self.fail(key, "must be a text")
        return value

    def texts(self, key: str) -> tuple[str, ...]:
        value = self._table.pop(key, [])
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self.fail(key, "must be a list of texts")
        return tuple(value)

    def table(self, key: str) -> dict[str, Any]:
        value = self._table.pop(key, {})
        if not isinstance(value, dict):
            raise self.fail(key, "must be a table")
        return value

    def tables(self, key: str) -> list[_Reader]:
        value = self._table.pop(key, [])
        if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
            raise self.fail(key, "must be a list of tables ([[…]])")
        return [_Reader(item, f"{self._where} [{key}]") for item in value]

    def wires(self, key: str, default: tuple[str, ...] = ()) -> tuple[str, ...]:
        found = self.texts(key) or default
        for wire in found:
            if wire not in WIRES:
                raise self.fail(key, f"names {wire!r}, which is none of {', '.join(WIRES)}")
        if not found:
            raise self.fail(key, "must name at least one wire")
        return found

    def done(self) -> None:
        for key in self._table:
            raise self.fail(key, "is no key of a profile")


def read_profile(path: Path) -> Profile:
    """The profile in a TOML file.

    Raises:
        ConfigurationError: it cannot be read or used; says where and why.
    """
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigurationError(f"harness profile {path.name}: {error}") from error
    return parse_profile(document, path.name)


def parse_profile(document: Mapping[str, Any], where: str) -> Profile:
    """The profile of a decoded document.

    Raises:
        ConfigurationError: says where and why.
    """
    reader = _Reader(document, where)
    wires = reader.wires("wires")
    env, wire_env = _environment(reader, wires)
    name = reader.text("name")
    profile = Profile(
        name=name,
        title=reader.text("title", name),
        wires=wires,
        commands=reader.texts("commands"),
        env=env,
        wire_env=wire_env,
        unset=reader.texts("unset"),
        words=_words(reader, wires),
        files=tuple(_file(inner, wires) for inner in reader.tables("files")),
        arguments=tuple(_arguments(inner) for inner in reader.tables("arguments")),
        example=reader.text("example", f"{name} …"),
        version=reader.texts("version"),
        package=reader.text("package", ""),
        needs=reader.text("needs", ""),
        notes=" ".join(reader.text("notes", "").split()),
        terminal_response=_pattern(reader),
        trajectory=_inside(reader, "trajectory", reader.text("trajectory", "")),
    )
    reader.done()
    _check_placeholders(profile, reader)
    return profile


def _environment(
    reader: _Reader, wires: tuple[str, ...]
) -> tuple[dict[str, str], dict[str, dict[str, str]]]:
    common: dict[str, str] = {}
    by_wire: dict[str, dict[str, str]] = {}
    for name, value in reader.table("env").items():
        if isinstance(value, dict):
            if name not in wires:
                raise reader.fail(f"env.{name}", "is the name of no wire of this harness")
            by_wire[name] = {key: _variable(reader, key, text) for key, text in value.items()}
        else:
            common[name] = _variable(reader, name, value)
    return common, by_wire


def _variable(reader: _Reader, name: str, value: Any) -> str:
    if not _VARIABLE.fullmatch(name):
        raise reader.fail(f"env.{name}", "is no name of a variable")
    if not isinstance(value, str) or "\0" in value:
        raise reader.fail(f"env.{name}", "must be a text")
    return value


def _words(reader: _Reader, wires: tuple[str, ...]) -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = {}
    for word, values in reader.table("words").items():
        if not isinstance(values, dict) or set(values) != set(wires):
            raise reader.fail(f"words.{word}", "must have one text for every wire")
        if word in PLACEHOLDERS or not _PLACEHOLDER.fullmatch("{" + word + "}"):
            raise reader.fail(f"words.{word}", "cannot be the name of a placeholder")
        if not all(isinstance(value, str) for value in values.values()):
            raise reader.fail(f"words.{word}", "must have one text for every wire")
        found[word] = dict(values)
    return found


def _file(reader: _Reader, wires: tuple[str, ...]) -> ConfigFile:
    path = _inside(reader, "path", reader.text("path"))
    kind = reader.text("format")
    if kind not in FORMATS:
        raise reader.fail("format", f"must be one of {', '.join(FORMATS)}")
    content = reader.text("content")
    chosen = reader.wires("wires", wires)
    reader.done()
    return ConfigFile(path, kind, content, chosen)


def _inside(reader: _Reader, key: str, path: str) -> str:
    if Path(path).is_absolute() or ".." in Path(path).parts or "\0" in path:
        where = "private" if key == "path" else "working"
        raise reader.fail(key, f"must stay inside the {where} folder")
    return path


def _arguments(reader: _Reader) -> Arguments:
    found = Arguments(reader.texts("add"), reader.texts("unless"))
    if not found.add:
        raise reader.fail("add", "must have at least one argument")
    reader.done()
    return found


def _pattern(reader: _Reader) -> re.Pattern[str] | None:
    text = reader.text("terminal_response", "")
    if not text:
        return None
    try:
        pattern = re.compile(text, re.MULTILINE)
    except re.error as error:
        raise reader.fail("terminal_response", f"is no regular expression: {error}") from error
    if pattern.groups != 1:
        raise reader.fail("terminal_response", "must have one group, the id")
    return pattern


def _check_placeholders(profile: Profile, reader: _Reader) -> None:
    known = set(PLACEHOLDERS) | set(profile.words)
    parts: list[tuple[str, Iterable[str]]] = [
        ("env", profile.env.values()),
        ("arguments", (text for item in profile.arguments for text in item.add)),
        ("files", (file.content for file in profile.files)),
    ]
    parts += [(f"env.{wire}", found.values()) for wire, found in profile.wire_env.items()]
    for key, texts in parts:
        for text in texts:
            for name in _PLACEHOLDER.findall(text):
                if name not in known:
                    raise reader.fail(key, f"has the unknown placeholder {{{name}}}")


def fill(text: str, values: Mapping[str, str]) -> str:
    """`text` with every known placeholder replaced; what is unknown stays."""
    return _PLACEHOLDER.sub(lambda found: values.get(found[1], found[0]), text)


@cache
def shipped() -> Mapping[str, Profile]:
    """Every profile of the package by name, in the order of the names.

    Raises:
        ConfigurationError: one of them cannot be used.
    """
    found: dict[str, Profile] = {}
    for path in sorted(FOLDER.glob("*.toml")):
        profile = read_profile(path)
        if profile.name != path.stem:
            raise ConfigurationError(
                f"harness profile {path.name}: `name` must be {path.stem!r}, as the file"
            )
        found[profile.name] = profile
    return found


# Programs that only start another one, which stands behind their own options.
_LAUNCHERS = frozenset(("npx", "bunx", "uvx", "pipx", "pnpx", "env", "time", "nice", "nohup"))
_LAUNCHER_WORDS = frozenset(("run", "exec", "dlx", "x", "--"))


def program_at(command: tuple[str, ...]) -> int:
    """Where in `command` the harness's own program stands.

    Launchers such as `npx` are seen through as far as that is certain: options without a
    value of their own, and variables.
    """
    if not command or Path(command[0]).name not in _LAUNCHERS:
        return 0
    for index, word in enumerate(command[1:], 1):
        if word in _LAUNCHER_WORDS or word.startswith("-") or "=" in word:
            continue
        return index
    return 0


def program_name(word: str) -> str:
    """The plain name of a program: no folder, no scope, no version, no suffix."""
    name = word.replace("\\", "/").rpartition("/")[2]
    name = name.partition("@")[0] or name
    return re.sub(r"\.(exe|cmd|js|mjs|py)$", "", name)


def choose(command: tuple[str, ...], wanted: str | None) -> Profile:
    """The profile named by `--harness` (a name or a TOML file), else by the program.

    Raises:
        ConfigurationError: there is no such profile.
    """
    profiles = shipped()
    if wanted is not None:
        if wanted.endswith(".toml"):
            return read_profile(Path(wanted))
        if wanted not in profiles:
            raise ConfigurationError(
                f"there is no harness profile {wanted}; --harness may be "
                f"{', '.join(profiles)}, or a TOML file"
            )
        return profiles[wanted]
    name = program_name(command[program_at(command)]) if command else ""
    for profile in profiles.values():
        if name in profile.commands:
            return profile
    return profiles[ANY]
