"""Builds the provenance and findings tabs.

Owns: what these tabs say. Must not know: HTML, HTTP.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import orjson

from explorer import __version__
from explorer.export.judged import Judged
from explorer.records import CallId, Certificate, EventKind, Finding, MaskReason
from explorer.trace.atif import agreement
from explorer.trace.token_in import counted, in_words
from explorer.trace.trajectory import PAYLOAD_KEY, trajectory_of
from explorer.trace.versions import Line, rollout_versions
from explorer.web import words
from explorer.web.calls import compact, versions_text
from explorer.web.contexts import Frame, Measurement
from explorer.web.contexts_rollout import Header
from explorer.web.contexts_secrets import SecretsPart
from explorer.web.contexts_tabs import (
    Fact,
    FindingRow,
    FindingsPage,
    ProvenancePage,
    SamplingRow,
    VersionRow,
)
from explorer.web.deciding import decision_form, decision_rows
from explorer.web.frames import rollout_href
from explorer.web.pretty import safe_text
from explorer.web.reasons import MEANINGS
from explorer.web.turn_tree import TurnTree, named_calls
from explorer.web.version_words import age_words


def engine_words(kind: str, name: str) -> str:
    """Kind and name of an engine, once when they are the same."""
    return name if kind == name else " · ".join(part for part in (kind, name) if part)


def fact(name: str, value: object) -> Fact:
    """A named fact; what was not recorded says so."""
    known = value not in (None, "", {}, ())
    text = value if isinstance(value, str) else compact(value)
    return Fact(name, safe_text(text) if known else words.UNKNOWN, known)


def facts_of(values: dict[str, Any]) -> tuple[Fact, ...]:
    """A recorded dictionary as facts."""
    return tuple(fact(safe_text(str(name)), value) for name, value in values.items())


def provenance_page(judged: Judged, frame: Frame, header: Header, line: Line) -> ProvenancePage:
    """What made these tokens; "unknown" in plain sight."""
    rollout = judged.record.rollout
    served = sorted({call.model_served for call in judged.record.calls if call.model_served})
    engine = (
        fact("engine", engine_words(rollout.engine_kind, rollout.engine_name)),
        fact("engine version", rollout.engine_version),
        fact("model", rollout.model),
        fact("model served", ", ".join(served)),
        fact("tokenizer", rollout.tokenizer_id),
        fact("chat template SHA-256", rollout.chat_template_sha256),
        fact("token-in", token_in_words(judged)),
        fact("harness", rollout.harness),
        fact("harness version", rollout.harness_version),
        fact("harness configuration SHA-256", rollout.harness_config_sha256),
        fact("created", words.clock(rollout.created_us)),
        fact("captured by version", rollout.app_version),
        fact("shown by version", __version__),
        fact("inputs of the verdict, SHA-256", judged.judgement.inputs_sha256),
    )
    told = _told_at_close(judged)
    return ProvenancePage(
        frame=frame,
        header=header,
        engine=engine,
        certificate=_proved(judged.record.certificate),
        policy=(
            *(
                Fact(name, value if isinstance(value, str) else compact(value), True)
                for name, value in judged.judgement.policy.describe().items()
            ),
            Fact("digest of the switches", judged.judgement.policy.sha256, True),
        ),
        sampling=sampling_rows(judged),
        versions=_version_rows(judged, line),
        newest=line.newest,
        metadata=facts_of(rollout.metadata),
        budgets=(
            fact("streaming", rollout.streaming.value),
            *facts_of(rollout.budgets),
        ),
        ending=facts_of({k: v for k, v in told.items() if k not in _SHOWN_ELSEWHERE}),
        stdout_tail=safe_text(str(told.get("stdout_tail", ""))),
        stderr_tail=safe_text(str(told.get("stderr_tail", ""))),
        drift_href=rollout_href(rollout.rollout_id, "drift"),
    )


def _proved(certificate: Certificate | None) -> tuple[Fact, ...]:
    if certificate is None:
        return ()
    return (
        fact("certificate", certificate.certificate_id),
        fact(
            "measured",
            "never: imported"
            if certificate.engine_kind == "imported"
            else words.clock(certificate.time_us),
        ),
        fact("logprobs", certificate.logprob_kind.value),
        fact("capture level", certificate.capture_level.value),
        fact("passing", "yes" if certificate.passing else "no"),
        fact("fingerprint", certificate.fingerprint),
        *(fact("failure", failure) for failure in certificate.failures),
        *(fact(item.name, item.value) for item in measurements(certificate.numbers)),
    )


def token_in_words(judged: Judged) -> str:
    """Whether the model read the harness's own rendering of a conversation."""
    if not judged.record.rollout.token_in:
        return "off: the engine rendered every prompt from messages"
    return in_words(counted(judged.record.calls))


_SHOWN_ELSEWHERE = ("stdout_tail", "stderr_tail", PAYLOAD_KEY)


def _told_at_close(judged: Judged) -> dict[str, Any]:
    """What a runner said about the harness when it closed the rollout."""
    closed = [e for e in judged.record.events if e.kind is EventKind.CLOSED]
    return closed[-1].payload if closed else {}


