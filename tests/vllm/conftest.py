"""A real vLLM on CPU with the tiny model, started once; only for `make test-engines`."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from explorer.engine.http import HttpEngine
from tests.live import Live, serving

MODEL = Path(__file__).parents[1] / "data" / "tiny_model"
FLAGS = (
    *("--served-model-name", "tiny", "--dtype", "float32", "--max-model-len", "1024"),
    *("--logprobs-mode", "processed_logprobs", "--generation-config", "vllm"),
    *("--enable-auto-tool-choice", "--tool-call-parser", "hermes"),
    *("--reasoning-parser", "qwen3", "--enforce-eager", "--max-num-seqs", "8"),
)
ENVIRONMENT = {
    "VLLM_SERVER_DEV_MODE": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
}


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@pytest.fixture(scope="session")
def vllm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a running vLLM; the tests are skipped where none can be started."""
    folder = os.environ.get("ROLLOUT_EXPLORER_VLLM_ENV")
    if not folder:
        pytest.skip("no vLLM: `make test-engines` installs one and runs these")
    port = _free_port()
    log = tmp_path_factory.mktemp("vllm") / "vllm.log"
    command = [f"{folder}/bin/vllm", "serve", str(MODEL), "--port", str(port), *FLAGS]
    with log.open("wb") as out:
        process = subprocess.Popen(
            command,
            stdout=out,
            stderr=subprocess.STDOUT,
            env=os.environ | ENVIRONMENT,
            start_new_session=True,
        )
    url = f"http://127.0.0.1:{port}"
    try:
        deadline = time.monotonic() + 600
        while True:
            assert process.poll() is None, log.read_text(errors="replace")[-3000:]
            assert time.monotonic() < deadline, log.read_text(errors="replace")[-3000:]
            try:
                if httpx.get(url + "/health", timeout=5).status_code == 200:
                    break
            except httpx.HTTPError:
                pass
            time.sleep(1)
        yield url
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)


@pytest.fixture(scope="session")
def live(vllm: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """Our server in front of it."""
    store = tmp_path_factory.mktemp("engines") / "store.duckdb"
    with serving(HttpEngine(vllm, tokenizer=str(MODEL)), store) as running:
        yield running
