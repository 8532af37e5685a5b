"""What somebody may do with a rollout, action by action, with the rule that decides.

Owns: the list of questions that the permission page asks the policy.
Must not know: routes, how a decision is enforced.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fastapi import Request

from explorer.access.grants import Place
from explorer.access.people import Caller, Role
from explorer.access.policy import (
    LEVEL_WORDS,
    NO_GRANT,
    Action,
    Decision,
    Kind,
    Level,
    Rule,
    decide,
)
from explorer.access.visibility import Holds
from explorer.records import RolloutId
from explorer.web.access import Access
from explorer.web.gate import pass_of


@dataclass(frozen=True, slots=True)
class Question:
    """One thing that somebody may want to do."""

    name: str
    words: str
    rule: Rule


QUESTIONS = (
    Question("see", "see its pages", Rule(Action.SEE)),
    Question(
        "training_trace",
        "take the Training trace",
        Rule(Action.TAKE, kind=Kind.TRAINING_TRACE),
    ),
    Question(
        "capture_audit", "take the Capture audit", Rule(Action.TAKE, kind=Kind.CAPTURE_AUDIT)
    ),
    Question("raw", "take raw bodies", Rule(Action.TAKE, kind=Kind.RAW)),
    Question("curate", "label, note, override", Rule(Action.CURATE, changes=True)),
    Question("decide", "decide about grants and levels", Rule(Action.DECIDE, changes=True)),
    Question("operate", "reward, close or delete it", Rule(Action.OPERATE, changes=True)),
)


@dataclass(frozen=True, slots=True)
class Answer:
    """A question and its decision."""

    question: Question
    decision: Decision


def answers(access: Access, caller: Caller, place: Place) -> tuple[Holds, tuple[Answer, ...]]:
    """What `caller` may do with a rollout; a Hub gate is not asked here."""
    holds = access.reach.holds(place)
    found: list[Answer] = []
    for question in QUESTIONS:
        facts = NO_GRANT
        if caller.role < Role.CURATOR and holds.level is not Level.PRIVATE:
            facts = access.reach.facts(caller, place, question.rule.kind)
        found.append(Answer(question, decide(caller, question.rule, holds.level, facts)))
    return holds, tuple(found)


def held_back(request: Request, rollout_id: str) -> str:
    """Why no document of a rollout leaves under any grant, or nothing; it may scan first, so
    call it in a worker thread."""
    scans = request.app.state.services.secrets
    if scans is None:
        return ""
    return scans.export_refusal(RolloutId(rollout_id)) or ""


def permissions_json(request: Request, access: Access, now_us: int) -> dict[str, Any]:
    """The caller's own answers, as the API gives them."""
    held = pass_of(request)
    assert held is not None
    assert held.place is not None
    holds, found = answers(access, held.caller, held.place)
    return {
        "rollout_id": held.place.rollout_id,
        "caller": held.caller.subject,
        "role": held.caller.role.word,
        "level": holds.level.value,
        "level_words": LEVEL_WORDS[holds.level],
        "because": holds.because if held.caller.role >= Role.CURATOR else None,
        "held_back": held_back(request, held.place.rollout_id) or None,
        "time_us": now_us,
        "answers": [
            {
                "action": answer.question.name,
                "allowed": answer.decision.allowed,
                "rule": answer.decision.rule,
                "words": answer.decision.words,
            }
            for answer in found
        ],
    }
