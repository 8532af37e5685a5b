"""The closed table of findings: what each code means, weighs and masks.

Owns: `FINDINGS`, and how the table reads as documentation.
Must not know: how a finding is detected (`checks`).

A code that OpenEnv has keeps OpenEnv's name. The grade is that of a fact about a call
the agent made; the same fact about any other call never forbids training and is
graded ``WARN``.

Size: one table, whose order is the order in which faults give a call its mask reason.
"""

from __future__ import annotations

from dataclasses import dataclass

from explorer.records import Finding, Grade, MaskReason, Where


@dataclass(frozen=True, slots=True)
class FindingSpec:
    """One row of the table.

    `mask_reason` masks all sampled tokens of the call, unless `per_token` is set: then
    only the tokens concerned.
    """

    code: str
    grade: Grade
    meaning: str
    hint: str = ""
    mask_reason: MaskReason | None = None
    per_token: bool = False


_F, _W, _I = Grade.FATAL, Grade.WARN, Grade.INFO
_M = MaskReason

_ENGINE_IDS = "Start the engine with token ids switched on; `doctor` shows what it returns."
_ENGINE_LOGPROBS = "Ask `doctor` whether this engine returns a logprob for every token."
_EXCLUDE = "Exclude the call (recorded override) to train on the others."

