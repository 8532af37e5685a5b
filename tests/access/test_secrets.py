"""No key reaches a log, whoever logs it."""

from __future__ import annotations

import io
import logging
import logging.config
import os
import subprocess
import sys
from pathlib import Path

import pytest

from explorer.access.secrets import mask_secrets
from explorer.app import logging_config

SECRET = "rxk_AbCdEfGhIjKlMnOpQrStUvWxYz0123456789-_abc"


@pytest.mark.parametrize(
    "text",
    [
        f"POST http://127.0.0.1:1/k/{SECRET}/v1/chat/completions",
        "GET /k/some-other-secret/v1/models",
        "GET /v1/models?api_key=sk-test-some-other-secret&x=1",
        "GET /v1beta/models?key=some-other-secret",
        "{'authorization': 'Bearer some-other-secret'}",
        'headers: {"x-api-key": "some-other-secret"}',
        "(b'authorization', b'Bearer some-other-secret')",
        "Authorization: Basic some-other-secret",
        f"token {SECRET.replace('rxk', 'rxa')}",
    ],
)
def test_leak_01_known_places_are_masked(text: str) -> None:
    masked = mask_secrets(text)
    assert "some-other-secret" not in masked
    assert SECRET[12:] not in masked
    assert "***" in masked


def test_ordinary_text_is_left_alone() -> None:
    text = "rollout 01a2 has 3 keys in /rollouts/k/ and a token count of 5; key=value"
    assert mask_secrets(text) == text


def test_leak_01_an_exceptions_text_passes_the_same_filter(
    capsys: pytest.CaptureFixture[str],
) -> None:
    stream = io.StringIO()
    logging.config.dictConfig(logging_config("info"))
    root = logging.getLogger()
    try:
        handler = root.handlers[0]
        assert isinstance(handler, logging.StreamHandler)
        handler.setStream(stream)
        try:
            raise ValueError(f"upstream said Authorization: Bearer {SECRET}")
        except ValueError:
            logging.getLogger("anyone").exception("failed at /k/%s/v1", SECRET)
    finally:
        root.handlers.clear()
        root.setLevel(logging.WARNING)
    assert "failed at" in stream.getvalue()
    assert SECRET[12:] not in stream.getvalue()


@pytest.mark.slow
def test_leak_01_no_key_in_anything_the_command_prints(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "explorer", "demo", "--exit", "--attempts", "1"]
    environment = os.environ | {"ROLLOUT_EXPLORER_LOG_LEVEL": "debug"}
    done = subprocess.run(
        [*command, "--port", "0", "--store", str(tmp_path / "store.duckdb")],
        capture_output=True,
        text=True,
        env=environment,
        check=True,
        timeout=170,
    )
    assert "rollouts recorded" in done.stdout
    assert "rxk_" not in done.stdout
    for line in done.stderr.splitlines():
        for start in ("rxk_", "rxa_"):
            if start in line:
                assert line.split(start)[1][8:].startswith("***"), line[:200]
