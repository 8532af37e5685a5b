"""The profiles as shipped, and what is made of them."""

from __future__ import annotations

import json
import os
import re
import stat
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from explorer.errors import ConfigurationError
from explorer.harness.prepare import Prepared, Target, config_sha256, masked, prepare
from explorer.harness.profile import (
    OVERLAY,
    WIRES,
    Profile,
    choose,
    parse_profile,
    program_at,
    program_name,
    read_profile,
    shipped,
)
from explorer.records import Dialect

KEY = "rxk_" + "k" * 43
BASE = f"http://127.0.0.1:7860/k/{KEY}"
TARGET = Target(
    rollout_id="0192-id",
    key=KEY,
    page="http://127.0.0.1:7860/rollouts/0192-id",
    openai=f"{BASE}/v1",
    anthropic=BASE,
    google=BASE,
    model='org/"odd"\\model',
    context=4096,
)
PARSERS: dict[str, Callable[[str], Any]] = {
    "json": json.loads,
    "toml": tomllib.loads,
    "yaml": yaml.safe_load,
}
CASES = [(profile, wire) for profile in shipped().values() for wire in profile.wires]
every_case = pytest.mark.parametrize(
    ("profile", "wire"), CASES, ids=[f"{profile.name}-{wire}" for profile, wire in CASES]
)
WANTED = {
    *("opencode", "pi", "claude-code", "codex", "qwen-code", "gemini-cli", "vibe", "cline"),
    *("continue", "openhands", "mini-swe-agent", "terminus-2", "aider", "openai-sdk"),
    *("anthropic-sdk", "google-genai", "langgraph", "pydantic-ai", "smolagents"),
    *("openai-agents", "any"),
}
MINIMAL: dict[str, Any] = {
    "name": "x",
    "title": "X",
    "wires": ["chat", "messages"],
    "example": "x TASK",
}


def made(profile: Profile, wire: str, home: Path, *words: str, **env: str) -> Prepared:
    """A prepared run of the profile's own program."""
    program = profile.commands[0] if profile.commands else "python"
    return prepare(profile, wire, TARGET, (program, *words), home, env)


def leaves(value: Any) -> list[Any]:
    """Every value in a decoded document."""
    if isinstance(value, dict):
        return [leaf for item in value.items() for part in item for leaf in leaves(part)]
    if isinstance(value, list):
        return [leaf for item in value for leaf in leaves(item)]
    return [value]


def test_every_harness_has_a_profile() -> None:
    assert set(shipped()) == WANTED
    assert set(WIRES) == set(Dialect)


@every_case
def test_files_parse_and_hold_address_and_key(
    profile: Profile, wire: str, tmp_path: Path
) -> None:
    prepared = made(profile, wire, tmp_path)
    texts: list[Any] = list(prepared.environment.values()) + list(prepared.command)
    for file, path in zip(profile.files_for(wire), prepared.files, strict=True):
        assert path.is_relative_to(tmp_path)
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        decoded = PARSERS[file.format](path.read_text(encoding="utf-8"))
        assert isinstance(decoded, dict)
        texts += leaves(decoded)
    base = BASE if wire in ("messages", "google") else f"{BASE}/v1"
    if profile.name == "opencode":  # all of its adapters want /v1
        base = f"{BASE}/v1"
    assert base in texts, texts
    assert KEY in texts
    left = [text for text in texts if isinstance(text, str) and re.search(r"\{[a-z_]+\}", text)]
    assert left == []
    if any("{model}" in file.content for file in profile.files_for(wire)):
        # Quotes and backslashes in a name cannot break the file.
        assert any(TARGET.model in str(text) for text in texts)


@every_case
def test_nothing_of_the_persons_own_is_written(
    profile: Profile, wire: str, tmp_path: Path
) -> None:
    theirs, home = tmp_path / "theirs", tmp_path / "private"
    theirs.mkdir()
    home.mkdir()
    prepared = made(profile, wire, home, HOME=str(theirs))
    assert list(theirs.rglob("*")) == []
    assert prepared.environment["HOME"] == str(theirs)
    pointing = [name for name, text in prepared.environment.items() if str(home) in text]
    in_words = any(str(home) in word for word in prepared.command)
    assert bool(prepared.files) <= bool(pointing or in_words), "nobody finds the files"


