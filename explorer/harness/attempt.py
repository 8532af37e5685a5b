"""One attempt: a rollout is created, the harness runs, the rollout is closed.

Owns: that order, what is recorded of the run, and what a person is told.
Must not know: whether the server is ours; it is asked over HTTP.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from explorer.harness.launch import NOT_EXECUTABLE, Limits, Outcome, Signals, launch
from explorer.harness.prepare import (
    DEFAULT_CONTEXT,
    Prepared,
    Target,
    config_sha256,
    masked,
    prepare,
)
from explorer.harness.profile import Profile
from explorer.harness.stream import KEEP_BYTES
from explorer.harness.trajectory import Found, find_document
from explorer.harness.version import harness_version
from explorer.integrations.client import ApiError, ExplorerClient

# What a server answers to a trajectory that is none, or too large.
_UNUSABLE = frozenset((400, 413, 422))
_TEXT_LIMIT, _ARGUMENT_LIMIT, _ARGUMENTS_LIMIT = 200, 4000, 200


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a person asked for.

    Attributes:
        create: fields of the new rollout.
        ok_from_exit: exit code 0 means that the attempt succeeded, any other that not.
        keep_config: leave the private folder where it is.
        public_url: the address that the harness reaches the server by.
        umask: of the person; -1 keeps ours.
        trajectory: the file that the harness writes its own trajectory into, if named.
    """

    command: tuple[str, ...]
    profile: Profile
    wire: str
    create: Mapping[str, Any] = field(default_factory=dict)
    limits: Limits = field(default_factory=Limits)
    ok_from_exit: bool = False
    keep_config: bool = False
    public_url: str | None = None
    umask: int = -1
    trajectory: Path | None = None


@dataclass(frozen=True, slots=True)
class Report:
    """What came of it. `closing` is what was sent at close, `answer` what came back."""

    rollout_id: str
    page: str
    exit_code: int
    closing: Mapping[str, Any]
    answer: Mapping[str, Any] | None

    def as_json(self) -> dict[str, Any]:
        """For `--json`."""
        answer = self.answer or {}
        return {
            "rollout_id": self.rollout_id,
            "url": self.page,
            **self.closing,
            "status": answer.get("status"),
            "counts": answer.get("counts"),
            "trajectory": answer.get("trajectory"),
            "verdict": answer.get("verdict"),
        }


Say = Callable[[str], None]


async def attempt(client: ExplorerClient, wanted: Wanted, signals: Signals, say: Say) -> Report:
    """Runs the command under a fresh rollout and closes it, however the run ends.

    Raises:
        ApiError: the rollout could not be created.
    """
    folder = Path(tempfile.mkdtemp(prefix="rollout-explorer-"))
    asked, home = folder / "version", folder / "home"
    asked.mkdir(mode=0o700)
    home.mkdir(mode=0o700)
    profile = wanted.profile
    try:
        model, context = _engine_facts(await client.engine())
        version = await harness_version(profile, wanted.command, asked, os.environ)
        fields = {
            "harness": profile.name,
            "harness_version": version,
            "harness_config_sha256": config_sha256(profile, wanted.wire, wanted.command),
        }
        made = await client.create_rollout(
            **wanted.create, **{name: value for name, value in fields.items() if value}
        )
        target = Target.of(made, wanted.public_url, model, context)
        began = time.time()
        outcome = await _run(wanted, target, home, version, signals, say)
        told = await asyncio.to_thread(_trajectory, wanted, began)
        report = await _close(client, wanted, target, version, outcome, told)
    finally:
        if not wanted.keep_config:
            await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
    _say_end(report, outcome, wanted, say)
    if wanted.keep_config:
        say(f"config   kept in {home} (it holds the capture key)")
    return report


def _engine_facts(answer: Mapping[str, Any]) -> tuple[str, int]:
    certificate = answer.get("certificate") or {}
    numbers = certificate.get("numbers") or {}
    context = numbers.get("max_model_len")
    model = certificate.get("model") or "model"
    return str(model), context if type(context) is int and context > 0 else DEFAULT_CONTEXT


