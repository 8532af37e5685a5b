"""Breaks by re-rendered history on recorded traffic, passed through and with token-in.

    python -m benchmarks.token_in

Replays the recorded OpenCode and Pi traffic of the tests twice, against a scripted engine that
says what the recorded model said with the built-in engine's template and tokenizer.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from explorer.engine.scripted import ScriptedEngine
from explorer.trace.token_in import counted, in_words
from explorer.trace.verdict import judge
from tests.live import serving
from tests.replay.recording import DATA, SUFFIX, read
from tests.replay.replaying import replay, script_of
from tests.replay.test_token_in import WANTED, breaks


def main() -> None:
    """One line a recording, then the sum."""
    known = {name: read(DATA / f"{name}{SUFFIX}") for name in WANTED}
    script = [entry for _, calls in known.values() for entry in script_of(calls) * 2]
    sums = [0, 0]
    with (
        tempfile.TemporaryDirectory() as folder,
        serving(ScriptedEngine(script), Path(folder) / "s.duckdb") as live,
    ):
        for name, (meta, recorded) in known.items():
            found = []
            for place, token_in in enumerate((False, True)):
                made = replay(live, recorded, meta["wire"], token_in=token_in)
                found.append(len(breaks(made, judge(made.record))))
                sums[place] += found[-1]
            words = in_words(counted(made.record.calls))
            print(f"{name:20} breaks {found[0]:2} -> {found[1]:2}   {words}")
    print(f"{'together':20} breaks {sums[0]:2} -> {sums[1]:2}")


if __name__ == "__main__":
    main()