@every_case
def test_a_rollout_is_named_and_our_settings_are_not_handed_on(
    profile: Profile, wire: str, tmp_path: Path
) -> None:
    theirs = {"ROLLOUT_EXPLORER_ADMIN_TOKEN": "rxa_secret", "PATH": "/bin"}
    theirs |= dict.fromkeys(profile.unset, "elsewhere")
    found = made(profile, wire, tmp_path, **theirs).environment
    assert found["ROLLOUT_EXPLORER_ROLLOUT_ID"] == TARGET.rollout_id
    assert found["ROLLOUT_EXPLORER_URL"] == TARGET.page
    assert "ROLLOUT_EXPLORER_ADMIN_TOKEN" not in found
    assert found["PATH"] == "/bin"
    assert "elsewhere" not in found.values()


@pytest.mark.parametrize("profile", shipped().values(), ids=lambda profile: profile.name)
def test_a_program_means_its_profile(profile: Profile) -> None:
    for name in profile.commands:
        assert choose((name, "x"), None) is profile
        assert choose((f"./node_modules/.bin/{name}",), None) is profile
    assert choose(("python", "x.py"), profile.name) is profile
    others = [other.commands for other in shipped().values() if other is not profile]
    assert not set(profile.commands) & {name for names in others for name in names}


@pytest.mark.parametrize(
    ("command", "name"),
    [
        (("npx", "-y", "@openai/codex@0.171.0", "exec", "x"), "codex"),
        (("npx", "@earendil-works/pi-coding-agent", "-p", "x"), "pi"),
        (("uvx", "mini-swe-agent", "-t", "x"), "mini-swe-agent"),
        (("env", "A=b", "claude", "-p", "x"), "claude-code"),
        (("pnpx", "cline"), "cline"),
        (("python", "pi.py"), "any"),
        (("sh", "-c", "codex exec x"), "any"),
        (("npx",), "any"),
    ],
)
def test_launchers_are_seen_through(command: tuple[str, ...], name: str) -> None:
    assert choose(command, None).name == name


def test_arguments_stand_behind_the_program_unless_given(tmp_path: Path) -> None:
    pi = shipped()["pi"]
    command = ("npx", "-y", "@earendil-works/pi-coding-agent", "-p", "do {key} it")
    assert program_at(command) == 2
    found = prepare(pi, "chat", TARGET, command, tmp_path / "a", {}).command
    assert found[:3] == command[:3]
    assert found[3:7] == ("--provider", "explorer", "--model", TARGET.model)
    # A task for the model is nobody's to fill in.
    assert found[7:] == ("-p", "do {key} it")
    own = made(pi, "chat", tmp_path / "b", "--model=explorer/other", "-p", "x").command
    assert own.count("--model") == 0
    assert own[1:3] == ("--provider", "explorer")


def test_a_script_around_a_harness_gets_no_arguments(tmp_path: Path) -> None:
    command = ("sh", "-c", "openhands --headless -t x")
    prepared = prepare(shipped()["openhands"], "chat", TARGET, command, tmp_path, {})
    assert prepared.command == command
    assert prepared.environment["LLM_BASE_URL"] == f"{BASE}/v1"


def test_words_of_a_person_may_hold_the_addresses(tmp_path: Path) -> None:
    words = ("--base={openai_base}", "{anthropic_base}", "{key}", '{"key":1}', "{home}")
    found = made(shipped()["any"], "chat", tmp_path, *words).command[1:]
    assert found == (f"--base={BASE}/v1", BASE, KEY, '{"key":1}', "{home}")


