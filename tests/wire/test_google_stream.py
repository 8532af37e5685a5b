"""Google generateContent: streams, and the real client."""

from __future__ import annotations

import json
from typing import Any

import orjson
import pytest
from google import genai
from google.genai import errors, types
from hypothesis import given, settings
from hypothesis import strategies as st

from explorer.wire import google, sse
from explorer.wire.google_stream import merge_responses
from explorer.wire.protocol import Target, WireError
from tests.wire.googling import ARRAY, EVENTS, ask
from tests.wire.replies import (
    CALL_ID,
    REPLY,
    canned,
    events_of,
    replies,
    sampled,
)


def stream_of(
    told: dict[str, Any], pieces: list[tuple[str, str]], target: Target = EVENTS, **config: Any
) -> tuple[bytes, dict[str, Any]]:
    request = ask(target, generationConfig={"thinkingConfig": config})
    served = google.serve(told, request, CALL_ID)
    made = google.streamer(request, CALL_ID, "shown-early")
    parts = [made.live(reasoning, text) for reasoning, text in pieces]
    return b"".join(parts) + made.finish(served), served


LIVE = [("Two files,", ""), ("\nso two calls… ✓", ""), ("", "  Reading"), ("", " both. \n")]


@pytest.mark.parametrize("pieces", [[], LIVE[:1], LIVE[:3], LIVE])
def test_every_cut_of_the_bytes_gives_the_served_reply(pieces: Any) -> None:
    stream, served = stream_of(REPLY, pieces)
    assert google.merge_stream(events_of(stream)) == served
    for cut in range(len(stream)):
        decoder = sse.Decoder()
        events = decoder.feed(stream[:cut]) + decoder.feed(stream[cut:])
        assert google.merge_stream(events) == served


@settings(max_examples=150)
@given(st.data(), replies, st.booleans())
def test_any_reply_in_any_pieces_is_merged_back(
    data: st.DataObject, told: dict[str, Any], shown: bool
) -> None:
    message = told["choices"][0]["message"]
    pieces = data.draw(sampled(message["reasoning"] or "", message["content"] or ""))
    stream, served = stream_of(told, pieces, includeThoughts=shown)
    assert google.merge_stream(events_of(stream)) == served
    array, _ = stream_of(told, pieces, ARRAY, includeThoughts=shown)
    assert merge_responses(json.loads(array)) == served


def test_sse_19_the_last_response_alone_has_the_finish_reason() -> None:
    for pieces in ([], LIVE):
        stream, _ = stream_of(REPLY, pieces)
        told = [orjson.loads(event.data)["candidates"][0] for event in events_of(stream)]
        assert ["finishReason" in candidate for candidate in told] == [False] * (
            len(told) - 1
        ) + [True]
        assert all(candidate["content"]["parts"] for candidate in told)
        assert b"[DONE]" not in stream
    array, _ = stream_of(REPLY, LIVE, ARRAY)
    assert isinstance(orjson.loads(array), list)


def client(address: str) -> genai.Client:
    options = types.HttpOptions(
        base_url=address, retry_options=types.HttpRetryOptions(attempts=1)
    )
    return genai.Client(api_key="k", vertexai=False, http_options=options)


CALLS = [{"path": "a/b", "n": 1}, {"command": "ls ✓"}]


@pytest.mark.parametrize("pieces", [[], LIVE])
def test_sse_18_the_real_client_reads_the_stream(pieces: Any) -> None:
    stream, _ = stream_of(REPLY, pieces)
    with canned(stream, "text/event-stream") as (address, _), client(address) as sdk:
        got = list(sdk.models.generate_content_stream(model="policy", contents="go"))
    parts = [
        part
        for response in got
        for part in (response.candidates or [])[0].content.parts or []  # type: ignore[union-attr]
    ]
    thoughts = "".join(part.text or "" for part in parts if part.thought)
    texts = "".join(part.text or "" for part in parts if not part.thought)
    assert thoughts == "Two files,\nso two calls… ✓"
    assert texts == "  Reading both. \n"
    assert [part.function_call.args for part in parts if part.function_call] == CALLS
    assert got[-1].candidates is not None
    assert got[-1].candidates[0].finish_reason == "STOP"
    assert got[-1].usage_metadata is not None
    assert got[-1].usage_metadata.total_token_count == 130


