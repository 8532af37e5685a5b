"""The fence over an engine with vLLM's routes for weights: each step that fails is told, and
the fence stays shut or the version unknown. The engine is a small real HTTP server."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Awaitable, Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from explorer.capture.fence import Drain, FenceState
from explorer.capture.fence_desk import FenceDesk
from explorer.capture.fence_orders import ReadyOrder, SyncOrder
from explorer.capture.ids import now_us
from explorer.engine.fence import UNREADABLE, NoControl, Published, Step
from explorer.engine.fence_vllm import VllmControl
from explorer.engine.http import HttpEngine
from explorer.errors import BadRequest, EngineNotTold, StoreFailed
from explorer.records import CallId, WeightUpdate
from explorer.store import DuckDBStore
from tests.store.making import with_store

CALL = CallId("c")


class Engine:
    """Answers vLLM's development routes; `broken` paths answer 500, `dev` False answers 404."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.broken: set[str] = set()
        self.dev = True
        self.label: Any = "default"
        engine = self

        class Handler(BaseHTTPRequestHandler):
            def _answer(self) -> None:
                engine.asked.append(self.path)
                body = self.rfile.read(int(self.headers.get("content-length") or 0))
                path = self.path.partition("?")[0]
                status = 200
                said: dict[str, Any] = {}
                if not engine.dev:
                    status = 404
                elif path in engine.broken:
                    status, said = 500, {"error": {"message": "no such luck"}}
                elif path == "/weight_info":
                    said = {"weight_version": engine.label}
                elif path == "/update_weight_version":
                    engine.label = json.loads(body)["new_version"]
                elif path == "/reset_prefix_cache":
                    said = {"success": "cache" not in engine.broken}
                raw = json.dumps(said).encode()
                self.send_response(status)
                self.send_header("content-length", str(len(raw)))
                self.end_headers()
                self.wfile.write(raw)

            do_GET = do_POST = _answer

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()


@pytest.fixture
def engine() -> Iterator[Engine]:
    made = Engine()
    yield made
    made.server.shutdown()
    made.server.server_close()


def run(tmp_path: Path, engine: Engine, work: Callable[[FenceDesk], Awaitable[None]]) -> None:
    """`work` with a fence over this engine and a real store, started."""

    async def inner(store: DuckDBStore) -> None:
        client = HttpEngine(engine.url)
        await client.start()
        desk = FenceDesk(store, VllmControl(client), 0.1, now_us)
        await desk.start()
        try:
            await work(desk)
        finally:
            await desk.stop()
            await client.stop()

    with_store(tmp_path / "store.duckdb", inner)


async def here() -> bool:
    """The trainer still waits for the answer."""
    return False


def syncing(version: int, drain: Drain = Drain.PAUSE, lease_s: float = 60) -> SyncOrder:
    return SyncOrder(version, lease_s, drain, 0)


def test_an_update_drives_every_step_in_order(tmp_path: Path, engine: Engine) -> None:
    async def work(desk: FenceDesk) -> None:
        await desk.ready(ReadyOrder(7))
        engine.asked.clear()
        await desk.syncing(syncing(8), here)
        await desk.syncing(syncing(8), here)  # renewed: paused once
        await desk.ready(ReadyOrder(8))
        assert desk.standing().version == 8
        assert await desk.control.label() == "8"

    run(tmp_path, engine, work)
    assert engine.asked == [
        "/pause?mode=keep",
        "/update_weight_version",
        "/reset_prefix_cache?reset_running_requests=true",
        "/resume",
        "/weight_info",
    ]


@pytest.mark.parametrize("step", ["/update_weight_version", "cache", "/resume"])
def test_a_step_that_fails_leaves_the_fence_shut_until_it_is_mended(
    tmp_path: Path, engine: Engine, step: str
) -> None:
    async def work(desk: FenceDesk) -> None:
        await desk.ready(ReadyOrder(7))
        await desk.syncing(syncing(8), here)
        engine.broken = {step}
        with pytest.raises(EngineNotTold, match=r"did not do"):
            await desk.ready(ReadyOrder(8))
        assert desk.standing().state is FenceState.SYNCING
        assert desk.fence.begin(CALL, now_us()) is None
        refusal = await desk.let_in()
        assert refusal is not None
        assert refusal.details["retry_after_s"] == 10
        engine.broken = set()
        assert (await desk.ready(ReadyOrder(8))).version == 8
        assert await desk.let_in() is None

    run(tmp_path, engine, work)


def test_an_announcement_that_the_engine_did_not_take_leaves_the_version_unknown(
    tmp_path: Path, engine: Engine
) -> None:
    async def work(desk: FenceDesk) -> None:
        await desk.ready(ReadyOrder(7))
        engine.broken = {"/update_weight_version"}
        with pytest.raises(EngineNotTold):
            await desk.ready(ReadyOrder(8))
        standing = desk.standing()
        assert (standing.state, standing.version) == (FenceState.READY, None)
        assert "not told of version 8" in standing.doubt

    run(tmp_path, engine, work)


