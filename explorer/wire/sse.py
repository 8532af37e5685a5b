"""Server-sent events: bytes to events, events to bytes.

Owns: the line and event rules of the WHATWG stream format, on bytes.
Must not know: what any event means.

Only CR, LF and CRLF end a line (so U+2028 inside JSON stays inside), bytes are
decoded only once an event is whole (so a character cut between reads survives),
and one event has a size limit, named in the error.
"""

from __future__ import annotations

from dataclasses import dataclass

from explorer.errors import EngineMalformed

DEFAULT_EVENT_LIMIT = 32 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Event:
    """One dispatched event; `data` lines are joined with a newline."""

    data: str
    name: str = "message"
    last_id: str = ""


class Decoder:
    """Feeds on chunks cut anywhere and yields whole events.

    Args:
        event_limit: most bytes that one event may take (bytes).
    """

    def __init__(self, event_limit: int = DEFAULT_EVENT_LIMIT) -> None:
        self._limit = event_limit
        self._buffer = bytearray()
        self._held_cr = False
        self._started = False
        self._data: list[bytes] = []
        self._size = 0
        self._name = ""
        self._id = ""
        self.comments = 0

    def feed(self, chunk: bytes) -> list[Event]:
        """Events completed by `chunk`.

        Raises:
            EngineMalformed: when one event grows beyond the limit.
        """
        events: list[Event] = []
        self._buffer += chunk
        while True:
            line = self._next_line()
            if line is None:
                break
            event = self._take(line)
            if event is not None:
                events.append(event)
        if len(self._buffer) + self._size > self._limit:
            raise EngineMalformed(
                f"a streamed event is larger than the limit of {self._limit} bytes",
                limit_bytes=self._limit,
            )
        return events

    def _next_line(self) -> bytes | None:
        buffer = self._buffer
        if self._held_cr and buffer:
            # The CR ended a line already; a LF right after belongs to it.
            if buffer[0] == 0x0A:
                del buffer[0]
            self._held_cr = False
        lf = buffer.find(b"\n")
        # Not beyond the line: a stream that is fed whole would be searched line by line.
        cr = buffer.find(b"\r", 0, lf if lf >= 0 else len(buffer))
        if lf < 0 and cr < 0:
            return None
        end = lf if cr < 0 else cr
        line = bytes(buffer[:end])
        self._held_cr = buffer[end] == 0x0D
        del buffer[: end + 1]
        if not self._started:
            self._started = True
            line = line.removeprefix(b"\xef\xbb\xbf")
        return line

    def _take(self, line: bytes) -> Event | None:
        if not line:
            return self._dispatch()
        if line.startswith(b":"):
            self.comments += 1
            return None
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if field == b"data":
            self._data.append(value)
            self._size += len(value) + 1
        elif field == b"event":
            self._name = value.decode("utf-8", "replace")
        elif field == b"id" and b"\0" not in value:
            self._id = value.decode("utf-8", "replace")
        return None

    def _dispatch(self) -> Event | None:
        data, name = self._data, self._name
        self._data, self._name, self._size = [], "", 0
        if not data:
            return None
        text = b"\n".join(data).decode("utf-8", "replace")
        return Event(text, name or "message", self._id)


def encode(data: bytes, name: str | None = None) -> bytes:
    """One event's bytes; `data` must hold no line break (JSON never does)."""
    head = b"event: " + name.encode() + b"\n" if name else b""
    return head + b"data: " + data + b"\n\n"


def comment(text: str) -> bytes:
    """A comment line, which every client ignores."""
    return b": " + text.encode("utf-8").replace(b"\n", b" ").replace(b"\r", b" ") + b"\n\n"
