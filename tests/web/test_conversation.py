"""The conversation: what each turn adds, and how the reply before came back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.web.conftest import Site
from tests.web.parsing import read
from tests.web.seeds import FIRST, TOOL_OUTPUT, Maker, maker, said_message, write
from tests.web.serving import serving


def turns_of(site: Site, name: str) -> list[dict[str, Any]]:
    """The turns of a seed's default branch."""
    turns = site.json(f"/rollouts/{{{name}}}/conversation.json")["turns"]
    assert isinstance(turns, list)
    return turns


def shown(made: Maker, folder: Path) -> tuple[list[dict[str, Any]], dict[str, Any], str]:
    """Turns, twin and page text of a rollout of its own."""
    address = f"/rollouts/{made.rollout.rollout_id}/conversation"
    with serving(folder) as served:
        served.call(lambda: write(served.store, made, 1.0, True, close=True))
        with httpx.Client(base_url=served.url, timeout=60) as client:
            twin = client.get(f"{address}.json").json()
            return twin["turns"], twin, read(client.get(address).text).text


def test_a_turn_shows_only_what_is_new(site: Site) -> None:
    first, *later = turns_of(site, "small")
    assert [m["role"] for m in first["messages"]] == ["system", "user", "assistant"]
    assert first["earlier"] == 0
    for number, turn in enumerate(later, 1):
        assert [m["role"] for m in turn["messages"]] == ["tool", "assistant"]
        assert turn["earlier"] == 1 + 2 * number
        assert turn["echo"] == ""
        assert not any(message["note"] for message in turn["messages"])


def test_every_earlier_message_can_be_reached(site: Site) -> None:
    page = read(site.text("/rollouts/{small}/conversation"))
    assert "5 earlier messages as sent" in page.text
    last = turns_of(site, "small")[-1]
    roles = [item["role"] for item in last["folded"]]
    assert roles == ["system", "user", "assistant", "tool", "assistant"]
    assert last["folded"][3]["text"] == " ".join(TOOL_OUTPUT.split())
    raw = site.text(last["call_href"])
    assert "You are a careful agent" in raw
    assert page.text.count("You are a careful agent") == 3  # once shown, twice folded


def test_folds_stay_small_in_a_long_conversation(long_site: Site) -> None:
    turns = long_site.json("/rollouts/{long}/conversation.json?turn=200")["turns"]
    assert isinstance(turns, list)
    assert turns[0]["earlier"] > 390
    assert len(turns[0]["folded"]) <= 12
    assert max(len(item["text"]) for item in turns[0]["folded"]) < 150


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"reasoning_content": None}, "echoed without reasoning"),
        ({"reasoning_content": "Another thought."}, "echoed with other reasoning"),
    ],
)
def test_an_echo_without_its_reasoning_is_said(
    tmp_path: Path, change: dict[str, Any], words: str
) -> None:
    made = maker("echo")
    one = made.call("look", said=FIRST)
    made.messages[one][-1] |= change
    made.call("done", parent=one, said=(("tool", TOOL_OUTPUT),))
    turns, _, page = shown(made, tmp_path)
    assert [m["role"] for m in turns[1]["messages"]] == ["tool", "assistant"]
    assert turns[1]["echo"] == f"The reply of turn 1 was {words}."
    assert turns[1]["echo"] in page


def test_a_changed_echo_is_shown_with_a_note(tmp_path: Path) -> None:
    made = maker("changed")
    one = made.call("look", said=FIRST)
    made.messages[one][-1] |= {"content": "look twice"}
    made.call("done", parent=one, said=(("tool", TOOL_OUTPUT),))
    turns, _, _ = shown(made, tmp_path)
    notes = [(m["role"], m["note"]) for m in turns[1]["messages"]]
    assert notes == [("assistant", "echoed, but changed"), ("tool", ""), ("assistant", "")]
    assert turns[1]["echo"] == ""


def test_after_a_break_everything_is_shown_and_the_cause_is_said(tmp_path: Path) -> None:
    made = maker("forgetful")
    one = made.call("look", said=FIRST)
    made.call("done", said=(*FIRST, ("assistant", "…"), ("tool", TOOL_OUTPUT)))
    echoed = {**made.messages[one][-1], "reasoning_content": None}
    rendered = [*made.messages[one][:-1], echoed, said_message("tool", TOOL_OUTPUT)]
    made.rebody(1, rendered)
    turns, twin, page = shown(made, tmp_path)
    assert twin["broke"]["kind"] == "break"
    assert "Prefix broke at token" in page
    (turn,) = turns
    assert turn["label"] == "2"
    assert [m["role"] for m in turn["messages"]] == [
        "system",
        "user",
        "assistant",
        "tool",
        "assistant",
    ]
    assert [m["note"] for m in turn["messages"] if m["note"]] == ["echoed without reasoning"]


def test_too_many_new_messages_are_folded_and_counted(tmp_path: Path) -> None:
    made = maker("many")
    one = made.call("look", said=FIRST)
    made.call("done", parent=one, said=tuple(("user", f"note {n}") for n in range(25)))
    turns, _, page = shown(made, tmp_path)
    assert turns[1]["skipped"] == 15
    assert turns[1]["earlier"] == 18
    assert len(turns[1]["messages"]) == 11
    assert "18 earlier messages as sent, 15 of them new" in page


def asked_with(
    messages: list[dict[str, Any]], folder: Path
) -> tuple[list[dict[str, Any]], str]:
    """The messages shown of one call that was asked with `messages`, and the page's text."""
    made = maker("asked")
    made.call("done", said=FIRST)
    made.rebody(0, messages)
    turns, _, page = shown(made, folder)
    return turns[0]["messages"], page


def tool_call(name: str, call_id: str, arguments: str = '{"q": 1}') -> dict[str, Any]:
    function = {"name": name, "arguments": arguments}
    return {"id": call_id, "type": "function", "function": function}


def test_tool_08_empty_arguments_are_said_and_stay_empty(tmp_path: Path) -> None:
    calls = [tool_call("now", "c1", "")]
    asked = [{"role": "assistant", "content": None, "tool_calls": calls}]
    messages, page = asked_with(asked, tmp_path)
    (made,) = messages[0]["tool_calls"]
    assert (made["name"], made["arguments"], made["kind"]) == ("now", "", "json")
    assert "no arguments" in page


def test_tool_09_results_without_an_id_are_not_paired_by_a_guess(tmp_path: Path) -> None:
    calls = [tool_call("look", "c1"), tool_call("look", "c2")]
    asked: list[dict[str, Any]] = [
        {"role": "assistant", "content": None, "tool_calls": calls},
        {"role": "tool", "content": "first"},
        {"role": "tool", "content": "second", "name": "look"},
        {"role": "tool", "content": "third", "tool_call_id": "c2"},
    ]
    messages, page = asked_with(asked, tmp_path)
    told = [(m["name"], m["text"], m["note"]) for m in messages if m["role"] == "tool"]
    assert told == [
        ("", "first", "unpaired result"),
        ("look", "second", "unpaired result"),
        ("c2", "third", ""),
    ]
    assert page.count("unpaired result") == 2
