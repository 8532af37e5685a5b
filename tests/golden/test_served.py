"""The golden rollouts in a running server: page, API and download say what the files say.

Left out are those whose verdict is made with something that the server here has not: a policy
of its own, bytes that contradict the record; and the deleted one, which is no longer shown.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import httpx
import pytest

from explorer.capture.ids import uuid7
from explorer.engine.scripted import ScriptedEngine
from explorer.records import CallId, EventKind, RolloutEvent, RolloutId
from explorer.store.interface import Store
from explorer.store.rows import override_payload
from explorer.trace.refusals import Need
from tests.golden.reading import CERTIFICATES, Golden, names, read
from tests.live import Live, serving

TIME = 1_800_000_000_000_000
ELSEWHERE = frozenset(("policy", "contradicted"))
GONE = ("verdicts", "rollout_deleted", "fails")


def chosen() -> list[tuple[str, str, str]]:
    found = [
        (kind, name, end)
        for kind in ("masks", "verdicts")
        for end in ("fails", "passes")
        for name in sorted(names(kind, end))
    ]
    return [key for key in found if key != GONE and not ELSEWHERE & set(read(*key).document)]


CHOSEN = chosen()


@dataclass(frozen=True, slots=True)
class Stored:
    """A golden rollout under ids of the store."""

    golden: Golden
    rollout_id: RolloutId
    calls: dict[str, str]


async def _store(store: Store, golden: Golden, number: int) -> Stored:
    record = golden.record
    rollout_id = RolloutId(uuid7(TIME + number * 1_000_000))
    renamed = {
        call.call_id: CallId(uuid7(TIME + number * 1_000_000 + place))
        for place, call in enumerate(record.calls, 1)
    }
    certificate = record.certificate
    certificate_id = None if certificate is None else certificate.certificate_id
    await store.add_rollout(
        replace(
            record.rollout,
            rollout_id=rollout_id,
            certificate_id=certificate_id,
            created_us=TIME,
        )
    )
    for call in record.calls:
        stored = replace(call, rollout_id=rollout_id, call_id=renamed[call.call_id])
        await store.commit_call(stored, [])
    for event in record.events:
        await store.add_event(replace(event, rollout_id=rollout_id, sequence=-1))
    for item in record.overrides:
        named = None if item.call_id is None else renamed[item.call_id]
        payload = override_payload(replace(item, call_id=named))
        override = RolloutEvent(rollout_id, -1, 9, EventKind.OVERRIDE, payload=payload)
        await store.add_event(override)
    return Stored(golden, rollout_id, {str(new): str(old) for old, new in renamed.items()})


@dataclass(frozen=True, slots=True)
class Site:
    """The server, a client that holds the operator's token, and what was stored."""

    live: Live
    client: httpx.Client
    stored: dict[tuple[str, str, str], Stored]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    path = tmp_path_factory.mktemp("golden") / "store.duckdb"
    with serving(ScriptedEngine([{"when": {"contains": ""}, "text": "ok"}]), path) as live:

        async def fill() -> dict[tuple[str, str, str], Stored]:
            for certificate in CERTIFICATES.values():
                if certificate is not None:
                    await live.store.add_certificate(certificate)
            return {
                key: await _store(live.store, read(*key), number)
                for number, key in enumerate(CHOSEN)
            }

        done = asyncio.run_coroutine_threadsafe(fill(), live.loop)
        stored = done.result(timeout=300)
        token = {"authorization": f"Bearer {live.token}"}
        with httpx.Client(base_url=live.url, headers=token, timeout=30) as client:
            yield Site(live, client, stored)


@pytest.mark.parametrize("key", CHOSEN, ids="-".join)
def test_page_api_and_download_say_what_the_file_says(
    site: Site, key: tuple[str, str, str]
) -> None:
    here, get = site.stored[key], site.client.get
    golden, base = here.golden, f"/api/v1/rollouts/{here.rollout_id}"
    codes = [code for code in golden.reasons if code != "reward_missing"]

    def named(reasons: list[dict[str, Any]]) -> dict[str, list[str]]:
        return {
            reason["code"]: [here.calls[call_id] for call_id in reason["call_ids"]]
            for reason in reasons
        }

    verdict = get(base).json()["verdict"]
    assert verdict["trainable"] is not bool(codes)
    assert named(verdict["reasons"]) == {code: golden.reasons[code] for code in codes}
    needs = "?needs=reward" if Need.REWARD in golden.needs else ""
    answer = get(f"{base}/training-trace{needs}")
    if golden.trainable:
        assert answer.status_code == 200
        ones = sum(sum(turn["loss_mask"]) for turn in answer.json()["turns"])
        sampled = sum(
            end - start
            for _, _, spans in golden.calls.values()
            for start, end, why in spans
            if why == "sampled"
        )
        assert ones == sampled == verdict["supervised_tokens"]
    else:
        assert answer.status_code == 409
        error = answer.json()["error"]
        assert named(error["details"]["reasons"]) == golden.reasons
    page = get(f"/rollouts/{here.rollout_id}/conversation.json").json()["header"]
    button = page["downloads"][0]
    assert button["enabled"] is not bool(codes)
    if codes and not needs:
        assert button["reason"] == f"Refused: {answer.json()['error']['message']}"
    audit = get(f"{base}/capture-audit").json()
    assert named(audit["verdict"]["reasons"]) == named(verdict["reasons"])
    for call in audit["calls"]:
        role, rule, spans = golden.calls[CallId(here.calls[call["call_id"]])]
        assert (call["role"], call["rule"]) == (role, rule)
        # The audit leaves out what the row has of its ancestors.
        own = [list(span) for span in spans if span[0] >= call["mask_from"]]
        assert call["mask_spans"] == own


def test_a_deleted_rollout_is_not_shown(site: Site) -> None:
    made = _store(site.live.store, read(*GONE), len(CHOSEN) + 1)
    done = asyncio.run_coroutine_threadsafe(made, site.live.loop)
    base = f"/api/v1/rollouts/{done.result(timeout=60).rollout_id}"
    for path in (base, f"{base}/training-trace", f"{base}/capture-audit"):
        assert site.client.get(path).status_code == 404
