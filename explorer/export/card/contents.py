"""What is in a dataset, what is not, and what it rests on: the first and last sections.

Owns: their words.
Must not know: how calls were sampled or proved (`evidence`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

from explorer.export.adapters.registry import ADAPTERS
from explorer.export.card.licences import LICENCES, OTHER
from explorer.export.card.subject import CardSubject
from explorer.export.card.words import (
    NOT_MEASURED,
    code,
    distinct_words,
    many,
    number,
    plain,
    size_words,
    spread,
    table,
    tally_words,
)
from explorer.export.dataset.schema import ABOUT
from explorer.trace.findings import FINDINGS

PARTS_SHOWN = 20
LINKS_SHOWN = 5
_ID = re.compile(r"[0-9A-Za-z-]{1,64}")
WHY: dict[str, str] = {
    "not_found": "There is no such rollout, or no longer.",
    "rollout_open": "It was still open.",
    "secrets_undecided": "Something in it looks like a secret that nobody let go. It is left "
    "out whole; nothing is masked.",
    "rollout_failed": "It ended as a failure.",
    "rollout_deleted": "It was deleted.",
    "eval_purpose": "It was made for an evaluation, which never trains.",
    "record_inconsistent": "Its parts do not fit together.",
}


def why(reason: str) -> str:
    """A reason in words."""
    known = FINDINGS.get(reason)
    return WHY.get(reason) or ("" if known is None else known.meaning)


def facts_table(subject: CardSubject) -> str:
    """The dataset at a glance."""
    manifest, facts = subject.manifest, subject.facts
    calls = sum(entry.calls for entry in manifest.rollouts)
    rows = [
        ("Rollouts", number(len(manifest.rollouts))),
        ("… that may train", number(sum(entry.trainable for entry in manifest.rollouts))),
        ("Calls", number(calls)),
        ("Training rows", number(sum(entry.sequences for entry in manifest.rollouts))),
        ("Tokens that train, each once", number(manifest.supervised_tokens)),
    ]
    if subject.measured:
        tokens, rollouts, rewards = facts["tokens"], facts["rollouts"], facts["rewards"]
        rows += [
            ("Tokens that were sampled", number(tokens["sampled"])),
            ("Runs", distinct_words(rollouts["runs"])),
            ("Tasks", _named(rollouts["tasks"], rollouts["without_task"])),
            ("Groups", _named(rollouts["groups"], rollouts["without_group"])),
            ("Purpose", tally_words(rollouts["purpose"])),
            ("Captured", _period(rollouts["time_us"])),
            ("Closed as ok", tally_words(rollouts["ok"], none="nobody said")),
            ("Reward", reward_words(rewards)),
            ("Model", tally_words(facts["model"]["used"])),
            ("Harness", tally_words(facts["harness"]["used"])),
        ]
    files = list(manifest.files)
    rows += [
        ("Files", f"{number(len(files))}, {size_words(sum(file.size for file in files))}"),
        ("Licence", licence_words(subject)),
    ]
    if subject.choice.gated:
        rows.append(("Access", "on request"))
    return table(("What", "Measured"), rows)


def _named(told: Mapping[str, Any], without: int) -> str:
    words = distinct_words(told)
    return f"{words}; {many(without, 'rollout')} without one" if without else words


def _period(value: Any) -> str:
    if value is None:
        return NOT_MEASURED
    try:
        first, last = (datetime.fromtimestamp(each / 1e6, UTC) for each in value)
    except (ValueError, OverflowError, OSError):
        return NOT_MEASURED
    return f"{first:%Y-%m-%d %H:%M} to {last:%Y-%m-%d %H:%M} UTC"


def reward_words(rewards: Mapping[str, Any]) -> str:
    """Rewards; one that nobody gave is counted, and never read as 0."""
    scored, null = rewards["scored"], rewards["null"]
    unscored = f"{many(null, 'rollout')} without one (null, which is not 0)" if null else ""
    if not scored:
        return unscored or NOT_MEASURED
    words = f"{many(scored, 'rollout')}: {spread(rewards['range'])}"
    if rewards["sum"] is not None:
        words += f", mean {number(rewards['sum'] / scored)}"
    return f"{words}; {unscored}" if unscored else words


def licence_words(subject: CardSubject) -> str:
    """The licence, with a link where the Hub does not know it."""
    choice = subject.choice
    if choice.licence == OTHER:
        return f"[{plain(choice.licence_name)}]({choice.licence_link})"
    return f"{plain(LICENCES[choice.licence])} ({code(choice.licence)})"


def contents(subject: CardSubject) -> str:
    """Configs, and whatever else lies in the folder."""
    manifest, rows = subject.manifest, []
    for name, entry in manifest.configs.items():
        about = ABOUT.get(name, "")
        rows.append(_line(name, entry, about, loads=name in subject.configs))
    for name, extra in manifest.extras.items():
        adapter = ADAPTERS.get(name)
        about = "" if adapter is None else adapter.about
        rows.append(_line(name, extra, about, loads=name in subject.configs))
    empty = [name for name, entry in manifest.configs.items() if not entry.rows]
    words = table(("Folder", "Rows", "Files", "Size", "`load_dataset`", "What"), rows)
    for name in empty:
        words += f"\n\n`{name}` has no row, so it is no config" + (
            ": nothing in this dataset may train." if name == "sequences" else "."
        )
    texts = "are" if manifest.bodies else "are not"
    return (
        f"{words}\n\nRequests and replies {texts} in it as text. Every column is told in the "
        "files themselves and in the documentation of rollout-explorer (Dataset)."
    )


def _line(name: str, entry: Any, about: str, *, loads: bool) -> tuple[str, ...]:
    return (
        code(name),
        number(entry.rows),
        number(len(entry.files)),
        size_words(sum(file.size for file in entry.files)),
        "yes" if loads else "no",
        about.replace("|", "&#124;"),
    )


def left_out(subject: CardSubject) -> str:
    """What was asked for and is not in it, and what is in it and does not train."""
    manifest = subject.manifest
    parts = []
    if manifest.left_out:
        rows = [(code(name), number(n), why(name)) for name, n in manifest.left_out.items()]
        parts.append(
            "Asked for and not in it: "
            f"{many(len(manifest.excluded), 'rollout')}.\n\n"
            + table(("Reason", "Rollouts", "Meaning"), rows)
        )
    else:
        parts.append("Every rollout that was asked for is in it.")
    if manifest.untrained:
        rows = [(code(name), number(n), why(name)) for name, n in manifest.untrained.items()]
        parts.append(
            "These are in it and have no training row; the first reason of each counts.\n\n"
            + table(("Reason", "Rollouts", "Meaning"), rows)
        )
    elif manifest.rollouts:
        parts.append("Every rollout in it may train.")
    parts.append(
        "A training row holds whole paths of calls. Tokens that do not train stand in it with "
        "their reason (Mask policy and reasons)."
    )
    return "\n\n".join(parts)


def revisions(subject: CardSubject) -> str:
    """What the rows were made under; none of it changes any more."""
    manifest, people = subject.manifest, subject.facts["people"]
    shown = list(enumerate(manifest.parts, 1))[-PARTS_SHOWN:]
    rows = [
        (
            number(place),
            plain(part.writer),
            number(part.judge_version),
            number(part.rollouts),
            "yes" if part.bodies else "no",
            "yes" if part.facts else "no",
        )
        for place, part in shown
    ]
    words = table(
        ("Part", "Written by", "Rules", "Rollouts", "With texts", "With evidence"), rows
    )
    more = len(manifest.parts) - len(shown)
    if more:
        words += f"\n\nThe {number(more)} parts before these are in `manifest.json`."
    overridden = people["overridden"]
    decided = (
        f"People overrode something in {many(overridden, 'rollout')}: "
        f"{tally_words(people['overrides'])}."
        if overridden
        else "No rollout has an override."
    )
    return (
        f"{words}\n\n{decided if subject.measured else ''}\n\n"
        "Each row of `rollouts` holds the overrides, the policy and the digest of everything "
        "that its verdict depends on (`inputs_sha256`), as they were when it was written. What "
        "is decided later alters no published row; more rollouts come as a new part with files "
        f"of its own.\n\nSHA-256 of `manifest.json`: `{subject.digest}`"
    )


def links(subject: CardSubject) -> str:
    """Where the rollouts can be looked at."""
    base = subject.choice.link_base
    if not base:
        return ""
    names = [
        entry.rollout_id
        for entry in subject.manifest.rollouts
        if _ID.fullmatch(entry.rollout_id)
    ][:LINKS_SHOWN]
    lines = [f"- [{name}]({base}/rollouts/{quote(name, safe='')})" for name in names]
    return (
        f"Whoever has access there sees each rollout, token by token, at "
        f"`{base}/rollouts/` and its `rollout_id`:\n\n" + "\n".join(lines)
    )
