"""What an engine's stream makes as a whole: nothing is paired, ended or begun by guessing."""

from __future__ import annotations

import json
from typing import Any

import pytest

from explorer.capture.livereply import LiveReply
from explorer.engine.reply import ParsedReply
from explorer.records import FailureKind

DONE = "[DONE]"
HEAD: dict[str, Any] = {
    "prompt_token_ids": [1, 2],
    "choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}],
}


def piece(ids: list[int] | None, logprobs: list[float] | None, **more: Any) -> dict[str, Any]:
    choice: dict[str, Any] = {"index": 0, "delta": {"content": "x"}, "finish_reason": None}
    if ids is not None:
        choice["token_ids"] = ids
    if logprobs is not None:
        entries = [{"token": "x", "logprob": value} for value in logprobs]
        choice["logprobs"] = {"content": entries}
    return {"choices": [choice | more]}


def usage(sampled: int) -> dict[str, Any]:
    counts = {"prompt_tokens": 2, "completion_tokens": sampled}
    return {"choices": [], "usage": counts}


END = piece([6], [-2.0], finish_reason="stop")


def whole(*chunks: Any) -> ParsedReply:
    live = LiveReply()
    for chunk in chunks:
        data = chunk if isinstance(chunk, str) else json.dumps(chunk)
        live.feed(f"data: {data}\n\n".encode())
    return live.parsed(None)


def codes(parsed: ParsedReply) -> list[str]:
    return [note.code for note in parsed.notes]


def test_a_stream_in_order_is_a_reply() -> None:
    parsed = whole(HEAD, piece([5], [-1.0]), END, usage(2), DONE)
    assert (parsed.failure, parsed.notes) == (None, ())
    assert parsed.completion_ids is not None
    assert parsed.logprobs is not None
    assert parsed.completion_ids.tolist() == [5, 6]
    assert parsed.logprobs.tolist() == [-1.0, -2.0]


def test_counts_that_agree_by_chance_pair_no_logprob_with_another_token() -> None:
    """One event lost its logprob and another its id: the numbers agree, the pairs do not."""
    parsed = whole(HEAD, piece([7], None), piece(None, [-3.0]), END, usage(2), DONE)
    assert codes(parsed) == ["logprob_misalign"]


def test_ids_that_come_whole_at_the_end_are_paired() -> None:
    last = piece([5, 6], [-2.0], finish_reason="stop")
    parsed = whole(HEAD, piece(None, [-1.0]), last, usage(2), DONE)
    assert parsed.notes == ()


@pytest.mark.parametrize(
    "chunks",
    [
        [HEAD, piece([5], [-1.0]), DONE, END, usage(2)],
        [HEAD, END, usage(1), DONE, piece([5], [-1.0]), usage(2)],
        [HEAD, END, piece([5], [-1.0]), usage(2), DONE],
        [HEAD, piece([5], [-1.0], finish_reason="abort"), END, usage(2), DONE],
        [HEAD, piece([5], [-1.0]), {"prompt_token_ids": [1, 3]}, END, usage(2), DONE],
    ],
    ids=["end after done", "more after done", "more after the end", "two ends", "two prompts"],
)
def test_a_stream_out_of_order_is_no_reply(chunks: list[Any]) -> None:
    assert whole(*chunks).failure is FailureKind.UPSTREAM_MALFORMED


def test_weight_versions_that_each_event_names_for_its_own_tokens_all_count() -> None:
    first = piece([5], [-1.0], weight_versions=[{"version": "v1"}])
    last = piece([6], [-2.0], finish_reason="stop", weight_versions=[{"version": "v2"}])
    assert whole(HEAD, first, last, usage(2), DONE).weight_label == "v1,v2"


def test_text_of_another_choice_is_not_shown() -> None:
    other = {"choices": [{"index": 1, "delta": {"content": "other"}}]}
    assert LiveReply().feed(f"data: {json.dumps(other)}\n\n".encode()) == []
