"""From the text behind ``local:`` to a model folder on this machine, and its digest.

Owns: finding the folder, naming its contents. Must not know: what is in the files.
"""

from __future__ import annotations

import hashlib
from importlib.metadata import version
from pathlib import Path

from explorer.errors import ConfigurationError

WEIGHTS = ("*.safetensors", "*.bin")
DIGEST_LETTERS = 12


def model_folder(name: str) -> Path:
    """The folder that `name` means: itself, or its snapshot in the local Hub cache.

    Raises:
        ConfigurationError: there is no such folder, it holds no model, or the Hub model is not
            in the cache. Nothing is ever downloaded.
    """
    folder = Path(name).expanduser()
    if not folder.is_dir():
        folder = _cached(name)
    if not (folder / "config.json").is_file():
        raise ConfigurationError(
            f"{folder} holds no Hugging Face model: config.json is missing", engine=name
        )
    return folder.resolve()


def served_name(name: str) -> str:
    """What clients call the model: the folder's name, or the Hub id itself."""
    folder = Path(name).expanduser()
    return folder.resolve().name if folder.is_dir() else name


def _cached(name: str) -> Path:
    # Imported here: the hub client takes a moment, and only this engine needs it.
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(name, local_files_only=True))
    except HFValidationError as problem:
        raise ConfigurationError(f"there is no folder {name}", engine=name) from problem
    except LocalEntryNotFoundError as problem:
        raise ConfigurationError(
            f"{name} is no folder here, and no model in the local Hub cache; "
            f"`hf download {name}` fetches it, for the engine downloads nothing itself",
            engine=name,
        ) from problem


def fingerprint(folder: Path) -> str:
    """Names the libraries and the files that decide what the model answers."""
    names = [path.name for pattern in WEIGHTS for path in folder.glob(pattern)]
    digest = hashlib.sha256()
    for name in sorted({"config.json", *names}):
        digest.update(name.encode() + b"\0")
        with (folder / name).open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    libraries = f"{version('transformers')}-torch-{version('torch')}"
    return f"transformers-{libraries}-{digest.hexdigest()[:DIGEST_LETTERS]}"
