"""Finished generations as bodies of vLLM's shape, and refusals as its error bodies.

Owns: the JSON of replies. Must not know: how tokens were sampled, pipes, HTTP.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from explorer.engine.completion import as_text
from explorer.engine.tiny.parse import THINK_END, THINK_START, parse_message
from explorer.engine.tiny.parts import Spellings
from explorer.engine.tiny.request import ChatRequest
from explorer.engine.tiny.sampling import SampledToken
from explorer.engine.tiny.scheduler import Finished
from explorer.engine.tiny.text import TextTrail
from explorer.errors import ExplorerError

PROMPT_TAIL = 8
"""Ids at the end of a prompt among which a template may open a think block."""


@dataclass(frozen=True, slots=True)
class Generation:
    """A finished job with the request it answers."""

    request_id: str
    request: ChatRequest
    finished: Finished
    trail: TextTrail
    prompt_text: str | None
    created_s: int


class ReplyWriter:
    """Writes reply bodies for one model."""

    def __init__(
        self,
        tokenizer: Spellings,
        model: str,
        fingerprint: str,
        always_thinks: bool = True,
    ) -> None:
        self._tokenizer = tokenizer
        self._always_thinks = always_thinks
        self._model, self.fingerprint = model, fingerprint
        self._think = tokenizer.id_of(THINK_START), tokenizer.id_of(THINK_END)

    def write(self, done: Generation) -> bytes:
        """The unary chat completion, or text completion."""
        reply = self._completion(done)
        if done.request.plain:
            reply["usage"]["completion_tokens_details"] = None
            reply = as_text(reply, done.trail.text, done.request.body)
        return orjson.dumps(reply)

    def _completion(self, done: Generation) -> dict[str, Any]:
        request, finished = done.request, done.finished
        shown = request.plain or request.flag("include_reasoning", True)
        ids = [token.token_id for token in finished.tokens]
        parsed = parse_message(
            done.trail.text, tools=request.wants_tools, thinks=self._thinks(finished.job.prompt)
        )
        message: dict[str, Any] = {
            "role": "assistant",
            "content": parsed.content,
            "refusal": None,
            "annotations": None,
            "audio": None,
            "function_call": None,
        }
        reason = finished.reason
        if parsed.tool_calls:
            message["tool_calls"] = [call.as_json() for call in parsed.tool_calls]
            reason = "tool_calls" if reason == "stop" else reason
        # vLLM drops ids and logprobs together with hidden reasoning; so do we.
        message["reasoning"] = parsed.reasoning if shown else None
        ids_wanted = request.flag("return_token_ids")
        choice: dict[str, Any] = {
            "index": 0,
            "message": message,
            "logprobs": self._logprobs(done) if shown else None,
            "finish_reason": reason,
            "stop_reason": finished.stopped_by,
            "token_ids": ids if ids_wanted and shown else None,
            "routed_experts": None,
        }
        if request.flag("return_weight_versions"):
            choice["weight_versions"] = [
                {"version": label, "start": start, "end": end}
                for label, start, end in finished.spans
            ]
        return {
            "id": f"chatcmpl-{done.request_id}",
            "object": "chat.completion",
            "created": done.created_s,
            "model": self._model,
            "choices": [choice],
            "service_tier": None,
            "system_fingerprint": self.fingerprint,
            "usage": self._usage(done, ids),
            "prompt_logprobs": self._prompt_logprobs(done),
            "prompt_token_ids": list(finished.job.prompt) if ids_wanted else None,
            "prompt_text": done.prompt_text if request.flag("return_prompt_text") else None,
            "kv_transfer_params": None,
            "ec_transfer_params": None,
            "metrics": None,
        }

    def _usage(self, done: Generation, ids: Sequence[int]) -> dict[str, Any]:
        prompt = len(done.finished.job.prompt)
        return {
            "prompt_tokens": prompt,
            "total_tokens": prompt + len(ids),
            "completion_tokens": len(ids),
            "prompt_tokens_details": {
                "cached_tokens": done.finished.cached_tokens,
                "created_cache_tokens": 0,
                "multimodal_tokens": None,
            },
            "completion_tokens_details": {
                "reasoning_tokens": self._reasoning_tokens(
                    ids, done.finished.job.end_ids, self._thinks(done.finished.job.prompt)
                )
            },
        }

    def _thinks(self, prompt: Sequence[int]) -> bool:
        """Whether a reply without a mark of thinking is a thought: the prompt may begin one."""
        start, end = self._think
        marks = [i for i in prompt[-PROMPT_TAIL:] if i in (start, end)]
        return self._always_thinks or (bool(marks) and marks[-1] == start)

    def _reasoning_tokens(
        self, ids: Sequence[int], end_ids: Sequence[int], thinks: bool
    ) -> int:
        """Tokens inside the think block; without its end, all but the end of sequence."""
        start, end = self._think
        body = [i for i in ids if i not in end_ids]
        if not (thinks or start in body or end in body):
            return 0
        first = body.index(start) + 1 if start in body else 0
        last = body.index(end) if end in body else len(body)
        return max(0, last - first)

    def _logprobs(self, done: Generation) -> dict[str, Any] | None:
        if done.request.parameters.logprobs is None:
            return None
        placeholders = done.request.flag("return_tokens_as_token_ids")
        pending = b""
        content = []
        for token in done.finished.tokens:
            pending += self._tokenizer.raw(token.token_id)
            text, pending = _complete(pending)
            content.append(self._entry(token, text, placeholders))
        return {"content": content}

    def _prompt_logprobs(self, done: Generation) -> list[dict[str, Any] | None] | None:
        """One entry per prompt token; the first has none, since nothing comes before it."""
        if done.request.prompt_logprobs is None:
            return None
        scores = done.finished.prompt_scores
        return [None, *(each.as_json(self._tokenizer) for each in scores)]

    def _entry(self, token: SampledToken, text: str, placeholders: bool) -> dict[str, Any]:
        top = []
        for token_id, logprob in token.candidates:
            shown = self._tokenizer.raw(token_id).decode("utf-8", "replace")
            if token_id == token.token_id:
                shown = text
            if placeholders:
                shown = f"token_id:{token_id}"
            top.append({"token": shown, "logprob": logprob, "bytes": list(shown.encode())})
        return {
            "token": f"token_id:{token.token_id}" if placeholders else text,
            "logprob": token.logprob,
            "bytes": list(text.encode()),
            "top_logprobs": top,
        }


def _complete(pending: bytes) -> tuple[str, bytes]:
    """Text once the bytes end on a whole character; until then nothing, as in vLLM."""
    try:
        return pending.decode(), b""
    except UnicodeDecodeError as problem:
        if problem.end == len(pending) and len(pending) - problem.start < 4:
            return "", pending
        return pending.decode("utf-8", "replace"), b""


def write_error(problem: ExplorerError) -> tuple[int, bytes]:
    """Status and body of a refusal."""
    status = problem.status
    kinds = {400: "BadRequestError", 404: "NotFoundError"}
    kind = problem.details.get("kind", kinds.get(status, "InternalServerError"))
    return status, orjson.dumps(
        {
            "error": {
                "message": problem.message,
                "type": kind,
                "param": problem.details.get("param"),
                "code": status,
            }
        }
    )
