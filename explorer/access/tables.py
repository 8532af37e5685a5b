"""The tables of the access database: who may do what, who did it, and what is published.

Owns: their columns, declared like those of the store. Must not know: SQL beyond that, who
reads them.

They live in a second DuckDB file, so that a curated store which is opened read-only still
records who took what, and so that a copy of the store holds no person's name.
"""

from __future__ import annotations

from explorer.columns import Column, Kind, Table


def _must(name: str, kind: Kind, doc: str, unit: str = "") -> Column:
    return Column(name, kind, doc, nullable=False, unit=unit)


PERSON = Table(
    "person",
    "Everybody who ever signed in; the newest sign-in's names.",
    (
        _must("subject", Kind.TEXT, "`<provider>:<sub>`, as the provider's id token says."),
        _must("provider", Kind.TEXT, "Name of the provider in the settings."),
        _must("name", Kind.TEXT, "What the provider calls the person; never authority."),
        _must("first_time", Kind.TIME, "First sign-in.", "UTC"),
        _must("last_time", Kind.TIME, "Newest sign-in.", "UTC"),
    ),
    ("subject",),
)

SESSION = Table(
    "session",
    "Signed-in browsers; the cookie is a random reference, of which the hash is kept.",
    (
        _must("session_hash", Kind.TEXT, "SHA-256 of the cookie's value.", "hex"),
        _must("subject", Kind.TEXT, "Who signed in."),
        _must("name", Kind.TEXT, "The person's name at sign-in."),
        _must("organisations", Kind.JSON, "Memberships the provider told.", "array"),
        _must("created_time", Kind.TIME, "When the person signed in.", "UTC"),
        _must("expires_time", Kind.TIME, "When the session ends by itself.", "UTC"),
        Column("ended_time", Kind.TIME, "When it was ended.", unit="UTC"),
    ),
    ("session_hash",),
)

API_TOKEN = Table(
    "api_token",
    "Tokens of persons for programs; shown once, of which the hash is kept.",
    (
        _must("token_id", Kind.TEXT, "Public id of the token."),
        _must("token_hash", Kind.TEXT, "SHA-256 of the token.", "hex"),
        _must("subject", Kind.TEXT, "Whose it is."),
        _must("name", Kind.TEXT, "The person's name when it was made."),
        _must("label", Kind.TEXT, "What its owner calls it."),
        _must("organisations", Kind.JSON, "Memberships when it was made.", "array"),
        _must("scopes", Kind.JSON, "What it may be used for.", "array"),
        _must("created_time", Kind.TIME, "When it was made.", "UTC"),
        _must("expires_time", Kind.TIME, "When it ends by itself.", "UTC"),
        Column("revoked_time", Kind.TIME, "When it was taken back.", unit="UTC"),
        Column("used_time", Kind.TIME, "Newest use, to the minute.", unit="UTC"),
    ),
    ("token_id",),
)

ACCESS_GRANT = Table(
    "access_grant",
    "What was asked for or given; its state is read from `grant_event`. Never updated.",
    (
        _must("grant_id", Kind.TEXT, "Id of the grant."),
        _must("created_time", Kind.TIME, "When it was asked for or given.", "UTC"),
        _must("subject_kind", Kind.TEXT, "`person`, `organisation` or `hub_gate`."),
        _must("subject", Kind.TEXT, "Who: a subject, an organisation, or a Hub dataset."),
        _must("subject_name", Kind.TEXT, "What people call the subject."),
        _must("object_kind", Kind.TEXT, "`rollouts`, `run`, `view` or `dataset`."),
        _must("objects", Kind.JSON, "Ids or names of the objects.", "array"),
        _must("kinds", Kind.JSON, "What may be taken.", "array"),
        _must("asked_by", Kind.TEXT, "Who asked for it or gave it unasked."),
        _must("purpose", Kind.TEXT, "What it is for, in the words of who asked."),
    ),
    ("grant_id",),
)

