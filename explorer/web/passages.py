"""Reads what a rollout says, each piece once and with its place.

Owns: what counts as added by a call, and which messages the tokens already have.
Must not know: how text is searched, pages, the side file.

A request repeats its conversation, so of each call only what it added is read: the tokens
that no ancestor has, and the messages that the request before did not have. A message that
stands in those tokens word for word is no passage of its own; it says who speaks there.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from threading import Lock
from typing import Any

import numpy as np

from explorer.errors import StoreDamaged
from explorer.export.judged import Judged
from explorer.records import Body, BodyKind, Call, CallId
from explorer.store.interface import Store
from explorer.store.passages import NO_TOKENS, UNKNOWN_TOKEN, Passage, Stretch
from explorer.trace.decode import pieces
from explorer.web.conversation import REPLY, known_messages
from explorer.web.fast_messages import fast_messages, fast_reply, in_pairs
from explorer.web.messages import content_text, reasoning_text
from explorer.web.pretty import Pairs, dumps
from explorer.web.turn_tree import TurnTree

Vocabulary = Mapping[int, tuple[bytes, bool]]
Bodies = dict[BodyKind, Body]

# Longer text that comes again word for word is listed where it first stood.
LONG = 200
KEPT = 8
ASKED_KEPT = 4
KEPT_CHARS = 64_000_000
_LONGEST_TOKEN = np.iinfo(np.uint16).max
_KINDS = {"system": "system", "developer": "system", "user": "user", "tool": "tool output"}


@dataclass(frozen=True, slots=True)
class Said:
    """One text of a message."""

    role: str
    kind: str
    text: str
    message: str
    new: bool = True


def said_by(item: Any, message: str) -> Iterator[Said]:
    """The texts of one message; what it is not is read as it came."""
    if not isinstance(item, Pairs):
        yield Said("", "message", dumps(item), message)
        return
    given = item.get("role")
    role = str(given) if isinstance(given, str) else ""
    texts = [(_KINDS.get(role, role or "message"), content_text(item.get("content")))]
    texts.append(("reasoning", reasoning_text(item)))
    calls = item.get("tool_calls")
    for entry in calls if isinstance(calls, list) else ():
        function = entry.get("function") if isinstance(entry, Pairs) else None
        if isinstance(function, Pairs):
            arguments = function.get("arguments", "")
            texts.append(("tool call", content_text(function.get("name"))))
            texts.append(("tool call", content_text(arguments)))
    for kind, text in texts:
        if text.strip():
            yield Said(role, kind, text, message)


@dataclass(frozen=True, slots=True)
class _Placed:
    """The text of a call's tokens, what else it said, and where it repeats others."""

    tokens: Passage
    rest: list[Said]
    repeated: list[tuple[int, int]]

    def parts(self) -> Iterator[Passage]:
        """The passage, cut at tokens into what is new and what is repeated."""
        at, size = 0, int(self.tokens.lengths.size)
        for start, end in self.repeated:
            first = max(at, self.tokens.token_from(start))
            after = self.tokens.tokens_until(end)
            if after <= first:
                continue
            if at < first:
                yield self.tokens.part(at, first, repeated=False)
            yield self.tokens.part(first, after, repeated=True)
            at = after
        if at == 0:
            yield self.tokens
        elif at < size:
            yield self.tokens.part(at, size, repeated=False)


