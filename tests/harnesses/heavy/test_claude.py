"""Claude Code, real, on messages. Under its maker's terms: never part of this repository."""

from __future__ import annotations

from pathlib import Path

from tests.harnesses.heavy.basics import LOOP, TASK, Case, Tools, basic_loop, checks
from tests.harnesses.installed import CLAUDE
from tests.harnesses.live_harness import DONE, Script, assert_nothing_lost, call, chain, stage

RUN = ("claude", "--dangerously-skip-permissions", "-p")
# Run as root it wants to be told that this is a sandbox.
ENV = {"IS_SANDBOX": "1"}
TOOLS = Tools(
    write=lambda path, text: call("Write", file_path=path, content=text),
    read=lambda path: call("Read", file_path=path),
    shell=lambda command: call("Bash", command=command, description="Run it"),
)
CASE = Case(CLAUDE, (*RUN, TASK), TOOLS, env=ENV)


@checks(CLAUDE, LOOP, "messages")
def test_a_tool_loop(tmp_path: Path) -> None:
    ended = basic_loop(CASE, tmp_path, "messages")
    assert len({claims["x-claude-code-session-id"] for claims in ended.claims}) == 1


@checks(CLAUDE, "a subagent, known by what it claims", "messages")
def test_a_subagent(tmp_path: Path) -> None:
    child = "Count the files here and report."
    spawn = call("Agent", description="count", prompt=child, subagent_type="general-purpose")
    of_child = {"when": {"anywhere": "cc_is_subagent=true"}}
    script: Script = [
        of_child | {"tool_calls": [TOOLS.shell("echo by-child")], "once": True},
        of_child | {"text": "There are none."},
        {"tool_calls": [spawn]},
        # It does not wait for the child; a notice of its end makes a turn of its own.
        DONE,
        DONE,
    ]
    with stage(CLAUDE, tmp_path, script) as here:
        ended = here.run(*RUN, "Delegate.", wire="messages", env=ENV)
        assert DONE["text"] in ended.out
        record = ended.record
        inner = [each for each in record.calls if each["role"] == "subagent"]
        assert all(record.details(each)["claims"]["x-claude-code-agent-id"] for each in inner)
        assert chain(record, inner) == [None, inner[0]["call_id"]]
        assert_nothing_lost(record)


FULL = {"usage": {"prompt_tokens": 20_000, "completion_tokens": 60, "total_tokens": 20_060}}


@checks(CLAUDE, "compaction in band: the next context is a new root that says so", "messages")
def test_compaction(tmp_path: Path) -> None:
    write = TOOLS.write(str(tmp_path / "work" / "a.txt"), "a\n")
    script: Script = [
        {
            "when": {"contains": "Respond with TEXT ONLY"},
            "text": "<analysis>All.</analysis>\n<summary>a.txt was written.</summary>",
        },
        {"tool_calls": [write]},
        *[{"tool_calls": [TOOLS.shell(f"echo {number}")]} for number in range(6)],
        {"tool_calls": [TOOLS.shell("cat a.txt")], "patch": FULL},
        DONE,
    ]
    with stage(CLAUDE, tmp_path, script) as here:
        ended = here.run(*RUN, "Write a.txt", wire="messages", env=ENV)
        assert DONE["text"] in ended.out
        record = ended.record
        assert_nothing_lost(record)
        *_, summed, root = record.calls
        node = record.node(root)
        assert (node["parent_id"], node["break"]["cause"]) == (None, "compaction")
        # The policy wrote the summary with its own tools at hand; the turn that filled the
        # context is not in what it read.
        assert chain(record, [summed]) == [record.calls[-4]["call_id"]]
