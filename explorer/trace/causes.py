"""The closed list of causes for a prompt that left an earlier sequence.

Owns: `BreakCause`. Must not know: the rules that name one.
"""

from __future__ import annotations

from enum import StrEnum


class BreakCause(StrEnum):
    """What changed between a prompt and the nearest earlier sequence. Closed."""

    SAME_PROMPT = "same_prompt"
    SYSTEM_CHANGED = "system_changed"
    TOOLS_CHANGED = "tools_changed"
    REASONING_DROPPED = "reasoning_dropped"
    COMPACTION = "compaction"
    TEMPLATE_BOUNDARY = "template_boundary"
    RESERIALISED_ARGUMENTS = "reserialised_arguments"
    HISTORY_REWRITTEN = "history_rewritten"
    UNRELATED = "unrelated"
    UNKNOWN = "unknown"
