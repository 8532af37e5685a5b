"""Messages as people read them: tool calls by kind, colours, pictures, whole and raw."""

from __future__ import annotations

import base64
import json
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from explorer.web.pictures import picture_bytes
from explorer.web.terminal import terminal_runs
from explorer.web.tool_kinds import tool_call
from tests.web.conftest import Site
from tests.web.parsing import read
from tests.web.seeds import FIRST, Maker, maker, write
from tests.web.serving import serving

PNG = base64.b64encode(b"\x89PNG\r\n\x1a\n" + bytes(64)).decode()
SVG = base64.b64encode(b"<svg xmlns='x' onload='alert(1)'/>").decode()


def kind_of(name: str, **arguments: Any) -> tuple[str, str, str]:
    """Kind, title and body of a tool call."""
    made, _ = tool_call(name, json.dumps(arguments, ensure_ascii=False))
    return made.kind, made.title, made.body


@pytest.mark.parametrize(
    ("name", "arguments", "expected"),
    [
        ("bash", {"command": "ls -l\nmake"}, ("command", "", "ls -l\nmake")),
        ("shell", {"command": ["bash", "-lc", "ls"]}, ("command", "", "bash -lc ls")),
        ("terminal", {"keystrokes": "q\n", "wait": 1.5}, ("command", "", "q\n")),
        ("Write", {"file_path": "a.py", "content": "x = 1\n"}, ("write", "a.py", "x = 1\n")),
        ("Read", {"file_path": "a.py", "limit": 3}, ("read", "a.py", "")),
        ("str_replace_based_edit_tool", {"command": "view", "path": "/a"}, ("read", "/a", "")),
        ("Grep", {"pattern": "lock", "path": "src"}, ("search", "lock in src", "")),
        ("apply_patch", {"input": "*** Begin Patch\n+x"}, ("patch", "", "*** Begin Patch\n+x")),
        ("get_weather", {"city": "Bern"}, ("json", "", '{"city": "Bern"}')),
        ("lookup", {"query": 5}, ("json", "", '{"query": 5}')),
    ],
)
def test_kind_by_shape(
    name: str, arguments: dict[str, Any], expected: tuple[str, str, str]
) -> None:
    assert kind_of(name, **arguments) == expected


def test_an_edit_is_a_difference_and_keeps_its_other_arguments() -> None:
    given = {"path": "a.py", "old_str": "a\nb", "new_str": "a\nc", "count": 2}
    made, _ = tool_call("edit", json.dumps(given))
    assert made.kind == "edit"
    assert made.diff is not None
    assert [(line.kind, line.text) for line in made.diff.lines if line.text] == [
        ("same", "a"),
        ("gone", "b"),
        ("new", "c"),
    ]
    assert made.rest == (("count", "2"),)


@pytest.mark.parametrize("arguments", ["", "[1, 2", "null", "[]", '"text"', "{}", "[" * 5000])
def test_arguments_of_any_shape_are_shown(arguments: str) -> None:
    made, _ = tool_call("bash", arguments)
    assert made.kind == "json"
    assert made.body[:100] == arguments[:100]


def test_size_04_digits_of_arguments_stay() -> None:
    text = '{"id": 107505301260286111, "note": "' + "x" * 100 + '", "f": 1.10}'
    made, _ = tool_call("lookup", text)
    assert '"id": 107505301260286111' in made.body
    assert '"f": 1.10' in made.body
    made, _ = tool_call("bash", '{"command": "ls", "id": 107505301260286111}')
    assert made.rest == (("id", "107505301260286111"),)


def test_uni_04_hidden_characters_of_a_command_are_shown() -> None:
    made, _ = tool_call("bash", json.dumps({"command": "rm -rf /tmp/safe \u202e# hctap"}))
    assert made.body == "rm -rf /tmp/safe \\u202e# hctap"


def test_colours_are_classes_and_other_escapes_stay_visible() -> None:
    runs = terminal_runs("ok \x1b[31;1mFAIL\x1b[0m \x1b[2Jgone \x1b]0;title\x07\x1b[38;5;9mx")
    assert runs[0] == ("", "ok ")
    assert runs[1] == ("a1 ab", "FAIL")
    assert runs[2] == ("", " \\x1b[2Jgone \\x1b]0;title\\x07")
    assert runs[3] == ("", "x")
    assert terminal_runs("plain") == ()
    assert terminal_runs("\x1b[2J") == ()


