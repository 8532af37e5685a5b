"""What stands in the files of a dataset: every column, once, with its type and meaning.

Owns: the three configs, their Arrow schemas, the codes of mask reasons, what each file says
of itself.
Must not know: where values come from, files, the manifest.

A column that is added, taken away or changes its meaning raises `DATASET_SCHEMA_VERSION`:
two files of one version have one schema.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import orjson
import pyarrow as pa

from explorer import __version__
from explorer.records import MaskReason

DATASET_SCHEMA_VERSION = 1
METADATA_KEY = b"rollout_explorer"
WRITER = f"rollout-explorer {__version__}"

# Part of the files' contract, so written out: a code never changes its meaning.
REASON_CODES: dict[MaskReason, int] = {
    MaskReason.SAMPLED: 0,
    MaskReason.PROMPT: 1,
    MaskReason.ENVIRONMENT: 2,
    MaskReason.AUXILIARY: 3,
    MaskReason.SUBAGENT: 4,
    MaskReason.DISCARDED: 5,
    MaskReason.AMBIGUOUS_SIBLING: 6,
    MaskReason.FAILED_CALL: 7,
    MaskReason.ABORTED: 8,
    MaskReason.LOGPROB_MISSING: 9,
    MaskReason.LOGPROB_NOT_FINITE: 10,
    MaskReason.COUNT_MISMATCH: 11,
    MaskReason.PROMPT_IDS_MISSING: 12,
    MaskReason.CAPTURE_LEVEL: 13,
    MaskReason.UNCERTIFIED: 14,
    MaskReason.CONSTRAINED: 15,
    MaskReason.GREEDY: 16,
    MaskReason.TRUNCATED_POLICY: 17,
    MaskReason.STOP_POLICY: 18,
    MaskReason.UNPARSED_POLICY: 19,
    MaskReason.VERSION_CROSSED: 20,
    MaskReason.INJECTED_BY_PROXY: 21,
    MaskReason.OWNED_BY_OTHER_ROW: 22,
    MaskReason.EXCLUDED_BY_USER: 23,
}

_TYPES: dict[str, Any] = {
    "text": pa.string(),
    "json": pa.string(),
    "int": pa.int64(),
    "float": pa.float64(),
    "bool": pa.bool_(),
    "texts": pa.list_(pa.string()),
    "ints": pa.list_(pa.int64()),
    "bools": pa.list_(pa.bool_()),
    "ids": pa.list_(pa.int32()),
    "logprobs": pa.list_(pa.float32()),
    "codes": pa.list_(pa.int8()),
}
TYPE_WORDS: dict[str, str] = {
    "text": "string",
    "json": "string (JSON)",
    "int": "int64",
    "float": "float64",
    "bool": "bool",
    "texts": "list<string>",
    "ints": "list<int64>",
    "bools": "list<bool>",
    "ids": "list<int32>",
    "logprobs": "list<float32>",
    "codes": "list<int8>",
}
# Sampled values hardly ever repeat: a dictionary of them costs size and time.
_NO_DICTIONARY = frozenset(("ids", "logprobs"))


@dataclass(frozen=True, slots=True)
class Column:
    """One column: `kind` is a key of `TYPE_WORDS`; `needed` when it is never null."""

    name: str
    kind: str
    meaning: str
    needed: bool = False


def _all(kind: str, *names: str, needed: bool = False) -> tuple[Column, ...]:
    """Fields of the record that say what they are by their name."""
    return tuple(Column(name, kind, "", needed) for name in names)


ROLLOUTS: tuple[Column, ...] = (
    Column("rollout_id", "text", "Names the rollout in all three configs.", True),
    Column("created_us", "int", "Microseconds since 1970, UTC; so every `_us`.", True),
    Column("closed_us", "int", "When it was sealed; the order of the rows.", True),
    Column("run", "text", "The run it belongs to.", True),
    Column("task", "text", "What was attempted."),
    Column("group", "text", "Rollouts that are compared with each other."),
    Column("attempt", "int", "Number of the attempt."),
    Column("purpose", "text", "`train` or `eval`; an `eval` rollout has no sequences.", True),
    *_all("text", "harness", "harness_version", "harness_config_sha256"),
    Column("metadata", "json", "What its maker gave.", True),
    *_all("json", "sampling", "budgets", needed=True),
    *_all("text", "streaming", "engine_kind", "engine_name", "engine_version", needed=True),
    Column("token_in", "bool", "Whether prompts began with their parent's exact ids.", True),
    Column("model", "text", "The model as the engine names it.", True),
    *_all("text", "tokenizer_id", "chat_template_sha256", "certificate_id"),
    Column("app_version", "text", "The version that recorded it.", True),
    Column("reward", "float", "Null where nobody scored it; null is never 0."),
    Column("ok", "bool", "Whether it succeeded, where somebody said so."),
    Column("reason", "text", "What was said about its end."),
    Column("trainable", "bool", "The verdict; false: no row in `sequences`.", True),
    Column("reason_codes", "texts", "Why it is not trainable; empty when it is.", True),
    Column("reasons", "json", "The same in words, with the calls concerned.", True),
    Column("notices", "texts", "What every reader must be told.", True),
    Column("n_calls", "int", "Its rows in `calls`.", True),
    Column("n_sequences", "int", "Its rows in `sequences`.", True),
    Column("supervised_tokens", "int", "Ones in `loss_mask` of its sequences.", True),
    Column("generated_tokens", "int", "Tokens that were sampled, trained on or not.", True),
    Column("mask_counts", "json", "Stored tokens by mask reason, each once.", True),
    Column("weight_versions", "ints", "Every weight version that a call saw.", True),
    Column("policy", "json", "The switches it was judged by.", True),
    Column("policy_sha256", "text", "Digest of the switches.", True),
    Column("judge_version", "int", "Version of the rules.", True),
    Column("inputs_sha256", "text", "Digest of everything the verdict depends on.", True),
    Column("findings", "json", "Graded facts about it and its calls.", True),
    Column("events", "json", "Everything that happened to it.", True),
    Column("certificate", "json", "What was proved about the engine."),
    *_all("json", "certificates", "overrides", "open_calls", needed=True),
    Column("contradicted", "json", "Where the engine's bytes say something else.", True),
)

CALLS: tuple[Column, ...] = (
    Column("rollout_id", "text", "Its rollout.", True),
    Column("call_id", "text", "Names the call.", True),
    Column("sequence", "int", "Order of arrival.", True),
    *_all("text", "dialect", "status", needed=True),
    *_all("int", "started_us", "ended_us", needed=True),
    *_all("text", "failure_kind", "failure_detail"),
    Column("stream", "bool", "Whether the harness asked for a stream.", True),
    *_all("int", "http_status", "upstream_status"),
    *_all("float", "engine_ms"),
    *_all("text", "finish_reason", "stop_reason"),
    Column("capture_level", "text", "Only `tokens` can train.", True),
    *_all("text", "response_id", "upstream_id", "model_requested", "model_served"),
    Column("weight_version_start", "int", "Weight version when it was asked."),
    Column("weight_version_end", "int", "Weight version when it had answered."),
    *_all("text", "engine_weight_label"),
    Column("weight_spans", "json", "The engine's own spans of weight versions.", True),
    *_all("text", "certificate_id"),
    Column("requested_sampling", "json", "What the harness asked for.", True),
    Column("submitted_sampling", "json", "What the engine was asked for.", True),
    Column("constraints", "texts", "What bound the sampling.", True),
    Column("token_in", "json", "What token-in did for the call; null where it was off."),
    *_all("bool", "greedy", "injected", needed=True),
    *_all("int", "n_tools", "n_messages", needed=True),
    *_all("text", "system_digest", "tools_digest"),
    Column("digests_of", "text", "The call whose first `digests_shared` digests it has."),
    Column("digests_shared", "int", "How many.", True),
    Column("message_digests", "texts", "Digests of its messages behind those.", True),
    *_all("text", "reply_digest"),
    Column("claims", "json", "What the harness said of the call.", True),
    *_all("int", "retry_count", needed=True),
    Column("prefix_of", "text", "The call whose tokens its prompt begins with."),
    Column("prefix_len", "int", "How many of that call's prompt and completion.", True),
    *_all("int", "prompt_len", "completion_len"),
    Column("prompt_delta", "ids", "The prompt's ids behind those; null when not captured."),
    Column("completion", "ids", "The sampled ids; null when not captured."),
    Column("logprobs", "logprobs", "One a sampled id, exact; null where none was given."),
    Column("mask_reasons", "codes", "Code a sampled id; says nothing of the rollout."),
    Column("top_logprobs", "json", "Alternatives: `[id, text, logprob]` a token."),
    Column("chain_hash", "text", "Hash over all its tokens and its parents'."),
    Column("routed_experts", "text", "Type, shape and digest of the experts in the reply."),
    *_all("int", "usage_prompt", "usage_completion", "usage_cached", "usage_reasoning"),
    Column("notes", "json", "What was noticed when the reply was read.", True),
    Column("preview", "text", "The reply's beginning.", True),
    *_all("text", "served_sha256"),
    Column("parent_id", "text", "The call it continues, by tokens."),
    *_all("text", "root_id"),
    *_all("int", "depth"),
    Column("role", "text", "`agent`, `subagent`, `auxiliary`, `discarded`, `failed`."),
    *_all("text", "rule", "why"),
    Column("mask_reason", "text", "Of the whole completion, where it has one reason."),
    Column("prefix_break", "json", "Where its prompt left an earlier call."),
    Column("findings", "texts", "Codes of the findings that name it.", True),
    Column("request", "text", "The harness's request, exact; with `--bodies`."),
    Column("reply", "text", "The engine's reply, exact; with `--bodies`."),
)

SEQUENCES: tuple[Column, ...] = (
    Column("sequence_id", "text", "Rollout and last call, by a colon.", True),
    Column("rollout_id", "text", "Its rollout.", True),
    Column("run", "text", "Of the rollout.", True),
    *_all("text", "task", "group"),
    *_all("int", "attempt"),
    Column("reward", "float", "Of the whole rollout; null is never 0."),
    Column("ok", "bool", "Of the whole rollout."),
    Column("model", "text", "Of the rollout.", True),
    Column("tokenizer_id", "text", "Of the rollout."),
    Column("role", "text", "Role of the last call.", True),
    Column("call_ids", "texts", "From the root to the last call.", True),
    Column("completion_starts", "ints", "Where each call's sampled ids begin.", True),
    Column("completion_ends", "ints", "Where they end; the next prompt begins there.", True),
    Column("owned", "bools", "Whether a call trains in this row, if it trains.", True),
    Column("length", "int", "Tokens in the row.", True),
    Column("supervised_tokens", "int", "Ones in `loss_mask`; at least one.", True),
    Column("token_ids", "ids", "What the engine read and sampled, in order.", True),
    Column("loss_mask", "codes", "1 where the token trains, else 0.", True),
    Column("mask_reasons", "codes", "Why; 0 exactly where `loss_mask` is 1.", True),
    Column("logprobs", "logprobs", "Of sampled tokens; null elsewhere, never 0.0.", True),
    Column("weight_versions", "ints", "Per token; null where not sampled, or not known.", True),
    Column("policy_sha256", "text", "The policy it was judged by.", True),
    Column("inputs_sha256", "text", "The verdict that it rests on.", True),
)

CONFIGS: dict[str, tuple[Column, ...]] = {
    "rollouts": ROLLOUTS,
    "calls": CALLS,
    "sequences": SEQUENCES,
}
ABOUT: dict[str, str] = {
    "rollouts": "One row a rollout, trainable or not, with its verdict.",
    "calls": "One row an engine call, each token once: a prompt is the first `prefix_len` ids "
    "of the prompt and completion of `prefix_of`, then `prompt_delta`. These are facts to "
    "look at; what trains stands in `sequences` alone.",
    "sequences": "The training rows of trainable rollouts: one a path from a root to the last "
    "call that trains on it. A token that trains does so in exactly one row; in others its "
    "reason is `owned_by_other_row`.",
}


def schema_of(config: str) -> Any:
    """The Arrow schema of a config, with what its files say of themselves."""
    return columns_schema(config, CONFIGS[config])


def columns_schema(config: str, columns: Sequence[Column]) -> Any:
    """The same for any columns: an adapter has its own."""
    fields = [
        pa.field(column.name, _TYPES[column.kind], nullable=not column.needed)
        for column in columns
    ]
    about = {
        "config": config,
        "schema_version": DATASET_SCHEMA_VERSION,
        "writer": WRITER,
        "mask_reasons": {str(code): str(reason) for reason, code in REASON_CODES.items()},
    }
    return pa.schema(fields, metadata={METADATA_KEY: orjson.dumps(about)})


def schema_sha256(config: str) -> str:
    """Names a schema: columns, types and what may be null."""
    return columns_sha256(config, CONFIGS[config])


def columns_sha256(config: str, columns: Sequence[Column]) -> str:
    """The same for any columns."""
    told = [[column.name, column.kind, column.needed] for column in columns]
    return hashlib.sha256(orjson.dumps([DATASET_SCHEMA_VERSION, config, told])).hexdigest()


def dictionary_columns(columns: Sequence[Column]) -> list[str]:
    """Paths of the Parquet columns that are worth a dictionary."""
    return [
        f"{column.name}.list.element" if pa.types.is_list(_TYPES[column.kind]) else column.name
        for column in columns
        if column.kind not in _NO_DICTIONARY and _TYPES[column.kind] != pa.bool_()
    ]
