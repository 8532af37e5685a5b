"""What is asked of the engine: capture fields, neutral sampling, named constraints.

Owns: which sampling fields are sent, which are reset, and which facts mask a call.
Must not know: HTTP, the store.

At token level, numeric truncation and penalties are sent as no-ops: a trainer
recomputes plain softmax at a temperature, and the ratio is only true for that.
Constraints that change what may be said pass through, and the call is masked.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from explorer.capture.forwarding import FORWARDED, arranged
from explorer.engine.completion import is_prompt
from explorer.records import CaptureLevel, Note, Purpose
from explorer.wire.neutral import NeutralRequest

# Fields of a request that change the distribution or its length, in reading order.
SAMPLING_FIELDS = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "seed",
    "max_tokens",
    "max_completion_tokens",
    "min_tokens",
    "stop",
    "stop_token_ids",
    "ignore_eos",
    "logit_bias",
    "bad_words",
    "allowed_token_ids",
    "tool_choice",
    "response_format",
    "structured_outputs",
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
    "thinking_token_budget",
    "reasoning_effort",
    "chat_template_kwargs",
    "continue_final_message",
    "add_generation_prompt",
)

_LIMITS = ("max_completion_tokens", "max_tokens")

NEUTRAL: dict[str, float | int] = {
    "top_p": 1.0,
    "top_k": -1,
    "min_p": 0.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "repetition_penalty": 1.0,
}

GREEDY_BELOW = 1e-5
# vLLM raises a temperature below this to it, so that what was sent is not what was drawn at.
_RAISED_BELOW = 0.01

# Any truthy value of these limits which tokens may be drawn. The last ones hold fields that
# some servers merge into the request, so nobody here can say what they do.
_IF_TRUE = (
    "logit_bias",
    "bad_words",
    "min_tokens",
    "ignore_eos",
    "logits_processors",
    "custom_logit_processor",
    "use_beam_search",
    "vllm_xargs",
    "custom_params",
    "sampling_params",
    "extra_body",
    "nvext",
)
# Any value of these does, an empty schema and a budget of 0 too.
_IF_GIVEN = (
    "allowed_token_ids",
    "structured_outputs",
    "structural_tag",
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
    "guided_decoding",
    "json_schema",
    "regex",
    "ebnf",
    "grammar",
    "samplers",
    "thinking_token_budget",
)
# Samplers of other engines, each with the value that changes nothing.
_SAMPLERS: dict[str, float] = {
    "best_of": 1,
    "beam_width": 1,
    "num_beams": 1,
    "typical_p": 1.0,
    "typ_p": 1.0,
    "tfs_z": 1.0,
    "top_a": 0.0,
    "top_n_sigma": -1.0,
    "epsilon_cutoff": 0.0,
    "eta_cutoff": 0.0,
    "mirostat": 0,
    "mirostat_mode": 0,
    "xtc_probability": 0.0,
    "dry_multiplier": 0.0,
    "dynatemp_range": 0.0,
    "smoothing_factor": 0.0,
    "repeat_penalty": 1.0,
    "no_repeat_ngram_size": 0,
    "encoder_repetition_penalty": 1.0,
}


_KNOWN = FORWARDED.union(SAMPLING_FIELDS, NEUTRAL, _IF_TRUE, _IF_GIVEN, _SAMPLERS)


@dataclass(frozen=True, slots=True)
class Shaped:
    """A request ready for the engine, with what was decided about it."""

    body: dict[str, Any]
    requested: dict[str, Any]
    submitted: dict[str, Any]
    constraints: tuple[str, ...]
    greedy: bool
    max_tokens: int | None
    notes: tuple[Note, ...] = ()


@dataclass(frozen=True, slots=True)
class SamplingPlan:
    """What a rollout and the server ask of every call.

    Attributes:
        level: capture level that the engine was certified for.
        sampling: the rollout's own values (`temperature`, `seed`, …), which win over
            the harness's.
        top_logprobs: alternatives to record per token (0 to 20).
        model: name to ask the engine for; None keeps the caller's.
        one_system: the engine's template takes one leading system message only.
        harmless: fields of requests that a person vouches for: they shape no sampling.
    """

    level: CaptureLevel
    purpose: Purpose
    sampling: Mapping[str, Any]
    top_logprobs: int = 0
    model: str | None = None
    one_system: bool = False
    harmless: frozenset[str] = frozenset()


def shape(request: NeutralRequest, plan: SamplingPlan) -> Shaped:
    """The body to send and the record of how it differs from what was asked."""
    asked = request.body
    body = dict(asked)
    for key in ("stream", "stream_options"):
        body.pop(key, None)
    notes: tuple[Note, ...] = ()
    if "tools" in body and not body["tools"]:
        # vLLM answers 400 to an empty manifest, which some harnesses send.
        for key in ("tools", "tool_choice", "parallel_tool_calls"):
            body.pop(key, None)
        notes = (Note("empty_tools_dropped", "engines refuse an empty manifest"),)
    if plan.model is not None:
        body["model"] = plan.model
    if "messages" in body:
        body["messages"] = arranged(body["messages"], one_system=plan.one_system)
    requested = {key: asked[key] for key in SAMPLING_FIELDS if key in asked}
    _fix(body, plan.sampling)
    if plan.level is not CaptureLevel.TEXT:
        _ask_for_capture(body, plan)
        if plan.purpose is Purpose.TRAIN:
            for key, value in NEUTRAL.items():
                body[key] = value
        if body.get("temperature") is None:
            # An absent temperature would be the model's own taste, not 1.0.
            body["temperature"] = 1.0
    temperature = body.get("temperature")
    return Shaped(
        body=body,
        requested=requested,
        submitted={key: body[key] for key in SAMPLING_FIELDS if key in body},
        constraints=(*constraints(body), *_unknown(asked, plan.harmless)),
        greedy=isinstance(temperature, int | float) and temperature < GREEDY_BELOW,
        max_tokens=_limit(body),
        notes=notes,
    )


def _fix(body: dict[str, Any], fixed: Mapping[str, Any]) -> None:
    """Puts the rollout's own values in the place of the harness's. A limit has two names,
    of which engines obey one: the harness's must not stay under the other."""
    body.update(fixed)
    limits = [fixed[name] for name in _LIMITS if fixed.get(name) is not None]
    if limits:
        _limit_to(body, min(limits))