def test_an_engine_that_cannot_be_paused_is_told_and_what_runs_is_not_trusted(
    tmp_path: Path, engine: Engine
) -> None:
    async def work(desk: FenceDesk) -> None:
        await desk.ready(ReadyOrder(7))
        desk.fence.begin(CALL, now_us())
        engine.broken = {"/pause"}
        with pytest.raises(EngineNotTold, match="could not be paused"):
            await desk.syncing(syncing(8), here)
        assert desk.standing().state is FenceState.SYNCING
        assert desk.fence.end(CALL, now_us()).notes

    run(tmp_path, engine, work)


def test_an_engine_without_these_routes_is_asked_once_and_fenced_here_only(
    tmp_path: Path, engine: Engine
) -> None:
    engine.dev = False

    async def work(desk: FenceDesk) -> None:
        await desk.ready(ReadyOrder(7))
        await desk.syncing(syncing(8), here)
        assert (await desk.ready(ReadyOrder(8))).version == 8
        assert await desk.control.label() is None

    run(tmp_path, engine, work)
    assert engine.asked == ["/weight_info"]


def test_an_engine_that_stops_saying_what_it_has_is_not_taken_at_its_old_word(
    tmp_path: Path, engine: Engine
) -> None:
    async def work(desk: FenceDesk) -> None:
        assert await desk.control.label() == "default"
        engine.broken = {"/weight_info"}
        assert await desk.control.label() == UNREADABLE
        assert await desk.control.resume() == Step("resume", ok=True)

    run(tmp_path, engine, work)


def test_a_lease_that_runs_out_resumes_the_engine_and_is_on_record(
    tmp_path: Path, engine: Engine
) -> None:
    async def work(desk: FenceDesk) -> None:
        await desk.ready(ReadyOrder(7))
        await desk.syncing(syncing(8, lease_s=0.1), here)
        assert await desk.let_in() is None
        await asyncio.sleep(0.1)
        assert engine.asked[-1] == "/resume"
        assert desk.alert.startswith("Nobody knows which weights")

    run(tmp_path, engine, work)

    async def read(store: DuckDBStore) -> None:
        states = [(each.state, each.weight_version) for each in store.weight_updates()]
        assert states == [("unknown", 7), ("syncing", 8), ("ready", 7)]

    with_store(tmp_path / "store.duckdb", read)


def test_a_restart_finds_an_engine_that_names_other_weights(
    tmp_path: Path, engine: Engine
) -> None:
    async def announce(desk: FenceDesk) -> None:
        await desk.ready(ReadyOrder(7, "step-7"))

    async def again(desk: FenceDesk) -> None:
        assert desk.standing().version == 7

    async def later(desk: FenceDesk) -> None:
        assert desk.standing().version is None
        assert "'default'" in desk.standing().doubt

    run(tmp_path, engine, announce)
    run(tmp_path, engine, again)
    engine.label = "default"  # it was restarted, too
    run(tmp_path, engine, later)


def test_who_drains_learns_that_the_last_call_ended(tmp_path: Path, engine: Engine) -> None:
    engine.dev = False

    async def work(desk: FenceDesk) -> None:
        await desk.ready(ReadyOrder(7))
        desk.fence.begin(CALL, now_us())
        order = SyncOrder(8, 60, Drain.WAIT, 20)
        waiting = asyncio.create_task(desk.syncing(order, here))
        await asyncio.sleep(0.05)
        assert not waiting.done()
        assert desk.fence.end(CALL, now_us()).notes == ()
        desk.poke()
        assert (await asyncio.wait_for(waiting, 2)).drained

    run(tmp_path, engine, work)


def test_a_trainer_that_hung_up_while_draining_is_taken_to_have_gone_on(
    tmp_path: Path, engine: Engine
) -> None:
    engine.dev = False

    async def gone() -> bool:
        return True

    async def work(desk: FenceDesk) -> None:
        await desk.ready(ReadyOrder(7))
        desk.fence.begin(CALL, now_us())
        await desk.syncing(SyncOrder(8, 60, Drain.WAIT, 20), gone)
        assert desk.fence.end(CALL, now_us()).notes

    run(tmp_path, engine, work)


