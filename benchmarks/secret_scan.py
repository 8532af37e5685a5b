"""What looking for secrets costs beside judging, in CPU time of one run.

    python benchmarks/secret_scan.py

A rollout of 200 turns that grows to 32,000 tokens, with a request, a submitted request and
a reply of each turn: every request repeats the conversation, every reply lists the ids of
its whole prompt. The scan reads all of it; hiding is measured for a rollout with one secret.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import orjson

from explorer.records import (
    Body,
    BodyKind,
    Call,
    CallId,
    CallStatus,
    CaptureLevel,
    Dialect,
    KeyHash,
    Rollout,
    RolloutId,
    RolloutRecord,
)
from explorer.trace.secret_bodies import BodyScan
from explorer.trace.secret_hiding import hidden_judgement, hidden_of, hidden_record
from explorer.trace.secret_scan import RolloutScan, Scanned
from explorer.trace.verdict import judge

TURNS = 200
TOKENS = 32_000
WORDS = 20_000
SECRET = "sk-" + "proj-" + "Q7f3Zk29LmTxB4wR8nVcY1dH" * 2


def make(planted: str) -> tuple[RolloutRecord, dict[int, tuple[bytes, bool]], list[list[Body]]]:
    """A rollout with its vocabulary and the bodies of each call."""
    random = np.random.default_rng(0)
    letters = "abcdefghijklmnopqrstuvwxyz0123456789_.(){}=:/\"'\n\\"
    words = {
        token: (" " + "".join(random.choice(list(letters), size=3))).encode()
        for token in range(WORDS)
    }
    words[WORDS] = planted.encode()
    vocabulary = {token: (raw, False) for token, raw in words.items()}
    per_turn = TOKENS // TURNS
    calls: list[Call] = []
    bodies: list[list[Body]] = []
    messages: list[dict[str, str]] = []
    history: list[int] = []
    parent: Call | None = None
    rollout_id = RolloutId("r")
    for number in range(TURNS):
        asked = random.integers(0, WORDS, per_turn // 2, dtype=np.int32)
        if number == TURNS // 3:
            asked[5] = WORDS
        said = random.integers(0, WORDS, per_turn - per_turn // 2, dtype=np.int32)
        held = len(history)
        history += asked.tolist()
        prompt = list(history)
        history += said.tolist()
        call_id = CallId(str(number))
        call = Call(
            call_id, rollout_id, number, Dialect.CHAT, CallStatus.COMMITTED, 0, 0,
            finish_reason="stop", capture_level=CaptureLevel.TOKENS,
            stored_parent_id=None if parent is None else parent.call_id,
            prefix_len=held, prompt_len=len(prompt), completion_len=int(said.size),
            prompt_delta=asked, completion=said,
            logprobs=np.full(said.size, -0.5, np.float32),
        )  # fmt: skip
        reply = b"".join(words[token] for token in said.tolist()).decode()
        user = b"".join(words[token] for token in asked.tolist()).decode()
        messages.append({"role": "user", "content": user})
        request = orjson.dumps({"model": "m", "messages": messages})
        submitted = orjson.dumps(
            {"model": "m", "messages": messages, "logprobs": True, "return_token_ids": True}
        )
        content: list[dict[str, object]] = [
            {"token": f"token_id:{token}", "logprob": -0.5, "bytes": None, "top_logprobs": []}
            for token in said.tolist()
        ]
        answer = orjson.dumps(
            {
                "id": f"chatcmpl-{number}",
                "choices": [
                    {
                        "message": {"role": "assistant", "content": reply},
                        "logprobs": {"content": content},
                        "token_ids": said.tolist(),
                    }
                ],
                "prompt_token_ids": prompt,
            }
        )
        messages.append({"role": "assistant", "content": reply})
        bodies.append(
            [
                Body(call_id, rollout_id, kind, data)
                for kind, data in (
                    (BodyKind.REQUEST, request),
                    (BodyKind.SUBMITTED, submitted),
                    (BodyKind.REPLY, answer),
                )
            ]
        )
        calls.append(call)
        parent = call
    rollout = Rollout(rollout_id, 0, KeyHash("k"), run="r")
    return RolloutRecord(rollout, (), tuple(calls)), vocabulary, bodies


def cpu(work: Callable[[], object], times: int = 3) -> float:
    """The least CPU seconds of a few runs."""
    best = float("inf")
    for _ in range(times):
        begun = time.process_time()
        work()
        best = min(best, time.process_time() - begun)
    return best


def main() -> None:
    """Measures and prints."""
    for name, planted in (("none", "plain words"), ("one", f' key "{SECRET}" ')):
        record, vocabulary, bodies = make(planted)

        def scan(
            record: RolloutRecord = record,
            vocabulary: dict[int, tuple[bytes, bool]] = vocabulary,
            bodies: list[list[Body]] = bodies,
        ) -> Scanned:
            work = RolloutScan(record, vocabulary)
            reader = BodyScan(work)
            for each in bodies:
                reader.call(each[0].call_id, tuple(each))
            work.whole_record()
            return work.result()

        def tokens(
            record: RolloutRecord = record,
            vocabulary: dict[int, tuple[bytes, bool]] = vocabulary,
        ) -> Scanned:
            work = RolloutScan(record, vocabulary)
            work.whole_record()
            return work.result()

        found = scan()
        judged = cpu(lambda record=record: judge(record))  # type: ignore[misc]
        both, alone = cpu(scan), cpu(tokens)
        size = sum(len(body.data) for each in bodies for body in each)
        print(f"secrets planted: {name}; found: {len(found.secrets)}")
        print(f"  judge                     {judged * 1000:8.1f} ms")
        print(
            f"  scan of its record        {alone * 1000:8.1f} ms   "
            f"{alone / judged:6.2f} × judge"
        )
        print(
            f"  with {size / 1e6:6.1f} MB of bodies {both * 1000:8.1f} ms   "
            f"{both / judged:6.2f} × judge"
        )
        hidden = hidden_of(found)
        if hidden is not None:
            verdict = judge(record)

            def hide() -> None:
                shown = hidden_record(record, hidden)  # noqa: B023
                hidden_judgement(verdict, shown, hidden)  # noqa: B023

            took = cpu(hide)
            print(f"  hiding                    {took * 1000:8.1f} ms   {took / judged:6.2f} ×")


if __name__ == "__main__":
    main()
