"""Which target a person means by what they wrote.

Owns: the forms in which a place is written. Must not know: what a target does.
"""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote

from explorer.errors import HubNameInvalid, HubRefused
from explorer.export.hub.bucket import Bucket
from explorer.export.hub.client import HubClient, checked_endpoint
from explorer.export.hub.dataset import HubDataset
from explorer.export.hub.folder import LocalFolder
from explorer.export.hub.names import checked_name
from explorer.export.hub.repository import Gate
from explorer.export.hub.target import Target
from explorer.export.hub.wire import Patience

FORMS = (
    "OWNER/NAME or hf://datasets/OWNER/NAME for a dataset on the Hub, "
    "hf://buckets/OWNER/NAME[/FOLDER] for a Storage Bucket, "
    "/PATH, ./PATH or file:PATH for a folder"
)
_DATASETS, _BUCKETS, _FILE = "hf://datasets/", "hf://buckets/", "file:"


def target_of(
    where: str,
    *,
    token: str | None,
    private: bool,
    gated: Gate,
    endpoint: str | None,
    patience: Patience | None = None,
) -> Target:
    """The target; nothing is asked of it yet.

    Args:
        where: one of `FORMS`.
        token: of the person who publishes; nothing else is ever used.
        endpoint: the Hub's address; None is that of `HF_ENDPOINT`, or huggingface.co.

    Raises:
        HubNameInvalid: no place can be called so.
        HubRefused: it cannot have such a gate.
        ConfigurationError: the endpoint cannot be used.
    """
    if path := _path(where):
        if gated:
            raise HubRefused("a folder has no gate; ask for none")
        return LocalFolder(path, private)
    client = HubClient(checked_endpoint(endpoint), token or None, patience or Patience())
    if where.startswith(_BUCKETS):
        if gated:
            raise HubRefused(
                "a Storage Bucket has no gate; publish to a dataset, or ask for none"
            )
        owner, _, rest = where.removeprefix(_BUCKETS).partition("/")
        name, _, prefix = rest.partition("/")
        return Bucket(checked_name(f"{owner}/{name}"), client, _prefix(prefix), private)
    name = where.removeprefix(_DATASETS)
    if "://" in name:
        raise HubNameInvalid(f"{ascii(where)[:120]} is no place to publish to; write {FORMS}")
    return HubDataset(checked_name(name), client, private, gated)


def _path(where: str) -> Path | None:
    if where.startswith(_FILE):
        rest = where.removeprefix(_FILE)
        return Path(unquote(rest.removeprefix("//")) if rest.startswith("//") else rest)
    if where in (".", "..") or where.startswith(("/", "./", "../", "~/")):
        return Path(where).expanduser()
    return None


def _prefix(text: str) -> str:
    """The folder in a bucket, without a slash at its end."""
    parts = text.strip("/").split("/") if text.strip("/") else []
    if any(part in ("", ".", "..") or not part.isprintable() for part in parts):
        raise HubNameInvalid(f"{ascii(text)[:120]} is no folder in a bucket")
    return "/".join(parts)
