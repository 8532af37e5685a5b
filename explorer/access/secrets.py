"""Keeps secrets out of logs: one filter on the handler that every record passes.

Owns: what a secret looks like in a line of a log, and what of a record is read.
Must not know: who logs.

Two ways of seeing meet here. By place: what stands after `?token=` or `Authorization:` is
cut whatever it is, since a log has no use for it. By look: what the scanner of traces knows
(keys of services, private keys, JSON Web Tokens) is cut wherever it stands.
"""

from __future__ import annotations

import logging
import re
import sys
import threading
from types import TracebackType
from typing import Any

from explorer.trace.secret_text import Masker

MASK = "***"
# Our own keys and tokens keep 8 characters, to tell them apart.
_OWN = r"(?P<own>rx[kat]_[A-Za-z0-9_-]{8})[A-Za-z0-9_-]+"
_PATH = r"(?P<path>/k/)[^/\s\"'?]+"
# In an address every one of these is a secret, however short.
_QUERY = (
    r"(?P<query>[?&](?:key|api_key|apikey|access_token|id_token|refresh_token|token|code|state"
    r"|nonce|code_verifier|client_secret|password|session|sig|signature)=)[^&#\s\"'<>]+"
)
# A whole header: a cookie line has several values.
_COOKIE = (
    r"(?P<cookie>\b(?:set-)?cookie[\"']?\s*[:=,]\s*(?:b(?=[\"']))?[\"']?)[^\"'\r\n)}\]]+"
    r"|(?P<host>__(?:Host|Secure)-[\w-]+=)[^;\s\"',)}\]]+"
)
_HEADER = (
    r"(?P<header>\b(?:proxy-authorization|authorization|x-api-key|x-goog-api-key|api-key)"
    r"[\"']?\s*[:=,]\s*(?:b(?=[\"']))?[\"']?(?:bearer\s+|basic\s+)?)[^\s\"',;)}\]]+"
)
# Forms, JSON, and the text of Python's dictionaries.
_FIELD = (
    r"(?P<field>\b(?:code_verifier|client_secret|id_token|access_token|refresh_token"
    r"|session_token|admin_token|capture_key|api_key|password)"
    r"(?:[\"']\s*[:,]\s*|=)(?:b(?=[\"']))?[\"']?)[^\s\"'&,;)}\]]{6,}"
    r"|(?P<flow>(?<![\w.])(?:code|state|nonce)(?:[\"']\s*:\s*|=)[\"']?)[A-Za-z0-9._~+/-]{16,}"
)
_SECRETS = re.compile("|".join((_OWN, _PATH, _QUERY, _COOKIE, _HEADER, _FIELD)), re.IGNORECASE)
_LOOKS = Masker()


def mask_secrets(text: str) -> str:
    """`text` with every secret cut; our own keep 8 characters, to tell them apart."""
    text = _SECRETS.sub(lambda found: "".join(filter(None, found.groups())) + MASK, text)
    data = text.encode("utf-8", "surrogatepass")
    parts, at = [], 0
    for start, end in _LOOKS.spans(data):
        parts += [data[at:start], MASK.encode()]
        at = end
    return b"".join((*parts, data[at:])).decode("utf-8", "surrogatepass") if parts else text


class MaskSecrets(logging.Filter):
    """Masks the message, the traceback and the stack of every record that passes."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Always True; the record is changed in place."""
        try:
            message = record.getMessage()
        except (TypeError, ValueError, KeyError, IndexError) as error:
            # Left alone, the handler would print the arguments as they are.
            message = f"{record.msg} (its arguments do not fit: {type(error).__name__})"
        record.msg, record.args = mask_secrets(message), None
        if record.exc_info and not record.exc_text:
            record.exc_text = logging.Formatter().formatException(record.exc_info)
        if record.exc_text:
            record.exc_text = mask_secrets(record.exc_text)
        if record.stack_info:
            record.stack_info = mask_secrets(record.stack_info)
        return True


def log_uncaught() -> None:
    """Sends what ends the process or a thread, and warnings, through logging: Python would
    print them beside it, as they are."""
    log = logging.getLogger("explorer")

    def uncaught(
        kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        if issubclass(kind, KeyboardInterrupt):
            sys.__excepthook__(kind, error, trace)
            return
        log.critical("the process ended by an error", exc_info=(kind, error, trace))

    def in_thread(args: Any) -> None:
        if args.exc_type is not SystemExit:
            what = (args.exc_type, args.exc_value, args.exc_traceback)
            log.critical("a thread ended by an error", exc_info=what)

    sys.excepthook = uncaught
    threading.excepthook = in_thread
    logging.captureWarnings(True)
