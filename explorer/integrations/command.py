"""A command as an agent: started under a fresh rollout, ended when its time is up.

Owns: its process group, its output's tails, its time.
Must not know: OpenEnv, TRL, profiles of harnesses (the command `run` has those).
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from explorer.integrations.attempts import Attempt, Ended, checked_reward, task_text

NOT_FOUND, NOT_EXECUTABLE, TIMED_OUT, STOPPED = 127, 126, 124, 143
_FILLED = re.compile(r"\{(task|base_url|key|model)\}")
_POLL_S, _GRACE_S, _TAIL_BYTES = 0.05, 5.0, 8192


@dataclass(frozen=True, slots=True)
class Finished:
    """A finished command, as a verifier sees it: where it worked and what it said."""

    task: Any
    exit_code: int
    stdout: str
    stderr: str
    rollout_id: str


Verifier = Callable[[Finished], float | None]


@dataclass(frozen=True)
class CommandAgent:
    """Runs a command that makes its model calls itself.

    ``{task}``, ``{base_url}``, ``{key}`` and ``{model}`` are filled in wherever they stand
    in the arguments. The environment also has OPENAI_BASE_URL, OPENAI_API_KEY and the like,
    and TASK.

    Attributes:
        command: program and arguments.
        verifier: scores what the command left; without one the rollout has no reward.
        ok_exit_codes: any other closes the rollout as failed.
        timeout_s: longest run; whoever waits for it may allow less, never more.
        cwd: where it runs.
        environment: more variables.
    """

    command: Sequence[str]
    verifier: Verifier | None = None
    ok_exit_codes: Sequence[int] = (0,)
    timeout_s: float | None = 600.0
    cwd: Path | str | None = None
    environment: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if isinstance(self.command, str) or not self.command:
            raise ValueError("give `command` as a list: the program, then its arguments")

    def __call__(self, attempt: Attempt) -> Ended:
        """Runs it to its end."""
        limits = [each for each in (attempt.timeout_s, self.timeout_s) if each is not None]
        limit = min(limits, default=None)
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            started = time.monotonic()
            exit_code, problem = self._run(attempt, limit, out, err)
            facts = {
                "exit_code": exit_code,
                "duration_s": time.monotonic() - started,
                "timed_out": exit_code == TIMED_OUT and problem is not None,
                "stdout_tail": _tail(out, attempt.endpoint.key),
                "stderr_tail": _tail(err, attempt.endpoint.key),
            }
        if problem is None and exit_code not in self.ok_exit_codes:
            problem = f"the command ended with status {exit_code}"
        if problem is not None:
            return Ended(ok=False, reason=problem, exit_code=exit_code, facts=facts)
        reward = None
        if self.verifier is not None:
            told = (str(facts["stdout_tail"]), str(facts["stderr_tail"]))
            rollout_id = attempt.endpoint.rollout_id
            finished = Finished(attempt.task, exit_code, *told, rollout_id)
            reward = checked_reward(self.verifier(finished))
        return Ended(reward=reward, exit_code=exit_code, facts=facts)

    def _run(
        self, attempt: Attempt, limit: float | None, out: IO[bytes], err: IO[bytes]
    ) -> tuple[int, str | None]:
        """The exit status, and why it was no ordinary end."""
        words = [self._filled(word, attempt) for word in self.command]
        variables = attempt.endpoint.environment() | {"TASK": task_text(attempt.task)}
        try:
            process = subprocess.Popen(  # noqa: S603 - the person's own command
                words,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                cwd=self.cwd,
                env=variables | dict(self.environment),
                process_group=0,
            )
        except FileNotFoundError:
            return NOT_FOUND, f"command not found: {words[0]}"
        except (OSError, ValueError) as error:
            return NOT_EXECUTABLE, f"cannot run {words[0]}: {error}"
        try:
            return _wait(process, attempt, limit)
        finally:
            # What it left running may no longer call anybody.
            _tell(process.pid, signal.SIGKILL)
            process.wait()

    def _filled(self, word: str, attempt: Attempt) -> str:
        values = {
            "task": task_text(attempt.task),
            "base_url": attempt.endpoint.openai,
            "key": attempt.endpoint.key,
            "model": attempt.endpoint.model,
        }
        # In one pass: what a task holds in braces is text of others, not filled in again.
        return _FILLED.sub(lambda match: values[match[1]], word)


def _wait(
    process: subprocess.Popen[bytes], attempt: Attempt, limit: float | None
) -> tuple[int, str | None]:
    deadline = None if limit is None else time.monotonic() + limit
    while True:
        try:
            code = process.wait(_POLL_S)
        except subprocess.TimeoutExpired:
            stopped = attempt.stop.is_set()
            if not stopped and (deadline is None or time.monotonic() < deadline):
                continue
            _tell(process.pid, signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_GRACE_S)
            if stopped:
                return STOPPED, "the command was stopped"
            return TIMED_OUT, f"the command did not end within {limit:g} seconds"
        return (code, None) if code >= 0 else (128 - code, f"signal {-code} ended the command")


def _tell(group: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


def _tail(file: IO[bytes], secret: str) -> str:
    size = file.seek(0, os.SEEK_END)
    begin = file.seek(max(0, size - _TAIL_BYTES - len(secret)))
    text = file.read().replace(secret.encode(), b"***")
    if begin:
        # What was read may begin in the middle of the secret.
        text = text[len(secret) :]
    # NUL is nothing that the record takes.
    return text.decode("utf-8", "replace").replace("\0", "")
