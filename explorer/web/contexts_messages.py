"""What a chat message says, every field documented.

Owns: the contexts of messages, tool calls and pictures, and the page of one message whole.
Must not know: where the values come from.
"""

# ruff: noqa: RUF009 - `said` only calls `dataclasses.field`

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from explorer.web.contexts import Frame, page, said
from explorer.web.contexts_diff import TextDiff
from explorer.web.contexts_rollout import Header


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A tool call of a message."""

    name: str = said("The tool.")
    arguments: str = said("Its arguments in their original spelling, cut.")
    kind: str = said("`command`, `edit`, `patch`, `write`, `read`, `search` or `json`.")
    title: str = said("What it is about: a path or pattern; empty when it names none.")
    body: str = said("The command, the text written, or the arguments indented.")
    diff: TextDiff | None = said("An edit as a difference, null for other kinds.")
    rest: tuple[tuple[str, str], ...] = said("The other arguments, each in its own spelling.")


@dataclass(frozen=True, slots=True)
class Picture:
    """A picture in a message: never loaded with the page."""

    text: str = said("Its type, size and digest.")
    href: str | None = said("Address that shows it, null when it is of no type shown here.")


@dataclass(frozen=True, slots=True)
class Message:
    """One message as people read it."""

    role: str = said("`system`, `user`, `assistant`, `tool` or what the caller wrote.")
    name: str = said("Name or tool call id, if any.")
    text: str = said("The text, cut to the limit of the page.")
    runs: tuple[tuple[str, str], ...] = said(
        "The text in runs of one terminal colour: class and text; empty without colours."
    )
    reasoning: str = said("Reasoning text, cut, when the reply has some.")
    tool_calls: tuple[ToolCall, ...] = said("Tool calls.")
    pictures: tuple[Picture, ...] = said("Pictures that can be shown.")
    cut_chars: int = said("Characters left out; the message's own page has them.")
    note: str = said(
        "How it differs from the reply that it repeats, or that it is a tool result which "
        "names no call; else empty."
    )
    raw_href: str = said("Address of the message whole and raw, empty where it has none.")


@page
@dataclass(frozen=True, slots=True)
class MessagePage:
    """`/rollouts/{rollout_id}/message`: one message, whole and raw."""

    template: ClassVar[str] = "message.html"
    frame: Frame = said("What surrounds the page.")
    header: Header = said("What every tab shows.")
    title: str = said("Which message it is.")
    role: str = said("Its role.")
    call_href: str = said("Address of the request it is in.")
    text: str = said("Its text, whole up to the limit of the page.")
    runs: tuple[tuple[str, str], ...] = said("The text in runs of one terminal colour.")
    reasoning: str = said("Its reasoning, likewise.")
    pictures: tuple[Picture, ...] = said("Its pictures.")
    raw: str = said("The message as JSON, indented, numbers in their original spelling.")
    cut_chars: int = said("Characters left out at the limit; the raw request has them.")