def test_only_what_it_claims_to_be_is_a_picture() -> None:
    assert picture_bytes(f"data:image/png;base64,{PNG}") is not None
    for url in (
        f"data:image/svg+xml;base64,{SVG}",
        f"data:image/png;base64,{SVG}",
        f"data:image/gif;base64,{PNG}",
        "data:image/png;base64,???",
        f"data:image/png,{PNG}",
        "https://evil.example/p.png",
        "",
    ):
        assert picture_bytes(url) is None


def asked(messages: list[dict[str, Any]]) -> Maker:
    """A rollout of one call that was asked with these messages."""
    made = maker("pictured")
    made.call("done", said=FIRST)
    made.rebody(0, messages)
    return made


def test_a_picture_is_text_until_somebody_asks(tmp_path: Path) -> None:
    parts = [
        {"type": "text", "text": "look"},
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PNG}"}},
        {"type": "image_url", "image_url": {"url": f"data:image/svg+xml;base64,{SVG}"}},
        {"type": "image_url", "image_url": {"url": "https://evil.example/p?d=SECRET"}},
    ]
    made = asked([{"role": "user", "content": parts}])
    base = f"/rollouts/{made.rollout.rollout_id}"
    with serving(tmp_path) as served:
        served.call(partial(write, served.store, made, 1.0, True, close=True))
        with httpx.Client(base_url=served.url, timeout=60) as client:
            twin = client.get(f"{base}/conversation.json").json()
            page = read(client.get(f"{base}/conversation").text)
            pictures = twin["turns"][0]["messages"][0]["pictures"]
            assert [bool(item["href"]) for item in pictures] == [True, False, False]
            assert not [e for e in page.elements if e.tag == "img"]
            assert "not loaded" in page.text
            shown = client.get(pictures[0]["href"])
            assert shown.content.startswith(b"\x89PNG")
            assert shown.headers["content-type"] == "image/png"
            assert shown.headers["x-content-type-options"] == "nosniff"
            policies = shown.headers.get_list("content-security-policy")
            assert any("sandbox" in policy for policy in policies)
            for other in (2, 3, 9):
                href = pictures[0]["href"].replace("part=1", f"part={other}")
                assert client.get(href).status_code == 404


def test_a_cut_message_is_whole_on_its_own_page(tmp_path: Path) -> None:
    long = "line of output <b>\n" * 2_000 + "the end"
    made = asked([{"role": "user", "content": long}, {"role": "tool", "content": 7}])
    base = f"/rollouts/{made.rollout.rollout_id}"
    with serving(tmp_path) as served:
        served.call(partial(write, served.store, made, 1.0, True, close=True))
        with httpx.Client(base_url=served.url, timeout=60) as client:
            turn = client.get(f"{base}/conversation.json").json()["turns"][0]
            message = turn["messages"][0]
            assert message["cut_chars"] == len(long) - 3_000
            page = read(client.get(message["raw_href"]).text)
            assert "the end" in page.text
            twin = client.get(message["raw_href"].replace("/message?", "/message.json?")).json()
            assert twin["text"] == long
            assert json.loads(twin["raw"]) == {"role": "user", "content": long}
            reply = turn["messages"][-1]["raw_href"].replace("/message?", "/message.json?")
            assert "107505301260286111" in client.get(reply).json()["raw"]
            for bad in ("n=99", "n=-1", "n=x", "n="):
                call = made.calls[0].call_id
                assert client.get(f"{base}/message?call={call}&{bad}").status_code == 404
            assert client.get(f"{base}/message?call=none&n=0").status_code == 404


def test_reasoning_is_folded_and_counted(site: Site) -> None:
    page = read(site.text("/rollouts/{small}/conversation"))
    folds = [e for e in page.elements if e.attributes.get("class") == "reasoning"]
    assert len(folds) == 3
    assert all(e.tag == "details" and "open" not in e.attributes for e in folds)
    assert "I should look first." in folds[0].text


def test_size_03_the_first_page_of_280_turns_is_small(long_site: Site) -> None:
    page = long_site.text("/rollouts/{long}/conversation")
    assert len(page.encode()) < 300_000
    assert 'data-turn="1"' in page
    twin: Any = long_site.json("/rollouts/{long}/conversation.json")
    assert twin["total_turns"] == 280
    assert "turn=" in twin["more_href"]
