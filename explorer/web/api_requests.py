"""Request bodies and filters of the API, read with errors that say what to change.

Owns: field names of what comes in, and their checks.
Must not know: routes, SQL, answers.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from explorer.capture.budgets import LIMITS, ON_SPENT
from explorer.capture.ids import is_id
from explorer.errors import InvalidValue, NotFound
from explorer.records import (
    KeyHash,
    Purpose,
    Rollout,
    RolloutId,
    Streaming,
)

_TEXT_LIMIT = 200
_METADATA_LIMIT = 64 * 1024
_DEPTH_LIMIT = 32
_SHA256 = re.compile("[0-9a-f]{64}")
# A rollout may fix these; the others would change what training sees.
_SAMPLING = {"temperature", "seed", "max_tokens", "max_completion_tokens"}


@dataclass(frozen=True, slots=True)
class Reward:
    """A reward as posted; `payload` keeps named rewards."""

    reward: float | None
    ok: bool | None
    payload: dict[str, Any] = field(default_factory=dict)


def checked_id(text: str) -> RolloutId:
    """`text` as a rollout id.

    Raises:
        NotFound: it has not the form of one of our ids.
    """
    if not is_id(text):
        raise NotFound(f"there is no rollout {text[:80]!r}")
    return RolloutId(text)


def read_object(raw: bytes) -> dict[str, Any]:
    """A JSON object whose numbers are all finite; an empty body is ``{}``.

    Raises:
        InvalidValue: names the path of what is wrong.
    """
    if not raw.strip():
        return {}
    try:
        value = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise InvalidValue(f"the body is not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise InvalidValue("the body must be a JSON object")
    _check_value(value, "$", 0)
    return value


def _check_value(value: Any, path: str, depth: int) -> None:
    """Refuses what could be stored and never be shown again."""

    def refuse(why: str) -> NoReturn:
        shown = path.encode("utf-8", "backslashreplace").decode()
        raise InvalidValue(f"{shown} {why}", path=shown)

    if depth > _DEPTH_LIMIT:
        refuse(f"is nested deeper than {_DEPTH_LIMIT} levels")
    if isinstance(value, float) and not math.isfinite(value):
        refuse("is not a finite number")
    if type(value) is int and not -(2**63) <= value < 2**63:
        refuse("is a whole number beyond 64 bits")
    if isinstance(value, str) and _lone_surrogate(value):
        refuse("holds a lone surrogate, which is no character")
    if isinstance(value, dict):
        for key, item in value.items():
            if _lone_surrogate(key):
                refuse("has a name with a lone surrogate, which is no character")
            _check_value(item, f"{path}.{key}", depth + 1)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            _check_value(item, f"{path}[{index}]", depth + 1)


def _lone_surrogate(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False


def only(body: Mapping[str, Any], allowed: AbstractSet[str]) -> None:
    unknown = sorted(set(body) - allowed)
    if unknown:
        raise InvalidValue(
            f"unknown fields {', '.join(unknown)}; known: {', '.join(sorted(allowed))}"
        )


def text(body: Mapping[str, Any], key: str) -> str | None:
    value = body.get(key)
    if value is None:
        return None
    if not isinstance(value, str) or not value.strip() or len(value) > _TEXT_LIMIT:
        raise InvalidValue(f"`{key}` must be a text of 1 to {_TEXT_LIMIT} characters")
    if any(ord(letter) < 32 or 0xD800 <= ord(letter) <= 0xDFFF for letter in value):
        raise InvalidValue(f"`{key}` must not hold control characters or lone surrogates")
    return value


def _sha256(body: Mapping[str, Any], key: str) -> str | None:
    value = text(body, key)
    if value is not None and not _SHA256.fullmatch(value):
        raise InvalidValue(f"`{key}` is 64 hexadecimal digits, in lower case", path=f"$.{key}")
    return value


def run_name(body: Mapping[str, Any]) -> str:
    """A run's name is part of its page's address, and must be reachable there."""
    name = text(body, "run") or "default"
    if name in (".", "..") or name.endswith(".json") or "/" in name or "\\" in name:
        raise InvalidValue(
            "`run` is part of an address: it must not be . or .., end in .json or hold a slash",
            path="$.run",
        )
    return name


def flag(body: Mapping[str, Any], key: str) -> bool | None:
    value = body.get(key)
    if value is not None and not isinstance(value, bool):
        raise InvalidValue(f"`{key}` must be true, false or absent")
    return value


def _object(body: Mapping[str, Any], key: str) -> dict[str, Any]:
    value = body.get(key)
    if value is None:
        return {}
    if not isinstance(value, dict) or len(json.dumps(value)) > _METADATA_LIMIT:
        raise InvalidValue(f"`{key}` must be an object of at most {_METADATA_LIMIT} bytes")
    return value


def _budgets(body: Mapping[str, Any]) -> dict[str, Any]:
    """Limits of a rollout by name, and what happens when one is used up."""
    budgets = _object(body, "budgets")
    only(budgets, {*LIMITS, "on_spent"})
    for name in LIMITS:
        value = budgets.get(name)
        if value is None:
            continue
        whole = type(value) is int or (name == "wall_s" and type(value) is float)
        if not whole or value <= 0:
            kind = "number of seconds" if name == "wall_s" else "whole number"
            raise InvalidValue(
                f"`budgets.{name}` must be a {kind} above 0", path=f"$.budgets.{name}"
            )
    if budgets.get("on_spent") not in (None, *ON_SPENT):
        raise InvalidValue(
            f"`budgets.on_spent` must be one of {', '.join(ON_SPENT)}",
            path="$.budgets.on_spent",
        )
    return {name: value for name, value in budgets.items() if value is not None}


def read_new_rollout(raw: bytes, *, token_in: bool = False) -> Rollout:
    """What a caller wants of a new rollout; every field is optional.

    Args:
        token_in: whether prompts are continued by their ids where the caller does not say.

    Raises:
        InvalidValue: names the field.
    """
    body = read_object(raw)
    only(
        body,
        {
            *("metadata", "run", "task", "group", "attempt", "sampling", "budgets"),
            *("streaming", "purpose", "harness", "harness_version", "token_in"),
            "harness_config_sha256",
        },
    )
    try:
        streaming = Streaming(body.get("streaming") or Streaming.SYNTHESISED)
    except ValueError as error:
        known = ", ".join(Streaming)
        raise InvalidValue(f"`streaming` must be one of {known}", path="$.streaming") from error
    try:
        purpose = Purpose(body.get("purpose") or "train")
    except ValueError as error:
        raise InvalidValue("`purpose` must be `train` or `eval`") from error
    by_ids = body.get("token_in", token_in)
    if type(by_ids) is not bool:
        raise InvalidValue("`token_in` must be true or false", path="$.token_in")
    attempt = body.get("attempt")
    if attempt is not None and (type(attempt) is not int or not 0 <= attempt < 2**31):
        raise InvalidValue("`attempt` must be a whole number from 0")
    return Rollout(
        rollout_id=RolloutId(""),
        created_us=0,
        key_hash=KeyHash(""),
        run=run_name(body),
        task=text(body, "task"),
        group=text(body, "group"),
        attempt=attempt,
        purpose=purpose,
        harness=text(body, "harness"),
        harness_version=text(body, "harness_version"),
        harness_config_sha256=_sha256(body, "harness_config_sha256"),
        metadata=_object(body, "metadata"),
        sampling=_sampling(_object(body, "sampling")),
        budgets=_budgets(body),
        streaming=streaming,
        token_in=by_ids,
    )


def _sampling(wanted: dict[str, Any]) -> dict[str, Any]:
    unknown = sorted(set(wanted) - _SAMPLING)
    if unknown:
        raise InvalidValue(
            f"`sampling` may set {', '.join(sorted(_SAMPLING))}; not {', '.join(unknown)} "
            "(truncation and penalties are sent as no-ops, so that logprobs can be trained on)"
        )
    temperature = wanted.get("temperature")
    if temperature is not None and (
        isinstance(temperature, bool)
        or not isinstance(temperature, int | float)
        or not 0 <= temperature <= 2
    ):
        raise InvalidValue("`sampling.temperature` must be a number from 0 to 2")
    for key in ("seed", "max_tokens", "max_completion_tokens"):
        value = wanted.get(key)
        if value is not None and (type(value) is not int or value < 0):
            raise InvalidValue(f"`sampling.{key}` must be a whole number from 0")
    return wanted


def read_reward(raw: bytes) -> Reward:
    """`{reward, rewards?, ok?}`; a null reward means unscored.

    Raises:
        InvalidValue: names the path of what is wrong.
    """
    body = read_object(raw)
    only(body, {"reward", "rewards", "ok", "source"})
    reward = body.get("reward")
    if reward is not None and (isinstance(reward, bool) or not isinstance(reward, int | float)):
        raise InvalidValue("`reward` must be a number or null", path="$.reward")
    if "reward" not in body and not body.get("rewards"):
        raise InvalidValue("give `reward`: a number, or null for unscored", path="$.reward")
    payload = {key: body[key] for key in ("rewards", "source") if body.get(key) is not None}
    return Reward(None if reward is None else float(reward), flag(body, "ok"), payload)


def read_target(raw: bytes) -> Path:
    """`{target}`: an absolute path that does not exist yet.

    Raises:
        InvalidValue: it is no such path.
    """
    body = read_object(raw)
    only(body, {"target"})
    target = body.get("target")
    if not isinstance(target, str) or "\0" in target or not Path(target).is_absolute():
        raise InvalidValue("`target` must be an absolute path", path="$.target")
    try:
        fits = Path(target).parent.is_dir() and not Path(target).exists()
    except OSError:  # a name that the file system does not take
        fits = False
    if not fits:
        raise InvalidValue(
            "`target` must be a new file in a folder that exists", path="$.target"
        )
    return Path(target)