def measurements(numbers: dict[str, Any]) -> tuple[Measurement, ...]:
    """A probe's numbers as lines, nested ones with dotted names."""
    lines: list[Measurement] = []

    def walk(prefix: str, value: object) -> None:
        if isinstance(value, dict) and value:
            for name, inner in value.items():
                walk(f"{prefix}.{name}" if prefix else str(name), inner)
        elif isinstance(value, str):
            lines.append(Measurement(prefix, value))
        else:
            lines.append(Measurement(prefix, orjson.dumps(value, default=str).decode()))

    walk("", numbers)
    return tuple(item for item in lines if item.name)


def _version_rows(judged: Judged, line: Line) -> tuple[VersionRow, ...]:
    """The rollout's tokens by weight version; none where nobody told any."""
    found = rollout_versions(judged.record.calls, judged.judgement.masks, line)
    if line.newest is None and all(share.version is None for share in found.mix):
        return ()
    return tuple(
        VersionRow(
            version=share.version,
            sampled=share.sampled,
            trained=share.trained,
            calls=share.calls,
            behind=share.behind,
            age=age_words(line, share.version, share.first_us),
        )
        for share in found.mix
    )


def sampling_rows(judged: Judged) -> tuple[SamplingRow, ...]:
    """Sampling per call, equal calls joined into one line."""
    joined: dict[tuple[str, str, str], list[int]] = defaultdict(list)
    for call in judged.record.calls:
        asked, sent = compact(call.requested_sampling), compact(call.submitted_sampling)
        joined[asked, sent, versions_text(call)].append(call.sequence)
    return tuple(
        SamplingRow(ranges(numbers), asked, sent, versions)
        for (asked, sent, versions), numbers in joined.items()
    )


def ranges(numbers: list[int]) -> str:
    """`0–3, 5` for 0 1 2 3 5."""
    parts: list[list[int]] = []
    for number in sorted(numbers):
        if parts and number == parts[-1][-1] + 1:
            parts[-1].append(number)
        else:
            parts.append([number])
    return ", ".join(f"{p[0]}–{p[-1]}" if len(p) > 1 else str(p[0]) for p in parts)


def finding_row(judged: Judged, finding: Finding, labels: Mapping[CallId, str]) -> FindingRow:
    """One finding with links to what it points at; `labels` are the turn tree's."""
    rollout_id, where = judged.record.rollout.rollout_id, finding.where
    call_href = token_href = None
    words_where = "the rollout"
    if where.call_id is not None:
        call_href = rollout_href(rollout_id, f"requests/{where.call_id}")
        calls = {call.call_id: call for call in judged.record.calls}
        call = calls.get(where.call_id)
        words_where = f"call {call.sequence}" if call else f"call {where.call_id}"
        if where.call_id in labels:
            words_where = f"turn {labels[where.call_id]} ({words_where})"
        if where.start is not None and where.call_id in judged.judgement.masks:
            last = where.end if where.end is not None else where.start + 1
            words_where += (
                f", token {where.start:,}"
                if last - where.start == 1
                else f", tokens {where.start:,}–{last - 1:,}"
            )
            page = rollout_href(rollout_id, "tokens", branch=where.call_id, t=where.start)
            token_href = f"{page}#t{where.start}"
        elif where.call_id in labels:
            page = rollout_href(rollout_id, "tokens", branch=where.call_id)
            mask = judged.judgement.masks[where.call_id]
            token_href = f"{page}#t{mask.prompt_len}" if mask.length else None
    return FindingRow(
        code=finding.code,
        grade=finding.grade.value,
        message=safe_text(named_calls(finding.message, labels)),
        hint=finding.hint,
        where=words_where,
        call_href=call_href,
        token_href=token_href,
    )


def findings_page(
    judged: Judged,
    frame: Frame,
    header: Header,
    query: Mapping[str, str],
    secrets: SecretsPart | None,
) -> FindingsPage:
    """Findings worst first, sampled tokens by mask reason, and what people decided."""
    skip = (MaskReason.PROMPT, MaskReason.ENVIRONMENT)
    counts = judged.judgement.mask_counts
    masked = tuple(
        (reason.value, counts[reason], MEANINGS[reason])
        for reason in sorted(counts, key=lambda reason: -counts[reason])
        if reason not in skip and counts[reason]
    )
    labels = TurnTree(judged).labels
    return FindingsPage(
        frame=frame,
        header=header,
        findings=tuple(finding_row(judged, item, labels) for item in judged.judgement.findings),
        masked=masked,
        trajectory=trajectory_facts(judged),
        decisions=decision_rows(judged),
        form=decision_form(judged, query),
        secrets=secrets,
    )


def trajectory_facts(judged: Judged) -> tuple[Fact, ...]:
    """What the harness's own trajectory came to, if one was given."""
    told = trajectory_of(judged.record.events)
    if told is None:
        return ()
    return (
        fact("result", agreement(judged.judgement.findings).value),
        fact("version", told.version),
        fact("agent", told.agent),
        fact("steps with a model call", str(len(told.steps))),
        fact("subagents", str(len(told.subagents))),
        fact("document SHA-256", told.sha256),
    )
