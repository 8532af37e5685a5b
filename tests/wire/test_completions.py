"""Plain completions: prompts, what is refused, old-style logprobs, streams, the client."""

from __future__ import annotations

from typing import Any

import openai
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from explorer.errors import BadRequest
from explorer.records import Dialect
from explorer.wire import completions, openai_errors, sse
from explorer.wire.neutral import NeutralRequest
from explorer.wire.protocol import WireError
from tests.wire.openai_live import CALL, serving

ID = CALL.format(0)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner),
    max_leaves=8,
)


def entry(token: str, logprob: Any, *others: tuple[str, Any]) -> dict[str, Any]:
    top = [{"token": token, "logprob": logprob}]
    top += [{"token": name, "logprob": value} for name, value in others]
    return {"token": token, "logprob": logprob, "top_logprobs": top}


REPLY: dict[str, Any] = {
    "id": "cmpl-upstream",
    "object": "chat.completion",
    "created": 5,
    "model": "lab-model",
    "system_fingerprint": "f",
    "choices": [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "The é \n"},
            "logprobs": {
                "content": [
                    entry("The", -0.9, ("I", -0.5), ("A", -3.0)),
                    entry(" é", -0.1, ("e", -2.5)),
                    entry(" \n", None),
                ]
            },
            "finish_reason": "stop",
            "stop_reason": None,
            "token_ids": [7, 8, 9],
            "prompt_token_ids": [1, 2],
            "routed_experts": None,
            "prompt_logprobs": [None],
        }
    ],
    "usage": {"prompt_tokens": 2, "completion_tokens": 3, "total_tokens": 5},
    "kv_transfer_params": None,
}


def parse(**body: Any) -> NeutralRequest:
    return completions.parse_request(orjson.dumps({"model": "m", "prompt": "x"} | body))


def events_of(*parts: bytes) -> list[sse.Event]:
    decoder = sse.Decoder()
    return [event for part in parts for event in decoder.feed(part)]


@pytest.mark.parametrize(
    ("prompt", "neutral"),
    [
        ("hi", "hi"),
        ([1, 2], [1, 2]),
        (["hi"], "hi"),
        ([[1, 2]], [1, 2]),
        ([7], [7]),
    ],
)
def test_one_prompt_in_every_form(prompt: Any, neutral: Any) -> None:
    request = parse(prompt=prompt, seed=3, stop=["x"])
    assert request.dialect is Dialect.COMPLETIONS
    assert request.body["prompt"] == neutral
    assert request.body["seed"] == 3
    assert request.messages == []
    assert request.asked["prompt"] == prompt


@pytest.mark.parametrize(
    ("body", "param", "words"),
    [
        ({"prompt": None}, "prompt", "text or an array"),
        ({"prompt": ""}, "prompt", "text or an array"),
        ({"prompt": []}, "prompt", "text or an array"),
        ({"prompt": [""]}, "prompt", "text or an array"),
        ({"prompt": [True]}, "prompt", "text or an array"),
        ({"prompt": [1, -2]}, "prompt", "text or an array"),
        ({"prompt": [1, 2.5]}, "prompt", "text or an array"),
        ({"prompt": ["a", "b"]}, "prompt", "one request per prompt"),
        ({"prompt": [[1], [2]]}, "prompt", "one request per prompt"),
        ({"n": 2}, "n", "must be 1"),
        ({"n": True}, "n", "must be 1"),
        ({"best_of": 3}, "best_of", "must be 1"),
        ({"echo": True}, "echo", "mixes"),
        ({"suffix": "s"}, "suffix", "leave it out"),
        ({"prompt_embeds": "s"}, "prompt_embeds", "leave it out"),
        ({"logprobs": True}, "logprobs", "whole number"),
        ({"logprobs": 21}, "logprobs", "whole number"),
    ],
)
def test_refusals_say_what_to_change(body: dict[str, Any], param: str, words: str) -> None:
    with pytest.raises(BadRequest, match=words) as error:
        parse(**body)
    assert error.value.details["param"] == param


def test_the_limit_that_servers_take_silently_is_said_aloud() -> None:
    assert parse().body["max_tokens"] == 16
    assert parse(max_tokens=None).body["max_tokens"] == 16
    assert parse(max_tokens=3).body["max_tokens"] == 3
    assert parse(n=1, best_of=1, echo=False, suffix=None).body["max_tokens"] == 16


def test_messages_in_a_plain_completion_are_not_sent() -> None:
    request = parse(messages=[{"role": "user", "content": "x"}])
    assert "messages" not in request.body
    assert [note.detail for note in request.notes] == ["messages"]


def test_capture_fields_are_shown_only_to_who_asked() -> None:
    served = completions.serve(REPLY, parse(), ID)
    assert served == {
        "id": f"cmpl-{ID}",
        "object": "text_completion",
        "created": 5,
        "model": "lab-model",
        "system_fingerprint": "f",
        "choices": [
            {
                "index": 0,
                "text": "The é \n",
                "logprobs": None,
                "finish_reason": "stop",
                "stop_reason": None,
            }
        ],
        "usage": REPLY["usage"],
    }
    asked = completions.serve(REPLY, parse(return_token_ids=True, prompt_logprobs=0), ID)
    choice = asked["choices"][0]
    assert choice["token_ids"] == [7, 8, 9]
    assert choice["prompt_token_ids"] == [1, 2]
    assert choice["prompt_logprobs"] == [None]


