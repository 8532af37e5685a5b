"""Values of foreign files, checked, with errors that name their place.

Owns: JSON, ids, logprobs, masks, texts and messages as they come in.
Must not know: any one format.
"""

from __future__ import annotations

import datetime
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from explorer.errors import InvalidValue

_MOST_ID = 2**31 - 1
_MOST_TEXT = 200
# A file that repeats nothing grows when every call is written with all that came before it.
MOST_WRITTEN = 1024 * 1024 * 1024


def refuse(path: str, why: str) -> NoReturn:
    """Raises the one kind of error of readers."""
    shown = path.encode("utf-8", "backslashreplace").decode()[:200]
    raise InvalidValue(f"{shown}: {why}", path=shown)


def parse(data: bytes, path: str) -> Any:
    """JSON whose numbers are finite."""

    def constant(name: str) -> NoReturn:
        refuse(path, f"{name} is no JSON number")

    try:
        return json.loads(data.decode("utf-8-sig"), parse_constant=constant)
    except UnicodeDecodeError as error:
        refuse(path, f"not UTF-8 (byte {error.start})")
    except json.JSONDecodeError as error:
        refuse(path, f"not JSON: {error.msg} at line {error.lineno}, column {error.colno}")
    except RecursionError:
        refuse(path, "nested too deeply")
    except ValueError as error:
        refuse(path, f"not JSON: {str(error)[:80]}")


class Budget:
    """What the requests of one file may come to, each written out whole (bytes)."""

    def __init__(self) -> None:
        self._left = MOST_WRITTEN

    def spend(self, size: int, path: str) -> None:
        """Takes a request's size off.

        Raises:
            InvalidValue: the file's requests would come to more than they may.
        """
        self._left -= size
        if self._left < 0:
            refuse(
                path,
                f"the requests up to here come to more than {MOST_WRITTEN:,} bytes, because "
                "each holds all that was said before it; split the file",
            )


def written_size(value: Any, path: str) -> int:
    """Bytes of a value as JSON, about; a value that JSON has no form for is refused."""
    try:
        return len(json.dumps(value, allow_nan=False))
    except (TypeError, ValueError):
        refuse(path, "holds a value that JSON has no form for")


def mapping(value: Any, path: str) -> dict[str, Any]:
    """An object."""
    if not isinstance(value, dict):
        refuse(path, f"must be an object, not {_kind(value)}")
    return value


def sequence(value: Any, path: str) -> list[Any]:
    """A list; null is an empty one."""
    if value is None:
        return []
    if not isinstance(value, list):
        refuse(path, f"must be a list, not {_kind(value)}")
    return value


def _kind(value: Any) -> str:
    if value is None:
        return "null"
    names = {bool: "true or false", str: "a text", dict: "an object", list: "a list"}
    return names.get(type(value), "a number")


def ids(value: Any, path: str) -> tuple[int, ...] | None:
    """Token ids; None when there are none at all."""
    if value is None:
        return None
    found = sequence(value, path)
    for index, item in enumerate(found):
        if type(item) is not int or not 0 <= item <= _MOST_ID:
            refuse(f"{path}[{index}]", "is no token id (a whole number from 0, below 2^31)")
    return tuple(found)


def logprobs(value: Any, count: int, path: str) -> tuple[float | None, ...] | None:
    """One number per sampled id, or null where the file has none."""
    if value is None:
        return None
    found = sequence(value, path)
    if not found and count:
        return None
    if len(found) != count:
        refuse(path, f"has {len(found)} values for {count} sampled ids")
    return tuple(number(item, f"{path}[{index}]") for index, item in enumerate(found))


def number(value: Any, path: str) -> float | None:
    """A finite number or null; true is none."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        refuse(path, f"must be a number, not {_kind(value)}")
    try:
        made = float(value)
    except OverflowError:
        refuse(path, "is too large")
    if not math.isfinite(made):
        refuse(path, "is not a finite number")
    return made


def bits(value: Any, path: str) -> tuple[int, ...] | None:
    """A mask of 0 and 1 (or false and true); None when there is none."""
    if value is None:
        return None
    found = sequence(value, path)
    for index, item in enumerate(found):
        if type(item) not in (int, bool) or item not in (0, 1):
            refuse(f"{path}[{index}]", "a mask holds 0 and 1 only")
    return tuple(int(item) for item in found)


def name(value: Any) -> str | None:
    """A short text that may stand in a list, or None: no control characters, cut."""
    if not isinstance(value, (str, int)) or isinstance(value, bool):
        return None
    made = "".join(letter for letter in str(value)[:1000] if letter.isprintable()).strip()
    return made.encode("utf-8", "replace").decode()[:_MOST_TEXT] or None


def flag(value: Any) -> bool | None:
    """True, false, or nobody said."""
    return value if isinstance(value, bool) else None


def clock(value: Any) -> int | None:
    """Seconds since the epoch, or ISO 8601, as microseconds; None when it is neither."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return int(value * 1e6) if 0 < value < 1e10 else None
    if isinstance(value, str):
        try:
            made = datetime.datetime.fromisoformat(value.replace("Z", "+00:00"))
        except ValueError:
            return None
        if made.tzinfo is None:
            made = made.replace(tzinfo=datetime.UTC)
        micros = int(made.timestamp() * 1e6)
        return micros if micros > 0 else None
    return None


def message(value: Any, path: str) -> dict[str, Any]:
    """A message in the chat dialect; flat tool calls get their usual shape."""
    found = dict(mapping(value, path))
    if not isinstance(found.get("role"), str):
        refuse(f"{path}.role", "a message says who speaks")
    calls = found.get("tool_calls")
    if isinstance(calls, list):
        found["tool_calls"] = [tool_call(item) for item in calls]
    return {key: item for key, item in found.items() if item is not None or key == "content"}


def tool_call(value: Any) -> Any:
    """A tool call with its name and arguments under `function`."""
    if not isinstance(value, Mapping) or isinstance(value.get("function"), Mapping):
        return value
    called = value.get("name") or value.get("function_name")
    if not isinstance(called, str):
        return value
    given = value.get("arguments", "")
    text = given if isinstance(given, str) else json.dumps(given)
    return {
        "id": value.get("id") or value.get("tool_call_id") or "",
        "type": "function",
        "function": {"name": called, "arguments": text},
    }


def messages(value: Any, path: str) -> tuple[dict[str, Any], ...]:
    """A list of messages; a text is what the user said."""
    if isinstance(value, str):
        return ({"role": "user", "content": value},)
    return tuple(
        message(item, f"{path}[{index}]") for index, item in enumerate(sequence(value, path))
    )


def own_mask(
    mask: Sequence[int] | None, prompt: int, completion: int, path: str
) -> tuple[int, ...] | None:
    """The mask over the sampled ids, from one over everything or over them alone."""
    if mask is None:
        return None
    if len(mask) == prompt + completion:
        if any(mask[:prompt]):
            refuse(path, "marks a token of the prompt as trainable")
        return tuple(mask[prompt:])
    if len(mask) == completion:
        return tuple(mask)
    refuse(path, f"has {len(mask)} entries for {prompt} prompt and {completion} sampled ids")
