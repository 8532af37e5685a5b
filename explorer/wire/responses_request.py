"""A Responses body as a neutral request.

Owns: which fields of the body steer the engine, which are only echoed, which are refused.
Must not know: replies, the store.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from explorer.errors import BadRequest
from explorer.records import Dialect, Note
from explorer.wire import ids
from explorer.wire.claims import body_claims
from explorer.wire.neutral import Earlier, NeutralRequest, Wants
from explorer.wire.responses_items import Conversation, assistant_turn
from explorer.wire.responses_tools import Manifest, shown

ENCRYPTED = "reasoning.encrypted_content"
LOGPROBS = "message.output_text.logprobs"
MOST_TOP_LOGPROBS = 20
# Taken in, echoed or meaningless here; anything else that is not read gets a note.
_KNOWN = frozenset(
    [
        *("background", "client_metadata", "conversation", "include", "input", "instructions"),
        *("max_output_tokens", "metadata", "model", "parallel_tool_calls", "prompt"),
        *("previous_response_id", "prompt_cache_key", "prompt_cache_retention", "reasoning"),
        *("safety_identifier", "service_tier", "store", "stream", "stream_options"),
        *("temperature", "text", "tool_choice", "tools", "top_logprobs", "top_p"),
        *("truncation", "user"),
    ]
)


def read_request(body: dict[str, Any], earlier: Mapping[str, Earlier] | None) -> NeutralRequest:
    """The neutral request.

    Raises:
        BadRequest: it cannot be understood or needs what only OpenAI's servers have.
    """
    _refuse_hosted(body)
    manifest = Manifest()
    manifest.read(body.get("tools"))
    talk = Conversation(manifest, earlier)
    previous = _begin(body, talk, earlier)
    for item in _input(body.get("input"), bool(previous)):
        talk.add(item)
    messages = talk.close()
    recall = tuple(dict.fromkeys([*previous, *talk.recall])) if earlier is None else ()
    if not messages and not recall:
        raise BadRequest("`input` must hold a message", param="input")
    include = body.get("include")
    wanted = include if isinstance(include, list) else []
    logprobs = LOGPROBS in wanted
    neutral: dict[str, Any] = {"messages": messages}
    if isinstance(body.get("model"), str):
        neutral["model"] = body["model"]
    _add_tools(neutral, body, manifest)
    notes = [*manifest.notes, *talk.notes]
    _add_settings(neutral, body, notes)
    if logprobs:
        neutral["logprobs"] = True
        neutral["top_logprobs"] = top_logprobs(body)
    strange = sorted(key for key in body if key not in _KNOWN)
    if strange:
        notes.append(Note("fields_not_forwarded", ", ".join(strange)[:200]))
    return NeutralRequest(
        dialect=Dialect.RESPONSES,
        body=neutral,
        stream=body.get("stream") is True,
        wants=Wants(logprobs=logprobs),
        asked=body,
        claims=body_claims(body),
        # A history repeats itself in every call; each fact is told once.
        notes=tuple(dict.fromkeys(notes)),
        recall=recall,
        tools_by_name=manifest.origins,
    )


def wants_encrypted(asked: Mapping[str, Any]) -> bool:
    """Whether reasoning items must carry their sealed text."""
    include = asked.get("include")
    return isinstance(include, list) and ENCRYPTED in include


def top_logprobs(asked: Mapping[str, Any]) -> int:
    """How many alternatives the caller wants to see."""
    value = asked.get("top_logprobs")
    return value if type(value) is int and 0 <= value <= MOST_TOP_LOGPROBS else 0


def _refuse_hosted(body: Mapping[str, Any]) -> None:
    if body.get("background"):
        raise BadRequest(
            "`background` is not supported: leave it out and read the reply, or stream it",
            param="background",
        )
    if body.get("prompt") is not None:
        raise BadRequest(
            "`prompt` templates live on OpenAI's servers: send their text as `instructions` "
            "and `input`",
            param="prompt",
        )
    if body.get("conversation") is not None:
        raise BadRequest(
            "`conversation` is not supported: send the items as `input`, or name the last "
            "reply as `previous_response_id`",
            param="conversation",
        )


def _begin(
    body: Mapping[str, Any], talk: Conversation, earlier: Mapping[str, Earlier] | None
) -> list[str]:
    """Instructions and what an earlier reply left behind; gives that call's id."""
    instructions = body.get("instructions")
    if not isinstance(instructions, str | None):
        raise BadRequest("`instructions` must be text", param="instructions")
    if instructions:
        talk.append({"role": "system", "content": instructions})
    previous = body.get("previous_response_id")
    if previous is None:
        return []
    origin = ids.origin_of_item(previous)
    told = isinstance(previous, str) and previous.startswith("resp_")
    found = (earlier or {}).get(origin) if origin is not None else None
    if origin is None or not told or (earlier is not None and found is None):
        raise BadRequest(
            f"Previous response with id '{shown(previous)}' not found.",
            param="previous_response_id",
        )
    if found is not None:
        for message in (*found.messages, assistant_turn(found.reply)):
            talk.append(message)
    return [origin]


def _input(value: Any, may_be_empty: bool) -> list[Any]:
    if isinstance(value, str):
        return [{"role": "user", "content": value}]
    if value is None and may_be_empty:
        return []
    if not isinstance(value, list):
        raise BadRequest("`input` must be text or an array of items", param="input")
    return value


def _add_tools(neutral: dict[str, Any], body: Mapping[str, Any], manifest: Manifest) -> None:
    choice = manifest.choice(body.get("tool_choice"))
    if not manifest.tools:
        # An engine refuses a choice among no tools.
        return
    neutral["tools"] = manifest.tools
    if choice is not None:
        neutral["tool_choice"] = choice
    if isinstance(body.get("parallel_tool_calls"), bool):
        neutral["parallel_tool_calls"] = body["parallel_tool_calls"]


def _add_settings(neutral: dict[str, Any], body: Mapping[str, Any], notes: list[Note]) -> None:
    limit = body.get("max_output_tokens")
    if limit is not None:
        if type(limit) is not int or limit < 1:
            raise BadRequest(
                "`max_output_tokens` must be a whole number above 0", param="max_output_tokens"
            )
        neutral["max_tokens"] = limit
    for key in ("temperature", "top_p"):
        value = body.get(key)
        if value is not None:
            if type(value) not in (int, float):
                raise BadRequest(f"`{key}` must be a number", param=key)
            neutral[key] = value
    reasoning = body.get("reasoning")
    effort = reasoning.get("effort") if isinstance(reasoning, dict) else None
    if isinstance(effort, str):
        neutral["reasoning_effort"] = effort
    text = body.get("text")
    if not isinstance(text, dict):
        return
    if text.get("verbosity") is not None:
        notes.append(Note("fields_not_forwarded", "text.verbosity"))
    form = _response_format(text.get("format"))
    if form is not None:
        neutral["response_format"] = form


def _response_format(form: Any) -> dict[str, Any] | None:
    if form is None:
        return None
    kind = form.get("type") if isinstance(form, dict) else None
    if kind == "text":
        return None
    if kind == "json_object":
        return {"type": "json_object"}
    if kind == "json_schema" and isinstance(form.get("schema"), dict):
        told = ("name", "description", "schema", "strict")
        schema = {key: form[key] for key in told if form.get(key) is not None}
        return {"type": "json_schema", "json_schema": {"name": "response"} | schema}
    raise BadRequest(
        "`text.format` must be of type text, json_object, or json_schema with a `schema`",
        param="text.format",
    )
