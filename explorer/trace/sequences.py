"""Whole token sequences, put together from the deltas that are stored.

Owns: `prompt` and `full` of a call, and which stored deltas do not fit.
Must not know: the tree; the stored parent is only how tokens are kept.

A sequence is written back to front into one array: the call's own part, then its stored
parent's, and so on, each token copied once. So assembling costs the length of the
sequence plus the depth of the chain, without recursion.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from threading import Lock

import numpy as np

from explorer.errors import RecordInconsistent
from explorer.records import Call, CallId, IdArray

CACHE_TOKENS = 500_000


class Sequences:
    """Assembles prompts and whole sequences of one rollout's calls on demand.

    Args:
        calls: any order; calls without prompt ids are known but have no prompt.
        cache_tokens: upper bound for the tokens of prompts kept for reuse.
    """

    def __init__(self, calls: Iterable[Call], cache_tokens: int = CACHE_TOKENS) -> None:
        self._calls = {call.call_id: call for call in calls}
        self._problems: dict[CallId, str | None] = {}
        self._cache: OrderedDict[CallId, IdArray] = OrderedDict()
        self._cached_tokens = 0
        self._lock = Lock()  # a judgement is read by several worker threads
        self._cache_tokens = cache_tokens

    def problem(self, call_id: CallId) -> str | None:
        """Why the call's prompt cannot be assembled, or None when it can.

        A call that has no prompt ids at all has a problem, too.
        """
        trail: list[CallId] = []
        current: CallId | None = call_id
        found: str | None = None
        while current is not None:
            if current in self._problems:
                found = self._problems[current]
                break
            if current in trail[-1:] or len(trail) > len(self._calls):
                found = "the stored parents form a cycle"
                break
            trail.append(current)
            call = self._calls.get(current)
            current = call.stored_parent_id if call is not None else None
        for name in reversed(trail):
            found = self._own_problem(name, found)
            self._problems[name] = found
        return found

    def _own_problem(self, call_id: CallId, inherited: str | None) -> str | None:
        call = self._calls.get(call_id)
        if call is None:
            return f"call {call_id} is not in the record"
        if call.prompt_delta is None:
            return "the call has no prompt ids"
        if call.stored_parent_id is None:
            if call.prefix_len:
                return f"a prefix of {call.prefix_len} tokens and no stored parent"
        elif inherited is not None:
            return f"stored parent {call.stored_parent_id}: {inherited}"
        else:
            held = self._full_length(self._calls[call.stored_parent_id])
            if not 0 <= call.prefix_len <= held:
                return f"a prefix of {call.prefix_len} tokens; the stored parent has {held}"
        length = call.prefix_len + int(call.prompt_delta.size)
        if length == 0:
            return "the prompt is empty"
        if call.prompt_len is not None and call.prompt_len != length:
            return f"prefix and delta make {length} tokens, the prompt has {call.prompt_len}"
        return None

    @staticmethod
    def _full_length(call: Call) -> int:
        delta = 0 if call.prompt_delta is None else int(call.prompt_delta.size)
        sampled = 0 if call.completion is None else int(call.completion.size)
        return call.prefix_len + delta + sampled

    def _checked(self, call_id: CallId) -> Call:
        problem = self.problem(call_id)
        if problem is not None:
            raise RecordInconsistent(f"call {call_id}: {problem}", call_id=str(call_id))
        return self._calls[call_id]

    def prompt_length(self, call_id: CallId) -> int:
        """How many ids the prompt has, without assembling it.

        Raises:
            RecordInconsistent: no prompt ids, or a delta that does not fit.
        """
        call = self._checked(call_id)
        assert call.prompt_delta is not None  # `problem` said so
        return call.prefix_len + int(call.prompt_delta.size)

    def full_length(self, call_id: CallId) -> int:
        """How many ids prompt and completion have together; raises as `prompt_length`."""
        return self._full_length(self._checked(call_id))

    def prompt(self, call_id: CallId) -> IdArray:
        """The prompt exactly as the engine saw it; do not write into it.

        Raises:
            RecordInconsistent: no prompt ids, or a delta that does not fit.
        """
        with self._lock:
            cached = self._cache.get(call_id)
            if cached is not None:
                self._cache.move_to_end(call_id)
                return cached
        ids = self.slice(call_id, 0, self.prompt_length(call_id))
        ids.flags.writeable = False
        self._keep(call_id, ids)
        return ids

    def full(self, call_id: CallId) -> IdArray:
        """Prompt, then sampled ids; raises as `prompt`."""
        return self.slice(call_id, 0, self.full_length(call_id))

    def slice(self, call_id: CallId, start: int, end: int) -> IdArray:
        """The ids at ``[start, end)`` of prompt+completion, clipped to what exists.

        Costs the ids asked for and the stored ancestors that hold them.

        Raises:
            RecordInconsistent: no prompt ids, or a delta that does not fit.
        """
        call = self._checked(call_id)
        end = min(end, self._full_length(call))
        out = np.empty(max(end - start, 0), dtype=np.int32)
        while end > start:
            assert call.prompt_delta is not None  # `problem` said so
            prompt_end = call.prefix_len + int(call.prompt_delta.size)
            if end > prompt_end and call.completion is not None:
                first = max(start, prompt_end)
                out[first - start : end - start] = call.completion[
                    first - prompt_end : end - prompt_end
                ]
                end = first
            if end > call.prefix_len:
                first = max(start, call.prefix_len)
                out[first - start : end - start] = call.prompt_delta[
                    first - call.prefix_len : end - call.prefix_len
                ]
                end = first
            if end > start:
                parent = call.stored_parent_id
                assert parent is not None  # `problem` said so
                call = self._calls[parent]
        return out

    def _keep(self, call_id: CallId, ids: IdArray) -> None:
        with self._lock:
            if ids.size > self._cache_tokens or call_id in self._cache:
                return
            self._cache[call_id] = ids
            self._cached_tokens += int(ids.size)
            while self._cached_tokens > self._cache_tokens:
                _, dropped = self._cache.popitem(last=False)
                self._cached_tokens -= int(dropped.size)
