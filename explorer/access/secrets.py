"""Keeps secrets out of logs: one filter on the handler that every record passes.

Owns: what a secret looks like in a line of text, and in the text of a trace.
Must not know: who logs.
"""

from __future__ import annotations

import logging
import re

MASK = "***"
# Our own keys and tokens by their prefix; others by the place they stand in.
_SECRETS = re.compile(
    r"(?P<own>rx[ka]_[A-Za-z0-9_-]{8})[A-Za-z0-9_-]+"
    r"|(?P<path>/k/)[^/\s\"'?]+"
    r"|(?P<query>[?&](?:key|api_key|access_token|token)=)[^&\s\"']+"
    r"|(?P<header>(?:authorization|x-api-key|x-goog-api-key|api-key|cookie)"
    r"[\"']?\s*[:=,]\s*(?:b(?=[\"']))?[\"']?(?:bearer\s+|basic\s+)?)[^\s\"',;)}\]]+",
    re.IGNORECASE,
)


def mask_secrets(text: str) -> str:
    """`text` with every secret cut; our own keep 8 characters, to tell them apart."""
    return _SECRETS.sub(lambda found: "".join(filter(None, found.groups())) + MASK, text)


# In a trace, words such as "token=" are mostly code about tokens: only what looks like a
# credential by itself is one.
_CREDENTIALS = re.compile(
    r"rx[ka]_[A-Za-z0-9_-]{8,}|(?<=/k/)[A-Za-z0-9_-]{16,}|\bsk-[A-Za-z0-9_-]{16,}"
    r"|\bhf_[A-Za-z0-9]{20,}|\bgh[pousr]_[A-Za-z0-9]{20,}|\bAKIA[0-9A-Z]{16}\b"
    r"|(?<=[Bb]earer )[A-Za-z0-9._~+/-]{16,}"
)


def blank_credentials(text: str) -> str:
    """`text` with every credential overwritten, every other character in its place."""
    return _CREDENTIALS.sub(lambda found: "*" * len(found.group()), text)


class MaskSecrets(logging.Filter):
    """Masks the message and the traceback of every record that passes."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Always True; the record is changed in place."""
        record.msg, record.args = mask_secrets(record.getMessage()), None
        if record.exc_info and not record.exc_text:
            record.exc_text = logging.Formatter().formatException(record.exc_info)
        if record.exc_text:
            record.exc_text = mask_secrets(record.exc_text)
        return True
