"""Conversations the tiny model is trained on: checkable arithmetic with tools, and small talk.

Pure standard library. Every generator takes its own `random.Random`, so a seed fixes the data.
The exact wording is documented in explorer/engine/tiny/README.md.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

Message = dict[str, Any]
Filler = Callable[[random.Random, int], str]
"""Gives about that many characters of arbitrary text."""

SYSTEM = "You are a careful assistant. Use the tools, then give the answer."
SUMMARY_REQUEST = "Summarise the conversation so far."
TITLE_REQUEST = "Write a short title for: "
SUBMIT = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
OPERATIONS = {
    "+": ("add", "Sum"),
    "-": ("subtract", "Difference"),
    "*": ("multiply", "Product"),
}
ITEMS = (
    "apple",
    "bread",
    "carrot",
    "date",
    "egg",
    "fig",
    "grape",
    "honey",
    "ice",
    "jam",
    "kiwi",
    "lemon",
    "mango",
    "nut",
    "olive",
    "pear",
    "quince",
    "rice",
    "salt",
    "tea",
)


def tool(name: str, **parameters: str) -> dict[str, Any]:
    """An OpenAI tool definition whose parameters all have the given JSON types."""
    properties = {key: {"type": kind} for key, kind in parameters.items()}
    return {
        "type": "function",
        "function": {
            "name": name,
            "parameters": {
                "type": "object",
                "properties": properties,
                "required": list(properties),
            },
        },
    }


CALCULATOR = tool("calculator", a="integer", b="integer", op="string")
LOOKUP = tool("lookup", table="string")
BASH = tool("bash", command="string")
BASH_WITH_LIMIT = tool("bash", command="string", timeout="number")
DISTRACTORS = (
    tool("read", path="string", offset="integer", limit="integer"),
    tool("edit", path="string", edits="array"),
    tool("write", path="string", content="string"),
    tool("search", query="string"),
    tool("get_weather", city="string"),
    tool("glob", pattern="string", path="string"),
    tool("todo", items="array"),
)


@dataclass(slots=True)
class Conversation:
    """Messages with their tools; `open_ended` texts are cut off and never end by themselves."""

    messages: list[Message]
    tools: list[dict[str, Any]] | None = None
    open_ended: bool = False


@dataclass(frozen=True, slots=True)
class Task:
    """One checkable task: `a op b`, or with `item` the price of it (`op` may be empty)."""

    a: int
    op: str
    b: int
    item: str = ""
    second: str = ""
    prices: tuple[tuple[str, int], ...] = field(default=())

    @property
    def expression(self) -> str:
        return f"{self.a} {self.op} {self.b}"

    @property
    def subject(self) -> str:
        """What is asked for, in the words used by questions, titles and summaries."""
        if not self.item:
            return self.expression
        if self.second:
            return f"the price of {self.item} plus the price of {self.second}"
        return f"the price of {self.item}" + (f" plus {self.b}" if self.op else "")

    @property
    def title(self) -> str:
        if self.item:
            more = f" plus {self.second or self.b}" if self.op else ""
            return f"Price of {self.item}{more}"
        return f"{OPERATIONS[self.op][1]} of {self.a} and {self.b}"

    @property
    def result(self) -> int:
        """What the calculator says for `a` and `b`; the right answer of the original task."""
        if not self.op:
            return self.a
        return {"+": self.a + self.b, "-": self.a - self.b, "*": self.a * self.b}[self.op]

    @property
    def table(self) -> str:
        return "\n".join(f"- {name} {price}" for name, price in self.prices)


def number(rng: random.Random, digits: int = 0) -> int:
    """A number of 1 to 4 digits, two digits being the most common."""
    digits = digits or rng.choices((1, 2, 3, 4), (25, 40, 25, 10))[0]
    return rng.randrange(10 ** (digits - 1) if digits > 1 else 0, 10**digits)


def sum_task(rng: random.Random, digits: int = 0) -> Task:
    """`a op b`; both operands have `digits` digits when that is given."""
    op = rng.choices(tuple(OPERATIONS), (60, 20, 20))[0]
    return Task(number(rng, digits), op, number(rng, digits))


def price_task(rng: random.Random, rows: int = 0, digits: int = 0) -> Task:
    """The price of an item out of `rows`, alone, plus a number, or plus another price."""
    names = rng.sample(ITEMS, rows or rng.randint(2, 6))
    prices = tuple((name, number(rng, digits or rng.choice((1, 2, 2, 3)))) for name in names)
    (item, price), (second, other) = rng.sample(prices, 2)
    kind = rng.choices(("plain", "plus", "both"), (30, 50, 20))[0]
    if kind == "plain":
        return Task(price, "", 0, item, "", prices)
    if kind == "plus":
        return Task(price, "+", number(rng, digits), item, "", prices)
    return Task(price, "+", other, item, second, prices)


def question(rng: random.Random, task: Task) -> str:
    """One of the phrasings the model knows."""
    if task.item:
        return f"What is {task.subject}?" + rng.choice(("", " Use the price list."))
    return rng.choice(
        (
            f"What is {task.expression}?",
            f"What is {task.expression}? Use the calculator.",
            f"Compute {task.expression}.",
        )
    )


def assistant(
    reasoning: str,
    content: str = "",
    call: tuple[str, dict[str, Any]] | None = None,
) -> Message:
    """An assistant turn as a harness that keeps reasoning would echo it."""
    message: Message = {
        "role": "assistant",
        "reasoning": f"\n{reasoning}\n",
        "content": content,
    }
    if call:
        message["tool_calls"] = [
            {
                "type": "function",
                "id": "call",
                "function": {"name": call[0], "arguments": json.dumps(call[1])},
            }
        ]
    return message


@dataclass(frozen=True, slots=True)
class Pupil:
    """Copies numbers, and now and then a digit wrong: `careless` is the chance for a digit.

    What it writes next follows from what it wrote, so that tools answer what was really asked.
    The model learns to be as careless, which is what makes rewards differ.
    """

    rng: random.Random
    careless: float = 0.0

    def copy(self, value: int) -> int:
        digits = [
            str(self.rng.randrange(10))
            if letter.isdigit() and self.rng.random() < self.careless
            else letter
            for letter in str(value)
        ]
        return int("".join(digits))

    def copied(self, task: Task) -> Task:
        return replace(task, a=self.copy(task.a), b=self.copy(task.b))

    def calculate(self, task: Task, shell: bool, lead: str = "") -> tuple[Message, int]:
        """The turn that calls the calculator (or only a shell), and what comes back."""
        name = "bash" if shell else "calculator"
        thought = self.copied(task)
        asked = self.copied(thought)
        arguments: dict[str, Any] = (
            {"command": f"echo $(({asked.expression}))"}
            if shell
            else {"a": asked.a, "b": asked.b, "op": OPERATIONS[asked.op][0]}
        )
        reasoning = f"{lead}I need {thought.expression}, so I call {name}."
        return assistant(reasoning, "", (name, arguments)), asked.result


def shell_result(rng: random.Random, output: str) -> str:
    """What harnesses send back for a command that printed `output`."""
    return rng.choice(
        (
            output,
            output + "\n",
            json.dumps({"returncode": 0, "output": output + "\n"}, indent=2),
            f"<returncode>0</returncode>\n<output>\n{output}\n</output>",
        )
    )


def solve(pupil: Pupil, task: Task, shell: bool, submit: bool) -> list[Message]:
    """All turns after the question: calls, results and the answer."""
    rng = pupil.rng
    turns: list[Message] = []
    lead = ""
    if task.item:
        wanted = f"the price of {task.item}" + (
            f" and the price of {task.second}" if task.second else ""
        )
        turns.append(
            assistant(
                f"I need {wanted}, so I call lookup.", "", ("lookup", {"table": "prices"})
            )
        )
        turns.append({"role": "tool", "tool_call_id": "call", "content": task.table})
        prices = dict(task.prices)
        task = replace(task, a=pupil.copy(task.a))
        lead = f"The list says {task.item} {task.a}. "
        if task.second:
            task = replace(task, b=pupil.copy(prices[task.second]))
            lead += f"The list says {task.second} {task.b}. "
        if not task.op:
            turns.append(assistant(lead.strip(), f"The answer is {pupil.copy(task.a)}."))
            return turns
    if rng.random() < 0.04:
        turns.append(pupil.calculate(task, shell, lead)[0])
        turns.append({"role": "tool", "tool_call_id": "call", "content": "error: try again"})
        lead = "The tool failed. "
    turn, result = pupil.calculate(task, shell, lead)
    output = shell_result(rng, str(result)) if shell else str(result)
    turns += [turn, {"role": "tool", "tool_call_id": "call", "content": output}]
    said = pupil.copy(result)
    final = pupil.copy(said)
    if submit:
        turns.append(
            assistant(
                f"The tool says {said}. I submit it.",
                "",
                ("bash", {"command": f"{SUBMIT} && echo {final}"}),
            )
        )
    else:
        turns.append(assistant(f"The tool says {said}.", f"The answer is {final}."))
    return turns


def toolset(rng: random.Random, wanted: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The wanted tools in any order, sometimes among others."""
    chosen = [BASH_WITH_LIMIT if one is BASH and rng.random() < 0.4 else one for one in wanted]
    if rng.random() < 0.4:
        chosen += rng.sample(DISTRACTORS, rng.randint(1, 3))
    rng.shuffle(chosen)
    return chosen


