"""Token-in as a rollout shows it: why a call fell back, and what was avoided altogether.

Owns: the words of the reasons, and the counts of a rollout.
Must not know: tokenizers, engines, pages.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from explorer.records import Call, Fallback

WORDS: dict[str, str] = {
    Fallback.HISTORY_EDITED: "the harness changed a reply that it was given, or earlier "
    "messages",
    Fallback.AMBIGUOUS_PARENT: "several earlier calls gave this reply with other tokens",
    Fallback.SYSTEM_CHANGED: "the system prompt changed",
    Fallback.TOOLS_CHANGED: "the tools changed",
    Fallback.RENDERING_CHANGED: "fields that shape the prompt changed",
    Fallback.PARENT_NOT_CAPTURED: "the tokens of the earlier call are not on record",
    Fallback.PARENT_CUT: "the earlier reply does not end with the template's end of turn",
    Fallback.NOT_TEXT: "a message holds something else than text",
    Fallback.PREFILL: "the last message is to be continued, or none is new",
    Fallback.OWN_IDS: "the harness sent token ids itself",
    Fallback.TEMPLATE_NOT_EXTENDABLE: "the chat template does not only add to what is there",
    Fallback.TEMPLATE_DIFFERS: "the template known here is not the one that the engine used",
    Fallback.NO_TOKENIZER: "no tokenizer is known here, and the engine cannot tokenize",
    Fallback.ENGINE_TAKES_NO_IDS: "the engine takes no ids as a prompt",
    Fallback.REPLY_PARSER_UNKNOWN: "the engine takes ids only without parsing the reply, and "
    "its parser is not known here",
    Fallback.CHAT_ONLY: "the engine takes ids only without what this request asks for",
    Fallback.TOO_LONG: "with the exact ids the prompt would not fit the model's context",
}


@dataclass(frozen=True, slots=True)
class TokenInCounts:
    """What token-in did in a rollout.

    Attributes:
        sent: calls whose prompt was sent as ids.
        avoided: those where rendering the messages would have left the parent's tokens.
        unknown: those where nobody could say.
        differing: those where the engine says that it read other ids.
        fallbacks: calls that fell back, by reason, the most frequent first.
    """

    sent: int
    avoided: int
    unknown: int
    differing: int
    fallbacks: tuple[tuple[str, int], ...]

    @property
    def fell_back(self) -> int:
        """Calls that fell back, for whatever reason."""
        return sum(count for _, count in self.fallbacks)


def counted(calls: Iterable[Call]) -> TokenInCounts:
    """The counts over some calls."""
    found = [call.token_in for call in calls if call.token_in is not None]
    sent = [each for each in found if each.sent]
    # A record may come from somebody's file: only our own words are repeated.
    reasons = Counter(
        each.fallback if each.fallback in WORDS else "other"
        for each in found
        if each.fallback is not None
    )
    return TokenInCounts(
        sent=len(sent),
        avoided=sum(each.avoided_break for each in sent),
        unknown=sum(not each.compared for each in sent),
        differing=sum(each.same is False for each in sent),
        fallbacks=tuple(sorted(reasons.items(), key=lambda item: (-item[1], item[0]))),
    )


def reason_words(reason: str) -> str:
    """A reason in words; one that is not ours as it stands."""
    return WORDS.get(reason, reason)


def in_words(counts: TokenInCounts) -> str:
    """One sentence about a rollout."""
    parts = [
        _number(counts.sent, "prompt") + " sent as ids",
        _number(counts.avoided, "break") + " avoided",
    ]
    if counts.unknown:
        parts.append(f"{counts.unknown} not compared")
    if counts.differing:
        parts.append(f"{counts.differing} read otherwise by the engine")
    if counts.fallbacks:
        reasons = ", ".join(f"{reason} {count}" for reason, count in counts.fallbacks)
        parts.append(f"{_number(counts.fell_back, 'call')} fell back ({reasons})")
    return "; ".join(parts) + "."


def _number(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
