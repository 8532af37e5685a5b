"""The difference of two texts, line by line, at a cost that is bounded before it begins.

Owns: what is folded, what is cut, and how large a text may be to be compared by lines.
Must not know: what the texts are, HTML.

What both sides begin and end with is found in linear time first; only what is left between
is aligned, and only up to `ALIGN_LINES` lines. Beyond that the middle is shown as gone and
new, and says so: a page that takes a minute tells nobody anything.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher
from typing import Final

from explorer.web import words
from explorer.web.contexts_diff import DiffLine, TextDiff
from explorer.web.pretty import dumps, loads, safe_text

CONTEXT: Final = 3
ALIGN_LINES: Final = 1_200
SHOWN_LINES: Final = 400
LINE_CHARS: Final = 700
EDGE_CHARS: Final = 60
# Beyond this, reading JSON to indent it takes longer than a reader waits.
READ_BYTES: Final = 4 * 1024 * 1024
WINDOW_BYTES: Final = 400

Block = tuple[str, int, int, int, int]


def diff_lines(
    before: Sequence[str], after: Sequence[str], title: str, names: tuple[str, str]
) -> TextDiff:
    """The difference of two lists of lines."""
    blocks, note = _blocks(before, after)
    gone = sum(i2 - i1 for kind, i1, i2, _, _ in blocks if kind != "equal")
    new = sum(j2 - j1 for kind, _, _, j1, j2 in blocks if kind != "equal")
    lines: list[DiffLine] = []
    for line in _drawn(blocks, before, after):
        if len(lines) == SHOWN_LINES:
            note += f" Only the first {SHOWN_LINES} lines of the difference are shown."
            break
        lines.append(line)
    equal = not gone and not new
    return TextDiff(
        title=title,
        before=names[0],
        after=names[1],
        equal=equal,
        lines=() if equal else tuple(lines),
        gone=gone,
        new=new,
        note=note.strip(),
    )


def diff_bodies(before: bytes, after: bytes, title: str, names: tuple[str, str]) -> TextDiff:
    """The difference of two bodies: by lines of the indented JSON, else around the first
    byte that differs."""
    if before == after:
        return TextDiff(title, *names, True, (), 0, 0, "Equal to the last byte.")
    if max(len(before), len(after)) > READ_BYTES:
        sizes = f"{words.size(len(before))} and {words.size(len(after))}"
        why = f"Too large to compare line by line ({sizes}), so only the first difference."
        return _first_byte(before, after, title, names, why)
    same = (
        "The same JSON; the bytes differ only in white space, or in how characters are escaped."
    )
    try:
        sides = [dumps(loads(data)).split("\n") for data in (before, after)]
    except (ValueError, RecursionError):
        sides = [data.decode("utf-8", "replace").split("\n") for data in (before, after)]
        same = ""
    found = diff_lines(sides[0], sides[1], title, names)
    if found.equal and not same:
        return _first_byte(
            before, after, title, names, "They differ in bytes that are no text."
        )
    return TextDiff(title, *names, True, (), 0, 0, same) if found.equal else found


def shared_start(before: Sequence[object], after: Sequence[object]) -> int:
    """How many leading items both have."""
    at = 0
    for one, other in zip(before, after, strict=False):
        if one != other:
            break
        at += 1
    return at


def _first_byte(
    before: bytes, after: bytes, title: str, names: tuple[str, str], why: str
) -> TextDiff:
    low, high = 0, min(len(before), len(after))
    while low < high:  # bisection over equal prefixes: each step is one fast comparison
        middle = (low + high + 1) // 2
        if before[low:middle] == after[low:middle]:
            low = middle
        else:
            high = middle - 1

    def window(data: bytes) -> str:
        return safe_text(data[low : low + WINDOW_BYTES].decode("utf-8", "replace"))

    lines = (
        DiffLine("fold", f"{low:,} equal bytes", "", "", 1),
        DiffLine("gone", window(before) or "(its end)", "", "", 1),
        DiffLine("new", window(after) or "(its end)", "", "", 1),
    )
    return TextDiff(title, *names, False, lines, 1, 1, why)


def _blocks(before: Sequence[str], after: Sequence[str]) -> tuple[list[Block], str]:
    """What is equal, gone or new, as `difflib` names it; and what was not aligned."""
    start = shared_start(before, after)
    room = min(len(before), len(after)) - start
    end = min(room, shared_start(before[::-1][:room], after[::-1][:room]))
    a, b = len(before) - end, len(after) - end
    blocks: list[Block] = [("equal", 0, start, 0, start)] if start else []
    note = ""
    if max(a - start, b - start) > ALIGN_LINES:
        blocks.append(("replace", start, a, start, b))
        note = (
            f"Between the equal beginning and end are {a - start:,} and {b - start:,} lines: "
            "too many to align, so they are shown as gone and new."
        )
    else:
        matcher = SequenceMatcher(None, before[start:a], after[start:b])
        for kind, i1, i2, j1, j2 in matcher.get_opcodes():
            blocks.append((kind, i1 + start, i2 + start, j1 + start, j2 + start))
    if end:
        blocks.append(("equal", a, len(before), b, len(after)))
    return blocks, note


def _drawn(
    blocks: list[Block], before: Sequence[str], after: Sequence[str]
) -> Iterator[DiffLine]:
    for number, (kind, i1, i2, j1, j2) in enumerate(blocks):
        if kind == "equal":
            first = 0 if number == 0 else CONTEXT
            last = 0 if number == len(blocks) - 1 else CONTEXT
            yield from _folded(before[i1:i2], first, last)
            continue
        for at in range(max(i2 - i1, j2 - j1)):
            one = before[i1 + at] if i1 + at < i2 else None
            other = after[j1 + at] if j1 + at < j2 else None
            yield from _changed(one, other)


def _folded(lines: Sequence[str], first: int, last: int) -> Iterator[DiffLine]:
    """A run of equal lines: those beside a change are shown, the others counted."""
    hidden = len(lines) - first - last
    if hidden < 2:
        yield from (_plain("same", line) for line in lines)
        return
    yield from (_plain("same", line) for line in lines[:first])
    text = f"{hidden:,} equal lines"
    yield DiffLine("fold", text, "", "", hidden)
    yield from (_plain("same", line) for line in lines[len(lines) - last :])


def _changed(one: str | None, other: str | None) -> Iterator[DiffLine]:
    if one is None or other is None:
        if one is not None:
            yield _plain("gone", one)
        if other is not None:
            yield _plain("new", other)
        return
    start = shared_start(one, other)
    room = min(len(one), len(other)) - start
    end = min(room, shared_start(one[::-1][:room], other[::-1][:room]))
    for kind, text in (("gone", one), ("new", other)):
        head, middle = text[:start], text[start : len(text) - end]
        tail = text[len(text) - end :] if end else ""
        yield DiffLine(kind, _cut(middle), _edge(head, last=True), _edge(tail, last=False), 1)


def _plain(kind: str, line: str) -> DiffLine:
    return DiffLine(kind, _cut(line), "", "", 1)


def _cut(text: str) -> str:
    if len(text) <= LINE_CHARS:
        return safe_text(text)
    rest = len(text) - LINE_CHARS
    return f"{safe_text(text[:LINE_CHARS])} … {rest:,} more characters"


def _edge(text: str, *, last: bool) -> str:
    """What two changed lines share, cut to the part beside the change."""
    if len(text) <= 2 * EDGE_CHARS:
        return safe_text(text)
    rest = f"{len(text) - EDGE_CHARS:,} equal characters"
    if last:
        return f"… {rest} … {safe_text(text[-EDGE_CHARS:])}"
    return f"{safe_text(text[:EDGE_CHARS])} … {rest} …"
