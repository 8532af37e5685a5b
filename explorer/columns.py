"""The one declarative list of stored columns: DDL, Arrow schema and docs come from it.

Owns: every table's columns with type, unit and meaning, and their three renderings.
Must not know: records, SQL beyond column definitions, who reads the tables.

Size: it is data, one entry per column. A change here needs a new migration in
`explorer.store.migrations`; a test compares the two.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import pyarrow as pa


class Kind(StrEnum):
    """Types a column may have. No LIST, MAP or VARIANT: each small commit to a table
    with one rewrites up to 2,048 rows of list data into the WAL (190 times as much)."""

    TEXT = "VARCHAR"
    JSON = "JSON text"  # stored as VARCHAR, so that an insert does not parse it again
    BLOB = "BLOB"
    INT = "INTEGER"
    BIGINT = "BIGINT"
    DOUBLE = "DOUBLE"
    BOOL = "BOOLEAN"
    TIME = "TIMESTAMPTZ"  # microseconds since the epoch (int) on the Python side


_ARROW: dict[Kind, pa.DataType] = {
    Kind.TEXT: pa.string(),
    Kind.JSON: pa.string(),
    Kind.BLOB: pa.binary(),
    Kind.INT: pa.int32(),
    Kind.BIGINT: pa.int64(),
    Kind.DOUBLE: pa.float64(),
    Kind.BOOL: pa.bool_(),
    Kind.TIME: pa.timestamp("us", tz="UTC"),
}


@dataclass(frozen=True, slots=True)
class Column:
    """One column (or, inside `Table.detail`, one key of the ``detail`` object)."""

    name: str
    kind: Kind
    doc: str
    nullable: bool = True
    unit: str = ""
    compressed: bool = True  # False: the bytes are incompressible or compressed by us

    def ddl(self) -> str:
        """Render the column definition."""
        sql = "VARCHAR" if self.kind is Kind.JSON else self.kind.value
        null = "" if self.nullable else " NOT NULL"
        codec = "" if self.compressed else " USING COMPRESSION uncompressed"
        return f"{self.name} {sql}{null}{codec}"


@dataclass(frozen=True, slots=True)
class Table:
    """One table. ``detail`` documents the keys of its ``detail`` column, if it has one:
    a column costs about 15 µs in each small commit, so rarely queried fields share one."""

    name: str
    doc: str
    columns: tuple[Column, ...]
    key: tuple[str, ...]
    detail: tuple[Column, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """The column names in order."""
        return tuple(column.name for column in self.columns)

    def ddl(self) -> str:
        """Render CREATE TABLE; a repeated statement does nothing (crash in a migration)."""
        lines = [f"  {column.ddl()}" for column in self.columns]
        lines.append(f"  PRIMARY KEY ({', '.join(self.key)})")
        return f"CREATE TABLE IF NOT EXISTS {self.name} (\n" + ",\n".join(lines) + "\n)"

    def arrow_schema(self) -> pa.Schema:
        """Render the Arrow schema of a batch of rows."""
        return pa.schema(
            [pa.field(c.name, _ARROW[c.kind], nullable=c.nullable) for c in self.columns]
        )


def _must(name: str, kind: Kind, doc: str, unit: str = "") -> Column:
    return Column(name, kind, doc, nullable=False, unit=unit)


def _bytes(name: str, doc: str, unit: str = "") -> Column:
    return Column(name, Kind.BLOB, doc, unit=unit, compressed=False)


_ROLLOUT_ID = _must("rollout_id", Kind.TEXT, "Public id of the rollout.")

SCHEMA_VERSION = Table(
    "schema_version",
    "One row per applied migration; a row is written after its last statement.",
    (
        _must("version", Kind.INT, "Number of the migration."),
        _must("name", Kind.TEXT, "Name of the migration."),
        _must("applied_time", Kind.TIME, "When it was applied.", "UTC"),
        _must("app_version", Kind.TEXT, "Version of the program that applied it."),
        _must("sha256", Kind.TEXT, "SHA-256 of its statements.", "hex"),
    ),
    ("version",),
)

ROLLOUT = Table(
    "rollout",
    "One attempt of an agent at one task under one capture key; never updated.",
    (
        _ROLLOUT_ID,
        _must("created_time", Kind.TIME, "When the rollout was created.", "UTC"),
        _must("key_hash", Kind.TEXT, "Hash of the secret capture key."),
        _must("run", Kind.TEXT, "Named collection the rollout belongs to."),
        Column("task", Kind.TEXT, "What the agent attempted."),
        Column("group_name", Kind.TEXT, "Rollouts compared with each other (GRPO)."),
        Column("attempt", Kind.BIGINT, "Number of the attempt within its group or task."),
        _must("purpose", Kind.TEXT, "`train` or `eval`; an `eval` rollout never trains."),
        Column("harness", Kind.TEXT, "Name of the agent harness, as it was claimed."),
        Column("harness_version", Kind.TEXT, "Version of the harness, as it was claimed."),
        _must("metadata", Kind.JSON, "The caller's own key-value pairs.", "object"),
        _must("sampling", Kind.JSON, "Sampling values fixed for the rollout.", "object"),
        _must("budgets", Kind.JSON, "Limits on calls, tokens and time.", "object"),
        _must("engine_kind", Kind.TEXT, "Kind of engine: `tiny`, `vllm`, ..."),
        _must("engine_name", Kind.TEXT, "Name of the engine."),
        _must("engine_version", Kind.TEXT, "Version the engine reported."),
        _must("model", Kind.TEXT, "Model the rollout was admitted for."),
        Column("tokenizer_id", Kind.TEXT, "Which `vocabulary` decodes its ids."),
        Column("chat_template_sha256", Kind.TEXT, "Digest of the chat template.", unit="hex"),
        Column("certificate_id", Kind.TEXT, "Certificate in force at admission."),
        _must("app_version", Kind.TEXT, "Version of the program that admitted it."),
        Column("streaming", Kind.TEXT, "How streams are served: made whole or passed on."),
        Column(
            "harness_config_sha256",
            Kind.TEXT,
            "Digest of the harness's configuration, as it was given.",
            unit="hex",
        ),
        Column("token_in", Kind.BOOL, "Whether prompts were to begin with their parent's ids."),
    ),
    ("rollout_id",),
)

ROLLOUT_EVENT = Table(
    "rollout_event",
    "What happened to a rollout after it began; its state is read from these rows.",
    (
        _ROLLOUT_ID,
        _must("sequence", Kind.BIGINT, "Order of the event within its rollout, from 0."),
        _must("event_time", Kind.TIME, "When it happened.", "UTC"),
        _must(
            "kind", Kind.TEXT, "`started`, `reward`, `closed`, `override`, `joined`, `deleted`."
        ),
        Column("reward", Kind.DOUBLE, "Reward of the rollout; the latest one counts."),
        Column("ok", Kind.BOOL, "Whether a verifier called the rollout successful."),
        Column("reason", Kind.TEXT, "Why, in words."),
        _must("payload", Kind.JSON, "Further values; an override in full.", "object"),
    ),
    ("rollout_id", "sequence"),
)

_CALL_DETAIL = (
    Column("failure_detail", Kind.TEXT, "What went wrong, in words."),
    Column("stream", Kind.BOOL, "Whether the harness asked for a stream."),
    Column("http_status", Kind.INT, "Status sent to the harness."),
    Column("upstream_status", Kind.INT, "Status the engine answered with."),
    Column("stop_reason", Kind.TEXT, "The engine's own stop reason or matched stop."),
    Column("upstream_id", Kind.TEXT, "The engine's id of the reply."),
    Column("model_requested", Kind.TEXT, "Model name the harness asked for."),
    Column("engine_weight_label", Kind.TEXT, "The engine's own weight version string."),
    Column(
        "weight_spans",
        Kind.JSON,
        "The engine's spans: [label, weight version or null, start, end].",
        unit="array",
    ),
    Column(
        "routed_experts",
        Kind.TEXT,
        "Type, shape and extras digest of the experts in the engine's reply.",
    ),
    Column("certificate_id", Kind.TEXT, "Certificate in force; `none`: nothing was proved."),
    Column("requested_sampling", Kind.JSON, "Sampling values the harness asked for."),
    Column("submitted_sampling", Kind.JSON, "Sampling values sent to the engine."),
    Column("constraints", Kind.JSON, "What constrained the sampler.", unit="array"),
    Column("greedy", Kind.BOOL, "Whether the call was sampled greedily."),
    Column("injected", Kind.BOOL, "Whether the proxy itself made the text."),
    Column("n_tools", Kind.INT, "Tools offered in the request."),
    Column("n_messages", Kind.INT, "Messages in the request."),
    Column("system_digest", Kind.TEXT, "Digest of the system prompt."),
    Column("tools_digest", Kind.TEXT, "Digest of the tool definitions."),
    Column(
        "message_digests",
        Kind.JSON,
        "Digest of each message, or {of, shared, tail}: what is added to another call's.",
        unit="array",
    ),
    Column("reply_digest", Kind.TEXT, "Digest of the reply as a message."),
    Column("claims", Kind.JSON, "Ids the harness claimed; never authority.", unit="object"),
    Column("retry_count", Kind.INT, "The retry counter that came with the request."),
    Column("usage_prompt", Kind.INT, "Prompt tokens as the engine counted.", unit="tokens"),
    Column("usage_completion", Kind.INT, "Completion tokens, likewise.", unit="tokens"),
    Column("usage_cached", Kind.INT, "Cached prompt tokens, likewise.", unit="tokens"),
    Column("usage_reasoning", Kind.INT, "Reasoning tokens, likewise.", unit="tokens"),
    Column("notes", Kind.JSON, "Facts seen while parsing: [code, detail].", unit="array"),
    Column("served_sha256", Kind.TEXT, "SHA-256 of the bytes served.", unit="hex"),
    Column("token_in", Kind.JSON, "What token-in did for the call.", unit="object"),
    Column("request_sha256", Kind.TEXT, "Of the request; admission rows only.", unit="hex"),
)

CALL = Table(
    "call",
    "One model request: a row when it was admitted (`ended` false) and a row when it "
    "ended (`ended` true). Both live in one table so that a group of them is one statement.",
    (
        _must("call_id", Kind.TEXT, "Id of the call."),
        _must("ended", Kind.BOOL, "False in the admission row, true in the final row."),
        _ROLLOUT_ID,
        _must("sequence", Kind.BIGINT, "Order of admission within the rollout, from 0."),
        _must("dialect", Kind.TEXT, "Wire the harness spoke."),
        _must("status", Kind.TEXT, "`open`, `committed`, `failed`, `aborted`, `refused`."),
        Column("failure_kind", Kind.TEXT, "What exactly went wrong, from a closed list."),
        _must("started_time", Kind.TIME, "When the call was admitted.", "UTC"),
        Column("ended_time", Kind.TIME, "When the call ended.", unit="UTC"),
        Column("engine_ms", Kind.DOUBLE, "Time the engine took.", unit="ms"),
        Column("finish_reason", Kind.TEXT, "Why the engine stopped."),
        Column("capture_level", Kind.TEXT, "`tokens`, `logprobs` or `text`."),
        Column("response_id", Kind.TEXT, "Id served to the harness."),
        Column("model_served", Kind.TEXT, "Model the engine named in its reply."),
        Column("weight_version_start", Kind.BIGINT, "Policy version at the start."),
        Column("weight_version_end", Kind.BIGINT, "Policy version at the end."),
        Column("stored_parent_id", Kind.TEXT, "Call whose tokens the delta continues."),
        Column("prefix_len", Kind.BIGINT, "Tokens shared with that parent.", unit="tokens"),
        Column("prompt_len", Kind.BIGINT, "Length of the whole prompt.", unit="tokens"),
        Column("completion_len", Kind.BIGINT, "Length of the completion.", unit="tokens"),
        _bytes("prompt_delta", "Prompt ids after the shared prefix.", "int32 LE"),
        _bytes("completion", "Sampled ids.", "int32 LE"),
        _bytes("logprobs", "One per sampled id; missing: NaN 0x7FC00001.", "float32 LE"),
        _bytes("top_logprobs", "The engine's alternatives.", "JSON"),
        _bytes("chain_hash", "Custody hash of the chain up to here.", "SHA-256"),
        _must("preview", Kind.TEXT, "The first characters of the reply, for listings."),
        _must("detail", Kind.JSON, "Fields that are rarely queried; keys below.", "object"),
        Column(
            "body_index",
            Kind.JSON,
            "Per body: kind, SHA-256, size, codec, base call and kind, depth, headers.",
            unit="array",
        ),
        _bytes("request_body", "What the harness sent, as `body_index` says.", "zstd"),
        _bytes("submitted_body", "What the engine was sent.", "zstd"),
        _bytes("reply_body", "What the engine answered.", "zstd"),
    ),
    ("call_id", "ended"),
    _CALL_DETAIL,
)

CERTIFICATE = Table(
    "certificate",
    "What a probe measured about an engine, and what follows from it.",
    (
        _must("certificate_id", Kind.TEXT, "Id of the certificate."),
        _must("probe_time", Kind.TIME, "When the probe ran.", "UTC"),
        _must("engine_kind", Kind.TEXT, "Kind of engine."),
        _must("engine_name", Kind.TEXT, "Name of the engine."),
        _must("engine_version", Kind.TEXT, "Version the engine reported."),
        _must("model", Kind.TEXT, "Model that was probed."),
        Column("fingerprint", Kind.TEXT, "Fingerprint of the weights, when obtainable."),
        _must("capture_level", Kind.TEXT, "Best capture level the engine supports."),
        _must("logprob_kind", Kind.TEXT, "What its logprobs were proved to be."),
        _must("certifiable", Kind.BOOL, "Whether calls can be certified at all."),
        _must("numbers", Kind.JSON, "Raw measurements by test name.", "object"),
        _must("failures", Kind.JSON, "Why a level is lower than it could be.", "array"),
    ),
    ("certificate_id",),
)

VOCABULARY = Table(
    "vocabulary",
    "The exact bytes of every token of a tokenizer, so that ids decode for good.",
    (
        _must("tokenizer_id", Kind.TEXT, "Id of the tokenizer."),
        _must("token_id", Kind.INT, "Id of the token."),
        _must("raw", Kind.BLOB, "Bytes of the token."),
        _must("special", Kind.BOOL, "Whether it is a control token."),
    ),
    ("tokenizer_id", "token_id"),
)

JUDGEMENT = Table(
    "judgement",
    "Summaries of verdicts, for listings only; the latest of a rollout counts.",
    (
        _ROLLOUT_ID,
        _must("inputs_sha256", Kind.TEXT, "Digest of everything the verdict read.", "hex"),
        _must("policy", Kind.TEXT, "Name of the policy it was judged by."),
        _must("judged_time", Kind.TIME, "When it was judged.", "UTC"),
        _must("trainable", Kind.BOOL, "Whether the rollout may train."),
        _must("supervised_tokens", Kind.BIGINT, "Tokens that would train.", "tokens"),
        _must("generated_tokens", Kind.BIGINT, "Tokens the engine sampled.", "tokens"),
        _must("n_calls", Kind.BIGINT, "Calls the verdict read."),
        _must("n_fatal", Kind.BIGINT, "Findings of grade FATAL."),
        _must("n_warn", Kind.BIGINT, "Findings of grade WARN."),
        _must("reasons", Kind.JSON, "Why it is not trainable.", "array"),
    ),
    ("rollout_id", "policy", "inputs_sha256", "judged_time"),
)

QUARANTINE = Table(
    "quarantine",
    "Records that could not be written, each alone, with the reason.",
    (
        _must("quarantine_id", Kind.TEXT, "Id of this row."),
        _must("quarantined_time", Kind.TIME, "When it was set aside.", "UTC"),
        _must("kind", Kind.TEXT, "What it was: `call`, `admission`, `rollout`, ..."),
        _must("row_id", Kind.TEXT, "Its own id, made printable."),
        Column("rollout_id", Kind.TEXT, "Rollout it belongs to; deleted with it."),
        _must("error", Kind.TEXT, "Why it could not be written."),
        _must("dump", Kind.TEXT, "The record as text; long values cut.", "JSON-like"),
    ),
    ("quarantine_id",),
)

ANNOTATION = Table(
    "annotation",
    "What a person wrote about a rollout, a call or a span of tokens; never changes a mask.",
    (
        _must("annotation_id", Kind.TEXT, "Id of the annotation."),
        _ROLLOUT_ID,
        _must("annotated_time", Kind.TIME, "When it was written.", "UTC"),
        _must("who", Kind.TEXT, "Who wrote it, as they said."),
        Column("label", Kind.TEXT, "A short label, to filter by."),
        Column("note", Kind.TEXT, "Free text."),
        Column("call_id", Kind.TEXT, "Call it is about; null: the whole rollout."),
        Column(
            "span_start", Kind.BIGINT, "First token of the span in the call.", unit="tokens"
        ),
        Column("span_end", Kind.BIGINT, "End of the span, not included.", unit="tokens"),
        Column("withdraws", Kind.TEXT, "Annotation that this row takes back."),
    ),
    ("annotation_id",),
)

SAVED_VIEW = Table(
    "saved_view",
    "Named query strings of the rollout list; the latest row of a name counts.",
    (
        _must("name", Kind.TEXT, "Name of the view."),
        _must("saved_time", Kind.TIME, "When it was saved.", "UTC"),
        _must("who", Kind.TEXT, "Who saved it, as they said."),
        _must("query", Kind.TEXT, "Query string of the list."),
        _must("dropped", Kind.BOOL, "Whether this row takes the view away."),
    ),
    ("name", "saved_time"),
)

SECRET_SCAN = Table(
    "secret_scan",
    "When a rollout was searched for secrets, and how it stood then; the latest row counts.",
    (
        _ROLLOUT_ID,
        _must("scanned_time", Kind.TIME, "When it was searched.", "UTC"),
        _must("scan_version", Kind.INT, "Number of the rules."),
        _must("stamp", Kind.TEXT, "How many rows the rollout had, to tell what came later."),
        _must("n_secrets", Kind.BIGINT, "Different secrets that were found."),
        _must("n_paths", Kind.BIGINT, "Different paths with a person's name."),
    ),
    ("rollout_id", "scanned_time"),
)

SECRET_FINDING = Table(
    "secret_finding",
    "One thing in a rollout that looks like a secret; the secret itself is not in the row.",
    (
        _ROLLOUT_ID,
        _must("finding_id", Kind.TEXT, "Keyed digest of the secret, within its rollout."),
        _must("found_time", Kind.TIME, "When it was first found.", "UTC"),
        _must("kind", Kind.TEXT, "What it looks like: `openai_key`, `private_key`, ..."),
        _must("blocks", Kind.BOOL, "Whether a person must decide before it may leave."),
        _must("listed", Kind.BOOL, "Whether it stands in what lists show or filter by."),
    ),
    ("rollout_id", "finding_id"),
)

SECRET_DECISION = Table(
    "secret_decision",
    "What a person decided about a finding; the latest row of a finding counts.",
    (
        _must("decision_id", Kind.TEXT, "Id of the decision."),
        _ROLLOUT_ID,
        _must("finding_id", Kind.TEXT, "Finding it is about."),
        _must("decided_time", Kind.TIME, "When it was decided.", "UTC"),
        _must("decision", Kind.TEXT, "`not_a_secret`, `release` or `withhold`."),
        _must("who", Kind.TEXT, "Who decided."),
        _must("reason", Kind.TEXT, "Why, in words."),
    ),
    ("decision_id",),
)

RECEIPT = Table(
    "receipt",
    "Receipts of closed rollouts as they were issued; a changed record no longer gives them.",
    (
        _ROLLOUT_ID,
        _must("number", Kind.INT, "Number of the receipt, from 1."),
        _must("issued_time", Kind.TIME, "When it was issued.", "UTC"),
        _must("sha256", Kind.TEXT, "Digest of the receipt.", "hex"),
        Column("algorithm", Kind.TEXT, "`ed25519` or `hmac-sha256`; null: not signed."),
        Column("key_id", Kind.TEXT, "Which key signed it."),
        Column("signature", Kind.TEXT, "Signature over the digest.", unit="hex"),
    ),
    ("rollout_id", "number"),
)

TRAINER_LOGPS = Table(
    "trainer_logps",
    "Logprobs that a trainer (or the engine, asked again) gives a call's sampled ids; of equal "
    "call, kind, source and version the latest row counts.",
    (
        _ROLLOUT_ID,
        _must("call_id", Kind.TEXT, "Call whose sampled ids they are about."),
        _must("post_id", Kind.TEXT, "Posting that told them."),
        _must("posted_time", Kind.TIME, "When they were told.", "UTC"),
        _must("kind", Kind.TEXT, "`trainer`, `trainer_repeat`, `reference` or `rescored`."),
        _must("source", Kind.TEXT, "Who computed them, in the poster's words."),
        Column("weight_version", Kind.BIGINT, "Weights that computed them; null: not told."),
        _must("n_tokens", Kind.BIGINT, "How many there are.", "tokens"),
        Column(
            "logps",
            Kind.BLOB,
            "One per sampled id; missing: NaN 0x7FC00001.",
            nullable=False,
            unit="float32 LE",
            compressed=False,
        ),
    ),
    ("rollout_id", "call_id", "post_id"),
)

DELTA_SUMMARY = Table(
    "delta_summary",
    "How far trainer logprobs are from those of the rollout, over training tokens, for lists "
    "and charts only; the latest row of a rollout counts. δ = trainer − rollout.",
    (
        _ROLLOUT_ID,
        _must("computed_time", Kind.TIME, "When it was computed.", "UTC"),
        _must("inputs_sha256", Kind.TEXT, "Digest of what it was computed from.", "hex"),
        _must("source", Kind.TEXT, "Who computed the trainer's logprobs."),
        Column("weight_version", Kind.BIGINT, "Weights that computed them; null: not told."),
        _must("n_training", Kind.BIGINT, "Tokens that train.", "tokens"),
        _must("n_compared", Kind.BIGINT, "Of these, with two finite logprobs.", "tokens"),
        _must("n_outside", Kind.BIGINT, "Compared tokens outside the band.", "tokens"),
        _must("band_low", Kind.DOUBLE, "Least ratio exp δ within the band."),
        _must("band_high", Kind.DOUBLE, "Greatest ratio within the band."),
        *(
            Column(f"delta_p{q}", Kind.DOUBLE, f"Quantile {q} % of δ.", unit="nats")
            for q in (1, 5, 50, 95, 99)
        ),
        Column("abs_p99", Kind.DOUBLE, "Quantile 99 % of the size of δ.", unit="nats"),
        Column("abs_max", Kind.DOUBLE, "Greatest size of δ.", unit="nats"),
        Column("mean", Kind.DOUBLE, "Mean of δ; says nothing without the rest.", unit="nats"),
        Column("sd", Kind.DOUBLE, "Standard deviation of δ.", unit="nats"),
        Column("k1", Kind.DOUBLE, "KL(rollout ‖ trainer), mean of −δ.", unit="nats"),
        Column("k3", Kind.DOUBLE, "The same, mean of exp δ − 1 − δ.", unit="nats"),
        Column("log_ratio_low", Kind.DOUBLE, "Least sum of δ over a call.", unit="nats"),
        Column("log_ratio_high", Kind.DOUBLE, "Greatest sum of δ over a call.", unit="nats"),
        _must("n_same_version", Kind.BIGINT, "Compared, sampled by the trainer's version."),
        _must("n_other_version", Kind.BIGINT, "Compared, sampled by another version."),
        _must("n_unknown_version", Kind.BIGINT, "Compared, a version is not known."),
        _must("bins", Kind.JSON, "Compared tokens by bin of δ.", "object"),
        Column("noise_kind", Kind.TEXT, "What measured the noise floor; null: nothing did."),
        Column(
            "noise_abs_p99",
            Kind.DOUBLE,
            "Quantile 99 % of the size of δ of the floor.",
            unit="nats",
        ),
        Column("noise_share", Kind.DOUBLE, "Share of the floor outside the band."),
    ),
    ("rollout_id", "inputs_sha256", "computed_time"),
)

WEIGHT_UPDATE = Table(
    "weight_update",
    "What was told about the engine's weights, and what became of it; never updated.",
    (
        _must("number", Kind.BIGINT, "Number of the update, from 1."),
        _must("update_time", Kind.TIME, "When it was told.", "UTC"),
        _must("state", Kind.TEXT, "`syncing`, `ready`, or `unknown`: nobody knows."),
        Column("weight_version", Kind.BIGINT, "Coming, present, or last known version."),
        Column("engine_weight_label", Kind.TEXT, "The engine's own name of these weights."),
        _must("detail", Kind.JSON, "Lease, drain, weights file and what was done.", "object"),
    ),
    ("number",),
)

TABLES: tuple[Table, ...] = (
    SCHEMA_VERSION,
    ROLLOUT,
    ROLLOUT_EVENT,
    CALL,
    CERTIFICATE,
    VOCABULARY,
    JUDGEMENT,
    QUARANTINE,
    ANNOTATION,
    SAVED_VIEW,
    SECRET_SCAN,
    SECRET_FINDING,
    SECRET_DECISION,
    RECEIPT,
    WEIGHT_UPDATE,
    TRAINER_LOGPS,
    DELTA_SUMMARY,
)


def table(name: str) -> Table:
    """Return a table by name; `KeyError` when there is none."""
    return next(each for each in TABLES if each.name == name)


def _markdown_rows(columns: tuple[Column, ...], key: tuple[str, ...]) -> list[str]:
    rows = ["| Column | Type | Unit | Null | Meaning |", "|---|---|---|---|---|"]
    for column in columns:
        name = f"**{column.name}**" if column.name in key else column.name
        null = "yes" if column.nullable else "no"
        rows.append(f"| {name} | {column.kind.value} | {column.unit} | {null} | {column.doc} |")
    return rows


def render_markdown() -> str:
    """Render the reference page of every stored column; key columns are bold."""
    parts = ["# Stored columns", ""]
    parts.append(
        "Generated from `explorer/columns.py`. Key columns are bold; LE: little-endian."
    )
    for each in TABLES:
        parts += [
            "",
            f"## {each.name}",
            "",
            each.doc,
            "",
            *_markdown_rows(each.columns, each.key),
        ]
        if each.detail:
            parts += ["", f"### Keys of `{each.name}.detail`", ""]
            parts.append("A key is left out when its value is null or the field's default.")
            parts += ["", *_markdown_rows(each.detail, ())]
    return "\n".join(parts) + "\n"
