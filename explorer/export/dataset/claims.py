"""What a manifest says of itself must fit together, whatever the files hold.

Owns: numbers against their sums, each rollout and file once, policies and reasons by name.
Must not know: files, rows, where the manifest came from. Nothing in it is believed.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from explorer.errors import InvalidValue
from explorer.export.dataset.manifest import (
    MANIFEST,
    ConfigEntry,
    ExtraEntry,
    Manifest,
    manifest_bytes,
)
from explorer.export.dataset.schema import CONFIGS, REASON_CODES
from explorer.export.dataset.writer import Shard
from explorer.trace.audit_reader import read_part
from explorer.trace.inputs import JUDGE_VERSION
from explorer.trace.policy import Policy


def spelling_problems(raw: bytes, manifest: Manifest) -> list[str]:
    """Where the file holds more than what is read of it: other readers may take that."""
    try:
        document = json.loads(raw, object_pairs_hook=_pairs)
    except (ValueError, RecursionError):
        return [f"{MANIFEST}: a name stands in it twice"]
    if document != json.loads(manifest_bytes(manifest)):
        return [f"{MANIFEST}: it holds something that nobody reads here"]
    return []


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name twice")
    return found


def manifest_problems(manifest: Manifest) -> list[str]:
    """In words, where a manifest contradicts itself; empty where nowhere."""
    found = [*_sums(manifest), *_once(manifest), *_named(manifest)]
    return [f"{MANIFEST}: {words}" for words in found]


def _sums(manifest: Manifest) -> Iterator[str]:
    for name in sorted(set(CONFIGS) ^ set(manifest.configs)):
        yield f"`{name[:40]}` is a config that must be there, or that nobody knows"
    listed: dict[str, ConfigEntry | ExtraEntry] = {**manifest.configs, **manifest.extras}
    for name, entry in listed.items():
        if _negative(entry.files) or entry.rows != sum(file.rows for file in entry.files):
            yield f"{name}: the rows of its files are not {entry.rows}"
    formats = set(manifest.extras)
    for part in manifest.parts:
        if part.rollouts < 0 or any(many < 0 for many in part.extras.values()):
            yield "a part counts less than nothing"
        if set(part.extras) != formats:
            yield "a part has other formats than the dataset"
            return
    for name, extra in manifest.extras.items():
        if sum(part.extras[name] for part in manifest.parts) != extra.rows:
            yield f"{name}: its parts do not have its {extra.rows} rows"


def _negative(files: Sequence[Shard]) -> bool:
    return any(min(file.rows, file.row_groups, file.size) < 0 for file in files)


def _once(manifest: Manifest) -> Iterator[str]:
    """In two parts, a rollout would train twice."""
    inside = [entry.rollout_id for entry in manifest.rollouts]
    for twice in _repeated(inside):
        yield f"rollout {twice[:80]} is in it twice"
    for twice in _repeated(file.path for file in manifest.files):
        yield f"{twice[:120]} is named twice"
    for both in sorted(set(inside) & {item.rollout_id for item in manifest.excluded})[:3]:
        yield f"rollout {both[:80]} is in it and left out"


def _repeated(names: Iterable[str]) -> list[str]:
    return [name for name, many in Counter(names).items() if many > 1][:3]


def _named(manifest: Manifest) -> Iterator[str]:
    """Policies and reasons are what readers look digests and codes up in."""
    for digest, switches in manifest.policies.items():
        try:
            policy = read_part(Policy, switches, "$.policies")
        except InvalidValue as error:
            yield f"policy {digest[:64]}: {error.message}"
            continue
        if policy.sha256 != digest or policy.describe() != switches:
            yield f"policy {digest[:64]} has other switches than its digest says"
    used = {entry.policy_sha256 for entry in manifest.rollouts}
    if used != set(manifest.policies):
        yield "its policies are not those of its rollouts"
    ours = {str(code): str(reason) for reason, code in REASON_CODES.items()}
    told = manifest.mask_reasons
    now = all(part.judge_version == JUDGE_VERSION for part in manifest.parts)
    if (now and told != ours) or any(ours.get(code, told[code]) != told[code] for code in told):
        yield "`mask_reasons` gives codes other names than this program"
