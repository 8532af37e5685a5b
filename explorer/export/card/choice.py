"""What a person chooses about a card: everything on it that is not measured.

Owns: the choice, its rules in words, and its JSON.
Must not know: manifests, what a card looks like, the Hub.
"""

from __future__ import annotations

import unicodedata
from dataclasses import asdict, dataclass, fields, replace
from typing import Any
from urllib.parse import urlsplit

from explorer.errors import InvalidValue
from explorer.export.card.licences import LICENCES, OTHER

TITLE, NAME, LINK, TEXT = 120, 120, 500, 5000


@dataclass(frozen=True, slots=True)
class CardChoice:
    """What the person who publishes says.

    Attributes:
        title: of the dataset, for people.
        licence: an id of `LICENCES`; `other` needs the next two.
        licence_name, licence_link: of a licence that the Hub does not know.
        gated: whether the card says that access is asked for; the gate itself is the Hub's.
        gate_prompt: what is shown to whoever asks.
        description: the person's own words.
        link_base: address of the explorer that has the rollouts.
    """

    title: str
    licence: str
    licence_name: str = ""
    licence_link: str = ""
    gated: bool = False
    gate_prompt: str = ""
    description: str = ""
    link_base: str = ""


def checked_choice(choice: CardChoice) -> CardChoice:
    """The choice without spaces around its texts.

    Raises:
        InvalidValue: names the field and what may stand there.
    """
    choice = _stripped(choice)
    for name, limit in (
        ("title", TITLE),
        ("licence_name", NAME),
        ("licence_link", LINK),
        ("gate_prompt", TEXT),
        ("description", TEXT),
        ("link_base", LINK),
    ):
        value = getattr(choice, name)
        _text(name, value, limit, lines=name in ("gate_prompt", "description"))
    if not choice.title:
        raise InvalidValue(f"a dataset needs a title: 1 to {TITLE} characters", path="title")
    _licence(choice)
    for name in ("licence_link", "link_base"):
        if getattr(choice, name):
            _link(name, getattr(choice, name))
    if choice.gate_prompt and not choice.gated:
        raise InvalidValue(
            "words for whoever asks for access need a dataset that is gated: choose a gate or "
            "leave them out",
            path="gate_prompt",
        )
    return replace(choice, link_base=choice.link_base.rstrip("/"))


def _stripped(choice: CardChoice) -> CardChoice:
    made: dict[str, Any] = {}
    for item in fields(CardChoice):
        value = getattr(choice, item.name)
        if item.name == "gated":
            if type(value) is not bool:
                raise InvalidValue("`gated` is true or false", path="gated")
        elif not isinstance(value, str):
            raise InvalidValue(f"`{item.name}` is a text", path=item.name)
        else:
            made[item.name] = value.replace("\r\n", "\n").strip()
    return replace(choice, **made)


def _licence(choice: CardChoice) -> None:
    if not choice.licence:
        raise InvalidValue(
            "a dataset needs a licence: without one nobody may use it; take one of "
            f"{_shown()}, or `{OTHER}` with its name and a link",
            path="licence",
        )
    if choice.licence not in LICENCES:
        raise InvalidValue(
            f"{choice.licence[:40]!r} is no licence id that the Hub knows; it knows "
            f"{_shown()} and others, and `{OTHER}` with a name and a link",
            path="licence",
        )
    named = bool(choice.licence_name) and bool(choice.licence_link)
    if choice.licence == OTHER and not named:
        raise InvalidValue(
            f"the licence `{OTHER}` needs its name and a link to its text",
            path="licence_name" if not choice.licence_name else "licence_link",
        )
    if choice.licence != OTHER and (choice.licence_name or choice.licence_link):
        raise InvalidValue(
            f"a name and a link belong to the licence `{OTHER}`; {choice.licence!r} has its "
            "own",
            path="licence_name" if choice.licence_name else "licence_link",
        )


def _shown() -> str:
    return ", ".join(list(LICENCES)[:8])


def _text(name: str, value: str, limit: int, *, lines: bool) -> None:
    if len(value) > limit:
        raise InvalidValue(
            f"`{name}` has {len(value)} characters; at most {limit} fit", path=name
        )
    for character in value:
        if lines and character in "\n\t":
            continue
        # Control and format characters turn what is read into something else.
        kind = unicodedata.category(character)
        if kind in ("Cc", "Cs", "Zl", "Zp") or (kind == "Cf" and character != "\u200d"):
            raise InvalidValue(
                f"`{name}` holds U+{ord(character):04X}, a character that cannot be seen; "
                "take it out",
                path=name,
            )


def _link(name: str, value: str) -> None:
    try:
        parts = urlsplit(value)
        good = (
            parts.scheme in ("http", "https")
            and bool(parts.hostname)
            and parts.username is None
            and parts.port != 0
        )
    except ValueError:
        good = False
    if not good or any(character in value for character in " \t<>\"'`\\|{}[]()^"):
        raise InvalidValue(
            f"`{name}` is an address that begins with https:// or http://, without a user's "
            "name, spaces, quotes or brackets",
            path=name,
        )


def choice_to_json(choice: CardChoice) -> dict[str, Any]:
    """As it is kept with a job or a schedule."""
    return asdict(choice)


def choice_from_json(values: Any) -> CardChoice:
    """A checked choice from what was kept or sent.

    Raises:
        InvalidValue: a field is missing, unknown, or breaks its rule.
    """
    if not isinstance(values, dict):
        raise InvalidValue("what is chosen about a card is an object")
    known = {item.name for item in fields(CardChoice)}
    unknown = sorted(str(key) for key in values if key not in known)
    if unknown:
        raise InvalidValue(
            f"a card has no {unknown[0][:40]!r}; it may have: {', '.join(sorted(known))}"
        )
    for name in ("title", "licence"):
        if name not in values:
            raise InvalidValue(f"a card needs a {name}", path=name)
    return checked_choice(CardChoice(**values))
