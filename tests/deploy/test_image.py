"""What the image does, without a container engine: its command, and all of its steps.

The quick test starts the image's command with the image's settings in a clean directory.
`make test-image` runs every step in a clean directory instead, as a user without rights;
what only a container engine could show is told in deploy/README.md.
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import httpx
import pytest

from tests.deploy.dockerfile import ROOT, Step, environment, final, read

WHOLE = "ROLLOUT_EXPLORER_RUN_IMAGE"
TOKEN = "operators-own-token-of-forty-characters!"
NOBODY = 65534


def free_port() -> str:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as made:
        return str(made.getsockname()[1])


class Box:
    """A directory that stands for the image's root, and how a command runs in it."""

    def __init__(self, root: Path, *, drop: bool) -> None:
        self.root = root
        self.port = free_port()
        self._drop = drop and os.geteuid() == 0

    def inside(self, text: str) -> str:
        """Addresses of the image as they are here."""
        for name in ("/opt/explorer", "/data", "/src"):
            text = text.replace(name, f"{self.root}{name}")
        return text.replace("7860", self.port)

    def environment(self, steps: list[Step]) -> dict[str, str]:
        """Of the image and nothing of this machine, but for what the loader needs."""
        set_ = {name: self.inside(value) for name, value in environment(steps).items()}
        path = set_.get("PATH", "$PATH").replace("$PATH", "/usr/local/bin:/usr/bin:/bin")
        return set_ | {"PATH": path, "TMPDIR": str(self.root / "tmp")}

    def start(
        self, words: Sequence[str], set_: dict[str, str], folder: str
    ) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [self.inside(word) for word in words],
            env=set_,
            cwd=self.inside(folder),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            user=NOBODY if self._drop else None,
            group=NOBODY if self._drop else None,
            extra_groups=[] if self._drop else None,
        )

    def run(self, words: Sequence[str], set_: dict[str, str], folder: str) -> str:
        child = self.start(words, set_, folder)
        said, _ = child.communicate(timeout=900)
        assert child.returncode == 0, said[-3000:]
        return said

    def files(self, *without: str) -> dict[str, float]:
        """Every file with the time of its last change."""
        return {
            str(path.relative_to(self.root)): path.stat().st_mtime
            for path in self.root.rglob("*")
            if path.is_file() and path.relative_to(self.root).parts[0] not in without
        }


def serve_and_look(box: Box, command: Sequence[str], set_: dict[str, str]) -> None:
    """Starts the command of the image, asks its health check, looks, and stops it."""
    steps = final(read())
    # The port stands in the health check as a number.
    health = only(steps, "HEALTHCHECK").text.partition("CMD ")[2]
    check = Step("CMD", health).words
    before = box.files("data", "tmp")
    child = box.start(command, set_, only(steps, "WORKDIR").text)
    try:
        url = f"http://127.0.0.1:{box.port}"
        deadline = time.monotonic() + 240
        while True:
            ended = child.poll()
            assert ended is None, child.stdout.read() if child.stdout else ""
            try:
                if httpx.get(f"{url}/healthz", timeout=5).status_code == 200:
                    break
            except httpx.TransportError:
                assert time.monotonic() < deadline
                time.sleep(0.3)
        box.run(check, set_, only(steps, "WORKDIR").text)
        page = httpx.get(f"{url}/", timeout=60, follow_redirects=True)
        assert "This is a public demo" in page.text
        assert httpx.get(f"{url}/api/v1/rollouts", timeout=60).json()["total"] >= 7
        wire = httpx.post(f"{url}/v1/chat/completions", json={}, timeout=30)
        assert "open for reading only" in wire.text
    finally:
        child.send_signal(getattr(signal, only(steps, "STOPSIGNAL").text))
        code = child.wait(30)
        if child.stdout:
            child.stdout.close()
    assert code == 0
    assert box.files("data", "tmp") == before, "something outside of /data was written"


def only(steps: list[Step], name: str) -> Step:
    (found,) = [step for step in steps if step.name == name]
    return found


def command_of(steps: list[Step]) -> list[str]:
    return [*only(steps, "ENTRYPOINT").words, *only(steps, "CMD").words]


