"""Manifests with evidence, made without files, and what a reader sees of a card."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from markdown_it import MarkdownIt

from explorer.export.card.choice import CardChoice
from explorer.export.dataset.facts import Facts
from explorer.export.dataset.manifest import (
    FORMAT,
    ConfigEntry,
    Excluded,
    ExtraEntry,
    Manifest,
    Part,
    RolloutEntry,
)
from explorer.export.dataset.rows import closed_us
from explorer.export.dataset.schema import (
    CONFIGS,
    DATASET_SCHEMA_VERSION,
    REASON_CODES,
    WRITER,
    schema_sha256,
)
from explorer.export.dataset.writer import Shard
from explorer.records import RolloutRecord
from explorer.trace.inputs import JUDGE_VERSION
from explorer.trace.policy import DEFAULT_POLICY, Policy
from explorer.trace.refusals import refusals
from explorer.trace.verdict import judge

CHOICE = CardChoice("A dataset", "cc-by-4.0")


def manifest_of(
    *records: RolloutRecord,
    policy: Policy = DEFAULT_POLICY,
    excluded: Sequence[Excluded] = (),
    facts: bool = True,
    **extras: ExtraEntry,
) -> Manifest:
    """As it would be written for these rollouts, each file with a made-up digest."""
    gathered, entries = Facts(), []
    for record in records:
        judgement = judge(record, policy)
        gathered.add(record, judgement)
        entries.append(
            RolloutEntry(
                rollout_id=record.rollout.rollout_id,
                closed_us=closed_us(record),
                inputs_sha256=judgement.inputs_sha256,
                policy_sha256=policy.sha256,
                trainable=judgement.trainable,
                reasons=tuple(reason.code for reason in refusals(judgement)),
                calls=len(record.calls),
                sequences=int(judgement.trainable),
                supervised_tokens=judgement.supervised_tokens * judgement.trainable,
            )
        )
    counts = {
        "rollouts": len(entries),
        "calls": sum(entry.calls for entry in entries),
        "sequences": sum(entry.sequences for entry in entries),
    }
    part = Part(
        writer=WRITER,
        judge_version=JUDGE_VERSION,
        bodies=False,
        rollouts=len(entries),
        extras={},
        secrets={"rollouts": len(entries), "ids_decoded": 5, "ids_unknown": 1},
        facts=gathered.to_json() if facts else {},
    )
    return Manifest(
        format=FORMAT,
        schema_version=DATASET_SCHEMA_VERSION,
        mask_reasons={str(code): str(reason) for reason, code in REASON_CODES.items()},
        policies={policy.sha256: policy.describe()} if entries else {},
        configs={
            name: ConfigEntry(schema_sha256(name), counts[name], (shard(name, counts[name]),))
            for name in CONFIGS
        },
        parts=(part,),
        rollouts=tuple(entries),
        excluded=tuple(excluded),
        extras=dict(extras),
    )


def shard(name: str, rows: int, number: int = 0, suffix: str = "parquet") -> Shard:
    digest = f"{number:064x}"
    return Shard(f"{name}/part-{number:05d}-{digest[:16]}.{suffix}", rows, 1, 1000, digest)


def extra(name: str, rows: int, layout: str = "parquet", suffix: str = "parquet") -> ExtraEntry:
    return ExtraEntry(layout, False, "", rows, (shard(name, rows, suffix=suffix),))


def changed(record: RolloutRecord, **fields: Any) -> RolloutRecord:
    """The same with other fields of its rollout."""
    return replace(record, rollout=replace(record.rollout, **fields))


def markdown() -> MarkdownIt:
    """As strict as a page needs it: tables, raw HTML and struck text are read."""
    return MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"])


def body_of(card: str) -> str:
    return card.split("\n---\n", 1)[1]


def pieces(text: str) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """The structure of a text as a renderer reads it: kinds, tags, and every address.
    Neighbouring pieces of text are one."""
    for token in markdown().parse(text):
        for each in [token, *(token.children or ())]:
            if each.type not in ("text", "text_special", "inline", "softbreak"):
                yield each.type, each.tag, tuple(map(str, each.attrs.values()))


def words(text: str) -> list[str]:
    """What a reader sees, a block at a time."""
    return [
        "".join(
            "\n" if each.type == "softbreak" else each.content for each in token.children or ()
        )
        for token in markdown().parse(text)
        if token.type == "inline"
    ]
