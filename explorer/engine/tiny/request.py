"""A body in vLLM's dialect to what an embedded engine can do, or a refusal.

Owns: names, ranges and defaults of body fields. Must not know: tokens, the network, replies.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from explorer.engine.completion import DEFAULT_MAX_TOKENS, given_ids, is_prompt
from explorer.engine.tiny.sampling import SamplingParameters
from explorer.errors import BadRequest, NotFound

MOST_TOP_LOGPROBS = 20
Number = TypeVar("Number", int, float)


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """A checked body. `max_tokens` is None when the body names no limit; `plain` is a body
    with a prompt instead of messages."""

    body: Mapping[str, Any]
    parameters: SamplingParameters
    max_tokens: int | None
    stop: tuple[str, ...]
    stop_token_ids: tuple[int, ...]
    ignore_eos: bool
    prompt_ids: tuple[int, ...] | None
    plain: bool = False
    prompt_logprobs: int | None = None

    def flag(self, name: str, default: bool = False) -> bool:
        """A boolean field, its default also standing for null."""
        value = self.body.get(name)
        return default if value is None else bool(value)

    @property
    def wants_tools(self) -> bool:
        return (
            not self.plain
            and bool(self.body.get("tools"))
            and self.body.get("tool_choice") != "none"
        )


def read_request(
    body: Mapping[str, Any], model: str, vocab_size: int, defaults: Mapping[str, Any]
) -> ChatRequest:
    """Check a body; `defaults` are the model's own generation_config.json values.

    Raises BadRequest, or NotFound for another model; `details["param"]` names the field.
    """
    plain = is_prompt(body)
    if not plain:
        _check_messages(body)
    if body.get("model") not in (None, "", model):
        raise NotFound(
            f"The model `{body['model']}` does not exist. Valid aliases: {model}.",
            param="model",
        )
    _refuse_unsupported(body)
    stop = body.get("stop")
    texts = (stop,) if isinstance(stop, str) else tuple(stop or ())
    if not all(isinstance(text, str) for text in texts):
        raise refusal("stop", texts, "stop must be text or a list of texts")
    limit = body.get("max_completion_tokens")
    limit = body.get("max_tokens") if limit is None else limit
    if limit is None and plain:
        limit = DEFAULT_MAX_TOKENS
    if limit is not None and (not isinstance(limit, int) or limit < 1):
        raise refusal("max_tokens", limit, f"max_tokens must be at least 1, got {limit}")
    given = (body.get("kv_transfer_params") or {}).get("prompt_token_ids")
    asked = given_ids(body, vocab_size) if plain else None
    return ChatRequest(
        body=body,
        parameters=_parameters(body, vocab_size, defaults),
        max_tokens=limit,
        stop=texts,
        stop_token_ids=_ids(body, "stop_token_ids", vocab_size),
        ignore_eos=bool(body.get("ignore_eos")),
        prompt_ids=asked if given is None or plain else _sent_ids(given, vocab_size),
        plain=plain,
        prompt_logprobs=_prompt_logprobs(body),
    )


# The field by which chat takes ids, as vLLM names it in its refusals.
_SENT_IDS = "kv_transfer_params.prompt_token_ids"


def _sent_ids(given: Any, vocab_size: int) -> tuple[int, ...]:
    """The ids of a chat prompt; nothing else may stand there."""
    if not isinstance(given, list) or not given or not all(type(each) is int for each in given):
        raise refusal(_SENT_IDS, given, "prompt_token_ids must be a list of token ids")
    for each in given:
        if not 0 <= each < vocab_size:
            raise BadRequest(
                f"Token id {each} is out of vocabulary (parameter={_SENT_IDS})",
                param=_SENT_IDS,
            )
    return tuple(given)


def refusal(param: str, value: Any, message: str) -> BadRequest:
    """A 400 in vLLM's wording."""
    return BadRequest(f"{message} (parameter={param}, value={value})", param=param)


def _check_messages(body: Mapping[str, Any]) -> None:
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise BadRequest(
            "1 validation error:\n  {'type': 'missing', 'loc': 'body.messages', "
            "'msg': 'Field required'}",
            param="body.messages",
            kind="Bad Request",
        )
    for index, message in enumerate(messages):
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise BadRequest(
                f"messages[{index}] must be an object with a role",
                param=f"body.messages.{index}",
            )


