"""Which dialect an address speaks, and what is asked at it.

Owns: every wire route of every dialect.
Must not know: keys, engines; the capture key is out of the path already.

Paths match whatever their case (Gemini clients differ), with or without a version prefix
said twice, since base addresses are given both with and without ``/v1``, and with or without a
slash at their end. A model's name may hold slashes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum, auto
from urllib.parse import parse_qsl, unquote

from explorer.wire import chat, completions, google, messages, responses
from explorer.wire.protocol import PLAIN, Target, Wire


class Action(Enum):
    """What a route is for."""

    GENERATE = auto()
    COUNT = auto()
    MODELS = auto()
    MODEL = auto()


@dataclass(frozen=True, slots=True)
class Route:
    """One recognised address; `model` names the one asked for by `Action.MODEL`."""

    wire: Wire
    action: Action
    target: Target = PLAIN


_POST: dict[str, tuple[Wire, Action]] = {
    "/chat/completions": (chat, Action.GENERATE),
    "/completions": (completions, Action.GENERATE),
    "/responses": (responses, Action.GENERATE),
    "/responses/input_tokens": (responses, Action.COUNT),
    "/messages": (messages, Action.GENERATE),
    "/messages/count_tokens": (messages, Action.COUNT),
}
_GOOGLE = re.compile(
    r"/(?:v1|v1beta|v1alpha)(?:/v1beta)?/(?:models|tunedmodels)/([^:]+):(\w+)", re.IGNORECASE
)
_GOOGLE_METHODS = {
    "generatecontent": Action.GENERATE,
    "streamgeneratecontent": Action.GENERATE,
    "counttokens": Action.COUNT,
}
_MODELS = re.compile(r"/(v1|v1beta|v1alpha)/models(?:/([^:]+))?", re.IGNORECASE)
_SLASHES = re.compile("/{2,}")
_DOUBLED = re.compile(r"^(?:/v1)+(?=/)", re.IGNORECASE)

# For errors about these the dialect is clear although the route is none.
_HINTS: tuple[tuple[str, Wire], ...] = (
    ("/messages", messages),
    ("generatecontent", google),
    ("/v1beta", google),
    ("/responses", responses),
)
ROUTES_IN_WORDS = (
    "POST /v1/chat/completions, /v1/completions, /v1/responses, /v1/responses/input_tokens, "
    "/v1/messages, /v1/messages/count_tokens, /v1beta/models/{model}:generateContent, "
    ":streamGenerateContent, :countTokens, GET /v1/models and /v1beta/models"
)


def find_route(method: str, path: str, query: bytes = b"") -> Route | None:
    """The route at `path`, None when there is none."""
    path = _SLASHES.sub("/", path.rstrip("/"))
    google_call = _GOOGLE.fullmatch(path)
    if google_call is not None and method == "POST":
        action = _GOOGLE_METHODS.get(google_call[2].lower())
        if action is None:
            return None
        streamed = google_call[2].lower().startswith("stream")
        asked = dict(parse_qsl(query.decode("latin-1")))
        target = Target(
            model=unquote(google_call[1]), stream=streamed, sse=asked.get("alt") == "sse"
        )
        return Route(google, action, target)
    listed = _MODELS.fullmatch(path)
    if listed is not None and method in ("GET", "HEAD"):
        wire: Wire = chat if listed[1].lower() == "v1" else google
        if listed[2] is None:
            return Route(wire, Action.MODELS)
        return Route(wire, Action.MODEL, Target(model=unquote(listed[2])))
    if method == "POST":
        # With, without or twice `/v1`: base addresses are given in every form.
        tail = _DOUBLED.sub("", path.lower(), count=1)
        found = _POST.get(tail)
        return None if found is None else Route(*found)
    return None


def wire_at(path: str) -> Wire:
    """The dialect in which to answer at `path`, route or not."""
    lower = path.lower()
    return next((wire for part, wire in _HINTS if part in lower), chat)