def _limit_to(body: dict[str, Any], max_tokens: int) -> None:
    for name in _LIMITS:
        body.pop(name, None)
    body["max_tokens" if is_prompt(body) else "max_completion_tokens"] = max_tokens


def cap(shaped: Shaped, max_tokens: int | None) -> Shaped:
    """The same request with at most `max_tokens` to be sampled (None: as it is).

    Engines read no limit, or the other name's, where one is 0 or less; such a limit, or two
    of them, are replaced.
    """
    if max_tokens is None:
        return shaped
    asked = [shaped.body[name] for name in _LIMITS if shaped.body.get(name) is not None]
    if len(asked) == 1 and type(asked[0]) is int and 0 < asked[0] <= max_tokens:
        return shaped
    body = dict(shaped.body)
    _limit_to(body, max_tokens)
    submitted = {key: body[key] for key in SAMPLING_FIELDS if key in body}
    return replace(shaped, body=body, submitted=submitted, max_tokens=max_tokens)


def _unknown(body: Mapping[str, Any], harmless: frozenset[str]) -> tuple[str, ...]:
    """Fields that we do not know. They are sent as they came, and an engine might let them
    shape the sampling: then nobody could say what the tokens were drawn from."""
    return tuple(
        f"unknown_field:{key[:60]}" for key in body if key not in _KNOWN and key not in harmless
    )


def _ask_for_capture(body: dict[str, Any], plan: SamplingPlan) -> None:
    body["return_token_ids"] = True
    plain = is_prompt(body)
    asked = body.get("logprobs" if plain else "top_logprobs")
    if plain:
        # A plain completion has the older form: a number, 0 for the sampled token alone.
        body["logprobs"] = max(
            plan.top_logprobs, asked if type(asked) is int and 0 <= asked <= 20 else 0
        )
        return
    body["logprobs"] = True
    body["top_logprobs"] = max(
        plan.top_logprobs, asked if type(asked) is int and 0 <= asked <= 20 else 0
    )
    # False would null the ids of the whole reply; what the caller sees is cut later.
    body["include_reasoning"] = True
    body["return_weight_versions"] = True


def constraints(body: Mapping[str, Any]) -> tuple[str, ...]:
    """Names of the request's fields that limit which tokens could be drawn.

    Decided by request parameters: forced tokens cannot be told by their logprobs.
    """
    found = [key for key in _IF_TRUE if body.get(key)]
    found += [key for key in _IF_GIVEN if body.get(key) is not None]
    found += [
        key
        for key, nothing in _SAMPLERS.items()
        if body.get(key) is True or body.get(key) not in (None, nothing)
    ]
    for key in ("tool_choice", "function_call"):
        if body.get(key) not in (None, "auto", "none"):
            found.append(key)
    if body.get("tool_choice") != "none" and _strict(body.get("tools")):
        found.append("strict_tools")
    if body.get("tool_choice") != "none" and _grammar(body.get("tools")):
        found.append("tool_grammar")
    if _from_elsewhere(body):
        found.append("kv_transfer_params")
    response_format = body.get("response_format")
    if response_format is not None and not (
        isinstance(response_format, Mapping) and response_format.get("type") == "text"
    ):
        found.append("response_format")
    temperature = body.get("temperature")
    if type(temperature) not in (int, float, type(None)) or (
        temperature is not None and GREEDY_BELOW <= temperature < _RAISED_BELOW
    ):
        # "0" is a number to some servers: nobody can say what the tokens were drawn at.
        found.append("temperature")
    return tuple(found)


def _from_elsewhere(body: Mapping[str, Any]) -> bool:
    """Whether the engine is to take the cache of another request, so that tokens follow on
    something else than the prompt that it names. Token-in alone is a prompt."""
    given = body.get("kv_transfer_params")
    only_ids = isinstance(given, Mapping) and set(given) <= {"prompt_token_ids"}
    return bool(body.get("ec_transfer_params")) or (bool(given) and not only_ids)


def _strict(tools: Any) -> bool:
    """Whether a tool asks for its schema to be enforced: vLLM and SGLang then constrain
    the arguments also where the model was free to call or not."""
    return isinstance(tools, list) and any(
        isinstance(tool, Mapping)
        and (
            tool.get("strict")
            or (isinstance(inner := tool.get("function"), Mapping) and inner.get("strict"))
        )
        for tool in tools
    )


def _grammar(tools: Any) -> bool:
    """Whether a tool takes one free text of a form that the engine is to enforce."""
    customs = [
        tool.get("custom")
        for tool in (tools if isinstance(tools, list) else ())
        if isinstance(tool, Mapping)
    ]
    forms = [custom.get("format") for custom in customs if isinstance(custom, Mapping)]
    return any(
        form is not None and not (isinstance(form, Mapping) and form.get("type") == "text")
        for form in forms
    )


def _limit(body: Mapping[str, Any]) -> int | None:
    for key in _LIMITS:
        value = body.get(key)
        if type(value) is int:
            return value
    return None