@pytest.mark.parametrize(
    ("count", "top"),
    [
        (0, {"The": -0.9}),
        (1, {"The": -0.9, "I": -0.5}),
        (2, {"The": -0.9, "I": -0.5}),
        (3, {"The": -0.9, "I": -0.5, "A": -3.0}),
    ],
)
def test_old_logprobs_have_the_best_and_always_the_token_itself(
    count: int, top: dict[str, float]
) -> None:
    found = completions.serve(REPLY, parse(logprobs=count), ID)["choices"][0]["logprobs"]
    assert found["tokens"] == ["The", " é", " \n"]
    assert found["token_logprobs"] == [-0.9, -0.1, None]
    assert found["text_offset"] == [0, 3, 5]
    assert found["top_logprobs"][0] == top


def test_a_stream_gives_back_the_reply() -> None:
    request = parse(
        logprobs=2, return_token_ids=True, stream=True, stream_options={"include_usage": True}
    )
    served = completions.serve(REPLY, request, ID)
    for pieces in ([], ["The", " é"], ["", "The é \n"]):
        stream = completions.streamer(request, ID, "early")
        parts = [stream.live("ignored", piece) for piece in pieces]
        merged = completions.merge_stream(events_of(*parts, stream.finish(served)))
        assert merged.pop("_complete")
        assert merged == served


def test_usage_comes_only_when_asked_for() -> None:
    request = parse(stream=True)
    served = completions.serve(REPLY, request, ID)
    raw = completions.streamer(request, ID, "m").finish(served)
    assert b"usage" not in raw
    merged = completions.merge_stream(events_of(raw))
    assert merged == {k: v for k, v in served.items() if k != "usage"} | {"_complete": True}


def test_a_stream_cut_at_any_byte_is_not_complete() -> None:
    request = parse(stream=True, logprobs=1)
    served = completions.serve(REPLY, request, ID)
    stream = completions.streamer(request, ID, "m")
    raw = stream.live("", "The") + stream.finish(served)
    for cut in range(len(raw)):
        merged = completions.merge_stream(sse.Decoder().feed(raw[:cut]))
        text = "".join(choice["text"] for choice in merged["choices"])
        assert "The é \n".startswith(text)
        assert ("_complete" in merged) == (cut >= len(raw))
        whole = completions.merge_stream(events_of(raw[:cut], raw[cut:]))
        assert whole["_complete"]
        assert whole["choices"] == served["choices"]


def test_errors_are_openais() -> None:
    assert completions.refusal is openai_errors.refusal
    assert orjson.loads(completions.count_reply(4)) == {"input_tokens": 4}
    events = events_of(completions.error_event(WireError(503, "x", "down")))
    merged = completions.merge_stream(events)
    assert "overloaded" in merged["_error"]["message"]
    assert merged["_complete"]


FULL: dict[str, Any] = {
    "model": "m",
    "prompt": [[1, 2]],
    "n": 1,
    "best_of": 1,
    "echo": False,
    "suffix": None,
    "logprobs": 3,
    "max_tokens": 4,
    "stream_options": {"include_usage": True},
    "user": "u",
    "metadata": {"a": "b"},
}


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(sorted(FULL)), json_values, st.booleans())
def test_any_value_anywhere_is_understood_or_refused(key: str, value: Any, deep: bool) -> None:
    body = FULL | {key: [value] if deep else value}
    try:
        request = completions.parse_request(orjson.dumps(body))
    except (BadRequest, TypeError):
        return
    assert isinstance(request.body["prompt"], str | list)
    served = completions.serve(REPLY, request, ID)
    raw = completions.streamer(request, ID, "m").finish(served)
    assert completions.merge_stream(events_of(raw))["choices"] == served["choices"]


@settings(max_examples=300, deadline=None)
@given(
    st.sampled_from(["message", "content", "logprobs", "token_ids", "finish_reason", "token"]),
    json_values,
)
def test_any_value_in_a_reply_is_served_and_streamed(key: str, value: Any) -> None:
    reply = orjson.loads(orjson.dumps(REPLY))
    choice = reply["choices"][0]
    places = [choice, choice["message"], choice["logprobs"]["content"][0]]
    next(place for place in places if key in place)[key] = value
    request = parse(logprobs=2, return_token_ids=True)
    served = completions.serve(reply, request, ID)
    assert orjson.loads(completions.encode_reply(served))["id"] == f"cmpl-{ID}"
    raw = completions.streamer(request, ID, "m").finish(served)
    merged = completions.merge_stream(events_of(raw))
    assert len(merged["choices"]) == 1


def test_the_official_client_reads_replies_and_streams() -> None:
    with serving(completions, REPLY, REPLY) as live:
        found = live.client.completions.create(model="m", prompt=[1, 2], logprobs=2)
        choice = found.choices[0]
        assert choice.text == "The é \n"
        assert choice.logprobs is not None
        assert choice.logprobs.tokens == ["The", " é", " \n"]
        assert choice.logprobs.top_logprobs is not None
        assert choice.logprobs.top_logprobs[0] == {"The": -0.9, "I": -0.5}
        assert found.usage is not None
        assert found.usage.completion_tokens == 3
        live.live = (("", "The"),)
        chunks = list(
            live.client.completions.create(
                model="m", prompt="x", stream=True, stream_options={"include_usage": True}
            )
        )
        assert "".join(c.text for chunk in chunks for c in chunk.choices) == "The é \n"
        assert chunks[-2].choices[0].finish_reason == "stop"
        assert chunks[-1].usage is not None
        with pytest.raises(openai.BadRequestError, match="one request per prompt"):
            live.client.completions.create(model="m", prompt=["a", "b"])


def test_the_official_client_raises_on_an_error_in_a_stream() -> None:
    with serving(completions, REPLY) as live:
        live.live = (("", "The"),)
        live.fail = WireError(502, "engine_unavailable", "the engine died")
        stream = live.client.completions.create(model="m", prompt="x", stream=True)
        with pytest.raises(openai.APIError, match="try again"):
            list(stream)
