"""Token-in on one call: what is asked, what is sent, what came back.

Owns: when a call is sent by ids, and the record of it.
Must not know: sockets, tokenizers, the order of a call's life.

What the engine says it read is what goes on record, never what was sent: the ids that it gives
back are compared with those sent, and a difference is noted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from explorer.capture.sampling import Shaped
from explorer.capture.token_in import Book, Continued
from explorer.capture.token_in_digest import Conversation, conversation, only_text
from explorer.engine.reply import ParsedReply
from explorer.engine.suffix import Extend, Extension, SuffixTokenizer
from explorer.engine.token_in import (
    Parser,
    TakesIds,
    Way,
    as_completion,
    find_parser,
    needs_chat,
    with_ids,
)
from explorer.records import Call, Dialect, Fallback, IdArray, Note, TokenIn
from explorer.trace.prefix import shared_length

DIFFERS = "token_in_differs"


@dataclass(frozen=True, slots=True)
class TokenInPlan:
    """What is known before a call of a rollout with token-in.

    Attributes:
        book: the rollout's earlier calls.
        takes: how the engine takes ids.
        suffixes: tokenises what a conversation adds.
    """

    book: Book
    takes: TakesIds
    suffixes: SuffixTokenizer


class TokenInCall:
    """What token-in keeps of one call on its way."""

    def __init__(self, plan: TokenInPlan, dialect: Dialect) -> None:
        self._plan = plan
        self._dialect = dialect
        self._continued: Continued | None = None
        self._sent: IdArray | None = None
        self._parser: Parser | None = None
        self._said: Conversation | None = None
        self._asked = False
        self.record: TokenIn | None = None

    def wanted(self, body: Mapping[str, Any]) -> Extend | None:
        """What is to be tokenised; None where messages are sent as they are. Asked once."""
        if self._asked:
            return None
        self._asked = True
        found = self._decide(body)
        if isinstance(found, Fallback):
            self.record = TokenIn(fallback=found.value)
            return None
        self.record = TokenIn()
        if found is None:
            return None
        self._continued = found
        return Extend(
            body=body,
            history=found.history,
            end_id=int(found.completion[-1]),
            expected=None if found.turn.by_ids else tuple(found.prompt.tolist()),
            asked_end=found.turn.asked_end,
        )

    def _decide(self, body: Mapping[str, Any]) -> Continued | Fallback | None:
        messages = body.get("messages")
        if not isinstance(messages, list) or not messages:
            return None
        if not only_text(messages) or body.get("echo"):
            return Fallback.NOT_TEXT
        try:
            said = conversation(body)
        except RecursionError:  # no engine can be sent such a body either
            return Fallback.NOT_TEXT
        if body.get("kv_transfer_params") or body.get("ec_transfer_params"):
            self._said = said
            return Fallback.OWN_IDS
        continues = body.get("continue_final_message")
        if continues or body.get("add_generation_prompt") is False:
            return Fallback.PREFILL
        self._said = said
        found = self._plan.book.continued(messages, said)
        if not isinstance(found, Continued):
            return found
        if self._plan.takes.way is None:
            return Fallback.ENGINE_TAKES_NO_IDS
        if self._plan.takes.way is Way.COMPLETIONS:
            return self._by_completions(body) or found
        return found

    def _by_completions(self, body: Mapping[str, Any]) -> Fallback | None:
        # What was said before is read back from the body that was sent, for Responses.
        if needs_chat(body) or self._dialect is Dialect.RESPONSES:
            return Fallback.CHAT_ONLY
        self._parser = find_parser(self._plan.takes.flags, body)
        return None if self._parser is not None else Fallback.REPLY_PARSER_UNKNOWN

    def extended(self, shaped: Shaped, found: Extension) -> Shaped:
        """The request with ids in the place of its messages, or as it was."""
        before = self._continued
        assert before is not None
        if found.suffix is None:
            reason = found.reason or Fallback.TEMPLATE_NOT_EXTENDABLE
            self.record = TokenIn(parent_id=before.turn.call_id, fallback=reason.value)
            return shaped
        suffix = np.array(found.suffix, np.int32)
        ids = np.concatenate((before.prompt, before.completion, suffix))
        prefix = int(before.prompt.size + before.completion.size)
        differs = None
        if found.rendered is not None:
            rendered = np.array(found.rendered, np.int32)
            at = int(shared_length(ids, rendered))
            differs = at if at < max(ids.size, rendered.size) else None
        body = self._with_ids(shaped, ids)
        if isinstance(body, Fallback):
            self.record = TokenIn(parent_id=before.turn.call_id, fallback=body.value)
            return shaped
        self._sent = ids
        self.record = TokenIn(
            sent=True,
            how=None if self._plan.takes.way is None else self._plan.takes.way.value,
            parent_id=before.turn.call_id,
            prefix_len=prefix,
            avoided_break=differs is not None and differs < prefix,
            differs_at=differs,
            compared=found.rendered is not None,
        )
        return replace(shaped, body=body)

    def _with_ids(self, shaped: Shaped, ids: IdArray) -> dict[str, Any] | Fallback:
        room = self._plan.takes.max_model_len
        limit = shaped.max_tokens
        # Reasoning that the messages lack makes ids the longer prompt: a request that the
        # engine would take must not fail for it.
        if room is not None and ids.size + max(1, limit or 1) > room:
            return Fallback.TOO_LONG
        if self._plan.takes.way is Way.CHAT:
            return with_ids(shaped.body, ids.tolist())
        if limit is None and room is not None:
            limit = room - int(ids.size)
        # Without a limit plain completions end after 16 tokens.
        if limit is None:
            return Fallback.CHAT_ONLY
        return as_completion(shaped.body, ids.tolist(), limit)

    @property
    def prompt_tokens(self) -> int | None:
        """Length of the prompt that is sent by ids; None where messages are."""
        return None if self._sent is None else int(self._sent.size)

    def understood(self, parsed: ParsedReply) -> ParsedReply:
        """The reply with its parts told apart, where the engine did not, and a note where it
        read another prompt than it was sent."""
        if self._sent is None or self.record is None:
            return parsed
        if self._parser is not None:
            parsed = self._parser(parsed)
        if parsed.prompt_ids is None:
            return parsed
        same = bool(np.array_equal(parsed.prompt_ids, self._sent))
        self.record = replace(self.record, same=same)
        if same:
            return parsed
        at = int(shared_length(parsed.prompt_ids, self._sent))
        words = f"the engine read another prompt than the ids sent, from token {at} on"
        return replace(parsed, notes=(*parsed.notes, Note(DIFFERS, words)))

    def settled(self, call: Call, reply: Mapping[str, Any] | None) -> None:
        """The call is durable: it may be continued."""
        self._plan.book.add(call, self._said, reply)
