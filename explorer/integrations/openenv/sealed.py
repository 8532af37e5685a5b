"""OpenEnv's `TrainingTrace` with our rules, which cannot be changed after its check.

Owns: the sealed classes and the digest that proves them unchanged.
Must not know: HTTP, sessions, trainers.

They are subclasses of OpenEnv's, so that everything which takes OpenEnv's takes them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any, NoReturn, TypeVar

import orjson
from pydantic import ConfigDict, PrivateAttr, model_validator

from explorer.integrations.contract import MalformedTrace, Trace, check_trace, read_trace
from explorer.integrations.openenv.package import TrainingTrace, TrainingTurn

_ARRAYS = ("prompt_token_ids", "completion_token_ids", "per_token_logps", "loss_mask")
_OBJECTS = ("request", "response", "metadata")
Item = TypeVar("Item")


class ChangedTrace(ValueError):
    """A trace is not any more what was checked; fetch it again."""


def _refuse(self: Any, *_given: Any, **_named: Any) -> NoReturn:
    raise TypeError("a checked trace cannot be changed; copy it with list(…) or dict(…)")


class SealedList(list[Item]):
    """A list for whoever reads it, and nothing for whoever would change it."""

    append = extend = insert = remove = pop = clear = sort = reverse = _refuse
    __setitem__ = __delitem__ = __iadd__ = __imul__ = _refuse

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (list(self),)


class SealedDict(dict[str, Item]):
    """An object of JSON that cannot be changed."""

    update = pop = popitem = clear = setdefault = _refuse
    __setitem__ = __delitem__ = __ior__ = _refuse

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (dict(self),)


def _sealed(value: Any) -> Any:
    if isinstance(value, dict):
        return SealedDict({key: _sealed(item) for key, item in value.items()})
    if isinstance(value, list):
        return SealedList([_sealed(item) for item in value])
    return value


class SealedTurn(TrainingTurn):  # type: ignore[misc]
    """One call of a sealed trace."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    @model_validator(mode="after")
    def seal(self) -> SealedTurn:
        """Replaces lists and objects by such as cannot be changed."""
        for name in _ARRAYS:
            # Beside pydantic, which would refuse to set a field of a frozen model.
            self.__dict__[name] = SealedList(self.__dict__[name])
        for name in _OBJECTS:
            self.__dict__[name] = _sealed(self.__dict__[name])
        return self


class SealedTrace(TrainingTrace):  # type: ignore[misc]
    """A Training trace that fulfils `contract.check_trace` and stays as it was checked."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    _digest: str = PrivateAttr(default="")

    @model_validator(mode="before")
    @classmethod
    def strictly(cls, data: Any) -> Any:
        """Our rules, on what was really given: OpenEnv's classes change true to 1."""
        if isinstance(data, dict):
            turns = data.get("turns")
            plain = [
                turn.model_dump() if isinstance(turn, TrainingTurn) else turn
                for turn in (turns if isinstance(turns, list) else [])
            ]
            given = {"schema_version": 1} | data | {"turns": plain}
            check_trace(given)
            return given | {"turns": [SealedTurn(**turn) for turn in plain]}
        return data

    @model_validator(mode="after")
    def seal(self) -> SealedTrace:
        """Takes the digest."""
        self.__dict__["turns"] = SealedList(self.__dict__["turns"])
        self._digest = _digest(self)
        return self

    def verify(self) -> None:
        """Raises:
        ChangedTrace: it was changed, or copied with other values, after the check.
        """
        if self._digest != _digest(self):
            raise ChangedTrace("the trace was changed after it was checked; fetch it again")


def _digest(trace: SealedTrace) -> str:
    sha = hashlib.sha256(orjson.dumps(trace.schema_version))
    for piece in _pieces(trace):
        sha.update(orjson.dumps(piece, option=orjson.OPT_SORT_KEYS))
    return sha.hexdigest()


def _pieces(trace: SealedTrace) -> Iterator[Any]:
    for turn in trace.turns:
        yield turn.node_id
        for name in (*_ARRAYS, *_OBJECTS):
            yield getattr(turn, name)


def seal(raw: bytes | str) -> SealedTrace:
    """The trace in a JSON document.

    Raises:
        MalformedTrace: it breaks a rule of the contract.
    """
    return sealed_trace(read_trace(raw))


def sealed_trace(trace: Trace) -> SealedTrace:
    """A checked trace as OpenEnv's class."""
    turns = [
        {
            "node_id": turn.node_id,
            "prompt_token_ids": list(turn.prompt_ids),
            "completion_token_ids": list(turn.completion_ids),
            "per_token_logps": list(turn.logprobs),
            "loss_mask": list(turn.loss_mask),
            "request": dict(turn.request),
            "response": dict(turn.response),
            "metadata": dict(turn.metadata),
        }
        for turn in trace.turns
    ]
    return SealedTrace(schema_version=1, turns=turns)


__all__ = [
    "ChangedTrace",
    "MalformedTrace",
    "SealedDict",
    "SealedList",
    "SealedTrace",
    "SealedTurn",
    "seal",
    "sealed_trace",
]
