"""The page of OpenEnv's codes: every code of the spec's table stands on it, and what it says
has the same name here really has."""

from __future__ import annotations

import re
from pathlib import Path

from explorer.trace import tracefile
from explorer.trace.findings import FINDINGS

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "openenv-codes.md"
# OpenEnv 0.10.0, by stage: turn, typed turn, eval turn, sequence, rollout, session, upstream
# probe, probe of the model, trajectory.
OPENENV = re.findall(
    r"\w+",
    """
invalid_token_id invalid_logprob positive_logprob no_prompt_ids no_logprobs logprob_misalign
no_sampled_ids truncated_turn
length_mismatch invalid_loss_mask trainable_prompt
empty_completion
invalid_training_sequence nothing_trainable masked_has_logprob empty_response certain_tokens
no_turns root_count per_turn_capture_only multiple_roots degenerate_rollout discarded_turns
per_turn_trace_only forks
capture_ingest_failed sampling_policy_changed context_budget_exhausted sampling_neutralised
no_choices no_prompt_token_ids no_completion_token_ids token_strings
no_tool_calling raw_logprobs no_tool_call_emitted behaviour_changed raw_logprobs_forced
no_agent_sequence atif_coverage_too_low turn_mismatch atif_subagents atif_synthetic_api_error
atif_calls_missing atif_partial_usage atif_no_token_counts atif_aux_calls prompt_len_mismatch
atif_retries no_atif atif_version atif_no_agent_steps eval_reconcile_counts_only
atif_extra_calls proxy_budget_stops no_turns_upstream turns_match
""",
)


def sections() -> dict[str, set[str]]:
    parts = PAGE.read_text("utf-8").split("\n## ")[1:]
    return {
        part.split("\n", 1)[0]: set(re.findall(r"`([a-z]+(?:_[a-z]+)+)`", part))
        for part in parts
    }


def test_every_code_has_its_place() -> None:
    page = set().union(*sections().values()) | set(re.findall(r"`(forks)`", PAGE.read_text()))
    assert [code for code in OPENENV if code not in page] == []


def test_the_same_name_is_the_same_name() -> None:
    same = sections()["The same name"]
    assert len(same) > 30
    assert same - set(FINDINGS) == set()
    source = Path(tracefile.__file__).read_text("utf-8")
    for code in sections()["Checked in a file"] & set(OPENENV):
        assert f": {code}: " in source, code
