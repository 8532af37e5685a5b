"""What a card is made of, gathered once.

Owns: the facts of all parts together, and which parts have none.
Must not know: Markdown.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from explorer.errors import InvalidValue
from explorer.export.card.choice import CardChoice, checked_choice
from explorer.export.card.front import digest_of, loadable
from explorer.export.dataset.facts import merged
from explorer.export.dataset.manifest import Manifest

# A path that `load_dataset` takes: it knows no name for the folder that it stands in.
HERE = "./data"
_REPO = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,95}(?:/[A-Za-z0-9_][A-Za-z0-9._-]{0,95})?")


@dataclass(frozen=True, slots=True)
class CardSubject:
    """Everything that sections read.

    Attributes:
        where: what `load_dataset` takes: the dataset's name on the Hub, or a path.
        on_hub: whether it has such a name.
        facts: of all parts that have them; `measured` rollouts are in those.
        digest: SHA-256 of the manifest's bytes.
        configs: those that can be loaded, with rows and files.
    """

    manifest: Manifest
    choice: CardChoice
    where: str
    on_hub: bool
    facts: Mapping[str, Any]
    measured: int
    digest: str
    configs: Mapping[str, tuple[int, tuple[str, ...]]]


def subject_of(manifest: Manifest, choice: CardChoice, repo_id: str | None) -> CardSubject:
    """Reads the facts out of the manifest.

    Raises:
        InvalidValue: the choice breaks a rule, the name is none, or facts cannot be read.
    """
    if repo_id is not None and not _REPO.fullmatch(repo_id):
        raise InvalidValue(f"{repo_id[:100]!r} is no name of a dataset", path="repo_id")
    facts = merged([part.facts for part in manifest.parts])
    return CardSubject(
        manifest=manifest,
        choice=checked_choice(choice),
        where=HERE if repo_id is None else repo_id,
        on_hub=repo_id is not None,
        facts=facts,
        measured=facts["rollouts"]["all"],
        digest=digest_of(manifest),
        configs=loadable(manifest),
    )