GRANT_EVENT = Table(
    "grant_event",
    "What happened to a grant; the latest row of a grant is its state.",
    (
        _must("grant_id", Kind.TEXT, "Id of the grant."),
        _must("sequence", Kind.INT, "Order of the event, from 0."),
        _must("event_time", Kind.TIME, "When it happened.", "UTC"),
        _must("state", Kind.TEXT, "`pending`, `approved`, `rejected` or `revoked`."),
        _must("who", Kind.TEXT, "Who did it."),
        _must("reason", Kind.TEXT, "Why, in words."),
        Column("expires_time", Kind.TIME, "Until when it may be used.", unit="UTC"),
        Column("max_uses", Kind.BIGINT, "How many times it may be used."),
    ),
    ("grant_id", "sequence"),
)

GRANT_USE = Table(
    "grant_use",
    "One use of a grant: the first byte of one document; resuming is the same use.",
    (
        _must("use_id", Kind.TEXT, "Id of the use."),
        _must("grant_id", Kind.TEXT, "Which grant was spent."),
        _must("subject", Kind.TEXT, "Who used it."),
        _must("rollout_id", Kind.TEXT, "What was taken."),
        _must("kind", Kind.TEXT, "Which kind of document."),
        _must("used_time", Kind.TIME, "When its first byte left.", "UTC"),
    ),
    ("use_id",),
)

VISIBILITY = Table(
    "visibility",
    "Who may see a rollout, the rollouts of a run or of a saved view; the latest row counts.",
    (
        _must("object_kind", Kind.TEXT, "`rollout`, `run` or `view`."),
        _must("object_id", Kind.TEXT, "Id or name of the object."),
        _must("sequence", Kind.INT, "Order of the rows of an object, from 0."),
        _must("set_time", Kind.TIME, "When it was set.", "UTC"),
        Column("level", Kind.TEXT, "`public`, `signed-in`, `granted`, `private`; null: unset."),
        _must("who", Kind.TEXT, "Who set it."),
        _must("reason", Kind.TEXT, "Why, in words."),
    ),
    ("object_kind", "object_id", "sequence"),
)

ROLE = Table(
    "role",
    "Roles that were given to persons beside those in the settings; the latest row counts.",
    (
        _must("subject", Kind.TEXT, "Whose role."),
        _must("role", Kind.TEXT, "`curator` or `operator`."),
        _must("sequence", Kind.INT, "Order of the rows of a role, from 0."),
        _must("set_time", Kind.TIME, "When it was given or taken.", "UTC"),
        _must("given", Kind.BOOL, "False where this row takes it away."),
        _must("who", Kind.TEXT, "Who did it."),
        _must("reason", Kind.TEXT, "Why, in words."),
    ),
    ("subject", "role", "sequence"),
)

AUDIT = Table(
    "audit",
    "Append-only; each row holds the hash of the one before, so that a removed one shows.",
    (
        _must("sequence", Kind.BIGINT, "Order of the row, from 0."),
        _must("event_time", Kind.TIME, "When it happened.", "UTC"),
        _must("event", Kind.TEXT, "What happened, from a closed list."),
        _must("who", Kind.TEXT, "Subject, `operator`, `anonymous` or `server`."),
        _must("name", Kind.TEXT, "What people call the subject."),
        _must("address", Kind.TEXT, "Address the request came from."),
        _must("object", Kind.TEXT, "What it was about."),
        _must("reason", Kind.TEXT, "Why, or which rule refused it."),
        _must("detail", Kind.JSON, "Further values.", "object"),
        Column("bytes", Kind.BIGINT, "Bytes that were sent.", unit="bytes"),
        Column("sha256", Kind.TEXT, "Of the bytes that were sent.", unit="hex"),
        Column("complete", Kind.BOOL, "Whether the document was sent whole."),
        _must("previous", Kind.TEXT, "`hash` of the row before; zeros in the first.", "hex"),
        _must("hash", Kind.TEXT, "SHA-256 of this row with `previous`.", "hex"),
    ),
    ("sequence",),
)

