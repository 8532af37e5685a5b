"""What somebody wants a dataset to be, read from a form or a body with errors that say what
to change.

Owns: the fields, and the rule that the public is chosen twice.
Must not know: who may publish, jobs, routes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from explorer.errors import InvalidValue
from explorer.export.adapters.registry import ADAPTERS
from explorer.export.card.choice import CardChoice, checked_choice, choice_to_json
from explorer.export.hub.names import checked_name
from explorer.export.publishing.jobs import Choices
from explorer.export.publishing.where import Place, Where, read_where
from explorer.web.api_requests import only, text

GATES = ("", "auto", "manual")
_CARD = ("title", "licence", "licence_name", "licence_link", "gate_prompt", "description")
FIELDS = frozenset(
    (*_CARD, "view", "query", "target", "private", "confirm", "gated", "formats", "bodies",
     "token")
)  # fmt: skip
MOST_TOKEN = 400


@dataclass(frozen=True, slots=True)
class Wanted:
    """A dataset that somebody wants.

    Attributes:
        where: None where no place is named.
        token: that was typed; empty where it was not.
    """

    view: str
    query: str
    where: Where | None
    choices: Choices
    token: str = field(default="", repr=False)


def read_wanted(body: Mapping[str, Any], more: frozenset[str] = frozenset()) -> Wanted:
    """What a body wants.

    Raises:
        InvalidValue: names the field.
    """
    only(body, FIELDS | more)
    view, query = _string(body, "view"), _string(body, "query")
    if view and query:
        raise InvalidValue("name a `view` or give a `query`, not both", path="$.view")
    gated = _gate(body)
    card = checked_choice(
        CardChoice(**{name: _string(body, name) for name in _CARD}, gated=bool(gated))
    )
    where = read_target(body)
    if gated and where is not None and where.place is not Place.DATASET:
        raise InvalidValue("only a dataset of the Hub has a gate; ask for none", path="$.gated")
    private = _flag(body, "private", True)
    if not private:
        require_confirmed(where, body)
    formats = tuple(_strings(body, "formats"))
    choices = Choices(
        target=where.text if where is not None else "",
        card=choice_to_json(card),
        private=private,
        gated=gated,
        formats=formats,
        bodies=_flag(body, "bodies", False) or needs_bodies(formats),
    )
    return Wanted(view, query, where, choices, read_token(body))


def read_target(body: Mapping[str, Any]) -> Where | None:
    """Where it is to go; its name is checked before anything is done.

    Raises:
        InvalidValue: the name breaks the Hub's rule, which is spelled out.
    """
    given = _string(body, "target")
    return checked_where(read_where(given)) if given else None


def checked_where(where: Where) -> Where:
    """The target, where the Hub would take its name.

    Raises:
        InvalidValue, PublishFailed: it would not.
    """
    if where.place is Place.DATASET:
        checked_name(where.name)
    return where


def require_confirmed(where: Where | None, body: Mapping[str, Any]) -> None:
    """That what everybody may see was named twice.

    Raises:
        InvalidValue: it was not.
    """
    if where is None:
        raise InvalidValue("name the `target` that everybody may see", path="$.target")
    if _string(body, "confirm") != where.name:
        raise InvalidValue(
            f"everybody may see it then: type its name, {where.name}, again in `confirm`",
            path="$.confirm",
        )


def read_token(body: Mapping[str, Any]) -> str:
    """A token that was typed; never in an error.

    Raises:
        InvalidValue: it is none.
    """
    given = body.get("token", "")
    if not isinstance(given, str) or len(given) > MOST_TOKEN or not given.isascii():
        raise InvalidValue("`token` is the text of a token of the Hub", path="$.token")
    if any(letter.isspace() for letter in given.strip()):
        raise InvalidValue("`token` holds a space; paste the token alone", path="$.token")
    return given.strip()


def needs_bodies(formats: Sequence[str]) -> bool:
    """Whether one of these formats is made of requests and replies."""
    unknown = sorted(set(formats) - set(ADAPTERS))
    if unknown:
        raise InvalidValue(
            f"there is no format {unknown[0][:40]!r}; there are "
            f"{', '.join(ADAPTERS) or 'none but Parquet'}",
            path="$.formats",
        )
    return any(ADAPTERS[name].needs_texts for name in formats)


def with_links(choices: Choices, public_url: str | None) -> Choices:
    """With the address that rollouts link back to, where people reach it."""
    if not public_url:
        return choices
    return replace(choices, card={**choices.card, "link_base": public_url.rstrip("/")})


def form_body(given: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """The fields of a form in the shape of the API's body."""
    body: dict[str, Any] = {
        name: values[0] for name, values in given.items() if name != "formats"
    }
    if "formats" in given:
        body["formats"] = list(given["formats"])
    if "visibility" in body:
        body["private"] = body.pop("visibility") != "public"
    if "bodies" in body:
        body["bodies"] = body["bodies"] == "1"
    return body


def _gate(body: Mapping[str, Any]) -> str:
    gated = body.get("gated") or ""
    if gated == "no" or gated is False:
        gated = ""
    if gated not in GATES:
        raise InvalidValue("`gated` is no, auto or manual", path="$.gated")
    return str(gated)


def _flag(body: Mapping[str, Any], name: str, default: bool) -> bool:
    value = body.get(name, default)
    if type(value) is not bool:
        raise InvalidValue(f"`{name}` is true or false", path=f"$.{name}")
    return value


def _string(body: Mapping[str, Any], name: str) -> str:
    value = body.get(name)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise InvalidValue(f"`{name}` is a text", path=f"$.{name}")
    return value.strip()


def _strings(body: Mapping[str, Any], name: str) -> list[str]:
    value = body.get(name, [])
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise InvalidValue(f"`{name}` is a list of names", path=f"$.{name}")
    return list(dict.fromkeys(value))


def read_reason(body: Mapping[str, Any]) -> str:
    """Why something is taken back.

    Raises:
        InvalidValue: nothing is said.
    """
    found = text(body, "reason")
    if found is None:
        raise InvalidValue("give `reason`: readers see it where the data was", path="$.reason")
    return found
