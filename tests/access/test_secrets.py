"""No key reaches a log, whoever logs it."""

from __future__ import annotations

import contextlib
import io
import logging
import logging.config
import os
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from explorer.access.secrets import log_uncaught, mask_secrets
from explorer.logs import logging_config
from tests.trace.test_secret_scan import KEYS

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
        f"token {SECRET.replace('rxk', 'rxt')}",
        "GET /sign-in/hf/callback?state=some-other-secret&code=some-other-secret HTTP/1.1",
        "cookie: theme=dark; __Host-rx-session=some-other-secret; more=some-other-secret",
        "(b'set-cookie', b'__Host-rx-login=some-other-secret; Path=/')",
        "grant_type=authorization_code&code=some-other-secret&code_verifier=some-other-secret",
        "{'client_secret': 'some-other-secret', 'id_token': 'some-other-secret'}",
        '{"refresh_token":"some-other-secret","access_token":"some-other-secret"}',
        "password=some-other-secret",
        "session __Host-rx-session=some-other-secret",
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
    text = "engine answered 500, status code=500 state=open; the cookie policy and passwords"
    assert mask_secrets(text) == text


@pytest.mark.parametrize("kind", KEYS)
def test_leak_01_keys_of_services_are_masked_wherever_they_stand(kind: str) -> None:
    secret = KEYS[kind]
    masked = mask_secrets(f"the engine said: no such key {secret}, é")
    assert secret not in masked
    assert masked.startswith("the engine said: no such key ")
    assert masked.endswith("***, é")


@contextlib.contextmanager
def logged() -> Iterator[io.StringIO]:
    """The real set-up of logging, written into memory."""
    stream = io.StringIO()
    hooks = sys.excepthook, threading.excepthook
    logging.config.dictConfig(logging_config("debug"))
    log_uncaught()
    root = logging.getLogger()
    try:
        handler = root.handlers[0]
        assert isinstance(handler, logging.StreamHandler)
        handler.setStream(stream)
        yield stream
    finally:
        sys.excepthook, threading.excepthook = hooks
        logging.captureWarnings(False)
        root.handlers.clear()
        root.setLevel(logging.WARNING)


def raise_with_secret() -> None:
    raise ValueError(f"upstream said Authorization: Bearer {SECRET}")


def test_leak_01_an_exceptions_text_passes_the_same_filter() -> None:
    log = logging.getLogger("anyone")
    with logged() as stream:
        try:
            try:
                raise_with_secret()
            except ValueError as error:
                raise RuntimeError(f"after {SECRET}") from error
        except RuntimeError:
            log.exception("failed at /k/%s/v1", SECRET)
        log.error("asked with %(headers)s", {"headers": {"x-api-key": "planted-secret"}})
        log.error("two %s of one %s", f"key={SECRET}")  # its arguments do not fit
        log.error("odd %s", Exception(f"held {SECRET}"), stack_info=True)
        log.debug("GET /v1/models?api_key=%s", "sk-test-000")
        logging.getLogger("uvicorn.error").error("cookie: a=1; b=planted-secret")
        logging.getLogger("asyncio").warning("token=%s", SECRET)
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            warnings.warn(f"never use {SECRET}", stacklevel=1)
        thread = threading.Thread(target=raise_with_secret)
        thread.start()
        thread.join()
        try:
            raise_with_secret()
        except ValueError as error:
            sys.excepthook(ValueError, error, error.__traceback__)
    text = stream.getvalue()
    for said in ("failed at", "asked with", "two ", "odd ", "GET /v1", "never use",
                 "a thread ended", "the process ended", "raise_with_secret"):  # fmt: skip
        assert said in text
    assert SECRET[12:] not in text
    assert "planted-secret" not in text
    assert "sk-test-000" not in text


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
