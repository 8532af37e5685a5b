"""The local Hub: what the real clients talk to where the real Hub cannot be reached.

Owns: putting the parts together, the server's life, signed addresses.
Must not know: what any request means.
"""

from __future__ import annotations

import hashlib
import secrets
import threading
from http.server import ThreadingHTTPServer
from types import TracebackType

from tests.hub import api_buckets, api_commit, api_files, api_repos
from tests.hub.faults import Faults, Limit
from tests.hub.people import People
from tests.hub.repos import Repo, Shelf
from tests.hub.wire import Answer, Refusal, Request, Route, found_route, handler_for
from tests.hub.xet import Storage

ROUTES: list[Route] = [
    *api_buckets.ROUTES,
    *api_repos.ROUTES,
    *api_commit.ROUTES,
    *api_files.ROUTES,
]


class LocalHub:
    """A Hub on this machine, from `with` to its end.

    Attributes:
        people, shelf, faults: who there is, what it keeps, what goes wrong.
        limit: of requests, where there is one.
        part_size: larger files go up in parts.
        page: entries of a list per page.
        lag: seconds by which what it tells of a repository is behind.
        ignored: a pattern of paths, as if a `.gitignore` had them.
        incoming: large files that are not verified yet.
        buckets, storage: by name, and where their files' content lies.
    """

    def __init__(self, port: int = 0) -> None:
        self.people = People()
        self.shelf = Shelf()
        self.faults = Faults()
        self.limit: Limit | None = None
        self.part_size = 5 * 1024 * 1024 * 1024
        self.page = 1000
        self.lag = 0.0
        self.ignored = ""
        self.incoming: dict[str, bytes] = {}
        self.buckets: dict[str, api_buckets.BucketPlace] = {}
        self.storage = Storage()
        self._secret = secrets.token_hex(16)
        self._lock = threading.RLock()
        self._server = ThreadingHTTPServer(("127.0.0.1", port), handler_for(self.answer))
        self._server.daemon_threads = True
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True
        )

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    @property
    def url(self) -> str:
        """What `HF_ENDPOINT` is set to."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def storage_url(self) -> str:
        """Large files lie on another host, as they do behind the real Hub."""
        return f"http://localhost:{self.port}"

    def __enter__(self) -> LocalHub:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def dataset(self, repo_id: str) -> Repo:
        """A dataset's repository."""
        return self.shelf.repos["dataset", repo_id]

    @staticmethod
    def prefix(kind: str) -> str:
        """What stands before a repository's name in addresses."""
        return "" if kind == "model" else f"{kind}s/"

    def signed(self, path: str) -> str:
        """An address of the storage that needs no token."""
        return f"{self.storage_url}{path}?X-Amz-Signature={self._signature(path)}"

    def check_signed(self, request: Request) -> None:
        """Raises:
        Refusal: nobody gave this address out.
        """
        if request.one("X-Amz-Signature") != self._signature(request.path):
            raise Refusal(403, "SignatureDoesNotMatch")

    def _signature(self, path: str) -> str:
        return hashlib.sha256(f"{self._secret}{path}".encode()).hexdigest()

    def answer(self, request: Request) -> Answer:
        """The answer to a request."""

        def doing() -> Answer:
            with self._lock:
                try:
                    said = self._said(request)
                    handler, parts = found_route(ROUTES, request.method, request.path)
                    given = handler(self, request, **parts)
                except Refusal as refusal:
                    return refusal.answer()
            return Answer(given.status, given.body, given.headers | said)

        return self.faults.through(request, doing)

    def _said(self, request: Request) -> dict[str, str]:
        """What every answer of `/api` says of the limit."""
        if self.limit is None or not request.path.startswith("/api/"):
            return {}
        return self.limit.headers(request)
