"""The built wheel, installed in an empty directory, shows its home page."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import httpx
import pytest

from explorer import runfile

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "build", "--wheel", "--outdir", str(out), str(ROOT)]
    subprocess.run(command, check=True, capture_output=True)
    (path,) = out.glob("*.whl")
    return path


def test_the_wheel_holds_templates_static_files_and_weights(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    for wanted in (
        "explorer/_assets/templates/base.html",
        "explorer/_assets/static/explorer.css",
        "explorer/_assets/static/vendor/htmx-4.0.1.min.js",
        "explorer/engine/tiny/weights/model.safetensors",
        "explorer/engine/tiny/weights/tokenizer.json",
        "explorer/harness/profiles/codex.toml",
        "explorer/harness/overlay/sitecustomize.py",
    ):
        assert wanted in names
    assert not [name for name in names if name.startswith(("tests/", "benchmarks/"))]
    assert any(name.endswith("licenses/NOTICE") for name in names)


@pytest.mark.slow
def test_the_wheel_serves_from_an_empty_directory(wheel: Path, tmp_path: Path) -> None:
    site, empty = tmp_path / "site", tmp_path / "empty"
    empty.mkdir()
    # The dependencies are those of this environment; only the package is new.
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps"]
    subprocess.run(
        [*install, "--target", str(site), str(wheel)], check=True, capture_output=True
    )
    environment = {
        key: value for key, value in os.environ.items() if key not in ("PYTHONPATH",)
    } | {"PYTHONPATH": str(site), "PYTHONSAFEPATH": "1"}
    where = subprocess.run(
        [sys.executable, "-c", "import explorer; print(explorer.__file__)"],
        cwd=empty,
        env=environment,
        check=True,
        capture_output=True,
        text=True,
    )
    assert where.stdout.startswith(str(site)), where.stdout
    child = subprocess.Popen(
        [sys.executable, "-m", "explorer", "serve", "--port", "0"],
        cwd=empty,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        store = empty / "rollouts.duckdb"
        deadline = time.time() + 60
        while (run := runfile.read(store)) is None and time.time() < deadline:
            assert child.poll() is None, "the server ended"
            time.sleep(0.1)
        assert run is not None
        page = httpx.get(run.url + "/")
        assert page.status_code == 200
        assert "Rollout Explorer" in page.text
        style = page.text.split('rel="stylesheet" href="')[1].split('"')[0]
        assert httpx.get(run.url + style).status_code == 200
        assert oct(runfile.path_of(store).stat().st_mode)[-3:] == "600"
    finally:
        child.terminate()
        child.wait(30)
    assert not runfile.path_of(store).exists()
