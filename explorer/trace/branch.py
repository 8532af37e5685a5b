"""A branch of the tree as a page shows it: root to leaf, token by token.

Owns: `Segment` and how a path is cut into prompt, environment and completion.
Must not know: pages, vocabularies.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

from explorer.records import CallId
from explorer.trace.mask import CallMask, Span
from explorer.trace.tree import Tree

SegmentKind = Literal["prompt", "environment", "completion"]


class Judged(Protocol):
    """What a branch is read from; a `Judgement` is one."""

    @property
    def tree(self) -> Tree: ...

    @property
    def masks(self) -> Mapping[CallId, CallMask]: ...


@dataclass(frozen=True, slots=True)
class Segment:
    """Tokens of one call inside a branch.

    `start` and `end` are positions in the branch, which are also positions in the
    call's own row; `spans` cover exactly those.
    """

    call_id: CallId
    kind: SegmentKind
    start: int
    end: int
    spans: tuple[Span, ...]


def branch_segments(judgement: Judged, leaf_call_id: CallId) -> tuple[Segment, ...]:
    """The whole row of the leaf, each part with the mask of the call that owns it.

    Empty parts are left out. Calls whose prompt ids are not known have only a
    completion, which stands where the row known so far ends.

    Raises:
        KeyError: no such node.
    """
    segments: list[Segment] = []
    for call_id in judgement.tree.path(leaf_call_id):
        mask = judgement.masks[call_id]
        first = mask.parent is None
        kind: SegmentKind = "prompt" if first else "environment"
        # Placed by messages under a call with ids: its positions are its own.
        shift = segments[-1].end if first and segments else 0
        parts: tuple[tuple[SegmentKind, int, int], ...] = (
            (kind, mask.own_start, mask.prompt_len),
            ("completion", mask.prompt_len, mask.length),
        )
        for part, start, end in parts:
            if start < end:
                spans = tuple(
                    Span(span.start + shift, span.end + shift, span.reason)
                    for span in mask.own
                    if start <= span.start < end
                )
                segments.append(Segment(call_id, part, start + shift, end + shift, spans))
    return tuple(segments)
