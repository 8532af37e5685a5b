"""Tool calls by what they do: a command, an edit, a file, a search; anything else as JSON.

Owns: which kind a call is, from the names of its arguments and its own name.
Must not know: HTML, where a call comes from.

A kind is only a way to draw: the arguments in their original spelling are kept beside it,
and what does not fit a kind exactly is shown as the JSON it is.
"""

from __future__ import annotations

from typing import Any, Final

from explorer.web.contexts_messages import ToolCall
from explorer.web.pretty import Pairs, Spelled, dumps, loads, safe_text
from explorer.web.text_diff import diff_lines

BODY_CHARS: Final = 3_000
ARGUMENT_CHARS: Final = 200
ONE_LINE: Final = 100
DIFF_CHARS: Final = 60_000
_PATHS: Final = (
    "path",
    "file_path",
    "filepath",
    "filename",
    "file",
    "target_file",
    "notebook_path",
)
_OLD: Final = ("old_str", "old_string", "old_text", "search")
_NEW: Final = ("new_str", "new_string", "new_text", "replace", "replacement")
_WRITTEN: Final = ("content", "file_text", "contents", "new_content", "text")
_COMMANDS: Final = ("command", "cmd", "keystrokes", "script", "commands")
_PATTERNS: Final = ("pattern", "query", "regex", "q", "glob_pattern")
_PATCHES: Final = ("patch", "diff", "input")
_READS: Final = ("read", "view", "open", "cat", "show", "list", "ls")
_SEARCHES: Final = ("grep", "search", "glob", "find", "rg")


def tool_call(name: str, arguments: str) -> tuple[ToolCall, int]:
    """A tool call as it is drawn, and how many characters were left out."""
    shown, cut = _cut(arguments)
    given = _object(arguments)
    if given is None:
        body, left = _cut(_indented(arguments))
        return _made(name, shown, "json", "", body, ()), max(cut, left)
    title, path_key = _text_of(given, _PATHS)
    old, old_key = _text_of(given, _OLD)
    new, new_key = _text_of(given, _NEW)
    if title and old_key and new_key:
        return _edit(name, shown, given, (title, old, new), (path_key, old_key, new_key)), 0
    for keys, kind, fits in (
        (_PATCHES, "patch", _is_patch),
        (_WRITTEN, "write", lambda _: bool(title)),
        (_COMMANDS, "command", lambda _: not title or _said(name, ("bash", "shell", "exec"))),
        (_PATTERNS, "search", lambda _: _said(name, _SEARCHES)),
    ):
        text, key = _text_of(given, keys)
        if not key or not fits(text):
            continue
        used = (key, path_key)
        if kind == "search":
            where = f"{text} in {title}" if title else text
            return _made(name, shown, kind, where, "", _rest(given, used)), cut
        body, left = _cut(text)
        return _made(name, shown, kind, title, body, _rest(given, used)), left
    if (title and _said(name, _READS)) or (title and given.get("command") == "view"):
        return _made(name, shown, "read", title, "", _rest(given, (path_key,))), cut
    body, left = _cut(_indented(arguments))
    return _made(name, shown, "json", "", body, ()), left


def _made(
    name: str,
    arguments: str,
    kind: str,
    title: str,
    body: str,
    rest: tuple[tuple[str, str], ...],
) -> ToolCall:
    title = safe_text(title[:ARGUMENT_CHARS])
    return ToolCall(safe_text(name), arguments, kind, title, body, None, rest)


def _edit(
    name: str,
    arguments: str,
    given: Pairs,
    texts: tuple[str, str, str],
    keys: tuple[str, str, str],
) -> ToolCall:
    title, old, new = (text[:DIFF_CHARS] for text in texts)
    diff = diff_lines(old.split("\n"), new.split("\n"), "Edit", ("before", "after"))
    return ToolCall(
        name=safe_text(name),
        arguments=arguments,
        kind="edit",
        title=safe_text(title[:ARGUMENT_CHARS]),
        body="",
        diff=diff,
        rest=_rest(given, keys),
    )


def _object(arguments: str) -> Pairs | None:
    try:
        given = loads(arguments)
    except (ValueError, RecursionError):
        return None
    return given if isinstance(given, Pairs) and given else None


def _indented(arguments: str) -> str:
    """Long arguments indented; short ones and what is no JSON as they came."""
    if len(arguments) <= ONE_LINE:
        return arguments
    try:
        return dumps(loads(arguments))
    except (ValueError, RecursionError):
        return arguments


def _text_of(given: Pairs, keys: tuple[str, ...]) -> tuple[str, str]:
    """The first of these arguments that is text, or a list of words, and its name."""
    for key in keys:
        value: Any = given.get(key)
        if isinstance(value, str) and not isinstance(value, Spelled):
            return value, key
        if isinstance(value, list) and not isinstance(value, Pairs) and value:
            words = [v for v in value if isinstance(v, str) and not isinstance(v, Spelled)]
            if len(words) == len(value):
                return " ".join(words), key
    return "", ""


def _rest(given: Pairs, used: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    rest = []
    for key, value in given:
        if key in used:
            continue
        plain = isinstance(value, str)
        text = str(value) if plain else dumps(value)
        more = f" … {len(text) - ARGUMENT_CHARS:,} more characters"
        rest.append(
            (
                safe_text(key[:ARGUMENT_CHARS]),
                safe_text(text[:ARGUMENT_CHARS]) + more * (len(text) > ARGUMENT_CHARS),
            )
        )
    return tuple(rest)


def _is_patch(text: str) -> bool:
    return text.startswith(("*** Begin Patch", "--- ", "diff --git")) or "\n@@ " in text


def _said(name: str, parts: tuple[str, ...]) -> bool:
    return any(part in name.lower() for part in parts)


def _cut(text: str) -> tuple[str, int]:
    if len(text) <= BODY_CHARS:
        return safe_text(text), 0
    return safe_text(text[:BODY_CHARS]), len(text) - BODY_CHARS
