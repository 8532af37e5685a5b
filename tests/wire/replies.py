"""What the tests of several dialects share: replies, hostile bodies, and canned HTTP."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import orjson
from hypothesis import strategies as st

from explorer.wire import sse
from explorer.wire.ids import with_our_ids

CALL_ID = "0198c0de-0000-7000-8000-00000000abcd"
DATA = Path(__file__).parent.parent / "data" / "harness"

REPLY: dict[str, Any] = with_our_ids(
    {
        "id": "chatcmpl-upstream",
        "object": "chat.completion",
        "model": "policy-1",
        "choices": [
            {
                "index": 0,
                "message": {
                    "role": "assistant",
                    "reasoning": "Two files,\nso two calls… ✓",
                    "content": "  Reading both. \n",
                    "tool_calls": [
                        {
                            "id": "chatcmpl-tool-1",
                            "type": "function",
                            "function": {
                                "name": "read",
                                "arguments": '{ "path": "a/b",  "n": 1}',
                            },
                        },
                        {
                            "id": "chatcmpl-tool-2",
                            "type": "function",
                            "function": {
                                "name": "bash",
                                "arguments": '{"command":"ls \\u2713"}',
                            },
                        },
                    ],
                },
                "finish_reason": "tool_calls",
                "stop_reason": None,
            }
        ],
        "usage": {
            "prompt_tokens": 100,
            "completion_tokens": 30,
            "total_tokens": 130,
            "prompt_tokens_details": {"cached_tokens": 64},
            "completion_tokens_details": {"reasoning_tokens": 12},
        },
    },
    CALL_ID,
)


def reply(**message: Any) -> dict[str, Any]:
    """A plain reply with these message fields; ``finish_reason`` and ``stop_reason`` may be
    given too."""
    finish = message.pop("finish_reason", "stop")
    stop = message.pop("stop_reason", None)
    choice = {"message": message, "finish_reason": finish, "stop_reason": stop}
    usage = {"prompt_tokens": 5, "completion_tokens": 2}
    return with_our_ids({"model": "policy-1", "choices": [choice], "usage": usage}, CALL_ID)


_scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
json_values = st.recursive(
    _scalars,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=8,
)
_objects = st.dictionaries(st.text(max_size=4), json_values, max_size=3)
_written = (
    _objects.map(json.dumps)
    | st.sampled_from(["", " ", "{", "[1]", '{ "a" : 1e5 }', '{"a": NaN}', '{"b":1,"a":2}'])
    | st.text(max_size=8)
)
_calls = st.lists(
    st.builds(
        lambda name, arguments: {
            "id": "upstream",
            "type": "function",
            "function": {"name": name, "arguments": arguments},
        },
        st.text(min_size=1, max_size=6),
        _written,
    ),
    max_size=3,
)
_thought = st.none() | st.text(max_size=12)
replies = st.builds(
    lambda text, thought, calls, finish: reply(
        role="assistant",
        content=text,
        reasoning=thought,
        tool_calls=calls,
        finish_reason=finish,
    ),
    _thought,
    _thought,
    _calls,
    st.sampled_from(["stop", "length", "tool_calls", "abort", None]),
)
# A reply whose every part may be of any type.
hostile_replies = st.builds(
    lambda message, rest: rest | {"choices": [{"message": message}]},
    st.fixed_dictionaries(
        {},
        optional={key: json_values for key in ("content", "reasoning", "tool_calls")},
    ),
    st.fixed_dictionaries({}, optional={key: json_values for key in ("usage", "model")}),
) | st.fixed_dictionaries({"choices": json_values})


def _places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    entries = (
        (value.items() if isinstance(value, dict) else enumerate(value))
        if isinstance(value, dict | list)
        else ()
    )
    for key, inner in entries:
        yield from _places(inner, (*path, key))


def _replaced(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    if not path:
        return new
    if isinstance(value, dict):
        return value | {path[0]: _replaced(value[path[0]], path[1:], new)}
    return [
        _replaced(entry, path[1:], new) if place == path[0] else entry
        for place, entry in enumerate(value)
    ]


def hostile(body: dict[str, Any]) -> st.SearchStrategy[bytes]:
    """`body` with any value anywhere replaced by any other, as bytes."""
    return st.builds(
        lambda path, new: orjson.dumps(_replaced(body, path, new)),
        st.sampled_from(list(_places(body))),
        json_values.filter(_writable),
    )


def _writable(value: Any) -> bool:
    try:
        orjson.dumps(value)
    except TypeError:
        return False
    return True


@st.composite
def sampled(draw: st.DrawFn, reasoning: str, text: str) -> list[tuple[str, str]]:
    """Pieces (reasoning, text), in any order, that begin the two texts or are the whole."""
    pieces = [
        (piece, "") if kind else ("", piece)
        for kind, whole in ((1, reasoning), (0, text))
        for piece in _cut(whole, sorted(draw(st.lists(st.integers(0, len(whole)), max_size=3))))
    ]
    order = draw(st.permutations(range(len(pieces))))
    # Whatever the order, the pieces of one text stay in theirs.
    kinds = [bool(pieces[place][0]) for place in order]
    queues = {
        kind: [piece for piece in pieces if bool(piece[0]) is kind] for kind in (True, False)
    }
    return [queues[kind].pop(0) for kind in kinds]


def _cut(whole: str, ends: list[int]) -> list[str]:
    return [
        whole[start:end] for start, end in zip([0, *ends], ends, strict=False) if end > start
    ]


def events_of(stream: bytes) -> list[sse.Event]:
    """The events of a whole stream."""
    return sse.Decoder().feed(stream)


def recorded(harness: str) -> list[dict[str, Any]]:
    """The recorded calls of a harness."""
    lines = (DATA / harness / "basic.jsonl").read_bytes().splitlines()
    return [orjson.loads(line) for line in lines[1:]]


@contextmanager
def canned(
    body: bytes, content_type: str, status: int = 200
) -> Iterator[tuple[str, list[bytes]]]:
    """A real server that answers every POST with `body`: (its address, bodies seen)."""
    seen: list[bytes] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            seen.append(self.rfile.read(int(self.headers["content-length"])))
            self.send_response(status)
            self.send_header("content-type", content_type)
            self.send_header("content-length", str(len(body)))
            self.send_header("connection", "close")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", seen
        finally:
            server.shutdown()
            thread.join()
