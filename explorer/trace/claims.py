"""What a harness says of its calls: which conversation they belong to, what they are for.

Owns: which claims count, how they are spelt, and the words that name side work.
Must not know: roles, tokens. A claim is never authority: it may take tokens out of
training and name a break, and can never put a token in.
"""

from __future__ import annotations

from collections.abc import Mapping

from explorer.records import Call

PARENT = (
    "parent_session_id",
    "parent_session",
    "parent_session_affinity",
    "codex_parent_thread_id",
    "parent_thread_id",
    "parent_id",
    "parent",
)
OWN = ("thread_id", "session_id", "session", "session_affinity")
AGENT = ("claude_code_agent_id", "agent_id", "openai_subagent")
# What a harness names a conversation by. A cache key is not among them: parents and
# children share it.
_CONVERSATION = (
    *OWN,
    "conversation_id",
    "agent_id",
    "claude_code_session_id",
    "claude_code_agent_id",
)
# Claims that say what a call is for, and what they say of a call beside the agent's work.
# Codex marks its own compaction with the header that names subagents.
_KINDS = ("request_kind", "thread_source", "openai_subagent")
_SIDE_WORK = frozenset(
    (
        *("compaction", "compact", "summary", "summarize", "summarization"),
        *("title", "thread_title", "session_title", "topic", "commit_message"),
        *("suggestion", "prompt_suggestion", "memory_consolidation"),
    )
)


def claims_of(call: Call) -> dict[str, str]:
    """Claims by header or field name, both spelt the same way."""
    return {
        key.lower().removeprefix("x-").replace("-", "_"): value
        for key, value in call.claims.items()
        if value
    }


def first_of(claims: Mapping[str, str], names: tuple[str, ...]) -> str | None:
    """The first of these claims that was made."""
    return next((claims[name] for name in names if name in claims), None)


def conversation_of(call: Call) -> frozenset[tuple[str, str]]:
    """The claims by which a harness tells its conversations and agents apart."""
    claims = claims_of(call)
    return frozenset((name, claims[name]) for name in _CONVERSATION if name in claims)


def claimed_side_work(call: Call) -> tuple[str, str] | None:
    """(claim, what it says) of a call that the harness itself calls no work of the agent."""
    claims = claims_of(call)
    for name in _KINDS:
        value = claims.get(name, "").strip().lower().replace("-", "_")
        if value in _SIDE_WORK:
            return name, value
    return None