@pytest.mark.slow
def test_the_command_of_the_image_serves_the_demo_and_its_health_check_passes(
    tmp_path: Path,
) -> None:
    box = Box(tmp_path, drop=False)
    for name in ("data", "tmp", "empty"):
        (tmp_path / name).mkdir()
    steps = final(read())
    set_ = box.environment(steps)
    # Instead of what the image installs: this checkout, with this interpreter.
    set_ |= {
        "PATH": f"{Path(sys.executable).parent}:{set_['PATH']}",
        "PYTHONPATH": str(ROOT),
        "ROLLOUT_EXPLORER_ADMIN_TOKEN": TOKEN,
    }
    entry, *more = command_of(steps)
    assert entry == "rollout-explorer"
    command = [sys.executable, "-m", "explorer", *more, "--attempts", "1"]
    serve_and_look(box, command, set_)


@pytest.mark.slow
def test_without_a_token_the_image_does_not_start(tmp_path: Path) -> None:
    box = Box(tmp_path, drop=False)
    (tmp_path / "data").mkdir()
    set_ = box.environment(final(read())) | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "explorer", "demo", "--public"]
    child = box.start(command, set_, "/data")
    said, _ = child.communicate(timeout=60)
    assert child.returncode == 2
    assert "ROLLOUT_EXPLORER_ADMIN_TOKEN" in said
    assert list((tmp_path / "data").iterdir()) == []


def readable_python(box: Box) -> Path:
    """A folder with the base image's `python`: one of this machine that everybody may run."""
    for name in (
        f"/usr/bin/python{sys.version_info[0]}",
        getattr(sys, "_base_executable", sys.executable),
    ):
        here = Path(name)
        if not here.exists():
            continue
        made = subprocess.run(
            [name, "-c", "import ensurepip, ssl, sys, venv; assert sys.version_info >= (3, 11)"]
        )
        if made.returncode == 0 and not str(here.resolve()).startswith("/root/"):
            folder = box.root / "base"
            folder.mkdir()
            (folder / "python").symlink_to(here)
            return folder
    pytest.skip("no Python here that a user without rights may run")


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that other users reach; pytest's own are for their owner alone."""
    with tempfile.TemporaryDirectory(prefix="image-") as name:
        Path(name).chmod(0o755)
        yield Path(name)


# How this machine reaches the package index is no matter of the image.
NETWORK = ("PIP_", "SSL_CERT_", "REQUESTS_CA_BUNDLE", "HTTP_PROXY", "HTTPS_PROXY")


@pytest.mark.slow
@pytest.mark.skipif(not os.environ.get(WHOLE), reason=f"minutes and a gigabyte; set {WHOLE}=1")
def test_every_step_of_the_image_in_a_clean_directory(open_folder: Path) -> None:
    tmp_path = open_folder
    box = Box(tmp_path, drop=True)
    python = readable_python(box)
    for name in ("src", "opt", "data", "tmp"):
        (tmp_path / name).mkdir()
        if os.geteuid() == 0:
            os.chown(tmp_path / name, NOBODY, NOBODY)
    steps = read()
    build = steps[: steps.index(final(steps)[0])]
    for step in build:
        if step.name == "COPY":
            *sources, target = step.words
            for source in sources:
                _copy(ROOT / source, tmp_path / "src" / target)
    set_ = box.environment(build)
    set_["PATH"] = f"{python}:{set_['PATH']}"
    set_["HOME"] = str(tmp_path / "tmp")
    set_ |= {name: value for name, value in os.environ.items() if name.startswith(NETWORK)}
    for step in build:
        if step.name == "RUN":
            box.run(["/bin/sh", "-ec", step.text], set_, "/src")
    # From here on nothing but /data and /tmp can be written.
    shutil.rmtree(tmp_path / "src")
    if os.geteuid() == 0:
        for path in [tmp_path / "opt", *(tmp_path / "opt").rglob("*")]:
            os.chown(path, 0, 0, follow_symlinks=False)
    last = final(steps)
    (made,) = [step for step in last if step.name == "RUN"]
    assert shlex.split(made.text)[0] == "groupadd"  # needs a root file system; not run
    set_ = box.environment(last) | {"ROLLOUT_EXPLORER_ADMIN_TOKEN": TOKEN}
    entry, *more = command_of(last)
    serve_and_look(box, [f"/opt/explorer/bin/{entry}", *more], set_)


def _copy(source: Path, target: Path) -> None:
    ignored = shutil.ignore_patterns("__pycache__", "*.pyc", "*.duckdb")
    if source.is_dir():
        shutil.copytree(source, target, ignore=ignored)
    else:
        shutil.copy2(source, target if target.name == source.name else target / source.name)
