"""A person's decision from the page: recorded, shown, and refused in words."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from explorer.engine.tiny import TinyEngine
from tests.live import Live, serving
from tests.web.test_exports import rollout

PAGE = {"sec-fetch-site": "same-origin", "accept": "text/html"}


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    store = tmp_path_factory.mktemp("deciding") / "store.duckdb"
    with serving(TinyEngine(), store) as running:
        yield running


def post(live: Live, name: str, headers: Any = PAGE, **fields: str) -> httpx.Response:
    return httpx.post(
        f"{live.url}/rollouts/{name}/overrides", data=fields, headers=headers, timeout=30
    )


def calls_of(live: Live, name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = live.api("GET", f"/api/v1/rollouts/{name}/calls")["calls"]
    return found


def test_a_decision_is_recorded_and_shown(live: Live) -> None:
    name = rollout(live)
    call = calls_of(live, name)[1]
    reason = '<img src=x onerror="alert(1)"> \u202e leaks'
    done = post(
        live, name, kind="exclude_call", call_id=call["call_id"], reason=reason, who="Ada"
    )
    assert done.status_code == 303
    assert done.headers["location"] == f"/rollouts/{name}/findings#decisions"
    after = live.api("GET", f"/api/v1/rollouts/{name}/calls/{call['call_id']}")
    assert {span["reason"] for span in after["mask_spans"]} >= {"excluded_by_user"}
    html = httpx.get(f"{live.url}/rollouts/{name}/findings").text
    assert "<img" not in html
    twin = httpx.get(f"{live.url}/rollouts/{name}/findings.json").json()
    row = twin["decisions"][0]
    assert (row["who"], row["concerns"]) == ("Ada", "turn 1")
    assert row["call_href"] == f"/rollouts/{name}/requests/{call['call_id']}"
    assert [choice["value"] for choice in twin["form"]["calls"]][1] == call["call_id"]


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({}, "`kind` must be one of"),
        ({"kind": "exclude_call"}, "give `reason`"),
        ({"kind": "exclude_call", "reason": "r"}, "`call_id` must be a call"),
        ({"kind": "exclude_call", "reason": "r", "call_id": "x"}, "`call_id` must be a call"),
        ({"kind": "exclude_span", "reason": "r", "start": "1"}, "`call_id` must be a call"),
        ({"kind": "sampled", "reason": "r"}, "`kind` must be one of"),
        ({"kind": "role", "reason": "r", "logprobs": "0"}, "unknown field"),
    ],
)
def test_a_form_that_is_not_filled_says_what_is_missing(
    live: Live, fields: dict[str, str], said: str
) -> None:
    refused = post(live, rollout(live), **fields)
    assert refused.status_code == 422
    # Names in backticks are code on the page.
    shown = re.sub("</?code>", "", refused.text).replace("&#39;", "'")
    assert said.replace("`", "") in shown.lower()


@pytest.mark.parametrize("start", ["", "-1", "1e3", "٣", "99999999999999999999"])
def test_positions_are_plain_numbers(live: Live, start: str) -> None:
    name = rollout(live)
    call = calls_of(live, name)[1]["call_id"]
    fields = {"kind": "exclude_span", "reason": "r", "call_id": call, "end": "30"}
    assert post(live, name, **fields, start=start).status_code == 422


def test_a_span_without_a_sampled_token_is_refused_and_the_form_is_not_lost(live: Live) -> None:
    name = rollout(live)
    call = calls_of(live, name)[1]
    fields = {"kind": "exclude_span", "reason": "r", "call_id": call["call_id"], "start": "0"}
    first = call["prompt_len"]
    refused = post(live, name, **fields, end=str(first))
    assert refused.status_code == 422
    last = first + call["completion_len"]
    assert f"sampled ones are {first} up to, without, {last}" in refused.text
    assert "Back leads to the form" in refused.text
    twin = httpx.get(f"{live.url}/rollouts/{name}/findings.json").json()
    assert twin["decisions"] == []
    assert post(live, name, **fields, end=str(first + 1)).status_code == 303
    verdict = live.api("GET", f"/api/v1/rollouts/{name}")["verdict"]
    assert verdict["masked_tokens"]["excluded_by_user"] == 1


def test_the_inspector_says_who_decided_and_why(live: Live) -> None:
    name = rollout(live)
    first, last = calls_of(live, name)[1:3]
    at = last["prompt_len"] + 1
    span = {"kind": "exclude_span", "call_id": last["call_id"], "who": "Ada"}
    post(live, name, **span, start=str(at), end=str(at + 1), reason="<b>leaks")
    post(live, name, **span, start=str(at + 1), end=str(at + 2), reason="another")

    def why(index: int, call: str = str(last["call_id"])) -> str:
        address = f"{live.url}/rollouts/{name}/tokens/inspect.json"
        place = {"t": str(index), "branch": call}
        said: str = httpx.get(address, params=place).json()["token"]["why"]
        return said

    assert why(at).endswith("record. Ada: <b>leaks.")
    assert why(at + 2) == "The engine sampled it in this call, and it trains."
    post(live, name, kind="role", call_id=first["call_id"], role="auxiliary", reason="a test")
    assert why(first["prompt_len"], first["call_id"]).endswith(
        "The role was given by operator: a test."
    )
    assert why(0) == "Part of the prompt; the engine did not sample it."


def test_only_the_operator_decides(live: Live) -> None:
    name = rollout(live)
    call = calls_of(live, name)[1]["call_id"]
    fields = {"kind": "exclude_call", "reason": "r", "call_id": call}
    # A program on this machine may read and not change; another site's page neither.
    assert post(live, name, {}, **fields).status_code == 401
    assert post(live, name, {"sec-fetch-site": "cross-site"}, **fields).status_code == 403
    bearer = {"authorization": f"Bearer {live.token}"}
    assert post(live, name, bearer, **fields).status_code == 303
    assert (
        post(live, "01a228ed-1a24-7bb6-82e6-db4332c09e5f", bearer, **fields).status_code == 404
    )
