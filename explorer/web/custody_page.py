"""The custody tab: the hash chain, the receipts, and whether what was issued still follows.

Owns: what stands in it. Must not know: HTTP, how receipts come about.
"""

from __future__ import annotations

from explorer.export.judged import Judged
from explorer.export.sealing import Custody, Issued
from explorer.trace.checks import kept_by_worker
from explorer.trace.custody_links import HOLDS, Rebuilt, link_codes, rebuilt
from explorer.web import words
from explorer.web.contexts import Frame
from explorer.web.contexts_custody import CustodyPage, CustodyRow, ReceiptRow
from explorer.web.contexts_rollout import Header
from explorer.web.frames import rollout_href
from explorer.web.pretty import safe_text


def custody_page(
    judged: Judged, frame: Frame, header: Header, custody: Custody | None, *, check: bool
) -> CustodyPage:
    """The page.

    Args:
        custody: None where parts are hidden from the reader, or nothing issues receipts.
        check: whether every link is made again.
    """
    check = check and custody is not None
    codes = link_codes(custody.calls) if check and custody is not None else {}
    last = _last(custody) if check else None
    return CustodyPage(
        frame=frame,
        header=header,
        rows=_rows(judged, codes),
        recorded=sum(call.chain_hash is not None for call in judged.record.calls),
        receipts=() if custody is None else tuple(map(_receipt, custody.receipts)),
        covered=judged.cover is not None,
        checked=check,
        check_href=rollout_href(judged.record.rollout.rollout_id, "custody", check=1),
        receipts_href=f"/api/v1/rollouts/{judged.record.rollout.rollout_id}/receipts",
        held=sum(code == HOLDS for code in codes.values()),
        rebuilt_code="" if last is None else last.code,
        rebuilt_tokens=None if last is None or last.row is None else len(last.row.token_ids),
        rebuilt_generated=None
        if last is None or last.row is None
        else int(sum(last.row.token_mask)),
        external=sum(map(kept_by_worker, judged.record.calls)),
        unknown_weights=0 if custody is None else custody.calls.unknown_weights,
    )


def _rows(judged: Judged, codes: dict[str, str]) -> tuple[CustodyRow, ...]:
    rollout_id = judged.record.rollout.rollout_id
    return tuple(
        CustodyRow(
            short_call=words.short_id(call.call_id),
            call_href=rollout_href(rollout_id, f"requests/{call.call_id}"),
            sequence=call.sequence,
            parent=words.short_id(call.stored_parent_id)
            if call.stored_parent_id
            else words.NONE,
            tokens=None
            if call.prompt_len is None
            else call.prompt_len + (call.completion_len or 0),
            chain_hash=call.chain_hash.hex() if call.chain_hash else "not recorded",
            experts=safe_text(_experts(call.routed_experts)),
            link="kept_by_a_worker"
            if codes and kept_by_worker(call)
            else codes.get(str(call.call_id), ""),
        )
        for call in judged.record.calls
    )


def _experts(commitment: str | None) -> str:
    """What is committed to: the digest itself is in the manifest."""
    return "" if commitment is None else " ".join(commitment.split(":")[1:3])


def _receipt(issued: Issued) -> ReceiptRow:
    now = None if issued.now is None else issued.now.receipt
    seal = issued.seal
    return ReceiptRow(
        number=issued.number,
        sha256="" if issued.now is None else issued.now.sha256,
        issued="" if seal is None else words.clock(seal.time_us),
        issued_stamp="" if seal is None else words.iso(seal.time_us) or "",
        issued_sha256="" if seal is None else seal.sha256,
        reward=None if now is None else now.reward,
        terminal=words.short_id(now.terminal_model_call_id)
        if now is not None and now.terminal_model_call_id
        else words.NONE,
        found_by=words.NONE if now is None else now.terminal_selection or words.NONE,
        trail="" if now is None else safe_text(_trail(now.terminal_attribution_reason or "")),
        poisoned="" if now is None else safe_text(now.failure_reason or ""),
        state=issued.state,
        signature=str(issued.signed),
        key_id="" if seal is None else seal.key_id or "",
    )


def _trail(reason: str) -> str:
    """Without the witness that is never asked here: nobody gives a scored response."""
    return ",".join(part for part in reason.split(",") if part != "no_response_object")


def _last(custody: Custody | None) -> Rebuilt | None:
    """The last receipt that names a scored call, rebuilt."""
    if custody is None:
        return None
    named = [
        each.now.receipt
        for each in custody.receipts
        if each.now is not None and not each.now.receipt.capture_poisoned
    ]
    return rebuilt(named[-1], custody.calls) if named else None
