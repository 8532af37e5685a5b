"""Running a real harness against a real server with a scripted engine, and its record.

with stage(PI, folder, [reply, …]) as here:
    ended = here.run("pi", "-p", "TASK", wire="chat")
    ended.code, ended.out, ended.record
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from explorer import runfile
from explorer.engine.scripted import ScriptedEngine
from explorer.harness.prepare import DEFAULT_CONTEXT, Target, prepare
from explorer.harness.profile import shipped
from explorer.wire.ids import tool_call_id
from tests.harnesses.installed import NODE, ROOT, Harness, require
from tests.live import Live, serving

# What would send a harness elsewhere, or make it talk to its makers.
_LEFT_OUT = ("OPENAI_", "ANTHROPIC_", "GEMINI_", "GOOGLE_", "CLAUDE", "CODEX_", "NODE_", "NPM_")
_LEFT_OUT_TOO = ("ROLLOUT_EXPLORER_", "OPENCODE", "QWEN_", "CLINE_", "PI_", "npm_", "XDG_")
_QUIET = {
    "TZ": "UTC",
    "NO_COLOR": "1",
    "DO_NOT_TRACK": "1",
    "CI": "1",
    "DISABLE_TELEMETRY": "1",
    "OTEL_SDK_DISABLED": "true",
    "PI_TELEMETRY": "0",
    "PI_SKIP_VERSION_CHECK": "1",
    "QWEN_TELEMETRY_ENABLED": "false",
    "CONTINUE_TELEMETRY_ENABLED": "0",
    "CLINE_TELEMETRY_DISABLED": "1",
    "GIT_AUTHOR_DATE": "2026-01-01T00:00:00Z",
    "GIT_COMMITTER_DATE": "2026-01-01T00:00:00Z",
    # Nothing but this machine's own loopback is reached, whatever a harness tries.
    "HTTP_PROXY": "http://127.0.0.1:9",
    "HTTPS_PROXY": "http://127.0.0.1:9",
    "NO_PROXY": "127.0.0.1,localhost",
}

Script = list[dict[str, Any]]
DONE = {"text": "Finished: all done."}
# Each is an entry of a script that a harness gets over by asking again.
FAULTS: dict[str, dict[str, Any]] = {
    "429": {"status": 429, "headers": {"retry-after": "1"}},
    "unreachable": {"fault": "unreachable"},
    "cut": {"fault": "cut", "text": "lost"},
}


def call(name: str, **arguments: Any) -> dict[str, str]:
    """A tool call written compact and unescaped, as most harnesses write their echo."""
    text = json.dumps(arguments, ensure_ascii=False, separators=(",", ":"))
    return {"name": name, "arguments": text}


@dataclass
class Record:
    """What the server holds of a rollout, asked for over HTTP."""

    live: Live
    rollout_id: str

    @property
    def calls(self) -> list[dict[str, Any]]:
        """Ended calls in order of arrival."""
        return self.live.calls(self.rollout_id)

    @property
    def shown(self) -> dict[str, Any]:
        """Status, counts and verdict."""
        found: dict[str, Any] = self.live.api("GET", f"/api/v1/rollouts/{self.rollout_id}")
        return found

    @property
    def committed(self) -> list[dict[str, Any]]:
        """The calls that were answered."""
        return [call for call in self.calls if call["status"] == "committed"]

    def node(self, call: Mapping[str, Any]) -> dict[str, Any]:
        """A call's place in the tree."""
        tree = self.live.api("GET", f"/api/v1/rollouts/{self.rollout_id}/tree")
        (found,) = [node for node in tree["nodes"] if node["call_id"] == call["call_id"]]
        return dict(found)

    def details(self, call: Mapping[str, Any]) -> dict[str, Any]:
        """One call with ids and claims."""
        path = f"/api/v1/rollouts/{self.rollout_id}/calls/{call['call_id']}"
        found: dict[str, Any] = self.live.api("GET", path)
        return found

    def raw(self, call: Mapping[str, Any], kind: str = "request") -> bytes:
        """A stored body: `request`, `submitted` or `reply`."""
        path = f"/api/v1/rollouts/{self.rollout_id}/raw/{call['call_id']}?kind={kind}"
        answer = httpx.get(
            self.live.url + path, headers={"authorization": f"Bearer {self.live.token}"}
        )
        assert answer.status_code == 200, answer.text
        return answer.content

    def submitted(self, call: Mapping[str, Any]) -> dict[str, Any]:
        """The chat request that the engine was sent."""
        found: dict[str, Any] = json.loads(self.raw(call, "submitted"))
        return found