DATASET_JOB = Table(
    "dataset_job",
    "Datasets that were written or published from a page; updated in place while one is "
    "worked on.",
    (
        _must("job_id", Kind.TEXT, "Id of the job."),
        _must("created_time", Kind.TIME, "When it was asked for.", "UTC"),
        _must("updated_time", Kind.TIME, "When anything of it changed.", "UTC"),
        _must("who", Kind.TEXT, "Subject of who asked for it."),
        _must("who_name", Kind.TEXT, "What people call them."),
        _must("query", Kind.TEXT, "Filter of the rollout list that it was made of."),
        _must("view", Kind.TEXT, "Saved view of that filter; empty where it is none."),
        _must("rollouts", Kind.JSON, "Ids that matched when it was asked for.", "array"),
        _must("target", Kind.TEXT, "Where it is published."),
        _must("private", Kind.BOOL, "False where everybody may see it there."),
        _must("gated", Kind.TEXT, "The Hub's gate: empty, `auto` or `manual`."),
        _must("choice", Kind.JSON, "Title, licence and words of the card.", "object"),
        _must("formats", Kind.JSON, "Further formats beside Parquet.", "array"),
        _must("bodies", Kind.BOOL, "Whether requests and replies are in it as text."),
        _must("wants", Kind.TEXT, "`files` (a dry run) or `publish`."),
        _must("state", Kind.TEXT, "Where it stands, from a closed list."),
        _must("phase", Kind.TEXT, "What is done now or was done last."),
        _must("done", Kind.BIGINT, "How much of the phase is done."),
        _must("total", Kind.BIGINT, "How much there is to do in it."),
        _must("unit", Kind.TEXT, "What is counted: `rollouts` or `bytes`."),
        _must("code", Kind.TEXT, "Code of the error; empty without one."),
        _must("message", Kind.TEXT, "The error in words, or why it waits."),
        _must("result", Kind.JSON, "What was written and published.", "object"),
        _must("grant_id", Kind.TEXT, "Grant that allows publishing; empty for a role."),
        _must("schedule_id", Kind.TEXT, "Schedule that made it; empty for a person."),
        _must("files", Kind.BOOL, "Whether its files are still there."),
        _must("removed", Kind.TEXT, "`yanked` or `deleted` where it was published."),
    ),
    ("job_id",),
)

DATASET_SCHEDULE = Table(
    "dataset_schedule",
    "Saved views that publish themselves when their rollouts close; updated in place.",
    (
        _must("schedule_id", Kind.TEXT, "Id of the schedule."),
        _must("created_time", Kind.TIME, "When it was made.", "UTC"),
        _must("view", Kind.TEXT, "Name of the saved view."),
        _must("query", Kind.TEXT, "What the view was when the schedule was made."),
        _must("target", Kind.TEXT, "Where it is published."),
        _must("private", Kind.BOOL, "False where everybody may see it there."),
        _must("gated", Kind.TEXT, "The Hub's gate: empty, `auto` or `manual`."),
        _must("choice", Kind.JSON, "Title, licence and words of the card.", "object"),
        _must("formats", Kind.JSON, "Further formats beside Parquet.", "array"),
        _must("bodies", Kind.BOOL, "Whether requests and replies are in it as text."),
        _must("who", Kind.TEXT, "Subject of who made it."),
        _must("who_name", Kind.TEXT, "What people call them."),
        _must("enabled", Kind.BOOL, "Whether it may publish."),
        _must("paused", Kind.TEXT, "Why it does not and what to do; empty while it may."),
        _must("last_job", Kind.TEXT, "Its newest job; empty before the first."),
        _must("failures", Kind.INT, "Jobs that failed since one succeeded."),
        Column("next_time", Kind.TIME, "Not before this time, after a failure.", unit="UTC"),
        _must("published", Kind.JSON, "Ids that its dataset holds.", "array"),
    ),
    ("schedule_id",),
)

TABLES: tuple[Table, ...] = (
    PERSON,
    SESSION,
    API_TOKEN,
    ACCESS_GRANT,
    GRANT_EVENT,
    GRANT_USE,
    VISIBILITY,
    ROLE,
    AUDIT,
    DATASET_JOB,
    DATASET_SCHEDULE,
)