async def _run(
    wanted: Wanted,
    target: Target,
    home: Path,
    version: str | None,
    signals: Signals,
    say: Say,
) -> Outcome:
    profile = wanted.profile
    say(f"rollout  {target.rollout_id}")
    say(f"page     {target.page}")
    shown = f"{profile.title} {version}" if version else profile.title
    say(f"harness  {shown}, profile {profile.name}, wire {wanted.wire}")
    try:
        prepared = prepare(profile, wanted.wire, target, wanted.command, home, os.environ)
    except OSError as error:
        why = f"the harness's files could not be written: {error.strerror}"
        return Outcome(NOT_EXECUTABLE, 0.0, problem=why)
    for line in _settings(prepared, home, wanted):
        say(line)
    return await launch(
        prepared.command,
        prepared.environment,
        wanted.limits,
        signals,
        secret=target.key,
        umask=wanted.umask,
    )


def _settings(prepared: Prepared, home: Path, wanted: Wanted) -> list[str]:
    """What the harness gets, without values: they hold the key."""
    lines = [f"sets     {' '.join(prepared.set_names)}"]
    private = [name for name in prepared.set_names if str(home) in prepared.environment[name]]
    if private:
        lines.append(f"private  {' '.join(private)}: a folder of its own for this run")
    if wanted.profile.arguments and not wanted.profile.runs(wanted.command):
        texts = (" ".join(item.add) for item in wanted.profile.arguments)
        lines.append(f"adds     no arguments; the harness itself wants {' '.join(texts)}")
    return lines


def _trajectory(wanted: Wanted, began: float) -> Found:
    """The harness's own trajectory; looked for only where the harness itself was run."""
    profile = wanted.profile
    pattern = profile.trajectory if profile.runs(wanted.command) else ""
    return find_document(wanted.trajectory, pattern, began)


async def _close(
    client: ExplorerClient,
    wanted: Wanted,
    target: Target,
    version: str | None,
    outcome: Outcome,
    told: Found,
) -> Report:
    closing = _closing(wanted, target, version, outcome)
    if told.problem is not None:
        closing["trajectory_problem"] = told.problem
    answer: Mapping[str, Any] | None = None
    try:
        try:
            answer = await _close_with(client, target.rollout_id, closing, told)
        except ApiError as error:
            # Somebody else may have closed it; the run itself is over all the same.
            closing["problem"] = error.message
            answer = await client.show(target.rollout_id)
    except ApiError as error:
        closing["problem"] = error.message
    except (aiohttp.ClientError, TimeoutError) as error:
        closing["problem"] = f"the server is gone: {error}"
    return Report(target.rollout_id, target.page, outcome.exit_code, closing, answer)


async def _close_with(
    client: ExplorerClient, rollout_id: str, closing: dict[str, Any], told: Found
) -> Mapping[str, Any]:
    """Closes with the trajectory, or without it where the server cannot use it."""
    if told.document is not None:
        try:
            return await client.close_rollout(rollout_id, **closing, trajectory=told.document)
        except ApiError as error:
            if error.http_status not in _UNUSABLE:
                raise
            closing["trajectory_problem"] = _line(error.message)
    return await client.close_rollout(rollout_id, **closing)


def _closing(
    wanted: Wanted, target: Target, version: str | None, outcome: Outcome
) -> dict[str, Any]:
    """The body of the close: everything that the run is remembered by."""
    reason = _reason(outcome, wanted.limits)
    ok: bool | None = None
    if reason is not None:
        ok = False
    elif wanted.ok_from_exit:
        ok = outcome.exit_code == 0
        reason = None if ok else f"exit code {outcome.exit_code}"

    def plain(text: str) -> str:
        # Arguments of a command need not be UTF-8.
        return masked(text, target.key).encode("utf-8", "replace").decode()

    command = [plain(word)[:_ARGUMENT_LIMIT] for word in wanted.command[:_ARGUMENTS_LIMIT]]
    stdout = _tail(outcome.stdout, target.key)
    known = {
        "ok": ok,
        "reason": _line(plain(reason)) if reason else None,
        "exit_code": outcome.exit_code,
        "signal": outcome.signal,
        "forwarded_signal": outcome.forwarded,
        "timed_out": outcome.timed_out or None,
        "killed": outcome.killed or None,
        "left_behind": outcome.left_behind or None,
        "duration_s": round(outcome.duration_s, 3),
        "command": command,
        "stdout_tail": stdout or None,
        "stderr_tail": _tail(outcome.stderr, target.key) or None,
        "harness": wanted.profile.name,
        "harness_version": version,
        "wire": wanted.wire,
        "terminal_response_id": _declared(wanted.profile, stdout),
    }
    return {name: value for name, value in known.items() if value is not None}