class Reading:
    """Reads one rollout; use it once."""

    def __init__(self, store: Store, judged: Judged, vocabulary: Vocabulary) -> None:
        self._store = store
        self._tree = TurnTree(judged)
        self._masks = judged.judgement.masks
        self._calls = {call.call_id: call for call in judged.record.calls}
        self._vocabulary = vocabulary
        self._ends: dict[CallId, int] = {}
        self._long: set[tuple[str, str]] = set()
        self._replies: dict[CallId, list[Said]] = {}
        self._asked: OrderedDict[CallId, list[Any]] = OrderedDict()
        self._rollout_id = judged.record.rollout.rollout_id

    def passages(self) -> Iterator[Passage]:
        """Every passage, calls in admission order."""
        found = dict.fromkeys(self._calls)
        for call_id, bodies in self._store.every_body(self._rollout_id):
            # Of damaged ones the call's page says so; the rest can still be searched.
            read = {} if isinstance(bodies, str) else {body.kind: body for body in bodies}
            if call_id in found:
                del found[call_id]
                yield from self._of_call(self._calls[call_id], read)
        for call_id in found:
            yield from self._of_call(self._calls[call_id], {})

    def _of_call(self, call: Call, bodies: Bodies) -> Iterator[Passage]:
        tokens = self._tokens(call)
        mask = self._masks.get(call.call_id)
        # A root that left an earlier call repeats the conversation in tokens of its own.
        anew = tokens is not None and mask is not None and mask.own_start == 0
        said = list(self._said(call, bodies, known=anew))
        if tokens is not None:
            placed = self._placed(tokens, said, self._split(call, tokens))
            said = placed.rest
            yield from placed.parts()
        for each in said:
            if not each.new:
                continue
            if len(each.text) >= LONG:
                if (each.kind, each.text) in self._long:
                    continue
                self._long.add((each.kind, each.text))
            yield self._alone(call, each)

    def _of(self, call: Call) -> tuple[str, int]:
        node = self._tree.tree.nodes.get(call.call_id)
        label = self._tree.labels.get(call.call_id, str(call.sequence + 1))
        return label, 0 if node is None else node.depth + 1

    # -- tokens

    def _end(self, call_id: CallId) -> int:
        """Where a call's row ends in its branch."""
        waiting = [call_id]
        while waiting:
            here = waiting[-1]
            node, mask = self._tree.tree.nodes[here], self._masks[here]
            parent = node.parent_id
            if parent is not None and parent not in self._ends:
                waiting.append(parent)
                continue
            before = 0 if parent is None else self._ends[parent]
            # Placed by messages under a call with ids: its positions follow that call's.
            shift = before if mask.parent is None else 0
            empty = mask.own_start >= mask.length
            self._ends[here] = before if empty else mask.length + shift
            waiting.pop()
        return self._ends[call_id]

    def _tokens(self, call: Call) -> Passage | None:
        """The text of the tokens that no ancestor has; None when it cannot be read."""
        mask = self._masks.get(call.call_id)
        if mask is None or not self._vocabulary or mask.own_start >= mask.length:
            return None
        end = self._end(call.call_id)
        parts = []
        if mask.own_start < mask.prompt_len:
            parts += self._tree.tree.sequences.slice(
                call.call_id, mask.own_start, mask.prompt_len
            ).tolist()
        if call.completion is not None and mask.prompt_len < mask.length:
            parts += call.completion.tolist()
        texts = [
            piece.text if piece.known else UNKNOWN_TOKEN
            for piece in pieces(parts, self._vocabulary)
        ]
        unknown = texts.count(UNKNOWN_TOKEN)
        if unknown == len(texts) or any(len(text) > _LONGEST_TOKEN for text in texts):
            return None
        label, turn = self._of(call)
        return Passage(
            call_id=call.call_id,
            label=label,
            turn=turn,
            first_token=end - len(texts),
            text="".join(texts),
            lengths=np.array([len(text) for text in texts], dtype=np.uint16),
            stretches=(),
            unknown=unknown,
        )

    def _split(self, call: Call, tokens: Passage) -> int:
        """How many characters the prompt has of the text of a call's tokens."""
        mask = self._masks[call.call_id]
        asked = max(0, mask.prompt_len - mask.own_start)
        return int(tokens.lengths[:asked].sum())

    def _placed(self, tokens: Passage, said: list[Said], split: int) -> _Placed:
        """The passage with the messages that stand in it, and those that do not."""
        first = self._tree.tree.nodes[tokens.call_id].parent_id is None
        around = ("", "prompt" if first else "environment")
        found: list[Stretch] = []
        rest: list[Said] = []
        repeated: list[tuple[int, int]] = []
        at = {False: 0, True: split}
        going_on = False
        for each in said:
            reply = each.message == REPLY
            text = each.text.strip()
            low, high = (split, len(tokens.text)) if reply else (0, split)
            start = tokens.text.find(text, at[reply], high)
            if start < 0 and each.new:
                start = tokens.text.find(text, low, high)
            if start < 0:
                rest.append(each)
                going_on = going_on and not each.new
                continue
            at[reply] = end = start + len(text)
            if not each.new:
                if going_on:
                    start = repeated.pop()[0]
                repeated.append((start, end))
            going_on = not each.new
            if not reply:
                found.append(Stretch(end - len(text), end, each.role, each.kind))
            elif each.kind in ("reasoning", "tool call"):
                found.append(Stretch(start, end, "assistant", f"sampled {each.kind}"))
        stretches = _covering(found, split, len(tokens.text), around)
        until = self._shared(tokens, split, min((each.start for each in found), default=split))
        if until:
            repeated = [(0, until), *repeated]
        return _Placed(replace(tokens, stretches=stretches), rest, repeated)

    def _shared(self, tokens: Passage, split: int, first: int) -> int:
        """How many characters at the beginning an earlier call has in the same tokens: the
        whole prompt, else at most what stands before the first message, `first`."""
        node, mask = self._tree.tree.nodes[tokens.call_id], self._masks[tokens.call_id]
        if node.shared_len <= mask.own_start or not node.has_ids:
            return 0
        if node.shared_len >= node.prompt_len:
            return split
        shared = int(tokens.lengths[: node.shared_len - mask.own_start].sum())
        return min(shared, first)

    # -- messages

    def _said(self, call: Call, bodies: Bodies, *, known: bool) -> Iterator[Said]:
        """What the messages of a call and its reply say that was not said before; with
        `known`, what was said before as well."""
        asked = self._keep(call.call_id, fast_messages(call, bodies) or [])
        before = self._before(call)
        same = 0
        if before is not None:
            same = known_messages(call, before, len(asked))
        said = Counter[tuple[str, str]]()
        if before is not None and asked:
            said = self._history(before, whole=not same)
        for at, item in enumerate(asked):
            if at < same and not known:
                continue
            for each in said_by(in_pairs(item), str(at)):
                key = (each.kind, each.text)
                if at >= same and said[key] <= 0:
                    yield each
                    continue
                said[key] -= at >= same
                if known:
                    yield replace(each, new=False)
        reply = fast_reply(bodies.get(BodyKind.REPLY))
        mine = [] if reply is None else list(said_by(reply, REPLY))
        if reply is None and call.preview:
            mine = [Said("assistant", "assistant", call.preview, REPLY)]
        self._replies[call.call_id] = mine
        yield from mine

    def _history(self, before: Call, *, whole: bool) -> Counter[tuple[str, str]]:
        """What the call before said; also its whole request when the start differs."""
        found = Counter(
            (each.kind, each.text) for each in self._replies.get(before.call_id, ())
        )
        if whole:
            asked = self._asked.get(before.call_id)
            if asked is None:
                asked = self._keep(before.call_id, self._asked_again(before))
            for item in asked:
                found.update((each.kind, each.text) for each in said_by(in_pairs(item), ""))
        return found

    def _keep(self, call_id: CallId, asked: list[Any]) -> list[Any]:
        self._asked[call_id] = asked
        while len(self._asked) > ASKED_KEPT:
            self._asked.popitem(last=False)
        return asked

    def _asked_again(self, call: Call) -> list[Any]:
        try:
            bodies = {body.kind: body for body in self._store.bodies(call.call_id)}
        except StoreDamaged:
            return []
        return fast_messages(call, bodies) or []

    def _before(self, call: Call) -> Call | None:
        node = self._tree.tree.nodes.get(call.call_id)
        if node is None:
            return None
        if node.parent_id is not None:
            return self._calls.get(node.parent_id)
        return None if node.break_ is None else self._calls.get(node.break_.nearest_call_id)

    def _alone(self, call: Call, said: Said) -> Passage:
        label, turn = self._of(call)
        kind = f"reply {said.kind}" if said.message == REPLY else said.kind
        if said.message == REPLY and said.kind == "assistant":
            kind = "reply"
        return Passage(
            call_id=call.call_id,
            label=label,
            turn=turn,
            first_token=NO_TOKENS,
            text=said.text,
            lengths=np.zeros(0, dtype=np.uint16),
            stretches=(Stretch(0, len(said.text), said.role, kind),),
            message=said.message,
        )


