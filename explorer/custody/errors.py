"""What the custody code refuses, each with a stable code.

Owns: the exceptions of this package; they are the standard library's where nobody must catch.
Must not know: anything else.

    CustodyError (ValueError)
      RecordError                a record, row or file content that does not have its form
      FingerprintError           a conversation that cannot be fingerprinted
      LedgerError                a ledger that cannot be read, or a commit that it refuses
      ReceiptVerificationError   a receipt and its staged calls do not agree
        RebuildError             … because the chain of calls does not hold
"""

from __future__ import annotations


class CustodyError(ValueError):
    """Base of all of these; `code` is stable, `detail` is for people."""

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(f"{code}: {detail}")
        self.code = code
        self.detail = detail


class RecordError(CustodyError):
    """A record that does not have its form."""

    def __init__(self, detail: str) -> None:
        super().__init__("invalid_record", detail)


class FingerprintError(CustodyError):
    """A conversation that cannot be fingerprinted."""

    def __init__(self, detail: str) -> None:
        super().__init__("unfingerprintable", detail)


class LedgerError(CustodyError):
    """A ledger that cannot be read, or a commit that it refuses."""


class ReceiptVerificationError(CustodyError):
    """A receipt and its staged calls do not agree."""


class RebuildError(ReceiptVerificationError):
    """The chain of calls behind a receipt does not hold."""