def test_a_persons_proxy_is_not_asked_for_this_machine(tmp_path: Path) -> None:
    profile = shipped()["any"]
    through = made(profile, "chat", tmp_path, HTTP_PROXY="http://p:1", NO_PROXY="a.example")
    assert through.environment["NO_PROXY"] == "a.example,127.0.0.1"
    assert through.environment["no_proxy"] == "127.0.0.1"
    assert "NO_PROXY" not in made(profile, "chat", tmp_path).environment


def test_a_public_address_is_the_one_handed_in() -> None:
    answer = {
        "rollout_id": "id",
        "capture_key": KEY,
        "base_urls": {"openai": f"{BASE}/v1", "anthropic": BASE, "google": BASE},
        "url": TARGET.page,
    }
    found = Target.of(answer, "http://host.docker.internal:7860/", "m", 1)
    assert found.openai == f"http://host.docker.internal:7860/k/{KEY}/v1"
    assert found.google == found.anthropic == f"http://host.docker.internal:7860/k/{KEY}"
    assert found.page == "http://host.docker.internal:7860/rollouts/id"
    assert Target.of(answer, None, "m", 1).openai == f"{BASE}/v1"


def test_masked_leaves_no_key() -> None:
    other = "rxa_" + "z" * 40
    shown = masked(f"a {KEY} /k/{KEY}/v1?key={KEY} {other} rxk_short", KEY)
    assert KEY not in shown
    assert "z" * 12 not in shown
    assert shown == "a rxk_*** /k/rxk_***/v1?key=rxk_*** rxa_*** rxk_short"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"wires": ["smoke"]}, "'smoke'"),
        ({"wires": []}, "at least one wire"),
        ({"name": ""}, "`name`"),
        ({"title": 3}, "`title`"),
        ({"colour": "red"}, "`colour` is no key"),
        ({"env": {"A B": "x"}}, "`env.A B`"),
        ({"env": {"A": 1}}, "`env.A`"),
        ({"env": {"google": {"A": "x"}}}, "`env.google`"),
        ({"env": {"A": "{bse}"}}, "{bse}"),
        ({"env": {"messages": {"A": "{bse}"}}}, "{bse}"),
        ({"words": {"api": {"chat": "x"}}}, "every wire"),
        ({"words": {"key": {"chat": "x", "messages": "y"}}}, "`words.key`"),
        ({"files": [{"path": "../x", "format": "json", "content": "{}"}]}, "private folder"),
        ({"files": [{"path": "/x", "format": "json", "content": "{}"}]}, "private folder"),
        ({"files": [{"path": "x", "format": "ini", "content": "a"}]}, "`format`"),
        ({"files": [{"path": "x", "format": "json", "content": "{a}"}]}, "{a}"),
        ({"files": {"path": "x"}}, "[[…]]"),
        ({"arguments": [{"unless": ["-m"]}]}, "at least one argument"),
        ({"terminal_response": "("}, "regular expression"),
        ({"terminal_response": "abc"}, "one group"),
    ],
)
def test_a_wrong_profile_says_where_and_why(change: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        parse_profile(MINIMAL | change, "mine.toml")
    assert said in refused.value.message
    assert "mine.toml" in refused.value.message


def test_a_profile_of_ones_own(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('name = "mine"\ntitle = "Mine"\nwires = ["chat"]\nexample = "x"\n')
    assert choose(("anything",), str(path)).name == "mine"
    path.write_text("name = ")
    with pytest.raises(ConfigurationError, match=r"mine\.toml"):
        read_profile(path)
    with pytest.raises(ConfigurationError, match=r"there is no harness profile nobody.*codex"):
        choose(("x",), "nobody")
    with pytest.raises(
        ConfigurationError, match=r"does not speak chat; --wire may be responses"
    ):
        shipped()["codex"].wire_or_default("chat")


def test_program_names() -> None:
    found = [program_name(word) for word in ("/a/b/pi", "@x/pi@1.2", "pi.cmd", "@scope", "")]
    assert found == ["pi", "pi", "pi", "@scope", ""]


def test_claude_code_declares_its_final_response() -> None:
    pattern = shipped()["claude-code"].terminal_response
    assert pattern is not None
    lines = [
        {"type": "system", "session_id": "s"},
        {"type": "assistant", "message": {"model": "m", "id": "msg_01-a", "role": "assistant"}},
        {"type": "assistant", "message": {"id": "msg_02-b", "content": [{"id": "toolu_1"}]}},
        {"type": "result", "result": "done"},
    ]
    text = "\n".join(json.dumps(line, separators=(",", ":")) for line in lines)
    assert pattern.findall(text) == ["msg_01-a", "msg_02-b"]


# -- the overlay ----------------------------------------------------------------------

CLIENT = """
def completion(model=None, **given):
    return "sync", given
async def acompletion(model=None, **given):
    return "async", given
def unrelated(**given):
    return given
"""
ASKING = """
import asyncio, importlib.resources, json, sys
from litellm import completion, acompletion, unrelated
given = {"base_url": "http://127.0.0.1:1", "api_base": "http://127.0.0.1:1"}
given["api_key"] = "theirs"
print(json.dumps([
    completion("m", **given)[1],
    asyncio.run(acompletion(model="m", **given))[1],
    unrelated(**given),
    completion.__name__,
    "other" in sys.modules,
    importlib.resources.files("litellm").joinpath("data.txt").read_text(),
]))
"""


def asked(folder: Path, **env: str) -> Any:
    """What a stand-in client is called with, in a fresh interpreter with the overlay."""
    client = folder / "litellm"
    client.mkdir()
    (client / "__init__.py").write_text(CLIENT)
    (client / "data.txt").write_text("found")
    (folder / "sitecustomize.py").write_text("import other\n")
    (folder / "other.py").write_text("")
    path = os.pathsep.join((str(OVERLAY), str(folder)))
    done = subprocess.run(
        [sys.executable, "-c", ASKING],
        env={"PYTHONPATH": path, "PATH": os.environ["PATH"]} | env,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert done.stderr == ""
    return json.loads(done.stdout)


def test_the_overlay_sends_a_sandboxed_client_where_the_environment_says(
    tmp_path: Path,
) -> None:
    reachable = "http://host.docker.internal:7860/k/x/v1"
    found = asked(tmp_path, EXPLORER_LLM_BASE_URL=reachable, EXPLORER_LLM_API_KEY="ours")
    told = {"api_base": reachable, "api_key": "ours"}
    theirs = {"base_url": "http://127.0.0.1:1", "api_base": "http://127.0.0.1:1"}
    theirs |= {"api_key": "theirs"}
    # The shadowed start-up file of the sandbox has run too.
    assert found == [told, told, theirs, "completion", True, "found"]


def test_the_overlay_changes_nothing_when_it_is_told_nothing(tmp_path: Path) -> None:
    found = asked(tmp_path)
    assert found[0] == found[1] == found[2]
    assert found[0]["api_key"] == "theirs"
    assert found[0]["base_url"] == "http://127.0.0.1:1"


def test_the_overlay_keeps_a_given_key_without_one_of_its_own(tmp_path: Path) -> None:
    found = asked(tmp_path, EXPLORER_LLM_BASE_URL="http://h/v1")
    assert found[0] == {"api_base": "http://h/v1", "api_key": "theirs"}


def test_one_set_up_has_one_digest() -> None:
    """Whatever key or address a run gets; another word on the command line is another one."""
    codex, pi = shipped()["codex"], shipped()["pi"]
    one = config_sha256(codex, "responses", ("codex", "exec", "fix it"))
    assert one == config_sha256(codex, "responses", ("codex", "exec", "fix it"))
    others = {
        config_sha256(codex, "responses", ("codex", "exec", "fix this")),
        config_sha256(pi, "responses", ("codex", "exec", "fix it")),
        config_sha256(pi, "chat", ("codex", "exec", "fix it")),
        config_sha256(codex, "responses", ("codex", "\udcff")),
    }
    assert len(others | {one}) == 5