def _reason(outcome: Outcome, limits: Limits) -> str | None:
    """Why the attempt failed, where the way it ended says so."""
    if outcome.problem:
        return outcome.problem
    killed = ", killed" if outcome.killed else ""
    if outcome.timed_out:
        return f"timed out after {limits.timeout_s:g} s{killed}"
    if outcome.forwarded:
        return f"stopped by {outcome.forwarded}{killed}"
    if outcome.signal:
        return f"ended by {outcome.signal}"
    return None


def _line(text: str) -> str:
    return "".join(letter if letter.isprintable() else "?" for letter in text)[:_TEXT_LIMIT]


def _tail(raw: bytes, key: str) -> str:
    text = masked(raw.decode("utf-8", "replace"), key)
    return text.encode()[-KEEP_BYTES:].decode("utf-8", "ignore")


def _declared(profile: Profile, stdout: str) -> str | None:
    if profile.terminal_response is None:
        return None
    found: list[str] = profile.terminal_response.findall(stdout.replace("\r\n", "\n"))
    return found[-1][:_TEXT_LIMIT] if found else None


def _say_end(report: Report, outcome: Outcome, wanted: Wanted, say: Say) -> None:
    if outcome.problem:
        say(outcome.problem)
    else:
        said = f"exit {outcome.exit_code} after {outcome.duration_s:.1f} s"
        reason = report.closing.get("reason")
        say(f"ended    {said}" + (f": {reason}" if reason else ""))
    if outcome.left_behind:
        say("ended    processes that the command had left running were ended too")
    answer = report.answer
    problem = report.closing.get("problem")
    if problem:
        say(f"close    not done here: {problem}")
        if answer is None:
            say(f"close    rollout-explorer rollouts close {report.rollout_id} --failed")
    if answer is not None:
        say(f"verdict  {_verdict(answer)}")
        problem = report.closing.get("trajectory_problem")
        if problem or answer.get("trajectory", "none") != "none":
            say(f"its own trajectory: {problem or answer['trajectory']}")
        if not answer["counts"]["calls"] + answer["counts"]["open_calls"]:
            for line in _no_calls(wanted, outcome):
                say(line)
    say(f"page     {report.page}")


def _verdict(answer: Mapping[str, Any]) -> str:
    verdict = answer["verdict"]
    calls = answer["counts"]["calls"]
    counted = f"{calls} call{'' if calls == 1 else 's'}"
    if verdict["trainable"]:
        tokens = f"{verdict['supervised_tokens']} of {verdict['generated_tokens']} tokens"
        return f"trainable, {tokens} in {counted}"
    reasons = "; ".join(reason["message"] for reason in verdict["reasons"])
    return f"not trainable, {counted}: {reasons}"


def _no_calls(wanted: Wanted, outcome: Outcome) -> list[str]:
    if outcome.problem:
        return []
    profile = wanted.profile
    lines = [
        "calls    none reached this rollout. Check, in this order:",
        f"         - the profile: {profile.name} was used; --harness names another, --list "
        "shows all",
    ]
    if profile.name == "any":
        lines.append(
            "         - the program: does it read the variables above, or has it its own "
            "configuration? A script around a known harness needs --harness NAME"
        )
    else:
        lines.append(
            f"         - the command: does it name a model or provider itself? One that "
            f"works is `{profile.example}`"
        )
    if wanted.public_url:
        lines.append(f"         - the address: can the harness reach {wanted.public_url}?")
    lines.append("         - its last output, above and in the rollout's closing record")
    return lines
