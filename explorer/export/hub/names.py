"""The rules of names on the Hub, spelled out where one is broken.

Owns: what a name may be, and the sentence that says why one may not.
Must not know: whether it is taken; that only the Hub knows.
"""

from __future__ import annotations

import re

from explorer.errors import HubNameInvalid

LONGEST = 96
RULE = (
    "a name is OWNER/NAME, each of at most 96 of the characters A-Z a-z 0-9 - _ . where "
    "neither begins or ends with - or . and nothing has -- or .. or ends in .git"
)
_ALLOWED = re.compile(r"[A-Za-z0-9._-]*")


def name_problem(name: str) -> str | None:
    """Why the Hub cannot have this name; None where it can. For forms, before anything."""
    if len(parts := name.split("/")) != 2:
        return "it must be OWNER/NAME: the account or organisation that it goes to, and a name"
    for what, part in zip(("owner", "name"), parts, strict=True):
        if problem := _part_problem(part):
            return f"its {what} {problem}"
    if "--" in name or ".." in name:
        return "it has -- or .. in it"
    if name.endswith(".git"):
        return "it ends in .git"
    return None


def _part_problem(part: str) -> str | None:
    if not part:
        return "is empty"
    if not _ALLOWED.fullmatch(part):
        wrong = sorted({letter for letter in part if not _ALLOWED.fullmatch(letter)})
        return f"has {' '.join(ascii(letter) for letter in wrong[:5])} in it"
    if len(part) > LONGEST:
        return f"is {len(part)} characters long; at most {LONGEST} may be"
    if part[0] in "-." or part[-1] in "-.":
        return "begins or ends with - or ."
    return None


def checked_name(name: str) -> str:
    """The name, where the Hub can have it.

    Raises:
        HubNameInvalid: it cannot; the message says why and what the rule is.
    """
    if problem := name_problem(name):
        shown = ascii(name if len(name) <= 120 else name[:120] + "...")
        raise HubNameInvalid(f"{shown} cannot be a name on the Hub: {problem}; {RULE}")
    return name