def system_message(rng: random.Random, filler: Filler) -> list[Message]:
    """No system message, the demo's own, a common one, or arbitrary text."""
    kind = rng.random()
    if kind < 0.1:
        return []
    if kind < 0.5:
        return [{"role": "system", "content": SYSTEM}]
    if kind < 0.6:
        return [
            {
                "role": "system",
                "content": rng.choice(
                    (
                        "You are a helpful assistant.",
                        "You are a coding agent.",
                        "Be brief.",
                        "You are a helpful assistant that can interact with a computer.",
                    )
                ),
            }
        ]
    return [{"role": "system", "content": filler(rng, rng.choice((60, 150, 300)))}]


def episode(rng: random.Random, filler: Filler, careless: float) -> Conversation:
    """A tool task from the question to the answer."""
    if rng.random() < 0.6:
        task, shell, tools = price_task(rng), False, [CALCULATOR, LOOKUP]
    else:
        task, shell = sum_task(rng), rng.random() < 0.25
        tools = (
            [BASH]
            if shell
            else rng.choice(([CALCULATOR], [CALCULATOR, LOOKUP], [CALCULATOR, BASH]))
        )
    asked = question(rng, task)
    submit = shell and rng.random() < 0.3
    if shell and rng.random() < 0.5:
        length = rng.choice((100, 300, 600))
        asked = rng.choice(("Please solve this issue: ", "Task: ", "")) + asked
        parts = [asked, "\n\n", filler(rng, length)]
        if submit:
            parts += [f"\nSubmit with `{SUBMIT}`.\n", filler(rng, length)]
        asked = "".join(parts)
    elif submit:
        asked += f" Submit with `{SUBMIT}`."
    turns = solve(Pupil(rng, careless), task, shell, submit)
    start = system_message(rng, filler)
    return Conversation(
        [*start, {"role": "user", "content": asked}, *turns], toolset(rng, tools)
    )


