"""Replies from a file: chosen text, tool calls, ids, logprobs, delays and faults.

Owns: how a reply is made from an entry of a script.
Must not know: dialects, the store.

Ids come from the tiny engine's real tokenizer and template, logprobs from a fixed
rule unless given; so every count agrees unless the script makes it disagree. The
engine calls itself scripted and is never certifiable: its logprobs are made up.

The format of a script stands in `engine.script`.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson

from explorer.engine.completion import DEFAULT_MAX_TOKENS, as_text, given_ids, is_prompt
from explorer.engine.protocol import (
    PROBE_ID,
    EngineFacts,
    EngineReply,
    EngineRequest,
    TokenPiece,
)
from explorer.engine.script import checked, read_script
from explorer.engine.scripted_stream import DEFAULT_PIECES, STREAM_FAULTS, chunks_of
from explorer.engine.tiny.template import ChatTemplate
from explorer.engine.tiny.tokenizer import ByteTokenizer
from explorer.engine.tiny.weights import file_sha256
from explorer.errors import (
    BadRequest,
    EngineRefusedStream,
    EngineTimeout,
    EngineUnavailable,
)

WEIGHTS = Path(__file__).with_name("tiny") / "weights"
_HEADERS = (("content-type", "application/json"),)


def rule_logprob(position: int, token_id: int) -> float:
    """The made-up logprob of a scripted token: a fixed number in (-2.5, 0)."""
    return -((((token_id * 2654435761 + position * 40503) % 10007) / 10007) ** 3) * 2.5


class ScriptedEngine:
    """Answers from a script, in order.

    Args:
        script: path of the script, or its decoded JSON.
    """

    kind = "scripted"

    def __init__(self, script: Path | Sequence[Mapping[str, Any]] | Mapping[str, Any]) -> None:
        document: Any = read_script(script) if isinstance(script, Path) else script
        if not isinstance(document, Mapping):
            document = {"replies": list(document)}
        self.model = str(document.get("model", "scripted"))
        self._repeat = bool(document.get("repeat", False))
        self._replies = [checked(entry, n) for n, entry in enumerate(document["replies"])]
        self._used: set[int] = set()
        self._tokenizer = ByteTokenizer(WEIGHTS)
        self._template = ChatTemplate.read(WEIGHTS)
        self._end = self._tokenizer.id_of("<|im_end|>")
        self._count = 0
        self.cancelled = 0

    async def start(self) -> None:
        """Nothing to start."""

    async def stop(self) -> None:
        """Nothing to stop."""

    async def generate(self, request: EngineRequest) -> EngineReply:
        """The next matching entry's reply.

        Raises:
            EngineTimeout: the entry says `hang` and ``timeout_s`` is over.
            EngineUnavailable: the entry says `unreachable`, or breaks off.
        """
        entry = self._next(request)
        if entry is not None and entry.get("fault") in STREAM_FAULTS:
            raise EngineUnavailable("the scripted engine broke off")
        return await self._answer(entry, request)

    async def _answer(
        self, entry: Mapping[str, Any] | None, request: EngineRequest
    ) -> EngineReply:
        if entry is None:
            return _error(500, "the script has no reply left for this request")
        try:
            if entry.get("delay_ms"):
                await asyncio.sleep(float(entry["delay_ms"]) / 1000)
            if entry.get("fault") == "hang":
                await asyncio.sleep(request.timeout_s)
                raise EngineTimeout(f"the scripted engine hung for {request.timeout_s:g} s")
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        if entry.get("fault") == "unreachable":
            raise EngineUnavailable("the scripted engine plays dead")
        return await asyncio.to_thread(self._reply, entry, request)

    def _next(self, request: EngineRequest) -> Mapping[str, Any] | None:
        for number, entry in enumerate(self._replies):
            spent = entry.get("once") and number in self._used
            if "when" in entry and not spent and self._fits(entry["when"], request.body):
                self._used.add(number)
                return entry
        if request.request_id.startswith(PROBE_ID):
            # A question about the engine uses up none of the script.
            return {"text": "ok"}
        for number, entry in enumerate(self._replies):
            if "when" not in entry and number not in self._used:
                self._used.add(number)
                return entry
        if self._repeat and self._used:
            self._used.clear()
            return self._next(request)
        return None

    def _fits(self, when: Mapping[str, Any], body: Mapping[str, Any]) -> bool:
        if str(when.get("contains", "")) not in self._last_said(body):
            return False
        if "tools" in when and bool(body.get("tools")) is not when["tools"]:
            return False
        anywhere = when.get("anywhere")
        return anywhere is None or str(anywhere) in str(body.get("messages", ""))

    def _last_said(self, body: Mapping[str, Any]) -> str:
        """The last message, or the whole of a plain prompt, ids as their text."""
        if not is_prompt(body):
            return str(body["messages"][-1].get("content"))
        prompt = body["prompt"]
        return prompt if isinstance(prompt, str) else self._text(prompt)

    def _text(self, ids: Sequence[Any], special: bool = True) -> str:
        known = [i for i in ids if type(i) is int and 0 <= i < len(self._tokenizer.pieces)]
        kept = [i for i in known if special or not self._tokenizer.is_special(i)]
        return b"".join(map(self._tokenizer.raw, kept)).decode("utf-8", "replace")

    def _reply(self, entry: Mapping[str, Any], request: EngineRequest) -> EngineReply:
        fault = entry.get("fault")
        if "status" in entry or "body" in entry:
            body = entry.get("body", {"error": {"message": "scripted failure", "type": "x"}})
            raw = body.encode() if isinstance(body, str) else orjson.dumps(body)
            more = tuple(
                (str(name), str(entry["headers"][name])) for name in entry.get("headers", ())
            )
            return EngineReply(int(entry.get("status", 200)), (*_HEADERS, *more), raw)
        if fault == "not_json":
            return EngineReply(200, _HEADERS, b"<html>not json</html>")
        try:
            reply = self._completion(entry, request)
        except BadRequest as problem:
            return _error(400, problem.message)
        if is_prompt(request.body):
            ids, _ = self._sampled(entry, request.body)
            reply = as_text(reply, self._text(ids, special=False), request.body)
        if fault == "no_choices":
            reply["choices"] = []
        reply |= entry.get("patch", {})
        # json and not orjson: a script may hold NaN on purpose.
        return EngineReply(200, _HEADERS, json.dumps(reply).encode())

    def _completion(self, entry: Mapping[str, Any], request: EngineRequest) -> dict[str, Any]:
        fault = entry.get("fault")
        prompt = list(entry.get("prompt_token_ids") or self.prompt_ids(request.body))
        text = entry.get("text", "")
        calls = entry.get("tool_calls") or []
        ids, finish = self._sampled(entry, request.body)
        logprobs = entry.get("logprobs")
        if logprobs is None:
            logprobs = [rule_logprob(position, token) for position, token in enumerate(ids)]
        self._count += 1
        message: dict[str, Any] = {
            "role": "assistant",
            "content": text or None,
            "reasoning": entry.get("reasoning"),
        }
        if finish == "length" and "token_ids" not in entry:
            # As an engine does: what was cut stays raw text.
            raw = b"".join(self._tokenizer.raw(token) for token in ids)
            message |= {"content": raw.decode("utf-8", "replace"), "reasoning": None}
        elif calls:
            message["tool_calls"] = [
                {
                    "id": f"chatcmpl-tool-{self._count:06x}{number:02x}",
                    "type": "function",
                    "function": {"name": call["name"], "arguments": _arguments(call)},
                }
                for number, call in enumerate(calls)
            ]
        content = self._logprob_entries(ids, logprobs, fault == "placeholder_ids")
        choice: dict[str, Any] = {
            "index": 0,
            "message": message,
            "logprobs": None if fault == "no_logprobs" else {"content": content},
            "finish_reason": finish,
            "stop_reason": None,
            "token_ids": None if fault in ("no_ids", "placeholder_ids") else ids,
        }
        counted = len(ids) + (4 if fault == "wrong_usage" else 0)
        return {
            "id": f"chatcmpl-{request.request_id}",
            "object": "chat.completion",
            "created": 0,
            "model": self.model,
            "choices": [choice],
            "usage": {
                "prompt_tokens": len(prompt),
                "completion_tokens": counted,
                "total_tokens": len(prompt) + counted,
                "completion_tokens_details": self._details(entry, ids),
            },
            "prompt_token_ids": None if fault == "no_prompt_ids" else prompt,
        }

    def _details(self, entry: Mapping[str, Any], ids: Sequence[int]) -> dict[str, int]:
        """As vLLM counts: the sampled tokens of the reasoning, its marks among them."""
        mark = self._tokenizer.id_of("</think>")
        reasons = bool(entry.get("reasoning")) and mark in ids
        return {"reasoning_tokens": list(ids).index(mark or 0) + 1 if reasons else 0}

    def _logprob_entries(
        self, ids: Sequence[int], logprobs: Sequence[Any], placeholders: bool
    ) -> list[dict[str, Any]]:
        entries = []
        for position, value in enumerate(logprobs):
            token = ids[position] if position < len(ids) else 0
            raw = self._tokenizer.raw(token)
            name = f"token_id:{token}" if placeholders else raw.decode("utf-8", "replace")
            entries.append(
                {"token": name, "logprob": value, "bytes": list(raw), "top_logprobs": []}
            )
        return entries

    def _sampled(
        self, entry: Mapping[str, Any], body: Mapping[str, Any]
    ) -> tuple[list[int], str]:
        """The ids that the entry's text would have been sampled as, and how it ended."""
        calls = entry.get("tool_calls") or []
        # Of a plain completion nothing is parsed, so no call is seen in it.
        called = bool(calls) and not is_prompt(body)
        finish = entry.get("finish_reason") or ("tool_calls" if called else "stop")
        if entry.get("token_ids") is not None:
            return list(entry["token_ids"]), finish
        # As the template writes an earlier turn, so that an exact echo extends it.
        text = ""
        if entry.get("reasoning"):
            text = f"<think>\n{entry['reasoning']}\n</think>\n\n"
        spoken = entry.get("text", "")
        text += spoken
        for number, call in enumerate(calls):
            name = json.dumps(call["name"])
            said = f'{{"name": {name}, "arguments": {_arguments(call)}}}'
            text += "\n" * bool(number or spoken) + f"<tool_call>\n{said}\n</tool_call>"
        ids = self._tokenizer.encode(text)
        if finish != "length" and self._end is not None:
            ids.append(self._end)
        limit = body.get("max_completion_tokens") or body.get("max_tokens")
        if limit is None and is_prompt(body):
            limit = DEFAULT_MAX_TOKENS
        if isinstance(limit, int) and len(ids) > limit:
            return ids[:limit], "length"
        return ids, finish

    def prompt_ids(self, body: Mapping[str, Any]) -> list[int]:
        """The prompt as the tiny engine's template and tokenizer make it.

        Raises:
            BadRequest: ids that are none of the vocabulary, or messages that do not fit.
        """
        sent = body.get("kv_transfer_params")
        sent = sent.get("prompt_token_ids") if isinstance(sent, Mapping) else None
        if sent is not None and not is_prompt(body):
            body = {"prompt": sent}
        if is_prompt(body):
            given = given_ids(body, len(self._tokenizer.pieces))
            return self._tokenizer.encode(body["prompt"]) if given is None else list(given)
        return self._tokenizer.encode(self._template.render(body))

    async def stream(self, request: EngineRequest) -> AsyncIterator[bytes]:
        """The same reply in chunks and `[DONE]`; a plain completion as one chunk.

        Raises:
            EngineRefusedStream: the script answers with a status or body of its own.
        """
        entry = self._next(request)
        reply = await self._answer(entry, request)
        if reply.status != 200 or (entry is not None and "body" in entry):
            raise EngineRefusedStream(f"the script answers with {reply.status}", reply)
        entry = entry or {}
        body = json.loads(reply.body)
        if is_prompt(request.body):
            yield b"data: " + orjson.dumps(body) + b"\n\ndata: [DONE]\n\n"
            return
        pieces = int(entry.get("chunks", DEFAULT_PIECES))
        for chunk in chunks_of(body, pieces, entry.get("fault")):
            yield chunk
            if entry.get("chunk_ms"):
                await asyncio.sleep(float(entry["chunk_ms"]) / 1000)

    async def facts(self) -> EngineFacts:
        """Scripted, and never certifiable."""
        return EngineFacts(
            name="scripted",
            version="1",
            model=self.model,
            max_model_len=None,
            tokenizer_sha256=file_sha256(WEIGHTS / "tokenizer.json"),
            chat_template_sha256=file_sha256(WEIGHTS / "chat_template.jinja"),
            fingerprint=None,
            certifiable=False,
        )

    async def vocabulary(self) -> tuple[TokenPiece, ...]:
        """The tiny tokenizer's."""
        return self._tokenizer.pieces

    async def tokenize(self, body: Mapping[str, Any]) -> tuple[int, ...]:
        """Prompt ids of a body. Raises BadRequest."""
        return tuple(await asyncio.to_thread(self.prompt_ids, body))


def _arguments(call: Mapping[str, Any]) -> str:
    arguments = call.get("arguments", {})
    return arguments if isinstance(arguments, str) else json.dumps(arguments)


def _error(status: int, message: str) -> EngineReply:
    body = {"error": {"message": message, "type": "scripted", "param": None, "code": status}}
    return EngineReply(status, _HEADERS, orjson.dumps(body))
