"""The demo's tasks: what is asked, the tools, and how an answer is verified.

Owns: prompts, tools' behaviour and the reward.
Must not know: HTTP, the proxy.

The prompts are those that the tiny model was trained on (explorer/engine/tiny/README.md).
"""

from __future__ import annotations

import json
import operator
import random
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

SYSTEM = "You are a careful assistant. Use the tools, then give the answer."
PRICES = {"apple": 12, "fig": 52, "pear": 37, "tea": 45, "jam": 29, "rice": 18}
TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "calculator",
            "description": "Exact whole-number arithmetic",
            "parameters": {
                "type": "object",
                "properties": {
                    "a": {"type": "integer"},
                    "b": {"type": "integer"},
                    "op": {"type": "string", "enum": ["add", "subtract", "multiply"]},
                },
                "required": ["a", "b", "op"],
            },
        },
    },
    {
        "type": "function",
        "function": {
            "name": "lookup",
            "description": "The shop's price list",
            "parameters": {
                "type": "object",
                "properties": {"table": {"type": "string", "enum": ["prices"]}},
                "required": ["table"],
            },
        },
    },
]
_OPERATORS: dict[str, Callable[[int, int], int]] = {
    "add": operator.add,
    "subtract": operator.sub,
    "multiply": operator.mul,
}
_SIGNS = {"+": "add", "-": "subtract", "*": "multiply"}
_ANSWER = re.compile(r"The answer is (-?\d+)\.")


@dataclass(frozen=True, slots=True)
class Task:
    """One verifiable task."""

    name: str
    question: str
    answer: int


def sum_task(a: int, sign: str, b: int) -> Task:
    """`a sign b` by calculator."""
    answer = _OPERATORS[_SIGNS[sign]](a, b)
    return Task(f"{a}{sign}{b}", f"What is {a} {sign} {b}? Use the calculator.", answer)


def price_task(item: str, plus: int) -> Task:
    """A price from the list plus a number: two tools in turn."""
    question = f"What is the price of {item} plus {plus}? Use the price list."
    return Task(f"{item}+{plus}", question, PRICES[item] + plus)


def make_tasks(seed: int) -> list[Task]:
    """Seven tasks of graded difficulty, the same for one seed.

    The last asks for two tools in turn, which the shipped model has hardly learnt: a group
    without variance, as every trainer knows them.
    """
    dice = random.Random(seed)  # noqa: S311 - reproducible tasks, no secret

    def number(digits: int) -> int:
        return dice.randint(10 ** (digits - 1), 10**digits - 1)

    return [
        sum_task(number(1), "+", number(1)),
        sum_task(number(2), "+", number(2)),
        sum_task(number(3), "-", number(2)),
        sum_task(number(2), "*", number(1)),
        sum_task(number(3), "+", number(3)),
        sum_task(number(1), "*", number(1)),
        price_task(dice.choice(sorted(PRICES)), number(1)),
    ]


def run_tool(name: str, raw_arguments: str) -> str:
    """What a tool says; mistakes of the model become messages to the model."""
    try:
        arguments = json.loads(raw_arguments)
    except ValueError:
        return "error: arguments are not JSON"
    if not isinstance(arguments, Mapping):
        return "error: arguments must be an object"
    if name == "lookup":
        return "\n".join(f"{item} {price}" for item, price in PRICES.items())
    if name == "calculator":
        a, b, op = arguments.get("a"), arguments.get("b"), arguments.get("op")
        if type(a) is int and type(b) is int and op in _OPERATORS:
            return str(_OPERATORS[op](a, b))
        return "error: calculator needs whole numbers a, b and op add, subtract or multiply"
    return f"error: there is no tool {name}"


def verify(task: Task, content: str | None) -> float:
    """1.0 for the right final answer, else 0.0."""
    found = _ANSWER.search(content or "")
    return 1.0 if found and int(found.group(1)) == task.answer else 0.0