def summary(rng: random.Random, filler: Filler, careless: float) -> Conversation:
    """A conversation cut anywhere, then summed up; or one that goes on after such a summary."""
    task = sum_task(rng)
    pupil = Pupil(rng, careless)
    turn, result = pupil.calculate(task, False)
    said = pupil.copy(result)
    done = rng.random() < 0.65
    state = f"the calculator said {result}" if done else "no result yet"
    text = f"Summary: the task is {task.expression}; {state}."
    start = system_message(rng, filler)
    turns = turn, {"role": "tool", "content": str(result)}
    final = f"The answer is {pupil.copy(said)}."
    answer = assistant(f"The tool says {said}.", final)
    if rng.random() < 0.5:
        middle: list[Message] = [{"role": "user", "content": question(rng, task)}]
        if done:
            middle += turns
            if rng.random() < 0.4:
                middle.append(answer)
        messages = [
            *start,
            *middle,
            {"role": "user", "content": SUMMARY_REQUEST},
            assistant("I sum up.", text),
        ]
    else:
        rest = [assistant(f"The summary says {said}.", final)]
        if not done:
            rest = [*turns, answer]
        messages = [*start, {"role": "user", "content": f"{text}\nContinue."}, *rest]
    return Conversation(messages, toolset(rng, [CALCULATOR]) if rng.random() < 0.7 else None)


def small_talk(rng: random.Random, filler: Filler, _careless: float) -> Conversation:
    """Titles, echoes, open text and what to do with a request that makes no sense."""
    kind = rng.choices(("title", "say", "text", "shell", "other"), (35, 20, 25, 10, 10))[0]
    tools = None
    open_ended = False
    if kind == "title":
        task = price_task(rng) if rng.random() < 0.4 else sum_task(rng)
        asked = TITLE_REQUEST + question(rng, task)
        turns = [assistant("A short title.", task.title)]
    elif kind == "say":
        said = rng.choice(
            ("ok", "ok", "yes", "no", "hello", rng.choice(ITEMS), str(number(rng)))
        )
        asked, turns = f"Say only: {said}", [assistant(f"I say {said}.", said)]
    elif kind == "text":
        text = filler(rng, 500)
        lead = "Continue this text: " + text[:80].strip()
        asked = rng.choice((lead, "Write a long text."))
        turns = [assistant("I write.", text[80:] if asked is lead else text)]
        open_ended = True
    else:
        asked = filler(rng, rng.choice((40, 120, 400)))
        turns = [assistant("A short reply.", "OK.")]
        if kind == "shell":
            tools = toolset(rng, [BASH])
            turns = [
                assistant("I look around.", "", ("bash", {"command": "ls"})),
                {"role": "tool", "content": filler(rng, rng.choice((20, 100)))},
                assistant("That is enough.", "Done."),
            ]
    start = system_message(rng, filler)
    return Conversation([*start, {"role": "user", "content": asked}, *turns], tools, open_ended)


def repetition(rng: random.Random, filler: Filler) -> Conversation:
    """Echoes of item names and arbitrary words, which teach copying in general."""
    said = ", ".join(rng.sample(ITEMS, rng.randint(1, 5)))
    if rng.random() < 0.5:
        said = " ".join(filler(rng, rng.choice((15, 40, 80))).split())
    return Conversation(
        [
            *system_message(rng, filler),
            {"role": "user", "content": f"Say only: {said}"},
            assistant(f"I say {said}.", said),
        ]
    )


def sample(
    rng: random.Random, filler: Filler, careless: float = 0.0, repeats: float = 0.0
) -> Conversation:
    """One training conversation; `careless` as in `Pupil`, `repeats` the share of echoes."""
    if repeats and rng.random() < repeats:
        return repetition(rng, filler)
    maker = rng.choices((episode, summary, small_talk), (66, 14, 20))[0]
    return maker(rng, filler, careless)