_TABLE = (
    # Data of one call, worst first; the first that holds gives the call its mask reason.
    FindingSpec(
        "record_inconsistent",
        _F,
        "The stored parts of the call do not fit together, so its prompt is unknown.",
        "The store may be damaged: compare it with a backup.",
        _M.PROMPT_IDS_MISSING,
    ),
    FindingSpec(
        "chain_mismatch",
        _F,
        "The ids do not match the chain hash that was recorded with them.",
        "The record was changed after capture; nothing of it can be trusted.",
        _M.CAPTURE_LEVEL,
    ),
    FindingSpec(
        "bytes_disagree",
        _F,
        "The engine's own bytes, read again, say something else than the record.",
        "The store may be damaged: compare it with a backup.",
        _M.CAPTURE_LEVEL,
    ),
    FindingSpec(
        "external_custody",
        _F,
        "Its tokens are kept by an inference worker, not here.",
        "Train from the rollout's custody manifest; nothing is missing at the engine.",
        _M.CAPTURE_LEVEL,
    ),
    FindingSpec(
        "conflicting_prompt_ids",
        _F,
        "The engine gave two different lists of prompt ids.",
        _EXCLUDE,
        _M.PROMPT_IDS_MISSING,
    ),
    FindingSpec(
        "no_prompt_ids",
        _F,
        "The ids of the prompt are missing or empty.",
        _ENGINE_IDS,
        _M.PROMPT_IDS_MISSING,
    ),
    FindingSpec(
        "ids_disagree",
        _F,
        "Two places of the reply give different sampled ids.",
        _EXCLUDE,
        _M.CAPTURE_LEVEL,
    ),
    FindingSpec(
        "ids_missing",
        _F,
        "The ids of the sampled tokens are missing; they are never rebuilt from text.",
        _ENGINE_IDS,
        _M.CAPTURE_LEVEL,
    ),
    FindingSpec(
        "capture_level_low",
        _F,
        "The call was captured below the level `tokens`.",
        _ENGINE_IDS,
        _M.CAPTURE_LEVEL,
    ),
    FindingSpec(
        "invalid_token_id",
        _F,
        "A token id is negative or not an integer.",
        _EXCLUDE,
        _M.CAPTURE_LEVEL,
    ),
    FindingSpec(
        "token_count_mismatch",
        _F,
        "The number of sampled ids is not the number the engine counted.",
        _EXCLUDE,
        _M.COUNT_MISMATCH,
    ),
    FindingSpec(
        "prompt_count_mismatch",
        _F,
        "The number of prompt ids is not the number the engine counted.",
        _EXCLUDE,
        _M.COUNT_MISMATCH,
    ),
    FindingSpec(
        "logprob_misalign",
        _F,
        "There is not exactly one logprob per sampled id.",
        _EXCLUDE,
        _M.COUNT_MISMATCH,
    ),
    FindingSpec(
        "usage_missing",
        _F,
        "The engine did not count the sampled tokens, so a lost one could not be told.",
        _EXCLUDE,
        _M.COUNT_MISMATCH,
    ),
    FindingSpec(
        "several_choices",
        _F,
        "The reply has more than one choice, though one was asked for.",
        "Nobody can say which one the harness used. " + _EXCLUDE,
        _M.COUNT_MISMATCH,
    ),
    FindingSpec(
        "no_logprobs", _F, "No logprobs were captured.", _ENGINE_LOGPROBS, _M.LOGPROB_MISSING
    ),
    FindingSpec(
        "logprob_missing",
        _F,
        "A sampled token has no logprob (null); null is never read as 0.0.",
        _EXCLUDE,
        _M.LOGPROB_MISSING,
    ),
    FindingSpec(
        "invalid_logprob",
        _F,
        "A logprob is not a number or is infinite.",
        _EXCLUDE,
        _M.LOGPROB_NOT_FINITE,
    ),
    FindingSpec(
        "positive_logprob",
        _F,
        "A logprob is above zero by more than rounding.",
        _EXCLUDE,
        _M.LOGPROB_NOT_FINITE,
    ),
    FindingSpec(
        "engine_aborted",
        _W,
        "The generation was ended from outside: `abort`, `error` or the like.",
        "",
        _M.ABORTED,
    ),
    FindingSpec(
        "finish_missing",
        _W,
        "The reply does not say why it ended, so it may be cut.",
        "",
        _M.ABORTED,
    ),
    FindingSpec(
        "sentinel_logprob",
        _W,
        "A logprob is -9999 or less, which engines write for no value.",
        "The token is masked; the others of the call train.",
        _M.LOGPROB_NOT_FINITE,
        per_token=True,
    ),
    FindingSpec(
        "suspicious_zero_logprobs",
        _W,
        "Every logprob of several is exactly 0.0, as if logprobs were switched off.",
        _ENGINE_LOGPROBS,
    ),
    FindingSpec("no_sampled_ids", _W, "The engine sampled no token."),
    FindingSpec("truncated_turn", _W, "The output cap ended the turn, not the model."),
    FindingSpec("exceeds_max_tokens", _W, "More tokens were sampled than were asked for."),
    FindingSpec(
        "version_crossed",
        _W,
        "The weights changed while the call ran, or nobody knows which they were.",
        "Exclude the call or accept its versions (recorded override), or choose a policy "
        "whose `version_crossed` is `mask` or `train`.",
    ),
    FindingSpec(
        "constrained_call",
        _I,
        "A grammar, bias or forced tool took part in the sampling.",
        "Its tokens train under a policy with `train_constrained`, or without the constraint.",
    ),
    FindingSpec(
        "greedy_call",
        _I,
        "The call took the likeliest token every time.",
        "Sample at a temperature above 0, or choose a policy with `train_greedy`.",
    ),
    FindingSpec("injected_call", _I, "The proxy wrote this reply; nothing was sampled."),
    FindingSpec("ids_recovered_from_strings", _I, "Ids were read from `token_id:N` strings."),
    FindingSpec("duplicate_tool_call_id", _W, "Two tool calls of one reply share an id."),
    FindingSpec("arguments_not_string", _W, "Tool arguments came as an object, not as text."),
    FindingSpec(
        "unparsed_tool_call", _W, "The engine could not read a tool call that the model wrote."
    ),
    FindingSpec("tool_calls_with_stop", _I, "Tool calls came with the finish reason `stop`."),
    FindingSpec("note", _I, "The reply parser noted something this version does not know."),
    # How a call ended.
    FindingSpec("call_failed", _W, "The call failed; it is kept and never trains."),
    FindingSpec("call_aborted", _W, "The call was aborted; it is kept and never trains."),
    FindingSpec("lost_on_restart", _W, "The call was in flight when the server stopped."),
    FindingSpec("open_at_close", _W, "The call had not ended when the rollout was closed."),
    FindingSpec(
        "ended_on_failure",
        _W,
        "The last call failed, so the agent may not have come to an end by itself.",
    ),
    FindingSpec(
        "edge_timeout_suspected",
        _I,
        "The harness left at a round number of seconds, as a proxy with a time-out makes it.",
        "Raise that time-out, stream, or set ROLLOUT_EXPLORER_UNARY_KEEPALIVE.",
    ),
    FindingSpec("calls_refused", _I, "Calls were refused before they reached the engine."),
    # The rollout.
    FindingSpec("no_turns", _F, "No call of the rollout ended with a reply."),
    FindingSpec(
        "nothing_trainable",
        _F,
        "No token of the rollout may train.",
        "The finding of each call says what to do.",
    ),
    FindingSpec(
        "uncertified_engine",
        _F,
        "No passing certificate says what this engine's logprobs are.",
        "Run `doctor`, or accept it with a recorded override.",
        _M.UNCERTIFIED,
    ),
    FindingSpec(
        "raw_logprobs",
        _F,
        "The engine's logprobs are those before temperature and filters.",
        "Start the engine with processed logprobs, or accept them with a recorded override.",
        _M.UNCERTIFIED,
    ),
    FindingSpec(
        "scripted_engine",
        _F,
        "The engine's logprobs are made up.",
        "Nobody can accept them: use an engine that samples.",
        _M.UNCERTIFIED,
    ),
    FindingSpec(
        "imported",
        _F,
        "The rollout was imported from a file; nobody measured the engine it came from.",
        "Nobody can accept its numbers: capture it through the proxy to train on it.",
        _M.UNCERTIFIED,
    ),
    FindingSpec(
        "raw_coincides",
        _I,
        "Logprobs are raw, but calls drawn at temperature 1 without truncation, penalties "
        "or constraints have the same processed ones.",
        "A policy with `accept_raw_at_one` lets such calls train.",
    ),
    FindingSpec("logprobs_accepted", _W, "A person accepted logprobs that are not certified."),
    FindingSpec("multiple_roots", _W, "The agent's work starts in more than one place."),
    FindingSpec(
        "per_turn_capture_only",
        _W,
        "No call of the agent continues another one by its tokens: each is a row of its own.",
        "The harness or the template renders history anew; see the cause at each break.",
    ),
    FindingSpec("prefix_break", _W, "A prompt left the sequence it might have continued."),
    FindingSpec("forks", _I, "Calls were continued in more than one way."),
    FindingSpec("discarded_turns", _W, "Answers the harness did not use are masked."),
    FindingSpec(
        "ambiguous_siblings",
        _W,
        "Several answers to one prompt, none continued: nobody can say which was used.",
        "Give one of them a role override.",
    ),
    FindingSpec(
        "ambiguous_parent",
        _I,
        "Two calls with the same prompt sampled the same ids, so either could be the parent; "
        "the one whose answer came back is, else the first.",
    ),
    FindingSpec(
        "certain_tokens",
        _I,
        "Tokens that train have a logprob of exactly 0.0, so probability 1.",
    ),
    FindingSpec(
        "sampling_neutralised",
        _I,
        "Truncation or penalties that were asked for were sent as no-ops, so that logprobs can "
        "be trained on.",
    ),
    FindingSpec(
        "token_in_differs",
        _W,
        "The engine read another prompt than the ids that it was sent; its own are on record.",
        "Create rollouts without `token_in` on this engine, and run `doctor`.",
    ),
    FindingSpec(
        "token_in",
        _I,
        "Prompts began with the exact ids of the call that they continue: the model read "
        "those, and not what the harness wrote anew.",
    ),
    FindingSpec(
        "context_budget_exhausted",
        _W,
        "A prompt did not fit the model's context or the rollout's budget of it.",
        "The agent may have stopped for that reason and no other.",
    ),
    FindingSpec("degenerate_rollout", _W, "The agent made a single call."),
    FindingSpec("harness_exit", _W, "The harness ended with an exit code other than 0."),
    FindingSpec("override_ignored", _W, "An override names no call or span of this rollout."),
    # The harness's own trajectory.
    FindingSpec(
        "no_agent_sequence",
        _F,
        "The trajectory lists the agent's calls, but no call here is the agent's.",
        "Give the agent's calls their role (recorded override).",
    ),
    FindingSpec(
        "turn_mismatch",
        _F,
        "The trajectory and this record count other tokens: one of them is wrong.",
        "Nobody can say which; do not train on this rollout.",
    ),
    FindingSpec(
        "atif_coverage_too_low",
        _F,
        "The trajectory lists so few of the calls that they may agree by chance.",
        "Give the whole trajectory, or none.",
    ),
    FindingSpec(
        "atif_subagents",
        _F,
        "The trajectory has subagents; their calls must not get the agent's reward.",
        "Give their calls the role subagent (recorded override).",
    ),
    FindingSpec(
        "atif_ids_differ",
        _F,
        "The trajectory has another token id than this record.",
        "The engine's ids are those here. If the harness only tokenised its text anew, "
        "close without its ids. " + _EXCLUDE,
    ),
    FindingSpec(
        "atif_aux_calls",
        _W,
        "The trajectory does not list calls that the agent made by our record.",
        "Give them the role auxiliary (recorded override) to train on the others.",
    ),
    FindingSpec(
        "atif_calls_missing",
        _W,
        "The trajectory lists calls that never reached the proxy.",
        "Let the harness send every model call through the rollout's address.",
    ),
    FindingSpec(
        "atif_synthetic_api_error",
        _W,
        "Steps that the harness wrote for failed requests were left out of the comparison.",
    ),
    FindingSpec(
        "atif_partial_usage",
        _W,
        "The trajectory does not count every call; the counts that it has agree.",
    ),
    FindingSpec(
        "atif_no_token_counts",
        _W,
        "The trajectory counts no sampled tokens, so only the number of calls was compared.",
    ),
    FindingSpec(
        "prompt_len_mismatch", _W, "The trajectory counts a prompt's tokens otherwise."
    ),
    FindingSpec("atif_retries", _W, "Steps of the trajectory stand for several calls each."),
    FindingSpec("no_atif", _I, "The trajectory that was expected is not there."),
    FindingSpec("atif_version", _I, "A trajectory was given when the rollout was closed."),
    FindingSpec("atif_no_agent_steps", _I, "The trajectory lists no model call."),
    FindingSpec(
        "atif_extra_calls", _I, "Calls that are not the agent's are not in the trajectory."
    ),
    FindingSpec(
        "eval_reconcile_counts_only",
        _I,
        "The trajectory of this evaluation counts no tokens; calls were counted.",
    ),
    FindingSpec("no_turns_upstream", _I, "There is no call to compare the trajectory with."),
    FindingSpec(
        "proxy_budget_stops", _I, "The trajectory lists replies that the proxy itself wrote."
    ),
    FindingSpec("turns_match", _I, "The trajectory agrees with every call that it lists."),
)

