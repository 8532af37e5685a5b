"""One call, raw: what the proxy changed, what changed since the call before, its stream."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import httpx

from explorer.records import Body, BodyKind
from explorer.web.key_diff import key_changes
from explorer.web.text_diff import diff_bodies, diff_lines
from tests.web.conftest import Site
from tests.web.parsing import lookup, read
from tests.web.seeds import BIG_SEED, FIRST, TOOL_OUTPUT, Maker, maker, write
from tests.web.serving import serving

BIG = 107505301260286111


def request_of(made: Maker, number: int, folder: Path, query: str = "") -> tuple[Any, str]:
    """Twin and page of one call of a rollout of its own."""
    path = f"/rollouts/{made.rollout.rollout_id}/requests/{made.calls[number].call_id}"
    with serving(folder) as served:
        served.call(partial(write, served.store, made, 1.0, True, close=True))
        with httpx.Client(base_url=served.url, timeout=60) as client:
            twin = client.get(f"{path}.json?{query}")
            return twin.json(), client.get(f"{path}?{query}").text


def rebodied(made: Maker, number: int, kind: BodyKind, data: bytes) -> None:
    """Replace one raw body of a call."""
    made.bodies[number] = [
        Body(b.call_id, b.rollout_id, b.kind, data, b.headers) if b.kind is kind else b
        for b in made.bodies[number]
    ]


def test_what_the_proxy_changed_is_named_by_key(site: Site) -> None:
    call = site.made["small"].calls[0].call_id
    twin: Any = site.json(f"/rollouts/{{small}}/requests/{call}.json")
    found = {change["path"]: change for change in twin["sent"]}
    assert set(found) == {"temperature", "logprobs"}
    assert (found["temperature"]["asked"], found["temperature"]["sent"]) == ("0.7", "1.0")
    assert (found["logprobs"]["kind"], found["logprobs"]["sent"]) == ("added", "true")


def test_the_neighbour_is_the_call_it_goes_on_from(site: Site) -> None:
    made = site.made["small"]
    call = made.calls[2].call_id
    path = f"/rollouts/{{small}}/requests/{call}"
    twin: Any = site.json(f"{path}.json")
    assert twin["against"] == "turn 2"
    diff = twin["neighbour"]
    assert diff["gone"] <= 1  # the comma after what was the last message
    assert diff["new"] > 10
    assert any(line["kind"] == "fold" for line in diff["lines"])
    text = " ".join(line["text"] for line in diff["lines"])
    assert "You are a careful agent" not in text
    page = read(site.text(path))
    assert "Against the request of turn 2" in page.text
    for number in page.numbers:
        assert number.attributes["value"] == str(lookup(twin, number.attributes["data-k"]))


def test_any_other_call_can_be_named(site: Site) -> None:
    first, _, last = (call.call_id for call in site.made["small"].calls)
    path = f"/rollouts/{{small}}/requests/{last}"
    twin: Any = site.json(f"{path}.json?against={first}")
    assert twin["against"] == "turn 1"
    assert site.client.get(site.url(f"{path}?against=nobody")).status_code == 404
    alone: Any = site.json(f"/rollouts/{{small}}/requests/{first}.json")
    assert alone["neighbour"] is None
    assert alone["against"] == ""


def test_size_04_numbers_keep_every_digit_in_a_diff(tmp_path: Path) -> None:
    made = maker("digits")
    one = made.call("look", said=FIRST)
    made.call("done", parent=one, said=(("tool", TOOL_OUTPUT),))
    asked = f'{{"messages": [], "id": {BIG}, "seed": {BIG_SEED}, "x": 1.0, "n": 1}}'
    sent = f'{{"messages": [], "id": {BIG + 1}, "seed": {BIG_SEED}, "x": 1, "n": "1"}}'
    rebodied(made, 1, BodyKind.REQUEST, asked.encode())
    rebodied(made, 1, BodyKind.SUBMITTED, sent.encode())
    twin, page = request_of(made, 1, tmp_path)
    changes = {item["path"]: (item["asked"], item["sent"]) for item in twin["sent"]}
    assert changes == {
        "id": (str(BIG), str(BIG + 1)),
        "x": ("1.0", "1"),
        "n": ("1", '"1"'),
    }
    assert str(BIG) in page
    assert str(BIG + 1) in page


def test_a_repeated_key_and_white_space_are_told_apart() -> None:
    changes, note = key_changes(b'{"a": 1}', b'{"a":1}')
    assert (changes, note.split(";")[0]) == ((), "The same JSON")
    assert key_changes(b"[1]", b"[1]")[1].startswith("Sent as it was asked")
    assert "Not JSON" in key_changes(b"[1", b"[1]")[1]
    added, _ = key_changes(b"[1]", b'[1, {"b": null}]')
    assert [(c.path, c.kind, c.sent) for c in added] == [("[1]", "added", '{\n  "b": null\n}')]


def test_many_changes_are_counted_not_all_shown() -> None:
    before = json.dumps({str(n): 0 for n in range(500)}).encode()
    after = json.dumps({str(n): 1 for n in range(500)}).encode()
    changes, note = key_changes(before, after)
    assert len(changes) == 60
    assert "first 60" in note


def test_a_diff_of_huge_bodies_is_quick_and_says_what_it_left_out() -> None:
    before = json.dumps({"messages": ["x" * 1000 for _ in range(30_000)]}).encode()
    after = before[:-2] + b', "last"]}'
    began = time.perf_counter()
    found = diff_bodies(before, after, "huge", ("a", "b"))
    assert time.perf_counter() - began < 2
    assert not found.equal
    assert "Too large to compare line by line" in found.note
    assert found.lines[0].text == f"{len(before) - 2:,} equal bytes"


def test_a_diff_of_many_different_lines_is_bounded() -> None:
    before = [f"old {n % 7}" for n in range(50_000)]
    after = [f"new {n % 5}" for n in range(50_000)]
    began = time.perf_counter()
    found = diff_lines(["same", *before], ["same", *after], "many", ("a", "b"))
    assert time.perf_counter() - began < 2
    assert (found.gone, found.new) == (50_000, 50_000)
    assert "too many to align" in found.note
    assert len(found.lines) < 500


def test_equal_and_undecodable_bodies() -> None:
    assert diff_bodies(b"{}", b"{}", "t", ("a", "b")).equal
    spelled = diff_bodies('{"a": "é"}'.encode(), b'{"a": "\\u00e9"}', "t", ("a", "b"))
    assert spelled.equal
    assert spelled.note.startswith("The same JSON")
    broken = diff_bodies(b"\xff", b"\xfe", "t", ("a", "b"))
    assert not broken.equal
    assert "no text" in broken.note


def test_a_long_changed_line_shows_only_what_changed() -> None:
    before, after = "a" * 5000 + "X" + "b" * 5000, "a" * 5000 + "YY" + "b" * 5000
    gone, new = diff_lines([before], [after], "line", ("a", "b")).lines
    assert (gone.text, new.text) == ("X", "YY")
    assert "4,940 equal characters" in gone.head
    assert len(gone.head) < 120


def test_a_stream_is_shown_frame_by_frame(tmp_path: Path) -> None:
    made = maker("streamed")
    made.call("look", said=FIRST)
    made.calls[0] = replace(made.calls[0], stream=True)
    chunk = {"choices": [{"index": 0, "delta": {"content": "<b>lo</b>\u202e"}}]}
    data = f"data: {json.dumps(chunk, ensure_ascii=False)}\n\n".encode() * 250
    data += b"event: end\ndata: [DONE]\n\n"
    rebodied(made, 0, BodyKind.REPLY, data)
    twin, page = request_of(made, 0, tmp_path)
    assert twin["frames_total"] == 251
    assert len(twin["frames"]) == 200
    assert "first 200" in twin["frames_note"]
    assert "\\u202e" in twin["frames"][0]["data"]
    assert "<b>lo" not in page


def test_a_reply_that_is_no_stream_has_no_frames(site: Site) -> None:
    call = site.made["small"].calls[0].call_id
    twin: Any = site.json(f"/rollouts/{{small}}/requests/{call}.json")
    assert (twin["frames"], twin["frames_total"]) == ([], 0)
