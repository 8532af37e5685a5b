"""Finds the earlier sequence that a prompt continues, in one pass over the prompt.

Owns: block hashes, the index from a prompt to the longest sequence that is its exact
prefix, and the place where a prompt leaves every earlier sequence.
Must not know: calls, roles, masks; tokens are looked at, never kept.

Method. A sequence is cut at every `block` tokens, and each cut has a hash chained from
the one before, so equal hashes mean equal prefixes. A whole sequence is registered
under the hash at its last cut, then by its tail (fewer than `block` tokens). A lookup
walks the prompt's own cuts from the longest to the shortest and tries only the tail
lengths registered there; it never visits the other sequences. Memory for a sequence is
its tail and one hash per block that no earlier sequence had.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from explorer.records import CallId, IdArray
from explorer.trace.blocks import (
    BLOCK_TOKENS,
    EMPTY_STATE,
    TOKEN_BYTES,
    SequenceState,
    extend,
    token_bytes,
)

ReadPrompt = Callable[[int, int], IdArray]
# Reads the tokens [start, end) of a sequence that is in the index.
ReadTokens = Callable[[CallId, int, int], IdArray]


class Match(NamedTuple):
    """A registered sequence and how many leading tokens the prompt has of it."""

    call_id: CallId
    length: int


@dataclass(slots=True)
class _Entry:
    """The sequences with exactly the same tokens: the best one of each sort.

    `extended` sampled at least one token; `empty` none, and so cannot be the parent of
    a prompt equal to its own (the two are siblings, and edges must never form a cycle).
    """

    extended: tuple[bool, int, CallId] | None = None
    empty: tuple[bool, int, CallId] | None = None


@dataclass(slots=True)
class _Fork:
    """The different next blocks after one cut, ordered so that neighbours share most."""

    seen: int
    segments: list[bytes]
    owners: list[tuple[int, CallId]]


class PrefixIndex:
    """All sequences of one rollout, asked for parents and for breaks.

    Grows by `add` and is never rebuilt. A sequence is a call's prompt followed by its
    completion.
    """

    def __init__(self, block: int = BLOCK_TOKENS) -> None:
        if block < 1:
            raise ValueError("a block holds at least one token")
        self._block = block
        self._block_bytes = block * TOKEN_BYTES
        self._entries: dict[bytes, _Entry] = {}
        self._tails: dict[bytes, tuple[int, ...]] = {}
        self._states: dict[CallId, SequenceState] = {}
        self._owners: dict[bytes, tuple[int, CallId]] = {}
        self._attached: dict[bytes, list[tuple[int, CallId]]] = {}
        self._forks: dict[bytes, _Fork] = {}

    def __len__(self) -> int:
        return len(self._states)

    def state(self, call_id: CallId) -> SequenceState:
        """The hashes of a registered sequence.

        Raises:
            KeyError: the call is not in the index.
        """
        return self._states[call_id]

    def extend(self, state: SequenceState, ids: IdArray) -> SequenceState:
        """The state of ``sequence + ids``; costs one pass over `ids` alone."""
        return extend(state, ids, self._block)

    def add(
        self,
        call_id: CallId,
        sequence: int,
        prompt_ids: IdArray,
        completion: IdArray,
        *,
        parent: CallId | None = None,
    ) -> SequenceState:
        """Registers a call and returns its state.

        Args:
            call_id: new in this index.
            sequence: admission order; ties between equal sequences go to the lowest.
            prompt_ids: the whole prompt, or, with `parent`, only the ids after the
                parent's whole sequence (then only those are read).
            completion: the sampled ids, possibly none.
            parent: a registered call whose whole sequence the prompt begins with.

        Raises:
            KeyError: `parent` is not in the index.
        """
        start = EMPTY_STATE if parent is None else self._states[parent]
        state = self.extend(self.extend(start, prompt_ids), completion)
        self.register(call_id, sequence, state, sampled=bool(completion.size))
        return state

    def register(
        self,
        call_id: CallId,
        sequence: int,
        state: SequenceState,
        *,
        sampled: bool,
        preferred: bool = True,
    ) -> None:
        """Registers a sequence whose state is known already.

        Args:
            sampled: the call has at least one completion id.
            preferred: wins against an equal sequence that is not (a failed twin).
        """
        self._states[call_id] = state
        last_hash = state.hash_at(state.cuts)
        entry = self._entries.setdefault(last_hash + state.tail, _Entry())
        candidate = (not preferred, sequence, call_id)
        if sampled:
            entry.extended = min(entry.extended or candidate, candidate)
        else:
            entry.empty = min(entry.empty or candidate, candidate)
        lengths = self._tails.get(last_hash, ())
        if len(state.tail) not in lengths:
            self._tails[last_hash] = tuple(sorted((*lengths, len(state.tail)), reverse=True))
        self._own_cuts(call_id, sequence, state)

    def _own_cuts(self, call_id: CallId, sequence: int, state: SequenceState) -> None:
        """Takes the cuts nobody had, and hangs the call where it left the others."""
        owner = (sequence, call_id)
        for _, cut_hash in state.descending():
            if cut_hash in self._owners:
                self._attached.setdefault(cut_hash, []).append(owner)
                return
            self._owners[cut_hash] = owner

    def find_parent(self, prompt_ids: IdArray) -> Match | None:
        """The longest registered sequence that is an exact prefix of the prompt.

        A sequence equal to the whole prompt counts only if it sampled something; of
        equal sequences the earliest admitted wins.
        """
        state = self.extend(EMPTY_STATE, prompt_ids)
        return self.find_parent_of(state, lambda start, end: prompt_ids[start:end])

    def find_parent_of(self, state: SequenceState, read_prompt: ReadPrompt) -> Match | None:
        """`find_parent` for a prompt whose state is known.

        Args:
            state: the prompt's state.
            read_prompt: reads the prompt's ids ``[start, end)``; called only for cuts
                after which some registered sequence ends, for less than a block each.
        """
        for cut, cut_hash in state.descending():
            tails = self._tails.get(cut_hash)
            if tails is None:
                continue
            start = cut * self._block
            room = (state.length - start) * TOKEN_BYTES
            end = start + min(tails[0], room) // TOKEN_BYTES
            data = token_bytes(read_prompt(start, end))
            for tail in tails:
                if tail > room:
                    continue
                entry = self._entries.get(cut_hash + data[:tail])
                best = entry and self._best(entry, whole=tail == room)
                if best:
                    return Match(best[2], start + tail // TOKEN_BYTES)
        return None

    @staticmethod
    def _best(entry: _Entry, *, whole: bool) -> tuple[bool, int, CallId] | None:
        if whole or entry.empty is None:
            return entry.extended
        if entry.extended is None:
            return entry.empty
        return min(entry.extended, entry.empty)

    def longest_shared(
        self, state: SequenceState, read_prompt: ReadPrompt, read: ReadTokens
    ) -> Match | None:
        """The registered sequence that shares most leading tokens with a prompt.

        Args:
            state: the prompt's state.
            read_prompt: reads the prompt's ids ``[start, end)``.
            read: reads tokens of registered sequences; each call is read at most once
                per cut where it was the first or left the others.

        Returns:
            None for an empty index; a length of 0 when not even the first token agrees.
            Of equally near sequences a late one, though not always the latest.
        """
        for cut, cut_hash in state.descending():
            if cut_hash not in self._owners:
                continue
            fork = self._fork(cut, cut_hash, read)
            start = cut * self._block
            own = read_prompt(start, min(start + self._block, state.length))
            owner, shared = _nearest(fork, own)
            return Match(owner[1], start + shared)
        return None

    def _fork(self, cut: int, cut_hash: bytes, read: ReadTokens) -> _Fork:
        """The ordered next blocks after a cut, brought up to date."""
        fork = self._forks.get(cut_hash)
        attached = self._attached.get(cut_hash, [])
        if fork is None:
            fork = self._forks[cut_hash] = _Fork(0, [], [])
            self._insert(fork, cut, self._owners[cut_hash], read)
        for owner in attached[fork.seen :]:
            self._insert(fork, cut, owner, read)
        fork.seen = len(attached)
        return fork

    def _insert(
        self, fork: _Fork, cut: int, owner: tuple[int, CallId], read: ReadTokens
    ) -> None:
        start = cut * self._block
        end = min(start + self._block, self._states[owner[1]].length)
        segment = _ordered_bytes(read(owner[1], start, end))
        place = bisect_left(fork.segments, segment)
        if place < len(fork.segments) and fork.segments[place] == segment:
            fork.owners[place] = max(fork.owners[place], owner)
            return
        fork.segments.insert(place, segment)
        fork.owners.insert(place, owner)


def _ordered_bytes(ids: IdArray) -> bytes:
    """Bytes that sort as the ids do."""
    return ids.astype(">i4").tobytes()


def _nearest(fork: _Fork, own: IdArray) -> tuple[tuple[int, CallId], int]:
    """Among sorted strings, one of the two neighbours shares the longest prefix; of
    equally near ones the latest admitted."""
    place = bisect_left(fork.segments, _ordered_bytes(own))
    return max(
        (
            (fork.owners[index], shared_length(own, np.frombuffer(segment, dtype=">i4")))
            for index, segment in enumerate(
                fork.segments[max(place - 1, 0) : place + 1], start=max(place - 1, 0)
            )
        ),
        key=lambda found: (found[1], found[0]),
    )


def shared_length(one: IdArray, other: IdArray) -> int:
    """How many leading ids are equal."""
    size = min(one.size, other.size)
    differ = np.flatnonzero(one[:size] != other[:size])
    return int(differ[0]) if differ.size else size