@dataclass
class Ended:
    """How a harness ended: exit code, outputs, and the record of its rollout.

    `claims` and `roles` are for what a test wants to know once the server has gone.
    """

    code: int
    out: str
    err: str
    record: Record
    seconds: float
    claims: list[dict[str, Any]] = field(default_factory=list)
    roles: list[str] = field(default_factory=list)

    @property
    def statuses(self) -> list[str]:
        """Of every call, in order."""
        return [each["status"] for each in self.record.calls]


class Started:
    """A harness that runs; `finish` waits for it."""

    def __init__(self, stage: Stage, words: Sequence[str], env: Mapping[str, str]) -> None:
        self._stage, self._began = stage, time.monotonic()
        self.known_rollout: str | None = None
        self.process = subprocess.Popen(
            list(words),
            cwd=stage.work,
            env=dict(env),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def finish(self, timeout: float = 90) -> Ended:
        """Waits for the end; what hangs is killed and the test fails with its output."""
        try:
            out, err = self.process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            self.process.kill()
            out, err = self.process.communicate()
            raise AssertionError(f"still running after {timeout} s:\n{out}\n{err}") from None
        seconds = time.monotonic() - self._began
        rollout = self.known_rollout
        if rollout is None:
            # The last line is `--json`'s; what stands before it is the harness's own.
            before, _, last = out.rstrip().rpartition("\n")
            rollout, out = json.loads(last)["rollout_id"], before
        return Ended(
            self.process.returncode, out, err, Record(self._stage.live, rollout), seconds
        )


class Stage:
    """A server, a home and a working folder under git for one harness."""

    def __init__(self, harness: Harness, folder: Path, live: Live, store: Path) -> None:
        self.harness, self.live, self.store = harness, live, store
        self.work, self.home = folder / "work", folder / "home"
        for made in (self.work, self.home, folder / "scratch"):
            made.mkdir()
        self.environment: dict[str, str] = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith((*_LEFT_OUT, *_LEFT_OUT_TOO))
        }
        self.environment |= _QUIET | {
            "HOME": str(self.home),
            # As a shell has it; OpenCode takes its project from there.
            "PWD": str(self.work),
            "TMPDIR": str(folder / "scratch"),
            "PATH": os.pathsep.join(map(str, (harness.bin, NODE, os.environ["PATH"]))),
            "PYTHONPATH": str(ROOT),
        }
        self._folder = folder
        git = ("git", "-c", "user.name=a", "-c", "user.email=a@example.org")
        for words in (
            ("init", "-q", "-b", "main"),
            ("commit", "-q", "--allow-empty", "-m", "x"),
        ):
            subprocess.run([*git, *words], cwd=self.work, env=self.environment, check=True)

    def start(
        self,
        *command: str,
        wire: str,
        env: Mapping[str, str] | None = None,
        flags: Sequence[str] = (),
    ) -> Started:
        """`rollout-explorer run` with the harness, on this stage's server."""
        words = [sys.executable, "-m", "explorer", "run", "--store", str(self.store)]
        words += ["--harness", self.harness.profile, "--wire", wire, "--json", "--grace", "5"]
        whole = [*words, *flags, "--", *command]
        return Started(self, whole, self.environment | dict(env or {}))

    def run(
        self,
        *command: str,
        wire: str,
        env: Mapping[str, str] | None = None,
        flags: Sequence[str] = (),
    ) -> Ended:
        """… to its end."""
        return self.start(*command, wire=wire, env=env, flags=flags).finish()

    def run_alone(self, *command: str, wire: str, script: Script) -> tuple[int, str]:
        """`rollout-explorer run` where nobody serves: it has a server of its own for as long
        as the harness runs. The exit status and what was printed."""
        file = self._folder / "script.json"
        file.write_text(json.dumps(script))
        words = [sys.executable, "-m", "explorer", "run", "--wire", wire, "--json"]
        words += ["--engine", f"scripted:{file}", "--store", str(self._folder / "own.duckdb")]
        done = subprocess.run(
            [*words, "--", *command],
            cwd=self.work,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=90,
        )
        return done.returncode, done.stdout

    def start_with(
        self, *command: str, wire: str, at: str | None = None, **wanted: Any
    ) -> Started:
        """The harness itself, prepared as `run` does, under a rollout with fields that
        `run` has no options for; `at` is the address that it reaches the server by."""
        made = self.live.api("POST", "/api/v1/rollouts", wanted, status=201)
        target = Target.of(made, at, "scripted", DEFAULT_CONTEXT)
        home = self._folder / "config"
        home.mkdir()
        profile = shipped()[self.harness.profile]
        ready = prepare(profile, wire, target, tuple(command), home, self.environment)
        started = Started(self, ready.command, ready.environment)
        started.known_rollout = made["rollout_id"]
        return started

    def run_with(self, *command: str, wire: str, **wanted: Any) -> Ended:
        """… to its end; the rollout is closed."""
        ended = self.start_with(*command, wire=wire, **wanted).finish()
        path = f"/api/v1/rollouts/{ended.record.rollout_id}/close"
        self.live.api("POST", path, {})
        return ended

    def wait_for(self, ready: Callable[[], bool], seconds: float = 40) -> None:
        """Until `ready()`."""
        deadline = time.monotonic() + seconds
        while not ready():
            assert time.monotonic() < deadline, "it never came to that"
            time.sleep(0.02)

    def open_rollout(self) -> str:
        """The one rollout there is, once a call of it is being answered."""
        return self._rollout(lambda counts: bool(counts["open_calls"]))

    def rollout_with_calls(self, number: int) -> str:
        """The one rollout there is, once so many calls of it have been answered."""
        return self._rollout(lambda counts: counts["calls"] >= number)

    def _rollout(self, fits: Callable[[dict[str, Any]], bool]) -> str:
        found: list[str] = []

        def ready() -> bool:
            for row in self.live.api("GET", "/api/v1/rollouts")["rollouts"]:
                shown = self.live.api("GET", f"/api/v1/rollouts/{row['rollout_id']}")
                if fits(shown["counts"]):
                    found.append(row["rollout_id"])
            return bool(found)

        self.wait_for(ready)
        return found[0]


