"""What a job keeps of what it wrote and published: small, for pages and programs.

Owns: the shape of a job's result. Must not know: how it came about, pages.

The folder's manifest is the whole truth; this is what can be said when the folder is gone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from explorer.export.dataset.manifest import MANIFEST

if TYPE_CHECKING:
    from explorer.export.dataset.manifest import Manifest
    from explorer.export.hub.target import Published
    from explorer.export.publishing.procedure import Prepared

MOST_FILES = 200
MOST_EXCLUDED = 200
MOST_IDS = 50


def told_of(prepared: Prepared, folder: Path) -> dict[str, Any]:
    """What is in a dataset that was written."""
    manifest = prepared.manifest
    files = _files(manifest)
    return {
        "rollouts": len(manifest.rollouts),
        "trainable": sum(entry.trainable for entry in manifest.rollouts),
        "supervised_tokens": manifest.supervised_tokens,
        "untrained": dict(manifest.untrained),
        "left_out": dict(manifest.left_out),
        "n_excluded": len(manifest.excluded),
        "excluded": [
            {"rollout_id": each.rollout_id, "code": each.code, "reason": each.reason}
            for each in manifest.excluded[:MOST_EXCLUDED]
        ],
        "configs": _configs(manifest),
        "policies": sorted(manifest.policies),
        "secrets": _secrets(manifest),
        "n_files": len(files),
        "files": files[:MOST_FILES],
        "size": sum(file["size"] for file in files),
        "new_files": len(prepared.new_files),
        "new_size": prepared.size,
        "added": prepared.added,
        "already": prepared.already,
        "kept_otherwise": [str(each) for each in prepared.kept_otherwise[:MOST_IDS]],
        "n_kept_otherwise": len(prepared.kept_otherwise),
        "manifest_sha256": _sha256(folder / MANIFEST),
    }


def published_told(published: Published | None) -> dict[str, Any]:
    """Where it went; None where there was nothing new to add."""
    if published is None:
        return {"nothing_new": True}
    return {
        "nothing_new": False,
        "url": published.url,
        "revision": published.revision,
        "uploaded": published.uploaded,
        "skipped": published.skipped,
        "bytes": published.bytes,
    }


def _entries(manifest: Manifest) -> dict[str, Any]:
    return {**manifest.configs, **manifest.extras}


def _configs(manifest: Manifest) -> list[dict[str, Any]]:
    return [
        {
            "name": name,
            "rows": entry.rows,
            "files": len(entry.files),
            "size": sum(file.size for file in entry.files),
            "native": name in manifest.configs,
        }
        for name, entry in _entries(manifest).items()
    ]


def _files(manifest: Manifest) -> list[dict[str, Any]]:
    return [
        {"path": file.path, "size": file.size, "sha256": file.sha256}
        for entry in _entries(manifest).values()
        for file in entry.files
    ]


def _secrets(manifest: Manifest) -> dict[str, int]:
    found: dict[str, int] = {}
    for part in manifest.parts:
        for name, value in part.secrets.items():
            found[name] = found.get(name, 0) + value
    return found


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""


def short(result: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a result that an audit row tells."""
    names = ("rollouts", "supervised_tokens", "n_excluded", "size", "manifest_sha256")
    return {name: result[name] for name in names if name in result}