def test_an_engine_of_somebody_else_that_was_away_may_have_other_weights(
    tmp_path: Path, engine: Engine
) -> None:
    engine.dev = False

    async def work(desk: FenceDesk) -> None:
        desk.engine_away()
        assert desk.standing().doubt == ""  # nobody had announced any
        await desk.ready(ReadyOrder(7))
        desk.saw(500)
        assert desk.standing().doubt == ""  # the engine itself, not a gateway
        desk.saw(502)
        # At once: the next call may meet the engine that came back.
        assert "did not answer" in desk.standing().doubt
        await desk.ready(ReadyOrder(7))
        assert desk.standing().version == 7
        await desk.syncing(syncing(8, Drain.NONE), here)
        desk.engine_away()
        assert desk.standing().state is FenceState.SYNCING

    run(tmp_path, engine, work)


class Halting(NoControl):
    """Stands still in the middle of being told; `fails` afterwards, if it is given."""

    def __init__(self, fails: Exception | None = None) -> None:
        super().__init__()
        self.reached, self.go, self.fails = asyncio.Event(), asyncio.Event(), fails

    async def publish(self, label: str, *, paused: bool) -> Published:
        self.reached.set()
        await self.go.wait()
        if self.fails is not None:
            raise self.fails
        return Published()


@pytest.mark.parametrize("announced_before", [False, True])
def test_nothing_is_sampled_or_trusted_between_a_trainers_word_and_its_row(
    tmp_path: Path, announced_before: bool
) -> None:
    async def inner(store: DuckDBStore) -> None:
        desk = FenceDesk(store, NoControl(), 0.1, now_us)
        await desk.ready(ReadyOrder(7))
        desk.fence.begin(CALL, now_us())
        draining = None
        if announced_before:
            # Its answer is not there yet, so it was not told to go on; it does all the same.
            order = SyncOrder(8, 60, Drain.WAIT, 20)
            draining = asyncio.create_task(desk.syncing(order, here))
            await asyncio.sleep(0.02)
        desk.control = control = Halting()
        telling = asyncio.create_task(desk.ready(ReadyOrder(8)))
        await control.reached.wait()
        assert desk.fence.begin(CallId("late"), now_us()) is None
        assert desk.fence.end(CALL, now_us()).notes
        control.go.set()
        assert (await telling).version == 8
        if draining is not None:
            assert (await draining).state is FenceState.READY

    with_store(tmp_path / "store.duckdb", inner)


@pytest.mark.parametrize(
    ("problem", "version"),
    [(StoreFailed("full"), None), (RuntimeError("ours"), None), (BadRequest("no"), 7)],
)
def test_an_announcement_that_comes_to_nothing_never_leaves_the_old_number_by_mistake(
    tmp_path: Path, problem: Exception, version: int | None
) -> None:
    async def inner(store: DuckDBStore) -> None:
        desk = FenceDesk(store, NoControl(), 0.1, now_us)
        await desk.ready(ReadyOrder(7))
        desk.control = control = Halting(problem)
        control.go.set()
        with pytest.raises(type(problem)):
            await desk.ready(ReadyOrder(8))
        standing = desk.standing()
        assert (standing.state, standing.version) == (FenceState.READY, version)
        assert await desk.let_in() is None

    with_store(tmp_path / "store.duckdb", inner)


def test_calls_that_wait_are_woken_by_the_opening_and_not_by_every_end(tmp_path: Path) -> None:
    async def inner(store: DuckDBStore) -> None:
        desk = FenceDesk(store, NoControl(), 20, now_us)
        await desk.ready(ReadyOrder(7))
        await desk.syncing(syncing(8, Drain.NONE), here)
        waiting = [asyncio.create_task(desk.let_in()) for _ in range(20)]
        await asyncio.sleep(0.02)
        for _ in range(5):
            desk.poke()
        await asyncio.sleep(0.02)
        assert desk.waiting == 20
        waiting.pop().cancel()
        await desk.ready(ReadyOrder(8))
        assert await asyncio.wait_for(asyncio.gather(*waiting), 2) == [None] * 19
        await asyncio.sleep(0)
        assert desk.waiting == 0

    with_store(tmp_path / "store.duckdb", inner)


def test_a_restart_in_the_middle_of_an_update_stays_shut_though_the_old_file_is_gone(
    tmp_path: Path,
) -> None:
    async def inner(store: DuckDBStore) -> None:
        detail = {"weights_path": str(tmp_path / "gone"), "sha256": "0"}
        await store.add_weight_update(WeightUpdate(1, now_us(), "ready", 7, "7", detail))
        lease = {"lease_expires_us": now_us() + 300_000}
        await store.add_weight_update(WeightUpdate(2, now_us(), "syncing", 8, None, lease))
        desk = FenceDesk(store, NoControl(embedded=True), 0.05, now_us)
        await desk.start()
        assert desk.standing().state is FenceState.SYNCING
        await asyncio.sleep(0.35)
        assert (desk.standing().state, desk.standing().version) == (FenceState.READY, None)
        await desk.stop()

    with_store(tmp_path / "store.duckdb", inner)
