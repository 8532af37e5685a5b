"""The vendors' own clients through the proxy, on every wire: replies, streams, endings."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import anthropic
import httpx
import openai
import pytest
from google import genai
from google.genai import errors as google_errors
from google.genai import types as google_types

from explorer.engine.scripted import ScriptedEngine
from tests.live import Live, serving

SCRIPT: list[dict[str, Any]] = [
    {
        "when": {"contains": "tools please"},
        "reasoning": "Two at once.",
        "text": "Looking.",
        "tool_calls": [
            {"name": "look", "arguments": '{ "q" : "caf\\u00e9" }'},
            {"name": "look", "arguments": {"q": "two"}},
        ],
    },
    {"when": {"contains": "cut please"}, "text": "never seen", "fault": "cut"},
    {"when": {"contains": "busy please"}, "status": 429, "once": True},
    {"when": {"contains": "busy please"}, "text": "after the wait"},
    {"when": {"contains": ""}, "text": "Hello 🦊 there.", "reasoning": "I greet."},
]
MODEL = "m"
LOOK = {"type": "object", "properties": {"q": {"type": "string"}}}


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    store = tmp_path_factory.mktemp("sdks") / "store.duckdb"
    with serving(ScriptedEngine(SCRIPT), store) as running:
        yield running


class Counter:
    """A real HTTP relay that counts requests on their way to the server."""

    def __init__(self, target: str) -> None:
        self.seen: list[str] = []
        relay = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                relay.seen.append(self.path)
                body = self.rfile.read(int(self.headers["content-length"]))
                skipped = ("host", "content-length", "accept-encoding")
                headers = {k: v for k, v in self.headers.items() if k.lower() not in skipped}
                answer = httpx.post(target + self.path, content=body, headers=headers)
                self.send_response(answer.status_code)
                for name, value in answer.headers.items():
                    if name not in ("transfer-encoding", "content-length", "connection"):
                        self.send_header(name, value)
                self.send_header("content-length", str(len(answer.content)))
                self.end_headers()
                self.wfile.write(answer.content)

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def openai_client(url: str, key: str, retries: int = 2) -> openai.OpenAI:
    return openai.OpenAI(base_url=url + "/v1", api_key=key, max_retries=retries)


def anthropic_client(url: str, key: str, retries: int = 2) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=url, api_key=key, max_retries=retries)


def google_client(url: str, key: str) -> genai.Client:
    return genai.Client(
        api_key=key, http_options=google_types.HttpOptions(base_url=url, timeout=30_000)
    )


def chat(url: str, key: str, text: str) -> str:
    with openai_client(url, key) as client:
        reply = client.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": text}]
        )
        return reply.choices[0].message.content or ""


def completions(url: str, key: str, text: str) -> str:
    with openai_client(url, key) as client:
        return (
            client.completions.create(model=MODEL, prompt=text, max_tokens=200).choices[0].text
        )


def responses(url: str, key: str, text: str) -> str:
    with openai_client(url, key) as client:
        return client.responses.create(model=MODEL, input=text).output_text


def messages(url: str, key: str, text: str) -> str:
    with anthropic_client(url, key) as client:
        reply = client.messages.create(
            model=MODEL, max_tokens=500, messages=[{"role": "user", "content": text}]
        )
        return "".join(block.text for block in reply.content if block.type == "text")


def google(url: str, key: str, text: str) -> str:
    with google_client(url, key) as client:
        return client.models.generate_content(model=MODEL, contents=text).text or ""


WIRES = {
    "chat": chat,
    "completions": completions,
    "responses": responses,
    "messages": messages,
    "google": google,
}


@pytest.mark.parametrize("wire", WIRES)
def test_every_wire_answers_its_own_client_and_is_captured(live: Live, wire: str) -> None:
    rollout, key = live.create(run="sdks")
    assert "Hello 🦊 there." in WIRES[wire](live.url, key, "hi")
    (call,) = live.calls(rollout)
    assert call["status"] == "committed"
    assert call["dialect"] == wire
    assert call["prompt_len"] > 0
    assert call["completion_len"] > 0


def test_streams_of_every_wire_give_the_whole_reply(live: Live) -> None:
    rollout, key = live.create()
    with openai_client(live.url, key) as client:
        stream = client.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": "hi"}], stream=True
        )
        text = "".join(c.choices[0].delta.content or "" for c in stream if c.choices)
        assert text == "Hello 🦊 there."
        with client.responses.stream(model=MODEL, input="hi") as response:
            kinds = [event.type for event in response]
            final = response.get_final_response()
        assert kinds[0] == "response.created"
        assert kinds[-1] == "response.completed"
        assert final.output_text == "Hello 🦊 there."
    with (
        anthropic_client(live.url, key) as claude,
        claude.messages.stream(
            model=MODEL, max_tokens=500, messages=[{"role": "user", "content": "hi"}]
        ) as message,
    ):
        assert "".join(message.text_stream) == "Hello 🦊 there."
        assert message.get_final_message().stop_reason == "end_turn"
    with google_client(live.url, key) as gemini:
        chunks = gemini.models.generate_content_stream(model=MODEL, contents="hi")
        assert "".join(chunk.text or "" for chunk in chunks) == "Hello 🦊 there."
    assert {call["dialect"] for call in live.calls(rollout)} == {
        "chat",
        "responses",
        "messages",
        "google",
    }


def test_parallel_tools_and_their_results_go_round_on_messages(live: Live) -> None:
    rollout, key = live.create()
    tool: Any = {"name": "look", "input_schema": LOOK}
    said: list[Any] = [{"role": "user", "content": "tools please"}]
    with anthropic_client(live.url, key) as client:
        first = client.messages.create(model=MODEL, max_tokens=500, messages=said, tools=[tool])
        uses = [block for block in first.content if block.type == "tool_use"]
        assert [use.input for use in uses] == [{"q": "café"}, {"q": "two"}]
        assert all(use.id.replace("_", "").isalnum() for use in uses)
        said += [
            {"role": "assistant", "content": first.content},
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": use.id, "content": "found"}
                    # Claude Code answers in the order in which the tools came to an end.
                    for use in reversed(uses)
                ],
            },
        ]
        client.messages.create(model=MODEL, max_tokens=500, messages=said, tools=[tool])
    asked, went_on = live.calls(rollout)
    assert asked["finish_reason"] == "tool_calls"
    assert went_on["status"] == "committed"
    # The arguments were sampled with blanks and an escape, and come back as an object.
    assert went_on["parent_id"] == asked["call_id"]


def test_parallel_tools_and_their_results_go_round_on_responses(live: Live) -> None:
    rollout, key = live.create()
    tool: Any = {"type": "function", "name": "look", "parameters": LOOK, "strict": False}
    with openai_client(live.url, key) as client:
        first = client.responses.create(model=MODEL, input="tools please", tools=[tool])
        calls = [item for item in first.output if item.type == "function_call"]
        assert [json.loads(call.arguments) for call in calls] == [{"q": "café"}, {"q": "two"}]
        # Arguments are the engine's text, not dumped anew.
        assert calls[0].arguments == '{ "q" : "caf\\u00e9" }'
        second = client.responses.create(
            model=MODEL,
            previous_response_id=first.id,
            instructions="Now with instructions.",
            tools=[tool],
            input=[
                {"type": "function_call_output", "call_id": call.call_id, "output": "found"}
                for call in calls
            ],
        )
        assert second.previous_response_id == first.id
        # … and a third that names the second only.
        client.responses.create(model=MODEL, previous_response_id=second.id, input="and?")
        with pytest.raises(openai.BadRequestError, match="not found"):
            client.responses.create(model=MODEL, previous_response_id="resp_x", input="and?")
    last = live.calls(rollout)[2]
    raw = httpx.get(
        f"{live.url}/api/v1/rollouts/{rollout}/raw/{last['call_id']}?kind=submitted",
        headers={"authorization": f"Bearer {live.token}"},
    ).json()
    roles = [message["role"] for message in raw["messages"]]
    assert roles == ["user", "assistant", "tool", "tool", "assistant", "user"]
    assert raw["messages"][1]["content"] == "Looking."
    assert raw["messages"][1]["reasoning"] == "Two at once."
    assert [call["id"] for call in raw["messages"][1]["tool_calls"]] == [
        call.call_id for call in calls
    ]


def test_another_rollouts_response_cannot_be_named(live: Live) -> None:
    _, mine = live.create()
    _, theirs = live.create()
    with openai_client(live.url, mine) as client:
        first = client.responses.create(model=MODEL, input="hi")
    with (
        openai_client(live.url, theirs) as client,
        pytest.raises(openai.BadRequestError, match="not found"),
    ):
        client.responses.create(model=MODEL, previous_response_id=first.id, input="and?")


def test_counting_asks_the_engines_own_tokenizer(live: Live) -> None:
    rollout, key = live.create()
    said: Any = [{"role": "user", "content": "how long is this?"}]
    with anthropic_client(live.url, key) as client:
        counted = client.messages.count_tokens(model=MODEL, messages=said).input_tokens
        reply = client.messages.create(model=MODEL, max_tokens=50, messages=said)
    assert reply.usage.input_tokens == counted
    with google_client(live.url, key) as gemini:
        again = gemini.models.count_tokens(model=MODEL, contents="how long is this?")
    assert again.total_tokens == counted
    assert len(live.calls(rollout)) == 1  # counting is no call


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("ending", ["sealed", "spent"])
def test_an_ended_rollout_stops_every_client_within_one_request(
    live: Live, wire: str, ending: str
) -> None:
    budgets = {"calls": 1} if ending == "spent" else {}
    rollout, key = live.create(budgets=budgets)
    WIRES[wire](live.url, key, "hi")
    if ending == "sealed":
        live.api("POST", f"/api/v1/rollouts/{rollout}/close", {})
    relay = Counter(live.url)
    try:
        with pytest.raises(
            (openai.APIStatusError, anthropic.APIStatusError, google_errors.APIError)
        ) as caught:
            WIRES[wire](relay.url, key, "hi")
    finally:
        relay.close()
    assert len(relay.seen) == 1
    status = getattr(caught.value, "status_code", None) or getattr(caught.value, "code", None)
    assert status == (403 if wire == "messages" else 400)
    if ending == "spent":
        refused = live.calls(rollout)[-1]
        assert (refused["status"], refused["failure_kind"]) == ("refused", "budget")


@pytest.mark.parametrize("wire", WIRES)
def test_a_spent_budget_may_end_in_a_plain_final_turn(live: Live, wire: str) -> None:
    rollout, key = live.create(budgets={"calls": 1, "on_spent": "final_turn"})
    WIRES[wire](live.url, key, "hi")
    assert "budget of this session is spent" in WIRES[wire](live.url, key, "go on")
    made, refused = live.calls(rollout)
    assert made["status"] == "committed"
    assert (refused["status"], refused["failure_kind"]) == ("refused", "budget")
    tree = live.api("GET", f"/api/v1/rollouts/{rollout}/tree")
    assert [node["call_id"] for node in tree["nodes"]] == [made["call_id"]]


@pytest.mark.parametrize("wire", ["chat", "responses", "messages"])
def test_a_429_and_a_cut_reach_the_client_as_errors_it_tries_again(
    live: Live, wire: str
) -> None:
    rollout, key = live.create()
    relay = Counter(live.url)
    try:
        with pytest.raises((openai.APIStatusError, anthropic.APIStatusError)):
            WIRES[wire](relay.url, key, "cut please")
    finally:
        relay.close()
    assert len(relay.seen) == 3  # the first and its two retries
    assert [call["status"] for call in live.calls(rollout)] == ["failed"] * 3


def test_a_429_is_waited_out(live: Live) -> None:
    rollout, key = live.create()
    assert chat(live.url, key, "busy please") == "after the wait"
    assert [call["status"] for call in live.calls(rollout)] == ["failed", "committed"]


def test_con_01_concurrent_calls_on_one_key(live: Live) -> None:
    rollout, key = live.create()
    threads = [
        threading.Thread(target=WIRES[wire], args=(live.url, key, f"hi {number}"))
        for number, wire in enumerate([*WIRES] * 3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    calls = live.calls(rollout)
    assert sorted(call["sequence"] for call in calls) == list(range(15))
    assert all(call["status"] == "committed" for call in calls)
