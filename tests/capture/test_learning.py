"""An engine without a vocabulary: the bytes of ids are learned from its replies."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

from explorer.engine.protocol import EngineFacts, TokenPiece
from explorer.engine.scripted import ScriptedEngine
from explorer.records import RolloutId, TokenizerId
from tests.live import Live, serving

LEARNED = TokenizerId("learned:scripted")


class MuteEngine(ScriptedEngine):
    """Gives ids and bytes in replies, and no vocabulary."""

    async def facts(self) -> EngineFacts:
        return replace(await super().facts(), tokenizer_sha256=None)

    async def vocabulary(self) -> tuple[TokenPiece, ...]:
        return ()


def engine() -> MuteEngine:
    return MuteEngine(
        [
            {"when": {"contains": "first"}, "text": "Hello there 🦊"},
            {"when": {"contains": "second"}, "text": "Something else"},
        ]
    )


def say(live: Live, text: str) -> str:
    rollout, key = live.create()
    assert live.chat(key, messages=[{"role": "user", "content": text}]).status_code == 200
    return rollout


def stored(live: Live, at_least: int) -> dict[int, bytes]:
    deadline = time.time() + 5
    while True:
        found = {entry.token_id: entry.raw for entry in live.store.vocabulary(LEARNED)}
        if len(found) >= at_least or time.time() > deadline:
            return found
        time.sleep(0.02)


def test_bytes_are_learned_kept_and_never_changed(tmp_path: Path) -> None:
    path = tmp_path / "store.duckdb"
    with serving(engine(), path) as live:
        rollout = say(live, "first")
        found = live.store.rollout(RolloutId(rollout))
        assert found is not None
        assert found.tokenizer_id == LEARNED
        record = live.store.record(RolloutId(rollout))
        assert record is not None
        sampled = record.calls[0].completion
        assert sampled is not None
        one = stored(live, 3)
        shown = b"".join(one[int(token)] for token in sampled)
        assert shown.decode().startswith("Hello there 🦊")
        # What was not sampled is not known, and is not made up.
        prompt = record.calls[0].prompt_delta
        assert prompt is not None
        assert any(int(token) not in one for token in prompt)
    with serving(engine(), path) as live:
        say(live, "second")
        two = stored(live, len(one) + 1)
        assert two.items() >= one.items()
        assert len(two) > len(one)
