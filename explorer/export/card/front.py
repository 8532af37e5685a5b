"""The front matter of a card: what machines read of it.

Owns: which configs there are and their files, tags, size, licence, gate; as YAML.
Must not know: what people read.

Every file is named, so nobody reads half a set or what something else left in the folder. A
config without rows is none: the reader that it is for refuses it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import yaml

from explorer.export.card.choice import CardChoice
from explorer.export.card.licences import OTHER
from explorer.export.dataset.manifest import Manifest, manifest_bytes
from explorer.trace.jsontext import clean

FENCE = "---"
# The first that has rows is the default.
ORDER = ("sequences", "rollouts", "calls")
_SIZES = (
    (10**3, "n<1K"),
    (10**4, "1K<n<10K"),
    (10**5, "10K<n<100K"),
    (10**6, "100K<n<1M"),
    (10**7, "1M<n<10M"),
    (10**8, "10M<n<100M"),
    (10**9, "100M<n<1B"),
    (10**10, "1B<n<10B"),
    (10**11, "10B<n<100B"),
    (10**12, "100B<n<1T"),
)


def digest_of(manifest: Manifest) -> str:
    """Names the manifest that a card goes with: SHA-256 of the file as it is written."""
    return hashlib.sha256(manifest_bytes(manifest)).hexdigest()


def loadable(manifest: Manifest) -> dict[str, tuple[int, tuple[str, ...]]]:
    """Rows and files of each config that `load_dataset` reads, the default first."""
    entries: dict[str, Any] = {
        name: manifest.configs[name] for name in ORDER if name in manifest.configs
    }
    entries |= {
        name: entry for name, entry in manifest.extras.items() if entry.layout == "parquet"
    }
    return {
        name: (entry.rows, tuple(file.path for file in entry.files if file.rows))
        for name, entry in entries.items()
        if entry.rows
    }


def size_category(rows: int) -> str:
    """The Hub's word for a number of rows."""
    return next((word for limit, word in _SIZES if rows < limit), "n>1T")


def configs_of(manifest: Manifest) -> list[dict[str, Any]]:
    """The configs as they stand in the front matter."""
    made = []
    for place, (name, (_, files)) in enumerate(loadable(manifest).items()):
        config: dict[str, Any] = {"config_name": name}
        if place == 0:
            config["default"] = True
        config["data_files"] = [{"split": "train", "path": list(files)}]
        made.append(config)
    return made


def tags_of(manifest: Manifest, facts: Mapping[str, Any]) -> list[str]:
    """Only what is so."""
    tags = ["rollout-explorer"]
    if manifest.rollouts:
        tags.append("agent-traces")
    if facts["tokens"]["sampled"]:
        tags.append("token-level")
    if manifest.supervised_tokens and facts["rewards"]["scored"]:
        tags.append("rl-rollouts")
    return sorted(tags)


def front_matter(
    manifest: Manifest, choice: CardChoice, facts: Mapping[str, Any]
) -> dict[str, Any]:
    """Every key; their order is that of the card."""
    made: dict[str, Any] = {"license": choice.licence}
    if choice.licence == OTHER:
        made |= {"license_name": choice.licence_name, "license_link": choice.licence_link}
    made["pretty_name"] = choice.title
    made["tags"] = tags_of(manifest, facts)
    configs = loadable(manifest)
    rows = next((rows for rows, _ in configs.values()), 0)
    made["size_categories"] = [size_category(rows)]
    if choice.gated and choice.gate_prompt:
        made["extra_gated_prompt"] = choice.gate_prompt
    if configs:
        made["configs"] = configs_of(manifest)
    return made


class _Quoted(str):
    """A text that stands in quotation marks, whatever it looks like."""


class _Dumper(yaml.SafeDumper):  # type: ignore[misc]
    """Readers of YAML 1.1 and 1.2 take quoted texts alike."""


_Dumper.add_representer(
    _Quoted,
    lambda dumper, text: dumper.represent_scalar("tag:yaml.org,2002:str", str(text), style='"'),
)
_Dumper.ignore_aliases = lambda *_: True
_FREE = ("license_name", "license_link", "pretty_name", "extra_gated_prompt")


def as_yaml(front: Mapping[str, Any]) -> str:
    """The front matter between its fences."""
    quoted = {
        key: _Quoted(clean(value)) if key in _FREE else value for key, value in front.items()
    }
    body = yaml.dump(
        quoted,
        Dumper=_Dumper,
        sort_keys=False,
        allow_unicode=True,
        default_flow_style=False,
        # A folded text could begin a line with a fence.
        width=float("inf"),
    )
    return f"{FENCE}\n{body}{FENCE}\n"
