"""Why a token trains or does not, in one line each.

Owns: the sentences of the closed list of mask reasons.
Must not know: how a reason comes about (`mask`).
"""

from __future__ import annotations

from explorer.records import MaskReason

_R = MaskReason

MEANINGS: dict[MaskReason, str] = {
    _R.SAMPLED: "The engine sampled it in this call, and it trains.",
    _R.PROMPT: "Part of the prompt; the engine did not sample it.",
    _R.ENVIRONMENT: "Added by the harness between calls, such as a tool's output.",
    _R.AUXILIARY: "Sampled in an auxiliary call that is not the agent's own work.",
    _R.SUBAGENT: "Sampled by a subagent; the policy leaves subagents out.",
    _R.DISCARDED: "The harness threw this answer away and went on from another one.",
    _R.AMBIGUOUS_SIBLING: "One of several unanswered answers; nobody can say which was used.",
    _R.FAILED_CALL: "Its call failed.",
    _R.ABORTED: "Its call was aborted or ended without saying why.",
    _R.LOGPROB_MISSING: "Its call lacks a logprob; a missing one is never read as 0.0.",
    _R.LOGPROB_NOT_FINITE: "Its logprob is not a usable number.",
    _R.COUNT_MISMATCH: "Ids, logprobs and the engine's counts do not agree for its call.",
    _R.PROMPT_IDS_MISSING: "The prompt ids of its call are unknown.",
    _R.CAPTURE_LEVEL: "Its call was captured without token ids that can be trusted.",
    _R.UNCERTIFIED: "No passing certificate says what the engine's logprobs are.",
    _R.CONSTRAINED: "Sampled under a grammar, bias or forced tool.",
    _R.GREEDY: "Its call took the likeliest token every time.",
    _R.TRUNCATED_POLICY: "The output cap ended its turn, and the policy leaves such turns out.",
    _R.STOP_POLICY: "The token that ended its turn, and the policy leaves such tokens out.",
    _R.UNPARSED_POLICY: "Its tool call could not be read; the policy leaves such turns out.",
    _R.VERSION_CROSSED: "The weights changed while its call ran.",
    _R.INJECTED_BY_PROXY: "Written by the proxy; no engine sampled it.",
    _R.OWNED_BY_OTHER_ROW: "It trains in another row of the export.",
    _R.EXCLUDED_BY_USER: "A person excluded it; the override is on record.",
}
