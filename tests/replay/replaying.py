"""Sends a recording through a running proxy as its harness would have.

The engine says what the recorded model said. Our ids take the place of the recorded ones in
everything that is sent later, since a harness sends back what it was given.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx
import orjson

from explorer.engine.scripted import WEIGHTS
from explorer.engine.tiny.template import ChatTemplate
from explorer.engine.tiny.tokenizer import ByteTokenizer
from explorer.records import Call, RolloutId, RolloutRecord
from tests.live import Live
from tests.replay.recording import Recorded, Said, said

_TOKENIZER = ByteTokenizer(WEIGHTS)
_TEMPLATE = ChatTemplate.read(WEIGHTS)
_ASKED: dict[str, Any] = {"role": "user", "content": "go"}
_NEVER_SENT = frozenset(("content-length", "host", "accept-encoding", "authorization"))


def script_of(calls: Iterable[Recorded]) -> list[dict[str, Any]]:
    """Entries for the scripted engine, one for every request for a reply."""
    return [_entry(call) for call in calls if call.generates]


def _entry(call: Recorded) -> dict[str, Any]:
    if call.broke_off == "reset":
        return {"fault": "unreachable"}
    if call.broke_off is not None:
        return {"text": "never seen", "fault": call.broke_off}
    if call.said is None:
        return {"status": call.status, "body": call.error}
    told = call.said
    return {
        "text": told.text,
        "reasoning": told.reasoning or None,
        "tool_calls": [{"name": made.name, "arguments": made.arguments} for made in told.calls],
        "finish_reason": told.finish,
        "token_ids": sampled_ids(told),
    }


def sampled_ids(told: Said) -> list[int]:
    """The ids that a model trained on its template samples for this reply."""
    turn: dict[str, Any] = {"role": "assistant", "content": told.text}
    if told.reasoning:
        turn["reasoning"] = told.reasoning
    if told.calls:
        turn["tool_calls"] = [
            {"function": {"name": call.name, "arguments": call.arguments}}
            for call in told.calls
        ]
    prompt = _TEMPLATE.render({"messages": [_ASKED]})
    whole = _TEMPLATE.render({"messages": [_ASKED, turn], "add_generation_prompt": False})
    text = whole.removeprefix(prompt).removesuffix("\n")
    if told.finish == "length":
        text = text.removesuffix("<|im_end|>")
    return _TOKENIZER.encode(text)


@dataclass
class Replay:
    """What came of it.

    Attributes:
        record: what was stored.
        calls: the stored call of every recorded request for a reply, by its number.
        served: what the harness was answered, by the same number; None for an error.
        statuses: HTTP status of every request.
    """

    record: RolloutRecord
    calls: dict[int, Call]
    served: dict[int, Said | None]
    statuses: dict[int, int]


@dataclass
class _Names:
    """Recorded ids and seals, and ours instead of them."""

    ours: dict[str, str] = field(default_factory=dict)
    sealed: dict[str, str] = field(default_factory=dict)
    shown: dict[str, str] = field(default_factory=dict)

    def learn(self, recorded: Said, served: Said) -> None:
        for key, value in recorded.ids.items():
            self.ours[value] = served.ids.get(key, value)
        if "signature" in served.ids:
            self.shown[served.ids["signature"]] = served.reasoning
        for theirs, mine in zip(recorded.calls, served.calls, strict=True):
            self.ours[theirs.id] = mine.id
            if theirs.item and mine.item:
                self.ours[theirs.item] = mine.item
            if mine.signature:
                self.sealed[mine.id] = mine.signature

    def put_into(self, body: Any) -> Any:
        """`body` as the harness sends it to us."""
        if not self.ours:
            return body
        known = sorted(self.ours, key=len, reverse=True)
        named = re.compile(
            "(?<![A-Za-z0-9_])(?:" + "|".join(map(re.escape, known)) + ")(?![A-Za-z0-9_])"
        )
        return self._put(body, named)

    def _put(self, value: Any, named: re.Pattern[str]) -> Any:
        if isinstance(value, str):
            if value in self.ours:
                return self.ours[value]
            return named.sub(lambda found: self.ours[found[0]], value)
        if isinstance(value, list):
            return [self._put(entry, named) for entry in value]
        if isinstance(value, dict):
            made = {key: self._put(entry, named) for key, entry in value.items()}
            if made.get("type") == "thinking" and made.get("signature") in self.shown:
                # Where reasoning is not to be shown, its echo is empty too.
                made["thinking"] = self.shown[made["signature"]]
            call = made.get("functionCall")
            if "thoughtSignature" in made and isinstance(call, dict):
                # Every recorded seal is the same, so they are told by the call beside them.
                made["thoughtSignature"] = self.sealed.get(call["id"], "")
            return made
        return value


def replay(live: Live, calls: list[Recorded], wire: str, **wanted: Any) -> Replay:
    """Sends every request in its order under a new rollout, made as `wanted`."""
    rollout, key = live.create(run="replay", **wanted)
    names = _Names()
    sequence: list[int] = []
    served: dict[int, Said | None] = {}
    statuses: dict[int, int] = {}
    with httpx.Client(base_url=f"{live.url}/k/{key}", timeout=60) as client:
        for call in calls:
            body = names.put_into(call.body)
            answer = client.request(
                call.method,
                call.path,
                content=None if call.method == "GET" else orjson.dumps(body),
                headers=_headers(call.headers),
            )
            statuses[call.n] = answer.status_code
            if not call.generates:
                continue
            sequence.append(call.n)
            served[call.n] = None
            if answer.status_code == 200:
                kind = answer.headers["content-type"]
                told = said(wire, answer.text, kind)
                served[call.n] = told
                if call.said is not None:
                    names.learn(call.said, told)
    record = live.store.record(RolloutId(rollout))
    assert record is not None
    stored = sorted(record.calls, key=lambda made: made.sequence)
    assert len(stored) == len(sequence), "every request for a reply is one call"
    return Replay(record, dict(zip(sequence, stored, strict=True)), served, statuses)


def _headers(recorded: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in recorded.items() if name not in _NEVER_SENT}