def _covering(
    found: list[Stretch], split: int, end: int, around: tuple[str, str]
) -> tuple[Stretch, ...]:
    """`found`, and between them the prompt or what the model sampled."""
    made: list[Stretch] = []
    at = 0

    def fill(until: int) -> None:
        nonlocal at
        for role, kind, limit in (
            (*around, min(until, split)),
            ("assistant", "sampled", until),
        ):
            if at < limit:
                made.append(Stretch(at, limit, role, kind))
                at = limit

    for each in sorted(found, key=lambda each: each.start):
        if each.start < at:
            continue
        fill(each.start)
        made.append(each)
        at = each.end
    fill(end)
    return tuple(made)


_kept: OrderedDict[tuple[str, str, int], tuple[Passage, ...]] = OrderedDict()
_lock = Lock()


def forget_kept() -> None:
    """Keeps nothing: a rollout was deleted."""
    with _lock:
        _kept.clear()


def passages_of(store: Store, judged: Judged, vocabulary: Vocabulary) -> tuple[Passage, ...]:
    """Every passage of a rollout; those of the last few rollouts are kept."""
    key = (
        judged.record.rollout.rollout_id,
        judged.judgement.inputs_sha256,
        len(vocabulary),
    )
    with _lock:
        found = _kept.get(key)
        if found is not None:
            _kept.move_to_end(key)
            return found
    made = tuple(Reading(store, judged, vocabulary).passages())
    with _lock:
        _kept[key] = made
        total = sum(len(each.text) for kept in _kept.values() for each in kept)
        while len(_kept) > 1 and (len(_kept) > KEPT or total > KEPT_CHARS):
            _, dropped = _kept.popitem(last=False)
            total -= sum(len(each.text) for each in dropped)
    return made
