"""Learning bytes of ids from replies: exact ones only, and no reply is too odd."""

from __future__ import annotations

from typing import Any

import pytest

from explorer.engine.vocabulary import learn


def body(ids: Any, entries: Any) -> dict[str, Any]:
    return {"choices": [{"token_ids": ids, "logprobs": {"content": entries}}]}


def test_bytes_beside_an_id_are_learned() -> None:
    (piece,) = learn(body([7], [{"bytes": [97]}]))
    assert (piece.token_id, piece.raw) == (7, b"a")


@pytest.mark.parametrize(
    "reply",
    [
        body(5, [{"bytes": [97]}]),
        body("7", [{"bytes": [97]}]),
        body({"7": 1}, [{"bytes": [97]}]),
        body([[7]], [{"bytes": [97]}]),
        body([True], [{"bytes": [97]}]),
        body([7.0], [{"bytes": [97]}]),
        body([2**40], [{"bytes": [97]}]),
        body([-1], [{"bytes": [97]}]),
        body([7], [{"bytes": 97}]),
        body([7], [{"bytes": "a"}]),
        body([7], [{"bytes": [256]}]),
        body([7], [5]),
        body([7], 5),
        {"choices": [{"token_ids": [7], "logprobs": [5]}]},
        {"choices": [{}]},
    ],
)
def test_nothing_is_learned_from_what_is_no_id_or_no_byte(reply: dict[str, Any]) -> None:
    assert learn(reply) == []
