"""A local Hub for each test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hub.server import LocalHub


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalHub]:
    # A login of this machine, which nobody must ever use.
    login = tmp_path / "login"
    login.write_text("hf_loginOfTheMachine")
    monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", str(login))
    monkeypatch.setenv("HF_TOKEN", "hf_tokenOfTheServer")
    with LocalHub() as made:
        yield made
    assert made.faults.tokens.isdisjoint({"hf_loginOfTheMachine", "hf_tokenOfTheServer"})


@pytest.fixture
def ada(hub: LocalHub) -> str:
    """A token that may write."""
    return hub.people.add("ada")