FINDINGS: dict[str, FindingSpec] = {spec.code: spec for spec in _TABLE}

# The order in which data findings give a whole call its mask reason.
PRECEDENCE: dict[str, int] = {spec.code: place for place, spec in enumerate(_TABLE)}

_WEIGHT = {Grade.FATAL: 0, Grade.WARN: 1, Grade.INFO: 2}


def make_finding(
    code: str, where: Where, detail: str = "", grade: Grade | None = None
) -> Finding:
    """A finding of the table, with the detail of this case in its message."""
    spec = FINDINGS[code]
    message = f"{spec.meaning} {detail}".strip()
    return Finding(code, grade or spec.grade, where, message, spec.hint)


def worst_first(findings: list[Finding]) -> tuple[Finding, ...]:
    """By grade, otherwise in the order found."""
    return tuple(sorted(findings, key=lambda finding: _WEIGHT[finding.grade]))


def render_markdown() -> str:
    """The table as a page of the reference."""
    lines = [
        "| code | grade | meaning | masks | hint |",
        "| --- | --- | --- | --- | --- |",
    ]
    for spec in _TABLE:
        masks = "" if spec.mask_reason is None else f"`{spec.mask_reason}`"
        if spec.per_token:
            masks += " (that token)"
        cells = (f"`{spec.code}`", spec.grade, spec.meaning, masks, spec.hint)
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"
