"""The tutorial names attempts of the demo by group and number; they must be those."""

from __future__ import annotations

import re
from pathlib import Path

from explorer.demo.agent import Habit
from explorer.demo.group import habits_of
from explorer.demo.tasks import make_tasks

TUTORIAL = Path(__file__).parents[2] / "docs" / "tutorial" / "first-rollout.md"
SIGNS = {
    "title first": Habit.TITLE,
    "asks again": Habit.RETRY,
    "two tool results": Habit.FORK,
    "summary": Habit.COMPACT,
    "too long": Habit.FAILURE,
    "output cap": Habit.CUT,
    "reasoning back": Habit.FORGETFUL,
    "temperature 0": Habit.GREEDY,
}


def test_the_tutorial_points_at_the_right_attempts() -> None:
    names = [task.name for task in make_tasks(seed=7)]
    rows = re.findall(r"^\| `(.+?)` #(\d) \| (.+?) \|", TUTORIAL.read_text(), re.MULTILINE)
    assert len(rows) == len(SIGNS)
    for task, attempt, does in rows:
        (habit,) = [found for sign, found in SIGNS.items() if sign in does]
        assert habit in habits_of(names.index(task), int(attempt))
