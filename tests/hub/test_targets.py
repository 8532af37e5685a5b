"""The forms in which a place is written."""

from __future__ import annotations

from pathlib import Path

import pytest

from explorer.errors import HubNameInvalid
from explorer.export.hub.bucket import Bucket
from explorer.export.hub.dataset import HubDataset
from explorer.export.hub.folder import LocalFolder
from explorer.export.hub.target import Target
from explorer.export.hub.targets import target_of


def meant(where: str) -> Target:
    return target_of(
        where, token="hf_x", private=True, gated="", endpoint="https://hub.example"
    )


@pytest.mark.parametrize("where", ["ada/set", "hf://datasets/ada/set"])
def test_a_dataset(where: str) -> None:
    target = meant(where)
    assert isinstance(target, HubDataset)
    assert (target.repo_id, target.private, target.gated) == ("ada/set", True, "")
    assert target.title == "the dataset ada/set on the Hub"
    assert "hf_x" not in repr(target)


@pytest.mark.parametrize(
    ("where", "prefix"),
    [
        ("hf://buckets/ada/live", ""),
        ("hf://buckets/ada/live/", ""),
        ("hf://buckets/ada/live/runs/1/", "runs/1"),
    ],
)
def test_a_bucket(where: str, prefix: str) -> None:
    target = meant(where)
    assert isinstance(target, Bucket)
    assert (target.bucket_id, target.prefix) == ("ada/live", prefix)


@pytest.mark.parametrize(
    ("where", "path"),
    [
        ("/srv/sets/one", "/srv/sets/one"),
        ("./one", "one"),
        ("../one", "../one"),
        (".", "."),
        ("file:one", "one"),
        ("file:/srv/one", "/srv/one"),
        ("file:///srv/one%20set", "/srv/one set"),
    ],
)
def test_a_folder(where: str, path: str) -> None:
    target = meant(where)
    assert isinstance(target, LocalFolder)
    assert target.folder == Path(path)


def test_a_folder_at_home() -> None:
    target = meant("~/sets")
    assert isinstance(target, LocalFolder)
    assert target.folder == Path.home() / "sets"


@pytest.mark.parametrize(
    "where",
    [
        *("", "name", "hf://ada/set", "hf://models/ada/set", "hf://spaces/ada/set"),
        *("hf://buckets/ada", "hf://buckets/ada/live/../../x", "hf://buckets/ada/live/a//b"),
        *(
            "https://huggingface.co/datasets/ada/set",
            "s3://bucket/x",
            "ada/set/more",
            "ada/\x00",
        ),
    ],
)
def test_what_is_no_place(where: str) -> None:
    with pytest.raises(HubNameInvalid) as refused:
        meant(where)
    assert refused.value.message.isprintable()
