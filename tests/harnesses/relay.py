"""A real TCP relay in front of the server that counts the requests which go through it."""

from __future__ import annotations

import contextlib
import re
import socket
import threading
from collections.abc import Iterator
from urllib.parse import urlsplit

_REQUEST = re.compile(rb"(?:^|\n)POST [^\r\n]* HTTP/1\.1\r\n")


class Relay:
    """Passes bytes on unread but for the lines that begin a POST."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        assert parts.hostname
        assert parts.port
        self._target = (parts.hostname, parts.port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.posts = 0
        self._threads: list[threading.Thread] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """No more connections."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join(10)

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            thread = threading.Thread(target=self._carry, args=(near,), daemon=True)
            thread.start()
            self._threads.append(thread)

    def _carry(self, near: socket.socket) -> None:
        with near, socket.create_connection(self._target) as far:
            back = threading.Thread(target=self._copy, args=(far, near), daemon=True)
            back.start()
            self._copy(near, far, counted=True)
            back.join()

    def _copy(self, source: socket.socket, sink: socket.socket, counted: bool = False) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if counted:
                    self.posts += len(_REQUEST.findall(data))
                sink.sendall(data)
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def counting(url: str) -> Iterator[Relay]:
    """A relay to `url` for as long as it is needed."""
    relay = Relay(url)
    try:
        yield relay
    finally:
        relay.close()