def test_the_real_client_reads_the_whole_reply_and_echoes_it() -> None:
    body = google.encode_reply(google.serve(REPLY, ask(), CALL_ID))
    declaration = types.FunctionDeclaration(
        name="read",
        parameters=types.Schema(
            type=types.Type.OBJECT, properties={"path": types.Schema(type=types.Type.STRING)}
        ),
    )
    config = types.GenerateContentConfig(
        system_instruction="be brief",
        tools=[types.Tool(function_declarations=[declaration])],
        max_output_tokens=64,
        thinking_config=types.ThinkingConfig(include_thoughts=True),
    )
    with canned(body, "application/json") as (address, seen), client(address) as sdk:
        got = sdk.models.generate_content(model="policy", contents="go", config=config)
        assert got.candidates is not None
        content = got.candidates[0].content
        assert content is not None
        calls = got.function_calls or []
        results = [
            types.Part.from_function_response(name=made.name or "", response={"result": "ok"})
            for made in calls
        ]
        asked = types.Content(role="user", parts=[types.Part(text="go")])
        answers = types.Content(role="user", parts=results)
        sdk.models.generate_content(
            model="policy", contents=[asked, content, answers], config=config
        )
    assert [made.args for made in calls] == CALLS
    first, second = (google.parse_request(raw, Target(model="policy")) for raw in seen)
    assert second.messages[: len(first.messages)] == first.messages
    assert first.messages[0] == {"role": "system", "content": "be brief"}
    assert second.tools == first.tools
    assert first.tools[0]["function"]["parameters"]["properties"] == {
        "path": {"type": "string"}
    }
    wrote = REPLY["choices"][0]["message"]
    echoed, *tools = second.messages[len(first.messages) :]
    ids = [entry["id"] for entry in wrote["tool_calls"]]
    assert echoed["reasoning"] == wrote["reasoning"]
    assert echoed["content"] == wrote["content"]
    assert [entry["id"] for entry in echoed["tool_calls"]] == ids
    assert [(entry["tool_call_id"], entry["content"]) for entry in tools] == [
        (tool_id, "ok") for tool_id in ids
    ]


def test_the_real_client_counts_and_lists() -> None:
    body = google.count_reply(41)
    with canned(body, "application/json") as (address, seen), client(address) as sdk:
        counted = sdk.models.count_tokens(model="policy", contents="go")
    assert counted.total_tokens == 41
    request = google.parse_request(seen[0], Target(model="policy"))
    assert request.messages == [{"role": "user", "content": "go"}]
    listed = orjson.loads(google.models_body(["a", "b"]))["models"]
    assert [entry["name"] for entry in listed] == ["models/a", "models/b"]
    assert orjson.loads(google.model_body("a")) == listed[0]


def test_the_real_client_knows_our_errors() -> None:
    refusal = google.refusal(WireError(400, "rollout_closed", "words of ours"))
    with (
        canned(refusal.body, "application/json", refusal.status) as (address, _),
        client(address) as sdk,
        pytest.raises(errors.ClientError, match="words of ours") as caught,
    ):
        sdk.models.generate_content(model="policy", contents="go")
    assert caught.value.status == "FAILED_PRECONDITION"


def test_a_fault_inside_a_stream_is_told_as_overload() -> None:
    error = WireError(502, "engine_unavailable", "it died")
    begun = google.streamer(ask(), CALL_ID, "m").live("", "Hel")
    stream = begun + google.error_event(error)
    with (
        canned(stream, "text/event-stream") as (address, _),
        client(address) as sdk,
        pytest.raises(errors.ServerError, match="overloaded"),
    ):
        list(sdk.models.generate_content_stream(model="policy", contents="go"))
    array = google.streamer(ask(ARRAY), CALL_ID, "m")
    told = array.live("", "Hel") + array.fail(google.error_in_stream(error))
    assert orjson.loads(told)[-1]["error"]["status"] == "UNAVAILABLE"
