"""A stub engine for benchmarks: prebuilt vLLM-shaped bodies, answered at once.

    python benchmarks/stub_engine.py PORT [TURNS]

Every request gets the same body (200 prompt ids, 100 sampled ids with logprobs), unless
it carries ``bench_turn``: then the body of that turn of a growing conversation.
"""

from __future__ import annotations

import asyncio
import random
import sys
from typing import Any

import orjson
import uvicorn

PROMPT, SAMPLED, VOCABULARY = 200, 100, 50_000
TURN_PROMPT, TURN_SAMPLED = 15, 15


def body(prompt: list[int], sampled: list[int], dice: random.Random) -> bytes:
    """One chat completion with ids and logprobs."""
    content = [
        {
            "token": f" t{token}",
            "logprob": -dice.random() * 3,
            "bytes": list(f" t{token}".encode()),
            "top_logprobs": [],
        }
        for token in sampled
    ]
    return orjson.dumps(
        {
            "id": "chatcmpl-stub",
            "object": "chat.completion",
            "created": 1,
            "model": "stub",
            "choices": [
                {
                    "index": 0,
                    "message": {"role": "assistant", "content": "word " * len(sampled)},
                    "logprobs": {"content": content},
                    "finish_reason": "stop",
                    "stop_reason": None,
                    "token_ids": sampled,
                }
            ],
            "system_fingerprint": "stub-1",
            "usage": {
                "prompt_tokens": len(prompt),
                "completion_tokens": len(sampled),
                "total_tokens": len(prompt) + len(sampled),
            },
            "prompt_token_ids": prompt,
        }
    )


def conversation(turns: int) -> list[bytes]:
    """Replies of a conversation whose every prompt extends the one before."""
    dice = random.Random(1)
    ids: list[int] = []
    replies = []
    for _ in range(turns):
        ids += [dice.randrange(VOCABULARY) for _ in range(TURN_PROMPT)]
        sampled = [dice.randrange(VOCABULARY) for _ in range(TURN_SAMPLED)]
        replies.append(body(list(ids), sampled, dice))
        ids += sampled
    return replies


class Stub:
    """The ASGI application."""

    def __init__(self, turns: int, delay_s: float = 0.0) -> None:
        self.delay_s = delay_s
        dice = random.Random(0)
        prompt = [dice.randrange(VOCABULARY) for _ in range(PROMPT)]
        sampled = [dice.randrange(VOCABULARY) for _ in range(SAMPLED)]
        self.reply = body(prompt, sampled, dice)
        self.turns = conversation(turns)
        self.models = orjson.dumps({"data": [{"id": "stub", "max_model_len": 100_000}]})

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        raw = b""
        while True:
            message = await receive()
            raw += message.get("body", b"")
            if not message.get("more_body"):
                break
        status, reply = 200, self.reply
        if scope["path"] == "/v1/models":
            reply = self.models
        elif scope["path"] != "/v1/chat/completions":
            status, reply = 404, b"{}"
        elif b"bench_turn" in raw:
            reply = self.turns[orjson.loads(raw)["bench_turn"]]
        elif self.delay_s and b"bench_slow" in raw:
            # For benchmarks/load.py only: the comparison with it is never slowed.
            await asyncio.sleep(self.delay_s)
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(reply)).encode()),
        ]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": reply})


if __name__ == "__main__":
    port = int(sys.argv[1])
    stub = Stub(
        int(sys.argv[2]) if len(sys.argv) > 2 else 0,
        float(sys.argv[3]) if len(sys.argv) > 3 else 0.0,
    )
    uvicorn.run(
        stub,
        port=port,
        log_level="error",
        access_log=False,
        lifespan="off",
        timeout_keep_alive=75,
    )
