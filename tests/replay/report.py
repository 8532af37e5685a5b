"""Shows what a replay came to, to read beside the traffic.

python -m tests.replay.report PATH…
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from explorer.engine.scripted import ScriptedEngine
from explorer.records import CallId
from explorer.trace.verdict import judge
from tests.live import serving
from tests.replay.meaning import continued
from tests.replay.recording import Said, read
from tests.replay.replaying import replay, script_of


def show(path: Path) -> None:
    """One line a call: parents by meaning and by tokens, role, break, and what differs."""
    meta, calls = read(path)
    with (
        tempfile.TemporaryDirectory() as folder,
        serving(ScriptedEngine(script_of(calls)), Path(folder) / "s.duckdb") as live,
    ):
        done = replay(live, calls, meta["wire"])
    judged = judge(done.record)
    number: dict[CallId | None, int | None] = {
        made.call_id: n for n, made in done.calls.items()
    }
    number[None] = None
    print("##", path)
    means = continued(done.calls)
    for n, made in done.calls.items():
        node = judged.tree.nodes.get(made.call_id)
        role = judged.roles.get(made.call_id)
        broke = node.break_ if node else None
        cause = f"{broke.cause}@{number[broke.nearest_call_id]}" if broke else "-"
        tokens = number[node.parent_id] if node else "?"
        told = f"{role.role}/{role.rule}" if role else f"{made.status}/{made.failure_kind}"
        differs = _differs(next(c.said for c in calls if c.n == n), done.served[n])
        print(
            f"  {n}: means {means[n]} tokens {tokens} {told} break {cause}"
            f" http {made.http_status} notes {[note.code for note in made.notes]} {differs}"
        )


def _differs(recorded: Said | None, served: Said | None) -> str:
    """What the harness was answered otherwise than in the recording."""
    if recorded is None or served is None:
        return ""
    pairs = {
        "text": (recorded.text, served.text),
        "reasoning": (recorded.reasoning, served.reasoning),
        "calls": tuple(
            [(call.name, call.arguments) for call in said.calls] for said in (recorded, served)
        ),
        "finish": (recorded.finish, served.finish),
    }
    return " ".join(
        f"{name}: {told!r} became {got!r}" for name, (told, got) in pairs.items() if told != got
    )


if __name__ == "__main__":
    for name in sys.argv[1:]:
        show(Path(name))
