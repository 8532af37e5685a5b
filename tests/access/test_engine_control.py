"""The engine's own control addresses cannot be reached through this server."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

import pytest

from explorer.engine.factory import make_engine
from explorer.settings import load
from tests.live import Live, serving

MARK = "controlmark4711"
# Of vLLM 0.32 with development mode, LoRA and elastic parallelism switched on.
CONTROL = (
    "/sleep", "/wake_up", "/is_sleeping", "/reset_prefix_cache", "/reset_mm_cache",
    "/reset_encoder_cache", "/update_weights", "/init_weight_transfer_engine",
    "/start_weight_update", "/finish_weight_update", "/get_world_size", "/collective_rpc",
    "/server_info", "/pause", "/resume", "/is_paused", "/abort_requests", "/start_profile",
    "/stop_profile", "/scale_elastic_ep", "/is_scaling_elastic_ep", "/load", "/version",
    "/tokenize", "/detokenize", "/tokenizer_info", "/invocations", "/ping", "/health",
    "/metrics", "/pooling", "/classify", "/score", "/rerank", "/generate",
    "/inference/v1/generate", "/v1/load_lora_adapter", "/v1/unload_lora_adapter",
    "/v1/embeddings", "/v1/score", "/v1/rerank", "/v1/audio/transcriptions",
    "/v1/chat/completions/render", "/v1/completions/render", "/v1/responses/x/cancel",
)  # fmt: skip
# How a path may be written so that one reader takes it for another than the next.
TRICKS = (
    "{0}", "/{0}", "{0}/", "/.{0}", "/v1{0}", "/v1/{0}", "/v1/..{0}", "/v1/%2e%2e{0}",
    "/v1/..%2f{1}", "/v1/..;{0}", "/v1/chat/completions/../../..{0}",
    "/v1/chat/completions/..;{0}", "/v1/chat/completions/%2e%2e/%2e%2e{0}",
    "/v1/chat/completions%2f..%2f..%2f{1}", "/v1/models/..{0}", "/v1/models/..%2f..%2f{1}",
    "/%2f{1}", "/v1/%2f%2f{1}", "/v1\\..\\{1}", "/V1/..{0}", "/static/..{0}",
    "/static/%2e%2e%2f{1}", "http://127.0.0.1:1{0}", "/v1beta/models/m:generateContent/..{0}",
    "/v1beta/models/..{0}", "/{1}?x=/v1/chat/completions", "/v1/{1}%00", "/v1/{1}%23",
)  # fmt: skip
GENERATION = {"/v1/chat/completions", "/v1/completions"}


@dataclass
class FakeEngine:
    """A real HTTP server that knows nothing and remembers everything it is asked."""

    port: int = 0
    seen: list[tuple[str, bool]] = field(default_factory=list)


@pytest.fixture(scope="module")
def fake() -> Iterator[FakeEngine]:
    made = FakeEngine()

    class Handler(BaseHTTPRequestHandler):
        def _any(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length") or 0))
            whole = self.path.encode() + body + str(self.headers).encode()
            made.seen.append((urlsplit(self.path).path, MARK.encode() in whole))
            self.send_response(404)
            self.send_header("content-length", "0")
            self.end_headers()

        do_GET = do_POST = do_PUT = do_DELETE = _any

        def log_message(self, format: str, *args: object) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    made.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield made
    server.shutdown()
    server.server_close()
    thread.join(10)


@pytest.fixture(scope="module")
def live(fake: FakeEngine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    engine = make_engine(load(engine=f"http://127.0.0.1:{fake.port}"))
    store = tmp_path_factory.mktemp("control") / "store.duckdb"
    with serving(engine, store, rate_per_minute=0.0) as live:
        yield live


def ask(live: Live, method: str, path: str, key: str) -> int:
    """One request whose path is sent as it is written."""
    where = urlsplit(live.url)
    line = http.client.HTTPConnection(str(where.hostname), where.port, timeout=30)
    marked = path + ("&" if "?" in path else "?") + MARK
    try:
        line.putrequest(method, marked)
        body = b'{"' + MARK.encode() + b'": 1}' if method == "POST" else b""
        line.putheader("authorization", f"Bearer {key}")
        line.putheader("content-length", str(len(body)))
        line.endheaders(body)
        return line.getresponse().status
    finally:
        line.close()


@pytest.mark.parametrize("method", ["POST", "GET"])
@pytest.mark.parametrize("prefix", ["", "/k/{key}"])
def test_no_control_route_is_reached_by_any_spelling(
    live: Live, fake: FakeEngine, method: str, prefix: str
) -> None:
    _, key = live.create(run="r")
    before = {path for path, _ in fake.seen}
    asked = 0
    for control in CONTROL:
        for trick in TRICKS:
            path = trick.format(control, control.lstrip("/"))
            if path.startswith("http") and prefix:
                continue
            status = ask(live, method, prefix.format(key=key) + path, key)
            asked += 1
            assert status < 500, (method, path, status)
            if method == "POST":
                assert status >= 300, (path, status)
    assert asked > 1000
    assert [path for path, marked in fake.seen if marked] == []
    # What the engine is asked besides is our own probe.
    assert {path for path, _ in fake.seen} - before <= before | GENERATION


def test_a_call_does_reach_the_engine_so_the_walk_above_can_fail(
    live: Live, fake: FakeEngine
) -> None:
    _, key = live.create(run="r")
    live.chat(key, messages=[{"role": "user", "content": MARK}])
    assert {path for path, marked in fake.seen if marked} <= GENERATION
    assert any(marked for _, marked in fake.seen)


def test_a_model_name_cannot_leave_its_place_in_the_path(live: Live, fake: FakeEngine) -> None:
    _, key = live.create(run="r")
    for name in ("..%2f..%2fsleep", "../../sleep", "x/../../sleep", "%2e%2e%2fsleep"):
        ask(live, "POST", f"/v1beta/models/{name}:generateContent", key)
        ask(live, "GET", f"/v1beta/models/{name}", key)
        ask(live, "GET", f"/v1/models/{name}", key)
    assert {path for path, marked in fake.seen if marked} <= GENERATION
