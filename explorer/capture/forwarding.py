"""What of a request goes on to the engine, and in which order its messages stand.

Owns: the fields that do not touch sampling, and the one-system rule.
Must not know: sampling, capture.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# Fields of vLLM's (and SGLang's) chat and completion requests that say what is asked, how
# the prompt is rendered or what comes back; none of them changes which token is drawn.
FORWARDED = frozenset(
    [
        "messages",
        "prompt",
        "model",
        "tools",
        "functions",
        "function_call",
        "parallel_tool_calls",
        "n",
        "logprobs",
        "top_logprobs",
        "prompt_logprobs",
        "logprob_token_ids",
        "return_token_ids",
        "return_tokens_as_token_ids",
        "return_prompt_text",
        "return_weight_versions",
        "include_reasoning",
        "separate_reasoning",
        "include_stop_str_in_output",
        "skip_special_tokens",
        "spaces_between_special_tokens",
        "add_special_tokens",
        "chat_template",
        "documents",
        "echo",
        "suffix",
        "stream_interval",
        "priority",
        "request_id",
        "cache_salt",
        "kv_transfer_params",
        "ec_transfer_params",
        "routed_experts_prompt_start",
        "return_routed_experts",
        "mm_processor_kwargs",
        "truncate_prompt_tokens",
        # What vendors define and engines pass over.
        "user",
        "store",
        "metadata",
        "service_tier",
        "prompt_cache_key",
        "prompt_cache_retention",
        "safety_identifier",
        "verbosity",
        "session_id",
        "_session_id",
        "modalities",
        "audio",
        "prediction",
        "usage",
        "stream",
        "stream_options",
    ]
)
_SYSTEM = ("system", "developer")


def arranged(messages: list[Any], *, one_system: bool) -> list[Any]:
    """The messages with roles that chat templates know.

    ``developer`` is OpenAI's newer word for ``system``. With `one_system`, leading system
    messages become one and later ones are spoken by the user; both rules look at nothing
    that comes later, so a conversation that is only extended stays a prefix.
    """
    if not any(_role(message) in _SYSTEM for message in messages):
        return messages
    named = [
        {**message, "role": "system"} if _role(message) == "developer" else message
        for message in messages
    ]
    if not one_system:
        return named
    leading = 0
    while leading < len(named) and _role(named[leading]) == "system":
        leading += 1
    first = named[:1]
    if leading > 1 and all(isinstance(item.get("content"), str) for item in named[:leading]):
        text = "\n\n".join(item["content"] for item in named[:leading])
        first = [{**named[0], "content": text}]
        rest = named[leading:]
    else:
        rest = named[1:]
    return first + [
        {**message, "role": "user"} if _role(message) == "system" else message
        for message in rest
    ]


def _role(message: Any) -> Any:
    return message.get("role") if isinstance(message, Mapping) else None