def _refuse_unsupported(body: Mapping[str, Any]) -> None:
    """Refuse what would silently be ignored although it changes the reply."""
    if body.get("tools") == []:
        raise BadRequest(
            "`tools` must not be an empty array. Either provide at least one tool "
            "or omit the field entirely. (parameter=tools)",
            param="tools",
        )
    for name in ("n", "best_of"):
        if (body.get(name) or 1) != 1:
            raise refusal(name, body[name], "this engine makes one choice a request")
    choice = body.get("tool_choice")
    if choice not in (None, "auto", "none"):
        raise refusal("tool_choice", choice, "this engine has no grammar to force tool calls")
    form = body.get("response_format") or {}
    if form.get("type", "text") != "text":
        raise refusal("response_format", form.get("type"), "this engine has no grammar")
    for name in (
        "structured_outputs",
        "bad_words",
        "logprob_token_ids",
        "use_beam_search",
        "echo",
        "suffix",
        "prompt_embeds",
        "guided_json",
        "guided_regex",
        "guided_choice",
    ):
        if body.get(name):
            raise refusal(name, body[name], f"this engine does not support {name}")
    if body.get("stream_options") and not body.get("stream"):
        raise BadRequest(
            "Stream options can only be defined when `stream=True`. (parameter=stream_options)",
            param="stream_options",
        )
    if body.get("add_generation_prompt", True) and body.get("continue_final_message"):
        raise BadRequest(
            "Cannot set both `continue_final_message` and `add_generation_prompt` to True.",
            param="continue_final_message",
        )


def _parameters(
    body: Mapping[str, Any], vocab_size: int, defaults: Mapping[str, Any]
) -> SamplingParameters:
    def number(name: str, fallback: Number, low: float, high: float) -> Number:
        value = body.get(name)
        value = defaults.get(name, fallback) if value is None else value
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise refusal(name, value, f"{name} must be a number")
        if not low <= value <= high:
            raise refusal(name, value, f"{name} must be in [{low:g}, {high:g}], got {value}")
        return type(fallback)(value)

    big = 2.0**62
    top_p = number("top_p", 1.0, 0.0, 1.0)
    if top_p == 0.0:
        raise refusal("top_p", top_p, "top_p must be in (0, 1], got 0")
    seed = body.get("seed")
    return SamplingParameters(
        temperature=number("temperature", 1.0, 0.0, 2.0),
        top_p=top_p,
        top_k=max(0, number("top_k", 0, -1, big)),
        min_p=number("min_p", 0.0, 0.0, 1.0),
        seed=None if seed is None or seed == -1 else number("seed", 0, -big, big) % 2**63,
        min_tokens=number("min_tokens", 0, 0, big),
        logit_bias=_bias(body, vocab_size),
        allowed_token_ids=_ids(body, "allowed_token_ids", vocab_size),
        presence_penalty=number("presence_penalty", 0.0, -2.0, 2.0),
        frequency_penalty=number("frequency_penalty", 0.0, -2.0, 2.0),
        repetition_penalty=number("repetition_penalty", 1.0, 1e-3, 100.0),
        logprobs=_logprobs(body),
    )


def _logprobs(body: Mapping[str, Any]) -> int | None:
    """How many candidates to report at each token; None for no logprobs at all."""
    if is_prompt(body):
        most = body.get("logprobs")
        if most is not None and (type(most) is not int or not 0 <= most <= MOST_TOP_LOGPROBS):
            raise refusal(
                "logprobs", most, f"logprobs must be in [0, {MOST_TOP_LOGPROBS}], got {most}"
            )
        return most
    count = body.get("top_logprobs") or 0
    if not body.get("logprobs"):
        if count:
            raise BadRequest(
                "when using `top_logprobs`, `logprobs` must be set to true. "
                "(parameter=top_logprobs)",
                param="top_logprobs",
            )
        return None
    if type(count) is not int or not 0 <= count <= MOST_TOP_LOGPROBS:
        raise refusal(
            "top_logprobs",
            count,
            f"top_logprobs must be in [0, {MOST_TOP_LOGPROBS}], got {count}",
        )
    return count


def _prompt_logprobs(body: Mapping[str, Any]) -> int | None:
    """How many alternatives to report at each token of the prompt; None for no logprobs."""
    most = body.get("prompt_logprobs")
    if most is None:
        return None
    if type(most) is not int or not 0 <= most <= MOST_TOP_LOGPROBS:
        raise refusal(
            "prompt_logprobs",
            most,
            f"prompt_logprobs must be in [0, {MOST_TOP_LOGPROBS}], got {most}",
        )
    if body.get("stream"):
        raise refusal("prompt_logprobs", most, "prompt_logprobs are not available in a stream")
    return most


def _bias(body: Mapping[str, Any], vocab_size: int) -> dict[int, float]:
    found = {}
    for key, value in (body.get("logit_bias") or {}).items():
        try:
            token_id, bias = int(key), float(value)
        except (TypeError, ValueError) as problem:
            raise refusal(
                "logit_bias", key, "logit_bias must map token ids to numbers"
            ) from problem
        if not 0 <= token_id < vocab_size:
            raise refusal("logit_bias", key, f"token id {key} is not in the vocabulary")
        found[token_id] = min(100.0, max(-100.0, bias))
    return found


def _ids(body: Mapping[str, Any], name: str, vocab_size: int) -> tuple[int, ...]:
    ids = body.get(name) or ()
    if not all(type(i) is int and 0 <= i < vocab_size for i in ids):
        raise refusal(name, ids, f"{name} must hold token ids below {vocab_size}")
    return tuple(ids)
