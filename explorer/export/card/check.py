"""Whether a card goes with its manifest.

Owns: what is compared: licence, configs, files, size, the manifest's digest, counts.
Must not know: where the card came from. Nothing in it is believed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from explorer.errors import InvalidValue
from explorer.export.card.front import configs_of, digest_of, loadable, size_category
from explorer.export.card.licences import LICENCES, OTHER
from explorer.export.card.words import number
from explorer.export.dataset.facts import merged
from explorer.export.dataset.manifest import Manifest

MOST = 2_000_000
_FRONT = re.compile(r"\A---\n(.*?)\n---\n", re.DOTALL)
_DIGEST = re.compile(r"^SHA-256 of `manifest\.json`: `([0-9a-f]{64})`$", re.MULTILINE)
_COUNT = re.compile(
    r"^\| (Rollouts|Tokens that train, each once) \| ([0-9,]+) \|$", re.MULTILINE
)


def card_problems(text: str, manifest: Manifest) -> list[str]:
    """In words, where a card says something else than its manifest; empty when nowhere."""
    return list(_problems(text, manifest))


def _problems(text: str, manifest: Manifest) -> Iterator[str]:
    if len(text) > MOST:
        yield "the card is too long to be one"
        return
    found = _FRONT.match(text)
    try:
        front = None if found is None else yaml.safe_load(found[1])
    # Numbers and dates that are none raise ValueError, deep nesting the other.
    except (yaml.YAMLError, ValueError, RecursionError):
        front = None
    if not isinstance(front, dict):
        yield "the card has no front matter that can be read"
        return
    yield from _licence(front)
    yield from _configs(front, manifest)
    yield from _body(text, manifest)
    yield from _facts(manifest)


def _licence(front: Mapping[str, Any]) -> Iterator[str]:
    licence = front.get("license")
    if not isinstance(licence, str) or licence not in LICENCES:
        yield "the card names no licence that the Hub knows"
    elif licence == OTHER and not (front.get("license_name") and front.get("license_link")):
        yield "the card's licence is `other`, without its name and a link"


def _configs(front: Mapping[str, Any], manifest: Manifest) -> Iterator[str]:
    told, wanted = front.get("configs", []), configs_of(manifest)
    if told != wanted:
        told = told if isinstance(told, list) else []
        given = [each.get("config_name") for each in told if isinstance(each, dict)]
        # Only texts: what else stands there may be huge when it is written out.
        names = [name if isinstance(name, str) else "" for name in given]
        for config in wanted:
            if config["config_name"] not in names:
                yield f"the card has no config `{config['config_name']}`"
            elif config not in told:
                yield (
                    f"the card's config `{config['config_name']}` has other files than the "
                    "manifest"
                )
        if names != [config["config_name"] for config in wanted]:
            yield f"the card's configs are {str(names)[:200]}"
    rows = next((rows for rows, _ in loadable(manifest).values()), 0)
    if front.get("size_categories") != [size_category(rows)]:
        yield f"the card's size is not that of {rows} rows"


def _body(text: str, manifest: Manifest) -> Iterator[str]:
    digests = _DIGEST.findall(text)
    if digests != [digest_of(manifest)]:
        yield "the card was made for another manifest"
    wanted = [
        ("Rollouts", number(len(manifest.rollouts))),
        ("Tokens that train, each once", number(manifest.supervised_tokens)),
    ]
    if _COUNT.findall(text) != wanted:
        yield "the card counts other rollouts or tokens than the manifest"


def _facts(manifest: Manifest) -> Iterator[str]:
    """Evidence must fit the rollouts that it is about."""
    for place, (part, entries) in enumerate(manifest.by_part, 1):
        if not part.facts:
            continue
        try:
            facts = merged([part.facts])
        except InvalidValue as error:
            yield f"part {place}: {error.message}"
            continue
        for name, told, wanted in (
            ("rollouts", facts["rollouts"]["all"], len(entries)),
            (
                "rollouts that may train",
                facts["rollouts"]["trainable"],
                sum(entry.trainable for entry in entries),
            ),
            ("calls", facts["calls"]["all"], sum(entry.calls for entry in entries)),
            (
                "tokens that train",
                facts["tokens"]["supervised"],
                sum(entry.supervised_tokens for entry in entries),
            ),
        ):
            if told != wanted:
                yield f"part {place}: its evidence counts {told} {name}, its rollouts {wanted}"
