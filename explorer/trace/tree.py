"""The turn tree: which call continues which, and where the others broke off.

Owns: `build_tree`; nodes, roots, forks and breaks.
Must not know: roles, masks.

A call's parent is the call whose prompt+completion is the longest exact prefix of its
prompt, whatever the order of arrival. Nothing is truncated or realigned: a prompt that
continues nothing is a root that says where it broke off. Calls without prompt ids are
placed by their messages and are never the parent of a call that has ids.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from explorer.records import Call, CallId, CallStatus
from explorer.trace.blocks import BLOCK_TOKENS, EMPTY_STATE, SequenceState
from explorer.trace.breaks import PrefixBreak, name_cause
from explorer.trace.causes import BreakCause
from explorer.trace.messages import MessageIndex, continuations
from explorer.trace.prefix import Match, PrefixIndex, shared_length
from explorer.trace.rerendered import INSERTED, Rerendered, rerender_cause, window
from explorer.trace.sequences import Sequences


@dataclass(frozen=True, slots=True)
class Node:
    """One call in the tree.

    Attributes:
        children: by admission order.
        depth: 0 for a root.
        prompt_len: tokens of the prompt, 0 when its ids are not known.
        adopted: the parent was admitted later than the call itself.
        shared_len: leading prompt tokens that the parent or an earlier call has too.
        break_: where it left the nearest earlier call: for every root with ids that has
            an earlier call to compare with, and for every later child of one parent.
        prompt_key: equal for two calls with exactly the same prompt.
        has_ids: whether it was placed by token ids (else by messages).
    """

    call_id: CallId
    sequence: int
    parent_id: CallId | None
    children: tuple[CallId, ...]
    root_id: CallId
    depth: int
    prompt_len: int
    completion_len: int
    adopted: bool
    shared_len: int
    break_: PrefixBreak | None
    prompt_key: bytes
    has_ids: bool


@dataclass(frozen=True, slots=True, eq=False)
class Tree:
    """Every attempted call of a rollout; `nodes` and `roots` in admission order.

    Attributes:
        meant: by call, the earlier call that its messages go on from, whatever became of
            the tokens (`messages.continuations`).
    """

    nodes: Mapping[CallId, Node]
    roots: tuple[CallId, ...]
    sequences: Sequences
    meant: Mapping[CallId, CallId]

    def path(self, call_id: CallId) -> tuple[CallId, ...]:
        """From the root to the call, both included."""
        trail = []
        current: CallId | None = call_id
        while current is not None:
            trail.append(current)
            current = self.nodes[current].parent_id
        return tuple(reversed(trail))

    def walk(self) -> Iterator[Node]:
        """Depth first, a parent before its children, both by admission order."""
        stack = list(reversed(self.roots))
        while stack:
            node = self.nodes[stack.pop()]
            yield node
            stack.extend(reversed(node.children))

    @property
    def leaves(self) -> tuple[CallId, ...]:
        """Calls that no other call continues, depth first."""
        return tuple(node.call_id for node in self.walk() if not node.children)


def build_tree(calls: Sequence[Call], *, block: int = BLOCK_TOKENS) -> Tree:
    """The tree of all calls but the refused ones; depends on the set of calls only.

    Args:
        block: tokens per hashed block; only the cost depends on it.
    """
    ordered = sorted(
        (call for call in calls if call.status is not CallStatus.REFUSED),
        key=lambda call: (call.sequence, call.call_id),
    )
    builder = _Builder(ordered, block)
    builder.admit_all()
    builder.adopt_late_ancestors()
    builder.name_rerendered()
    builder.place_by_messages()
    return builder.tree()


class _Builder:
    """The steps of `build_tree` over calls in admission order."""

    def __init__(self, ordered: list[Call], block: int) -> None:
        self.calls = {call.call_id: call for call in ordered}
        self.sequences = Sequences(ordered)
        self.index = PrefixIndex(block)
        self.block = block
        self.prompts: dict[CallId, SequenceState] = {}
        self.parents: dict[CallId, CallId | None] = {}
        self.follows: dict[CallId, CallId] = {}  # as it was when the call came
        self.shared: dict[CallId, int] = {}
        self.breaks: dict[CallId, PrefixBreak] = {}
        self.rerendered: dict[CallId, CallId] = {}
        self.first_child: dict[CallId, CallId] = {}
        self.last_child: dict[CallId, CallId] = {}
        self.meant = continuations(ordered)
        self.last_meant: dict[CallId, CallId] = {}
        self.before: Call | None = None

    def admit_all(self) -> None:
        """Registers the calls in order, looking back for parents and breaks."""
        for call in self.calls.values():
            if self.sequences.problem(call.call_id) is not None:
                continue
            state = self._prompt_state(call)
            self.prompts[call.call_id] = state
            match = self._find_parent(call, state)
            self._note_break(call, state, match)
            self._register(call, state)
            self._note_meaning(call)
            self.before = call

    def _prompt_state(self, call: Call) -> SequenceState:
        """The prompt's hashes, reusing those of the stored parent where it can."""
        held = self._stored_state(call)
        rest = self.sequences.slice(
            call.call_id, held.length, self.sequences.prompt_length(call.call_id)
        )
        return self.index.extend(held, rest)

    def _stored_state(self, call: Call) -> SequenceState:
        """The state of what the prompt has of its stored parent, or of whole blocks
        of it when it leaves the parent before its end."""
        parent = call.stored_parent_id
        if parent is None or parent not in self.prompts:
            return EMPTY_STATE
        completion = self.calls[parent].completion
        state = self.prompts[parent]
        if completion is not None:
            state = self.index.extend(state, completion)
        if call.prefix_len == state.length:
            return state
        return state.truncated(call.prefix_len // self.block, self.block)

    def _find_parent(self, call: Call, state: SequenceState) -> Match | None:
        return self.index.find_parent_of(state, partial(self.sequences.slice, call.call_id))

    def _register(self, call: Call, state: SequenceState) -> None:
        """Only a call that ended with a reply can be continued; a failed one that was
        cut before its first token would make its own retry its child."""
        completion = call.completion
        committed = call.status is CallStatus.COMMITTED
        if completion is None or (not committed and completion.size == 0):
            return
        self.index.register(
            call.call_id,
            call.sequence,
            self.index.extend(state, completion),
            sampled=bool(completion.size),
            preferred=committed,
        )

    def _note_break(self, call: Call, state: SequenceState, match: Match | None) -> None:
        """Remembers where the prompt left the others, if it is a root or a fork."""
        floor = 0 if match is None else match.length
        self.shared[call.call_id] = floor
        rival = None
        if match is not None:
            self.follows[call.call_id] = match.call_id
            rival = self.first_child.setdefault(match.call_id, call.call_id)
            self.last_child[match.call_id] = call.call_id
            if rival == call.call_id:
                return
        nearest = self.index.longest_shared(
            state, partial(self.sequences.slice, call.call_id), self.sequences.slice
        )
        if rival is not None and (nearest is None or nearest.length <= floor):
            nearest = Match(rival, floor)
        if nearest is not None:
            name = nearest.call_id
            if rival is None and nearest.length == state.length:
                name = self._asked_before(name, state.length)
            elif rival is None:
                name = self._latest(name)
            told = self._compared(call, name, None if match is None else match.call_id)
            self._set_break(call, state, Match(name, nearest.length), told)

    def _asked_before(self, call_id: CallId, length: int) -> CallId:
        """Of a call's conversation the first one that holds so many tokens: a prompt that is
        found whole was asked by that one, however far the conversation went on."""
        above = self.follows.get(call_id)
        while above is not None and self.sequences.full_length(above) >= length:
            call_id, above = above, self.follows.get(above)
        return call_id

    def _latest(self, call_id: CallId) -> CallId:
        """The end so far of the conversation that a call belongs to: it holds the same
        tokens and says most about what a new root left behind."""
        while call_id in self.last_child:
            call_id = self.last_child[call_id]
        return call_id

    def _set_break(self, call: Call, state: SequenceState, nearest: Match, told: Call) -> None:
        nearest_id, offset = nearest.call_id, nearest.length
        expected = self.sequences.slice(nearest_id, offset, offset + 1)
        own = self.sequences.slice(call.call_id, offset, min(offset + 1, state.length))
        actual = int(own[0]) if own.size else None
        self.shared[call.call_id] = offset
        cause = name_cause(call, told, offset, actual, self.before)
        if cause is None:
            self.rerendered[call.call_id] = told.call_id
        self.breaks[call.call_id] = PrefixBreak(
            nearest_call_id=nearest_id,
            offset=offset,
            expected_id=int(expected[0]) if expected.size else None,
            actual_id=actual,
            cause=cause or BreakCause.UNKNOWN,
            rendered_anew=cause is None,
        )

    def name_rerendered(self) -> None:
        """The causes of the prompts whose messages came back as they were."""
        for call_id, earlier in self.rerendered.items():
            turn = self._turn_left(call_id, earlier)
            cause = BreakCause.UNKNOWN if turn is None else rerender_cause(turn)
            self.breaks[call_id] = replace(self.breaks[call_id], cause=cause)

    def _turn_left(self, call_id: CallId, earlier: CallId) -> Rerendered | None:
        """The sampled turn of the earlier call or its ancestors in which the prompt leaves
        that call's sequence, or which it was about to enter."""
        if self.sequences.problem(earlier) is not None:
            return None
        offset, length = self._shared(call_id, earlier), self.sequences.prompt_length(call_id)
        current: CallId | None = earlier
        while current is not None:
            above = self.parents.get(current)
            start, sampled = self.prompts[current].length, self.calls[current].completion
            size = 0 if sampled is None else int(sampled.size)
            before = 0 if above is None else self.sequences.full_length(above)
            if max(start - INSERTED, before) <= offset < start + size:
                end = min(length, offset + window(size))
                ahead = self.sequences.slice(call_id, offset, end)
                return Rerendered(self.calls[current], offset - start, ahead)
            current = above
        return None

    def _shared(self, call_id: CallId, earlier: CallId) -> int:
        """How many leading ids the prompt has of the earlier call's sequence."""
        broke = self.breaks[call_id]
        if broke.nearest_call_id == earlier:
            return broke.offset
        held = self.sequences.full_length(earlier)
        whole = self.sequences.slice(earlier, 0, held)
        length = min(held, self.sequences.prompt_length(call_id))
        return shared_length(self.sequences.slice(call_id, 0, length), whole)

    def _note_meaning(self, call: Call) -> None:
        """Remembers where a conversation went on; what was asked about it without its tools
        is not where it went."""
        earlier = self.meant.get(call.call_id)
        if earlier is None:
            return
        if call.tools_digest is not None or self.calls[earlier].tools_digest is None:
            self.last_meant[earlier] = call.call_id

    def _compared(self, call: Call, nearest_id: CallId, parent_id: CallId | None) -> Call:
        """The call that says why the tokens part: what the call goes on from by its messages
        but not by its tokens; else the nearest, of a root the end so far of its conversation.
        Where turns are written anew the nearest tokens may be those of a conversation's first
        call, or of an answer that was thrown away."""
        earlier = self.meant.get(call.call_id)
        if earlier is not None and earlier != parent_id:
            return self.calls[earlier]
        while parent_id is None and nearest_id in self.last_meant:
            nearest_id = self.last_meant[nearest_id]
        return self.calls[nearest_id]

    def adopt_late_ancestors(self) -> None:
        """Parents again, now that every call is in the index."""
        for call_id, state in self.prompts.items():
            match = self._find_parent(self.calls[call_id], state)
            self.parents[call_id] = None if match is None else self._used(call_id, match)
            if match is not None:
                self.shared[call_id] = max(self.shared[call_id], match.length)

    def _used(self, call_id: CallId, match: Match) -> CallId:
        """The parent that was found, or its twin with exactly the same ids whose answer the
        call's messages hold: which of the two was used is told by the echo alone."""
        meant = self.meant.get(call_id)
        if meant is None or meant == match.call_id or meant not in self.prompts:
            return match.call_id
        if self.calls[meant].reply_digest == self.calls[match.call_id].reply_digest:
            return match.call_id
        try:
            one, two = self.index.state(meant), self.index.state(match.call_id)
        except KeyError:  # one that failed before its first token
            return match.call_id
        same = (one.length, one.hash_at(one.cuts), one.tail) == (
            two.length,
            two.hash_at(two.cuts),
            two.tail,
        )
        return meant if same else match.call_id

    def place_by_messages(self) -> None:
        """The calls without prompt ids, if there are any."""
        without = [call for call in self.calls.values() if call.call_id not in self.prompts]
        if not without:
            return
        index = MessageIndex(self.calls.values())
        for call in without:
            self.parents[call.call_id] = index.find_parent(call)
            self.shared[call.call_id] = 0

    def tree(self) -> Tree:
        children: dict[CallId, list[CallId]] = {call_id: [] for call_id in self.calls}
        roots = []
        for call_id in self.calls:
            parent = self.parents[call_id]
            if parent is None:
                roots.append(call_id)
            else:
                children[parent].append(call_id)
        nodes: dict[CallId, Node] = {}
        stack = list(reversed(roots))
        while stack:
            call_id = stack.pop()
            nodes[call_id] = self._node(call_id, tuple(children[call_id]), nodes)
            stack.extend(reversed(children[call_id]))
        in_order = {call_id: nodes[call_id] for call_id in self.calls}
        return Tree(in_order, tuple(roots), self.sequences, self.meant)

    def _node(
        self, call_id: CallId, children: tuple[CallId, ...], done: Mapping[CallId, Node]
    ) -> Node:
        call = self.calls[call_id]
        parent_id = self.parents[call_id]
        parent = None if parent_id is None else done[parent_id]
        state = self.prompts.get(call_id)
        broke = self.breaks.get(call_id)
        if parent is not None and broke is not None and broke.offset < self._full(parent):
            broke = None  # a late ancestor mended it
        return Node(
            call_id=call_id,
            sequence=call.sequence,
            parent_id=parent_id,
            children=children,
            root_id=call_id if parent is None else parent.root_id,
            depth=0 if parent is None else parent.depth + 1,
            prompt_len=0 if state is None else state.length,
            completion_len=0 if call.completion is None else int(call.completion.size),
            adopted=parent is not None and parent.sequence > call.sequence,
            shared_len=self.shared[call_id],
            break_=broke,
            prompt_key=_prompt_key(call, state),
            has_ids=state is not None,
        )

    @staticmethod
    def _full(node: Node) -> int:
        return node.prompt_len + node.completion_len


def _prompt_key(call: Call, state: SequenceState | None) -> bytes:
    if state is not None:
        return b"ids" + state.hash_at(state.cuts) + state.tail
    if not call.message_digests:
        # Nothing is known of the prompt, so it equals no other.
        return b"call" + str(call.call_id).encode()
    joined = "\n".join(
        (*call.message_digests, call.system_digest or "", call.tools_digest or "")
    )
    return b"messages" + hashlib.blake2b(joined.encode(), digest_size=16).digest()
