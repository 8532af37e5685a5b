"""Pi, real, on its three wires."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.harnesses.installed import PI
from tests.harnesses.live_harness import assert_ids_came_back, assert_nothing_lost, chain, stage

WIRES = ("chat", "responses", "messages")
every_wire = pytest.mark.parametrize("wire", WIRES)


@every_wire
def test_loop(tmp_path: Path, wire: str) -> None:
    script = [
        {
            "reasoning": "First I write.",
            "text": " Writing. ",
            "tool_calls": [
                {
                    "name": "write",
                    "arguments": '{"path":"hello.txt","content":"héllo\\nline two\\n"}',
                }
            ],
        },
        {"text": "Reading.", "tool_calls": [{"name": "read", "arguments": '{"path":"hello.txt"}'}]},
        {"text": "Finished: two lines."},
    ]
    with stage(PI, tmp_path, script) as here:
        ended = here.run("pi", "-p", "Write hello.txt", wire=wire)
        assert ended.code == 0, ended.err
        assert ended.out == "Finished: two lines."
        assert (here.work / "hello.txt").read_text() == "héllo\nline two\n"
        record = ended.record
        calls = record.calls
        for c in calls[:0]:
            print(c)
            n=record.node(c)
            print(n)
            print(record.submitted(c)["messages"][1:])
            print(record.details(c)["claims"])
        assert_nothing_lost(record)
        assert chain(record, calls) == [None, calls[0]["call_id"], calls[1]["call_id"]]
