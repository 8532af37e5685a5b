"""`run` as a person meets it: real processes, a real server, real signals."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import httpx
import pytest

from explorer import runfile

SCRIPT = {"repeat": True, "replies": [{"text": "pong"}]}
KEY = re.compile(r"rxk_[A-Za-z0-9_-]{20,}")
PAGE = re.compile(r"page     (\S+)")


def command(*words: str) -> list[str]:
    """A call of our own command."""
    return [sys.executable, "-m", "explorer", *words]


class Place:
    """A folder with a script, a store and a person's home."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = folder / "store.duckdb"
        self.script = folder / "script.json"
        self.script.write_text(json.dumps(SCRIPT))
        self.work = folder / "work"
        self.home = folder / "home"
        self.scratch = folder / "scratch"
        for made in (self.work, self.home, self.scratch):
            made.mkdir()
        self.environment = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("OPENAI_", "ANTHROPIC_", "ROLLOUT_EXPLORER_"))
        } | {"HOME": str(self.home), "TMPDIR": str(self.scratch)}
        # The package is found from any folder.
        self.environment["PYTHONPATH"] = str(Path(__file__).parents[2])

    def words(self, *words: str) -> list[str]:
        """`run` on this store."""
        return command(
            "run", "--store", str(self.store), "--engine", f"scripted:{self.script}", *words
        )

    def run(self, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
        """Runs to the end."""
        return subprocess.run(
            self.words(*words),
            cwd=self.work,
            env=self.environment | env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=90,
        )

    def start(self, *words: str) -> subprocess.Popen[str]:
        """Starts and returns at once."""
        return subprocess.Popen(
            self.words(*words),
            cwd=self.work,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def program(self, text: str) -> str:
        """A Python program in the working folder."""
        path = self.work / "prog.py"
        path.write_text(text)
        return str(path)

    def shown(self, rollout_id: str) -> dict[str, Any]:
        """The rollout as the server tells it."""
        run = runfile.read(self.store)
        assert run is not None
        answer = httpx.get(
            f"{run.url}/api/v1/rollouts/{rollout_id}",
            headers={"authorization": f"Bearer {run.token}"},
        )
        found: dict[str, Any] = answer.json()
        return found

    def wait_for(self, name: str) -> str:
        """The text of a file that the command writes once it is ready."""
        path, deadline = self.work / name, time.time() + 60
        while time.time() < deadline:
            if path.exists() and path.read_text().endswith("\n"):
                return path.read_text().strip()
            time.sleep(0.02)
        raise AssertionError(f"{name} was not written")


@contextlib.contextmanager
def served(place: Place, *words: str) -> Iterator[None]:
    """A server that has the store open."""
    child = subprocess.Popen(
        command(
            *("serve", "--port", "0", "--store", str(place.store)),
            *("--engine", f"scripted:{place.script}", *words),
        ),
        env=place.environment,
        cwd=place.folder,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        deadline = time.time() + 60
        while runfile.read(place.store) is None and time.time() < deadline:
            assert child.poll() is None
            time.sleep(0.05)
        yield
    finally:
        child.terminate()
        child.wait(30)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """A place with a running server."""
    made = Place(tmp_path_factory.mktemp("served"))
    with served(made):
        yield made


@pytest.fixture
def alone(tmp_path: Path) -> Place:
    """A place where nobody serves."""
    return Place(tmp_path)


def told(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    """The JSON at the end of the output."""
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def rollout_of(err: str) -> str:
    """The id that was printed at the start."""
    found = re.search(r"rollout  (\S+)", err)
    assert found, err
    return found[1]


def gone(pid: int) -> bool:
    """Whether a process has ended (a dead one that nobody buries counts)."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return True
    return stat.rpartition(")")[2].split()[0] in ("Z", "X")


def closings(place: Place) -> dict[str, Any]:
    """What the store keeps of each close, by rollout; nobody may have it open."""
    with duckdb.connect(str(place.store), read_only=True) as database:
        rows = database.execute(
            "select rollout_id, payload from rollout_event where kind = 'closed'"
        ).fetchall()
    return {str(rollout): json.loads(payload) for rollout, payload in rows}


# -- how a run ends ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "code", "ok"),
    [
        (("--", "sh", "-c", "exit 0"), 0, None),
        (("--", "sh", "-c", "exit 3"), 3, None),
        (("--ok-from-exit", "--", "sh", "-c", "exit 0"), 0, True),
        (("--ok-from-exit", "--", "sh", "-c", "exit 3"), 3, False),
        (("sh", "-c", "exit 4"), 4, None),
    ],
)
def test_the_exit_code_passes_and_says_ok_only_when_asked(
    place: Place, words: tuple[str, ...], code: int, ok: bool | None
) -> None:
    done = place.run("--json", *words)
    assert done.returncode == code, done.stderr
    assert told(done)["exit_code"] == code
    shown = place.shown(told(done)["rollout_id"])
    assert shown["status"] == "closed"
    assert shown["ok"] is ok


def test_a_run_is_recorded_with_what_it_was(place: Place) -> None:
    done = place.run(
        *("--run", "nightly", "--task", "t1", "--group", "g", "--meta", "a=b", "--json"),
        *("--", "sh", "-c", "pwd; echo oops >&2; umask"),
    )
    report = told(done)
    mask = subprocess.run(["sh", "-c", "umask"], capture_output=True, text=True).stdout
    assert done.stdout.startswith(f"{place.work}\n{mask}")
    assert report["stdout_tail"] == f"{place.work}\n{mask}"
    assert report["stderr_tail"] == "oops\n"
    assert "oops\n" in done.stderr
    assert report["command"] == ["sh", "-c", "pwd; echo oops >&2; umask"]
    assert 0 <= report["duration_s"] < 20
    shown = place.shown(report["rollout_id"])
    assert (shown["run"], shown["task"], shown["group"]) == ("nightly", "t1", "g")
    assert shown["metadata"] == {"a": "b"}
    assert shown["harness"] == "any"
    assert PAGE.findall(done.stderr) == [report["url"]] * 2
    assert httpx.get(report["url"], follow_redirects=True).status_code == 200


def test_a_command_that_does_not_exist(place: Place) -> None:
    done = place.run("--", "no-such-harness", "x")
    assert done.returncode == 127
    assert "command not found: no-such-harness" in done.stderr
    assert "Traceback" not in done.stderr
    shown = place.shown(rollout_of(done.stderr))
    assert (shown["status"], shown["ok"]) == ("closed", False)
    assert shown["reason"] == "command not found: no-such-harness"


def test_a_command_that_may_not_be_run(place: Place) -> None:
    path = place.work / "plain.txt"
    path.write_text("x")
    path.chmod(0o600)
    done = place.run("--", str(path))
    assert done.returncode == 126
    assert "Permission denied" in place.shown(rollout_of(done.stderr))["reason"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_is_handed_on(place: Place, number: signal.Signals) -> None:
    program = place.program(
        "import pathlib, signal, sys, time\n"
        "def heard(number, frame):\n"
        "    pathlib.Path('heard').write_text(f'{number}\\n')\n"
        "    sys.exit(7)\n"
        f"signal.signal({int(number)}, heard)\n"
        "pathlib.Path('ready').write_text('x\\n')\n"
        "time.sleep(60)\n"
    )
    for name in ("heard", "ready"):
        (place.work / name).unlink(missing_ok=True)
    child = place.start("--ok-from-exit", "--", sys.executable, program)
    place.wait_for("ready")
    child.send_signal(number)
    _, err = child.communicate(timeout=60)
    assert place.wait_for("heard") == str(int(number))
    assert child.returncode == 7
    shown = place.shown(rollout_of(err))
    assert (shown["ok"], shown["reason"]) == (False, f"stopped by {number.name}")


STUBBORN = """
import pathlib, signal, subprocess, sys, time
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, signal.SIG_IGN)
inner = '''
import signal, time
signal.signal(15, signal.SIG_IGN)
print("up", flush=True)
time.sleep(90)
'''
child = subprocess.Popen([sys.executable, "-c", inner], stdout=subprocess.PIPE)
child.stdout.readline()
pathlib.Path("pids").write_text(f"{__import__('os').getpid()} {child.pid}\\n")
time.sleep(90)
"""


def test_who_ignores_sigterm_is_killed_with_all_it_started(place: Place) -> None:
    (place.work / "pids").unlink(missing_ok=True)
    child = place.start("--grace", "0.5", "--", sys.executable, place.program(STUBBORN))
    pids = [int(pid) for pid in place.wait_for("pids").split()]
    started = time.monotonic()
    child.terminate()
    _, err = child.communicate(timeout=60)
    assert child.returncode == 128 + signal.SIGKILL
    assert 0.5 <= time.monotonic() - started < 20
    assert all(gone(pid) for pid in pids)
    shown = place.shown(rollout_of(err))
    assert (shown["ok"], shown["reason"]) == (False, "stopped by SIGTERM, killed")


def test_a_time_out_ends_everything(place: Place) -> None:
    (place.work / "pids").unlink(missing_ok=True)
    done = place.run(
        *("--timeout", "2", "--grace", "0.3", "--json", "--ok-from-exit"),
        *("--", sys.executable, place.program(STUBBORN)),
    )
    assert done.returncode == 128 + signal.SIGKILL
    report = told(done)
    assert report["timed_out"] is True
    assert report["killed"] is True
    assert report["signal"] == "SIGKILL"
    assert all(gone(int(pid)) for pid in place.wait_for("pids").split())
    shown = place.shown(report["rollout_id"])
    assert (shown["ok"], shown["reason"]) == (False, "timed out after 2 s, killed")


def test_a_command_that_obeys_the_time_out_does_not_count_as_done(place: Place) -> None:
    program = place.program(
        "import signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))\n"
        "time.sleep(60)\n"
    )
    done = place.run("--timeout", "1", "--json", "--", sys.executable, program)
    assert done.returncode == 124
    assert "killed" not in told(done)
    assert place.shown(told(done)["rollout_id"])["ok"] is False


def test_a_command_that_kills_itself(place: Place) -> None:
    done = place.run("--", "sh", "-c", "kill -SEGV $$")
    assert done.returncode == 128 + signal.SIGSEGV
    assert place.shown(rollout_of(done.stderr))["reason"] == "ended by SIGSEGV"


def test_what_is_left_running_is_ended(place: Place) -> None:
    done = place.run("--json", "--", "sh", "-c", "sleep 77 & echo $!")
    assert done.returncode == 0
    report = told(done)
    assert report["left_behind"] is True
    assert gone(int(report["stdout_tail"]))
    assert place.shown(report["rollout_id"])["ok"] is None


# -- what passes through -----------------------------------------------------------------


def test_output_passes_live_and_the_end_of_it_is_kept(place: Place) -> None:
    text = (
        "import sys; sys.stdout.write('a' * 300000 + 'END'); sys.stderr.write('b' * 9000)\n"
        "sys.stdout.buffer.write(b'\\xff\\x00')"
    )
    done = subprocess.run(
        place.words("--json", "--", sys.executable, "-c", text),
        cwd=place.work,
        env=place.environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=60,
    )
    passed, _, last = done.stdout.rpartition(b"\n{")
    assert passed == b"a" * 300000 + b"END\xff\x00"
    assert b"b" * 9000 in done.stderr
    report = json.loads(b"{" + last)
    assert report["stdout_tail"].endswith("aEND\ufffd\x00")
    assert len(report["stdout_tail"].encode()) == 8192
    assert report["stderr_tail"] == "b" * 8192


def test_standard_input_is_the_commands(place: Place) -> None:
    done = subprocess.run(
        place.words("--", "cat"),
        cwd=place.work,
        env=place.environment,
        input="typed",
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout == "typed"


def test_a_reader_that_leaves_ends_the_command_as_a_pipe_does(place: Place) -> None:
    words = " ".join(f"'{word}'" for word in place.words("--", "yes"))
    done = subprocess.run(
        ["bash", "-c", f"{words} | head -n 1; exit ${{PIPESTATUS[0]}}"],
        cwd=place.work,
        env=place.environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout == "y\n"
    assert done.returncode == 128 + signal.SIGPIPE, done.stderr


def test_at_a_terminal_the_command_has_it(place: Place) -> None:
    program = place.program(
        "import os, sys\n"
        "print('tty', [os.isatty(n) for n in range(3)], os.get_terminal_size(1).columns)\n"
        "print('typed', input())\n"
        "try:\n"
        "    print('ready', flush=True); __import__('time').sleep(60)\n"
        "except KeyboardInterrupt:\n"
        "    print('interrupted'); sys.exit(5)\n"
    )
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(place.work)
        words = place.words("--", sys.executable, program)
        os.execve(words[0], words, place.environment)
    termios.tcsetwinsize(terminal, (40, 123))
    seen = b""

    def until(wanted: bytes) -> None:
        nonlocal seen
        deadline = time.time() + 60
        while wanted not in seen and time.time() < deadline:
            seen += os.read(terminal, 4096)
        assert wanted in seen, seen

    until(b"tty [True, True, True] 123")
    os.write(terminal, b"hello\n")
    until(b"typed hello\r\n")
    until(b"ready")
    os.write(terminal, b"\x03")  # Ctrl-C
    until(b"interrupted\r\n")
    until(b"exit 5")
    with contextlib.suppress(OSError):
        while os.read(terminal, 4096):
            pass
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 5
    os.close(terminal)


def test_ctrl_z_stops_the_command_and_this_one_and_both_go_on(place: Place) -> None:
    program = place.program(
        "import signal, sys\n"
        "signal.signal(signal.SIGCONT, lambda *_: print('continued', flush=True))\n"
        "print('waiting', flush=True)\n"
        "while (line := sys.stdin.readline().strip()) != 'end':\n"
        "    print('read', line, flush=True)\n"
    )
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(place.work)
        words = place.words("--", sys.executable, program)
        os.execve(words[0], words, place.environment)
    seen = b""

    def until(wanted: bytes) -> None:
        nonlocal seen
        deadline = time.time() + 60
        while wanted not in seen and time.time() < deadline:
            seen += os.read(terminal, 4096)
        assert wanted in seen, seen

    until(b"waiting")
    os.write(terminal, b"first\n")
    until(b"read first")  # so it has the terminal
    os.write(terminal, b"\x1a")
    _, status = os.waitpid(pid, os.WUNTRACED)
    assert os.WIFSTOPPED(status)
    assert os.tcgetpgrp(terminal) == pid
    seen = b""
    os.killpg(pid, signal.SIGCONT)
    until(b"continued")
    os.write(terminal, b"more\nend\n")
    until(b"read more")
    until(b"exit 0")
    with contextlib.suppress(OSError):
        while os.read(terminal, 4096):
            pass
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    os.close(terminal)


# -- calls -------------------------------------------------------------------------------

CALLING = """
import openai
client = openai.OpenAI()
made = client.chat.completions.create(
    model="m", messages=[{"role": "user", "content": "ping"}]
)
print(made.choices[0].message.content)
print("ROLLOUT_EXPLORER_TERMINAL_RESPONSE_ID=" + made.id)
"""


@pytest.mark.parametrize("harness", ["openai-sdk", "any"])
def test_a_real_sdk_is_pointed_by_its_environment(place: Place, harness: str) -> None:
    program = place.program(CALLING)
    done = place.run("--harness", harness, "--json", "--", sys.executable, program)
    assert done.returncode == 0, done.stderr
    report = told(done)
    assert done.stdout.startswith("pong\n")
    assert report["counts"]["calls"] == 1
    run = runfile.read(place.store)
    assert run is not None
    calls = httpx.get(
        f"{run.url}/api/v1/rollouts/{report['rollout_id']}/calls",
        headers={"authorization": f"Bearer {run.token}"},
    ).json()["calls"]
    assert calls[0]["response_id"] == report["terminal_response_id"]
    assert "none reached" not in done.stderr
    if harness == "openai-sdk":
        import openai

        assert report["harness_version"] == openai.__version__
        shown = place.shown(report["rollout_id"])
        assert shown["harness_version"] == openai.__version__
        assert len(shown["harness_config_sha256"]) == 64


def test_budgets_and_streaming_are_the_rollouts(place: Place) -> None:
    program = place.program(CALLING + CALLING)
    budget = ("--budget", "calls=1", "--budget", "on_spent=refuse")
    words = (*budget, "--streaming", "passthrough", "--json", "--", sys.executable, program)
    done = place.run(*words)
    assert done.returncode == 1
    assert "the budget of this rollout is spent: 1 model calls" in done.stderr
    rollout = told(done)["rollout_id"]
    run = runfile.read(place.store)
    assert run is not None
    page = httpx.get(
        f"{run.url}/rollouts/{rollout}/provenance",
        headers={"authorization": f"Bearer {run.token}"},
    ).text
    assert "passthrough" in page
    assert "on_spent" in page


OTHERS = {
    "anthropic-sdk": """
import anthropic
made = anthropic.Anthropic().messages.create(
    model="m", max_tokens=64, messages=[{"role": "user", "content": "ping"}]
)
print(made.content[0].text)
print("ROLLOUT_EXPLORER_TERMINAL_RESPONSE_ID=" + made.id)
""",
    "google-genai": """
from google import genai
client = genai.Client()
made = client.models.generate_content(model="m", contents="ping")
print(made.text)
print("ROLLOUT_EXPLORER_TERMINAL_RESPONSE_ID=" + made.response_id)
""",
}


@pytest.mark.parametrize("harness", sorted(OTHERS))
@pytest.mark.parametrize("named", [True, False], ids=["named", "any"])
def test_other_sdks_are_pointed_too(place: Place, harness: str, named: bool) -> None:
    program = place.program(OTHERS[harness])
    words = ("--harness", harness) if named else ()
    done = place.run(*words, "--json", "--", sys.executable, "-W", "ignore", program)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("pong\n")
    report = told(done)
    assert report["counts"]["calls"] == 1
    assert report["terminal_response_id"]
    assert (report.get("harness_version") is not None) == named


def test_no_calls_says_what_to_check(place: Place) -> None:
    done = place.run("--", "true")
    assert "calls    none reached this rollout" in done.stderr
    assert "--harness names another" in done.stderr
    assert "verdict  not trainable, 0 calls" in done.stderr


# -- secrets and the person's own things ---------------------------------------------------


def test_the_key_is_kept_nowhere(alone: Place) -> None:
    printing = (
        "import os, sys\n"
        "for _ in range(60):\n"  # more than is kept: some key is cut by the tail's beginning
        "    print(os.environ['OPENAI_BASE_URL'], os.environ['OPENAI_API_KEY'])\n"
        "    print(os.environ['ANTHROPIC_BASE_URL'], file=sys.stderr)\n"
    )
    done = alone.run("--json", "--", sys.executable, alone.program(printing), "{openai_base}")
    key = KEY.search(done.stdout)
    assert key, done.stderr
    report = told(done)
    kept = report["stdout_tail"] + report["stderr_tail"]
    assert "/k/rxk_***/v1 rxk_***" in kept
    # All that is ours: what it says, the report, the store.
    ours = [line for line in done.stderr.splitlines() if line.startswith("[rollout-explorer]")]
    recorded = json.dumps(closings(alone)[report["rollout_id"]])
    for part in range(0, len(key[0]) - 12):
        piece = key[0][part : part + 12]
        assert piece not in json.dumps(report)
        assert piece not in recorded
        assert piece not in "\n".join(ours)
    raw = alone.store.read_bytes()
    assert key[0].encode() not in raw


def test_a_harness_gets_files_of_its_own_and_they_go(alone: Place) -> None:
    fake = alone.folder / "bin" / "codex"
    fake.parent.mkdir()
    fake.write_text(
        "#!/bin/sh\n"
        '[ "$1" = --version ] && { echo "codex-cli 9.8.7"; exit; }\n'
        'echo "home $CODEX_HOME"; cat "$CODEX_HOME/config.toml"; touch "$CODEX_HOME/junk"\n'
        'echo "admin [$ROLLOUT_EXPLORER_ADMIN_TOKEN]"\n'
    )
    fake.chmod(0o755)
    own = alone.home / ".codex" / "config.toml"
    own.parent.mkdir()
    own.write_text("mine = true\n")
    path = f"{fake.parent}{os.pathsep}{os.environ['PATH']}"
    admin = {"PATH": path, "ROLLOUT_EXPLORER_ADMIN_TOKEN": "t" * 40}
    done = alone.run("--json", "--", "codex", "exec", "x", **admin)
    assert done.returncode == 0, done.stderr
    report = told(done)
    assert (report["harness"], report["harness_version"]) == ("codex", "9.8.7")
    assert report["wire"] == "responses"
    assert 'base_url = "http://127.0.0.1:' in done.stdout
    assert "admin []" in done.stdout
    folder = Path(done.stdout.split("home ")[1].splitlines()[0])
    assert not folder.exists()
    assert list(alone.scratch.iterdir()) == []
    assert [path for path in alone.home.rglob("*") if path.is_file()] == [own]
    assert own.read_text() == "mine = true\n"
    kept = alone.run("--keep-config", "--", "codex", "exec", "x", PATH=path)
    folder = Path(kept.stdout.split("home ")[1].splitlines()[0])
    assert f"kept in {folder}" in kept.stderr
    assert oct(folder.stat().st_mode)[-3:] == "700"


# -- whose server ------------------------------------------------------------------------


def test_without_a_server_one_is_started_and_goes(alone: Place) -> None:
    done = alone.run("--json", "--", "sh", "-c", "exit 6")
    assert done.returncode == 6, done.stderr
    report = told(done)
    assert f"look     rollout-explorer serve --store {alone.store}" in done.stderr
    assert runfile.read(alone.store) is None
    kept = closings(alone)[report["rollout_id"]]
    assert kept["exit_code"] == 6
    assert kept["command"] == ["sh", "-c", "exit 6"]
    assert kept["harness"] == "any"
    assert "ok" not in kept


def test_a_signal_ends_a_run_with_a_server_of_its_own(alone: Place) -> None:
    child = alone.start("--", "sh", "-c", "echo x > ready; exec sleep 60")
    alone.wait_for("ready")
    child.send_signal(signal.SIGINT)
    _, err = child.communicate(timeout=60)
    assert child.returncode == 128 + signal.SIGINT
    assert "Traceback" not in err
    assert "stopped by SIGINT" in err
    assert runfile.read(alone.store) is None
    assert closings(alone)[rollout_of(err)]["signal"] == "SIGINT"


def test_a_rollout_that_somebody_else_closed(place: Place) -> None:
    close = " ".join(command("rollouts", "close", "--store", str(place.store), "--ok"))
    done = place.run(
        *("--json", "--ok-from-exit", "--", "sh", "-c"),
        f"{close} $ROLLOUT_EXPLORER_ROLLOUT_ID >&2; exit 3",
    )
    assert done.returncode == 3
    assert "not done here: this rollout is closed already" in done.stderr
    assert told(done)["status"] == "closed"
    assert place.shown(told(done)["rollout_id"])["ok"] is True


def test_a_server_that_goes_during_the_run(alone: Place) -> None:
    with served(alone):
        run = runfile.read(alone.store)
        assert run is not None
        done = alone.run("--", "sh", "-c", f"kill -9 {run.pid}; exit 5")
        assert done.returncode == 5
        assert "not done here: the server is gone" in done.stderr
        rollout = rollout_of(done.stderr)
        assert f"rollout-explorer rollouts close {rollout} --failed" in done.stderr
        assert "Traceback" not in done.stderr
    runfile.path_of(alone.store).write_text(
        json.dumps({"url": run.url, "token": "t", "pid": os.getpid()})
    )
    done = alone.run("--", "true")
    assert done.returncode == 2
    assert "does not answer" in done.stderr


def test_a_public_address_is_printed_and_handed_in(place: Place) -> None:
    public = "http://harness-host.example:81"
    done = place.run(
        *("--public-url", public + "/", "--json", "--"),
        *("sh", "-c", 'echo "$OPENAI_BASE_URL $ANTHROPIC_BASE_URL $GOOGLE_GEMINI_BASE_URL"'),
    )
    openai, anthropic, google = done.stdout.splitlines()[0].split()
    assert KEY.sub("K", openai) == f"{public}/k/K/v1"
    assert KEY.sub("K", anthropic) == KEY.sub("K", google) == f"{public}/k/K"
    report = told(done)
    assert report["url"] == f"{public}/rollouts/{report['rollout_id']}"
    assert PAGE.findall(done.stderr) == [report["url"]] * 2


def test_the_servers_own_public_address_is_used(alone: Place) -> None:
    public = "http://harness-host.example:81"
    # There is no such host, so it must not be asked whether it leads here.
    alone.environment["ROLLOUT_EXPLORER_PUBLIC_URL_PROBE_S"] = "0"
    alone.environment["ROLLOUT_EXPLORER_PUBLIC_URL"] = public
    with served(alone):
        run = runfile.read(alone.store)
        assert run is not None
        # A command on this machine does not go round by that name.
        assert run.url.startswith("http://127.0.0.1:")
        del alone.environment["ROLLOUT_EXPLORER_PUBLIC_URL"]
        done = alone.run("--", "sh", "-c", "echo $OPENAI_BASE_URL")
        assert done.returncode == 0, done.stderr
        assert KEY.sub("K", done.stdout) == f"{public}/k/K/v1\n"
        assert PAGE.findall(done.stderr)[0].startswith(public)


def test_a_server_of_our_own_has_the_public_address_too(alone: Place) -> None:
    public = "http://harness-host.example:81"
    done = alone.run(
        "--public-url", public, "--port", "0", "--", "sh", "-c", "echo $LLM_BASE_URL"
    )
    assert done.returncode == 0, done.stderr
    assert KEY.sub("K", done.stdout) == f"{public}/k/K/v1\n"
    assert PAGE.findall(done.stderr)[0].startswith(public)


# -- words -------------------------------------------------------------------------------


def test_list_names_every_profile(alone: Place) -> None:
    plain = alone.run("--list")
    assert plain.returncode == 0
    assert "CODEX_HOME" in plain.stdout
    for words in (("--list", "--json"), ("--json", "--list")):
        found = {item["name"]: item for item in json.loads(alone.run(*words).stdout)}
        assert found["pi"]["wires"] == ["chat", "responses", "messages"]
        assert found["codex"]["files"] == {"responses": ["config.toml"]}
        assert set(re.findall(r"^(\S+)", plain.stdout, re.MULTILINE)) == set(found)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "give the command to run"),
        (("--harness", "nobody", "--", "x"), "there is no harness profile nobody"),
        (("--harness", "codex", "--wire", "chat", "--", "x"), "does not speak chat"),
        (("--meta", "x", "--", "x"), "not K=V"),
        (("--timeout", "0", "--", "x"), "--timeout"),
        (("--budget", "calls", "--", "x"), "not K=V"),
        (("--budget", "calls=many", "--", "x"), "must be a number"),
        (("--budget", "call=3", "--", "x"), "unknown fields call"),
        (("--streaming", "raw", "--", "x"), "--streaming"),
        (("--run", "a/b", "--", "true"), "`run` is part of an address"),
    ],
)
def test_mistakes_are_said_before_anything_runs(
    place: Place, words: tuple[str, ...], said: str
) -> None:
    done = place.run(*words)
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_the_close_refuses_what_it_cannot_keep(place: Place) -> None:
    run = runfile.read(place.store)
    assert run is not None
    headers = {"authorization": f"Bearer {run.token}"}
    made = httpx.post(f"{run.url}/api/v1/rollouts", json={}, headers=headers).json()
    address = f"{run.url}/api/v1/rollouts/{made['rollout_id']}/close"
    for wrong in (
        {"exit_code": True},
        {"exit_code": "0"},
        {"command": "ls"},
        {"command": ["ls", 1]},
        {"duration_s": False},
        {"timed_out": 1},
        {"terminal_response_id": ["x"]},
        {"stdout_tail": "x" * 300_000},
        {"colour": "red"},
    ):
        answer = httpx.post(address, json=wrong, headers=headers)
        assert answer.status_code == 422, wrong
        assert next(iter(wrong)) in answer.text or "may take at most" in answer.text
    right = {"exit_code": 0, "duration_s": 1, "command": ["ls"], "timed_out": False}
    assert httpx.post(address, json=right, headers=headers).status_code == 200
