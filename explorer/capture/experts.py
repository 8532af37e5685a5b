"""What stands on record for the experts that an engine named in a reply.

Owns: that, and what is said of routes that cannot be read. Must not know: the store, HTTP.

The routes stay where they came: in the reply's own bytes.
"""

from __future__ import annotations

from explorer.custody.errors import RecordError
from explorer.custody.routes import as_envelope, commitment
from explorer.engine.reply import ParsedReply
from explorer.engine.replyfacts import printable
from explorer.records import Note


def committed_experts(parsed: ParsedReply) -> tuple[str | None, tuple[Note, ...]]:
    """The commitment to the reply's experts, None where it names none that can be read; and
    what was noticed."""
    if parsed.routed_experts is None:
        return None, ()
    try:
        return commitment(as_envelope(parsed.routed_experts)), ()
    except RecordError as error:
        said = printable(str(error))[:500]
        return None, (Note("routed_experts_unreadable", said),)