@contextlib.contextmanager
def stage(
    harness: Harness, folder: Path, script: Sequence[Mapping[str, Any]], **settings: Any
) -> Iterator[Stage]:
    """A stage whose engine answers from `script`; skips where the harness is not there."""
    require(harness)
    store = folder / "store.duckdb"
    with serving(ScriptedEngine(script), store, **settings) as live:
        # As a server of its own process does: `run` finds it by this.
        runfile.write(store, runfile.RunFile(live.url, live.token, os.getpid()))
        yield Stage(harness, folder, live, store)


# -- what is asserted of every record ------------------------------------------------------


def assert_finished(ended: Ended, said: str = "Finished: all done.") -> None:
    """It ended well, having said this last."""
    assert ended.code == 0, ended.err
    assert ended.out.strip() == said


def assert_nothing_lost(record: Record) -> None:
    """Every call is ended, in order without a gap, and whole where it was answered."""
    calls = record.calls
    assert calls
    assert sorted(call["sequence"] for call in calls) == list(range(len(calls)))
    assert record.shown["counts"]["open_calls"] == 0
    for call in calls:
        if call["status"] in ("committed", "failed"):
            json.loads(record.raw(call, "request"))
            json.loads(record.raw(call, "submitted"))
        if call["status"] == "committed":
            assert record.raw(call, "reply")
            details = record.details(call)
            assert details["prompt_token_ids"]
            assert len(details["completion_token_ids"]) == call["completion_len"] > 0
            assert len(details["per_token_logps"]) == call["completion_len"]


def assert_ids_came_back(record: Record, call: Mapping[str, Any], number: int) -> None:
    """The `number` tool-call ids of `call` are in the harness's next request of the same
    conversation, in both places: the call's own and its result's."""
    wanted = {tool_call_id(call["call_id"], position) for position in range(number)}
    missing: list[set[str]] = []
    for following in record.calls:
        if following["sequence"] <= call["sequence"]:
            continue
        messages = record.submitted(following)["messages"]
        calls = [inner for each in messages for inner in each.get("tool_calls") or []]
        asked = {inner["id"] for inner in calls}
        answered = {each.get("tool_call_id") for each in messages}
        if wanted <= asked & answered:
            return
        missing.append(wanted - (asked & answered))
    raise AssertionError(f"ids that did not come back: {missing}")


def chain(record: Record, calls: Sequence[Mapping[str, Any]]) -> list[str | None]:
    """Parents of `calls`."""
    return [record.node(call)["parent_id"] for call in calls]
