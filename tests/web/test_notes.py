"""Labels and notes: through the API, through the page, into exports when asked for."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from explorer.engine.tiny import TinyEngine
from explorer.trace.verify import verify
from tests.live import Live, serving


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    with serving(TinyEngine(), tmp_path_factory.mktemp("notes") / "s.duckdb") as found:
        yield found


def rollout(live: Live) -> tuple[str, dict[str, Any]]:
    rollout_id, key = live.create(run="notes", task="t")
    assert live.chat(key).status_code == 200
    live.api("POST", f"/api/v1/rollouts/{rollout_id}/reward", {"reward": 1.0})
    live.api("POST", f"/api/v1/rollouts/{rollout_id}/close", {"ok": True})
    return rollout_id, live.calls(rollout_id)[0]


def label(live: Live, rollout_id: str, name: str) -> dict[str, Any]:
    body = {"rollout_id": rollout_id, "label": name}
    made: dict[str, Any] = live.api("POST", "/api/v1/labels", body, status=201)
    return made


def test_a_note_is_written_read_and_withdrawn(live: Live) -> None:
    rollout_id, call = rollout(live)
    base = f"/api/v1/rollouts/{rollout_id}/annotations"
    before = live.api("GET", f"/api/v1/rollouts/{rollout_id}")["verdict"]
    first = call["prompt_len"]
    span = {"call_id": call["call_id"], "start": first, "end": first + 1}
    made = live.api(
        "POST", base, {"label": "odd", "note": "why?", "who": "Ada", **span}, status=201
    )
    whole = live.api(
        "POST", "/api/v1/labels", {"rollout_id": rollout_id, "label": "odd"}, status=201
    )
    assert live.api("GET", base)["annotations"] == [made, whole]
    assert {"label": "odd", "n_rollouts": 1} in live.api("GET", "/api/v1/labels")["labels"]
    assert live.api("GET", f"/api/v1/rollouts/{rollout_id}")["verdict"] == before
    live.api("DELETE", f"{base}/{made['annotation_id']}", status=204)
    assert live.api("GET", base)["annotations"] == [whole]
    live.api("DELETE", f"{base}/{made['annotation_id']}", status=404)
    # Another rollout's address does not reach it.
    other, _ = rollout(live)
    live.api(
        "DELETE", f"/api/v1/rollouts/{other}/annotations/{whole['annotation_id']}", status=404
    )


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({}, "give a `label`, a `note`, or both"),
        ({"label": "<b>"}, "a `label` has letters"),
        ({"label": "x" * 61}, "61 letters"),
        ({"label": 5}, "must be text"),
        ({"note": "\ud800"}, "lone surrogate"),
        ({"note": "n", "call_id": "ca_other"}, "`call_id` must be a call of this rollout"),
        ({"note": "n", "start": 0, "end": 1}, "count tokens of a `call_id`"),
        ({"note": "n", "colour": "red"}, "unknown fields colour"),
    ],
)
def test_a_bad_note_says_what_to_change(live: Live, body: dict[str, object], said: str) -> None:
    rollout_id, _ = rollout(live)
    answer = live.api("POST", f"/api/v1/rollouts/{rollout_id}/annotations", body, status=422)
    assert said in answer["error"]["message"]
    assert live.api("GET", f"/api/v1/rollouts/{rollout_id}/annotations")["annotations"] == []


def test_a_span_must_lie_in_its_call(live: Live) -> None:
    rollout_id, call = rollout(live)
    base = f"/api/v1/rollouts/{rollout_id}/annotations"
    length = call["prompt_len"] + call["completion_len"]
    body = {"note": "n", "call_id": call["call_id"], "start": 0, "end": length}
    live.api("POST", base, body, status=201)
    for start, end in ((0, length + 1), (3, 3), (-1, 2), (0, None), (True, 2)):
        live.api("POST", base, body | {"start": start, "end": end}, status=422)


def test_the_page_writes_shows_and_withdraws(live: Live) -> None:
    rollout_id, call = rollout(live)
    page = f"{live.url}/rollouts/{rollout_id}/notes"
    form = {
        "label": "reward-hack", "note": "<img src=x onerror=alert(1)>\r\n\u202eline two",
        "who": "Ada", "call_id": call["call_id"], "start": str(call["prompt_len"]),
        "end": str(call["prompt_len"] + 1),
    }  # fmt: skip
    same = {"origin": live.url, "sec-fetch-site": "same-origin"}
    assert httpx.post(page, data=form).status_code in (401, 403)
    reply = httpx.post(page, data=form, headers=same)
    assert reply.status_code == 303, reply.text
    httpx.post(page, data={"label": "whole one"}, headers=same)
    twin = httpx.get(page + ".json").json()
    assert [note["label"] for note in twin["notes"]] == ["reward-hack", "whole one"]
    assert twin["notes"][0]["concerns"].endswith(f"token {call['prompt_len']:,}")
    assert twin["header"]["labels"] == ["whole one"]
    shown = httpx.get(page).text
    assert "<img src=x" not in shown
    assert "\u202e" not in shown
    assert "&lt;img src=x onerror=alert(1)&gt;\n" in shown
    # The token's own panel says it.
    panel = httpx.get(
        f"{live.url}/rollouts/{rollout_id}/tokens/inspect.json",
        params={"t": call["prompt_len"]},
    ).json()
    assert panel["token"]["notes"] == [
        "Ada: reward-hack: <img src=x onerror=alert(1)>\n\\u202eline two"
    ]
    bad = httpx.post(page, data={"label": "", "who": "Ada"}, headers=same)
    assert bad.status_code == 422
    assert "Back leads to the form" in bad.text
    for note in twin["notes"]:
        assert httpx.post(live.url + note["withdraw_href"], headers=same).status_code == 303
    assert httpx.get(page + ".json").json()["notes"] == []


def test_notes_are_in_an_export_only_when_asked_for(live: Live) -> None:
    rollout_id, _ = rollout(live)
    address = f"{live.url}/api/v1/rollouts/{rollout_id}/capture-audit"
    plain = httpx.get(address)
    label(live, rollout_id, "good")
    again = httpx.get(address)
    assert again.content == plain.content
    assert again.headers["etag"] == plain.headers["etag"]
    noted = httpx.get(address, params={"notes": 1})
    assert [each["label"] for each in json.loads(noted.content)["annotations"]] == ["good"]
    assert noted.headers["etag"] != plain.headers["etag"]
    for document in (plain.content, noted.content):
        report = verify(document)
        assert report.ok, report.problems
    label(live, rollout_id, "bad")
    later = httpx.get(address, params={"notes": 1})
    assert later.headers["etag"] != noted.headers["etag"]
    assert len(json.loads(later.content)["annotations"]) == 2
    assert httpx.get(address, params={"notes": "yes"}).status_code == 422
    assert httpx.get(address, params={"notes": 1, "format": "contract"}).status_code == 422
    assert httpx.get(address, params={"note": 1}).status_code == 422


def test_ticked_rollouts_are_labelled_together(live: Live) -> None:
    several = [rollout(live)[0] for _ in range(3)]
    same = {"origin": live.url, "sec-fetch-site": "same-origin"}
    address = f"{live.url}/rollouts/labels"
    form = {"id": several, "label": "odd one", "who": "Ada"}
    assert httpx.post(address, data=form).status_code in (401, 403)
    reply = httpx.post(address, data=form, headers=same)
    assert reply.status_code == 303, reply.text
    twin = httpx.get(live.url + reply.headers["location"].replace("?", ".json?", 1)).json()
    assert {row["rollout_id"] for row in twin["rows"]} == set(several)
    for wrong in (form | {"id": []}, form | {"label": ""}, form | {"label": "<b>"}):
        bad = httpx.post(address, data=wrong, headers=same)
        assert bad.status_code == 422, bad.text
    # All or none: an id that is not there labels nothing.
    lost = httpx.post(
        address, data=form | {"id": [*several, "ro_gone"], "label": "x"}, headers=same
    )
    assert lost.status_code == 404
    assert "x" not in [each["label"] for each in live.api("GET", "/api/v1/labels")["labels"]]
