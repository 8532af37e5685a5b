"""What the custody tab shows.

Owns: every field of it and its meaning. Must not know: where the values come from.
"""

# ruff: noqa: RUF009 - `said` only calls `dataclasses.field`

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from explorer.web.contexts import Frame, page, said
from explorer.web.contexts_rollout import Header


@dataclass(frozen=True, slots=True)
class CustodyRow:
    """One call in the hash chain."""

    short_call: str = said("The call's id, shortened.")
    call_href: str = said("Address of its request.")
    sequence: int = said("Number in admission order.")
    parent: str = said("Stored parent, shortened, `–` for a root.")
    tokens: int | None = said("Prompt and sampled tokens.")
    chain_hash: str = said("Chain hash as recorded, `not recorded` if it was not.")
    experts: str = said("Type, tokens x layers x choices of the experts; empty: not named.")
    link: str = said("Empty where nothing was checked; `holds`; else what is wrong with it.")


@dataclass(frozen=True, slots=True)
class ReceiptRow:
    """One receipt, as the record gives it now and as it was issued."""

    number: int = said("From 1: the closing, then each reward that was told later.")
    sha256: str = said("Digest of the receipt as the record gives it; empty: it gives none.")
    issued: str = said("When it was issued, empty where it was not.")
    issued_stamp: str = said("The same for machines.")
    issued_sha256: str = said("Digest as it was issued; empty where it was not.")
    reward: float | None = said("The reward that it is about; null: nobody gave one.")
    terminal: str = said("The scored call, shortened; `–` where none could be named.")
    found_by: str = said("How the scored call was found.")
    trail: str = said("What each witness said.")
    poisoned: str = said("Why it names no training row; empty where it names one.")
    state: str = said("`as issued`, `changed since`, `not issued`, or `gone from the record`.")
    signature: str = said(
        "`good`, `bad`, `none`, `missing` though this server signs, `unknown`: another key."
    )
    key_id: str = said("The key that signed it.")


@page
@dataclass(frozen=True, slots=True)
class CustodyPage:
    """`/rollouts/{rollout_id}/custody`: the hash chain and the receipts."""

    template: ClassVar[str] = "custody.html"
    frame: Frame = said("What surrounds the page.")
    header: Header = said("What every tab shows.")
    rows: tuple[CustodyRow, ...] = said("Calls in admission order.")
    recorded: int = said("Calls with a recorded chain hash.")
    receipts: tuple[ReceiptRow, ...] = said("Receipts by number.")
    covered: bool = said("Parts are hidden from this reader, so nothing is checked here.")
    checked: bool = said("Whether links were checked for this page.")
    check_href: str = said("Address of the page with every link checked.")
    receipts_href: str = said("Address of the receipts for programs.")
    held: int = said("Calls whose link holds, of those that were checked.")
    rebuilt_code: str = said("What is wrong with the way to the scored call; empty if nothing.")
    rebuilt_tokens: int | None = said("Tokens from the root to the scored call, if it holds.")
    rebuilt_generated: int | None = said("Of those, tokens that were generated.")
    external: int = said("Calls whose tokens a worker keeps, not this server.")
    unknown_weights: int = said("Calls whose weight version nobody announced; custody says 0.")
