"""Page contexts of what looks like a secret: the part of the findings tab that is about it.

Owns: these dataclasses. None holds a secret. Must not know: who may decide.
"""

from __future__ import annotations

from dataclasses import dataclass

from explorer.web.contexts import Choice, said


@dataclass(frozen=True, slots=True)
class SecretPlace:
    """One place where a finding stands."""

    text: str = said("The place, in words.")
    href: str | None = said("Address of it, null where no page shows it.")


@dataclass(frozen=True, slots=True)
class SecretItem:
    """One thing that looks like a secret; the secret is not in here."""

    finding_id: str = said("Id of the finding; it tells nothing of the secret.")
    kind: str = said("Its kind, as in the API.")
    title: str = said("What it looks like, in words.")
    preview: str = said("Its first characters and its length, empty for who may not decide.")
    state: str = said("`undecided`, `not a secret`, `released`, `withheld` or `counted`.")
    hidden: bool = said("Whether readers without leave do not see it.")
    decided: str = said("Who decided, when and why; empty while nobody has.")
    places: tuple[SecretPlace, ...] = said("The first places.")
    n_places: int = said("Places in all.")


@dataclass(frozen=True, slots=True)
class SecretsPart:
    """What a search for secrets found in a rollout."""

    n_secrets: int = said("Different things that look like secrets.")
    n_undecided: int = said("Those that nobody has decided about.")
    n_paths: int = said("Different paths with a person's name; they never block.")
    refusal: str = said("Why no file leaves under a grant, empty when one may.")
    items: tuple[SecretItem, ...] = said("What was found, what waits first.")
    may_decide: bool = said("Whether this reader may decide.")
    action: str = said("Where a decision is sent.")
    choices: tuple[Choice, ...] = said("What can be decided.")
