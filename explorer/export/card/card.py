"""The card of a dataset, README.md: made of its manifest and of what a person chose.

Owns: the order of the sections.
Must not know: what stands in each.
"""

from __future__ import annotations

from collections.abc import Callable

from explorer.export.card import contents, evidence, use
from explorer.export.card.choice import CardChoice
from explorer.export.card.front import as_yaml, front_matter
from explorer.export.card.subject import CardSubject, subject_of
from explorer.export.card.words import number, plain, quoted
from explorer.export.dataset.manifest import Manifest

SECTIONS: tuple[tuple[str, Callable[[CardSubject], str]], ...] = (
    ("Facts", contents.facts_table),
    ("What is in it", contents.contents),
    ("What was left out and why", contents.left_out),
    ("How to load it", use.loading),
    ("How to train on it", use.training),
    ("How to check it", use.verifying),
    ("How it was sampled", evidence.sampling),
    ("Engine and logprob certificate", evidence.engine),
    ("Harness and model", evidence.harness),
    ("Mask policy and reasons", evidence.masks),
    ("Checks", evidence.checks),
    ("Secret scan", evidence.secrets),
    ("Revisions it was made under", contents.revisions),
    ("Where its rollouts are", contents.links),
)


def card_text(manifest: Manifest, choice: CardChoice, repo_id: str | None) -> str:
    """README.md; the same manifest and choice give the same text.

    Args:
        repo_id: its name on the Hub; None for a folder, which is read where it lies.

    Raises:
        InvalidValue: the choice breaks a rule, the name is none, or the manifest's facts
            cannot be read.
    """
    subject = subject_of(manifest, choice, repo_id)
    blocks = [
        as_yaml(front_matter(manifest, subject.choice, subject.facts)),
        f"# {plain(subject.choice.title)}",
    ]
    if subject.choice.description:
        blocks.append(quoted(subject.choice.description))
    blocks.append(_how(subject))
    for title, section in SECTIONS:
        body = section(subject).strip()
        if body:
            blocks += [f"## {title}", body]
    return "\n\n".join(block.strip("\n") for block in blocks) + "\n"


def _how(subject: CardSubject) -> str:
    total = len(subject.manifest.rollouts)
    words = (
        "Captured between an agent's harness and the engine, token by token, by "
        "rollout-explorer. What stands below was counted while the files were written, or is "
        "in `manifest.json`; what was not measured is said to be so."
    )
    if subject.measured < total:
        words += (
            f" Evidence is there for {number(subject.measured)} of {number(total)} rollouts: "
            "parts without it are named under Revisions."
        )
    return words
