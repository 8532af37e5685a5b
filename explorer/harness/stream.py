"""Passes a command's output through live and keeps its end.

Owns: the pipe or pseudo-terminal of one output stream and the bytes kept of it.
Must not know: what the command is, rollouts.
"""

from __future__ import annotations

import errno
import fcntl
import os
import pty
import select
import termios
import threading
import tty
from collections.abc import Callable

KEEP_BYTES = 8 * 1024
# More than any key is long, so that a key is never cut before it is masked.
_SLACK_BYTES = 512
_TICK_S = 0.2
_SIZE = b"\0" * 8


class Stream:
    """One output stream of a command on its way to `target`, one of our own.

    Where `target` is a terminal the command gets a pseudo-terminal, so that it still
    draws as it does for a person; else a pipe.

    Args:
        target: our own descriptor that everything is written to.
        resized: called when the terminal behind `target` has another size.
    """

    def __init__(self, target: int, resized: Callable[[], None]) -> None:
        self._target = target
        self._resized = resized
        self._is_terminal = os.isatty(target)
        self._source, self.child_end = pty.openpty() if self._is_terminal else os.pipe()
        self._size = b""
        if self._is_terminal:
            # The real terminal behind it translates line ends; doing so twice would not do.
            tty.setraw(self.child_end)
            self._follow_size()
        self._kept = bytearray()
        self._cut = False
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        """The command has its end; from now on what it writes passes through."""
        os.close(self.child_end)
        self._thread.start()

    def discard(self) -> None:
        """The command was never started."""
        os.close(self.child_end)
        os.close(self._source)

    def finish(self, wait_s: float) -> None:
        """Passes on what is left. Somebody may hold the other end for ever, hence `wait_s`."""
        self._thread.join(wait_s)
        self._stop.set()
        self._thread.join()

    def tail(self, secret: bytes) -> bytes:
        """The last bytes kept, without a `secret` that their beginning would cut in two."""
        kept = bytes(self._kept)
        if self._cut:
            for length in range(len(secret) - 1, 0, -1):
                if kept.startswith(secret[-length:]):
                    return kept[length:]
        return kept

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                if not select.select([self._source], [], [], _TICK_S)[0]:
                    if self._is_terminal and self._follow_size():
                        self._resized()
                    continue
                data = self._read()
                if not data:
                    return
                self._keep(data)
                if not self._pass_on(data):
                    # The command now meets the broken pipe that it would have met itself.
                    return
        finally:
            os.close(self._source)

    def _read(self) -> bytes:
        try:
            return os.read(self._source, 64 * 1024)
        except OSError as error:
            if error.errno == errno.EIO:  # how a pseudo-terminal says that it was closed
                return b""
            raise

    def _keep(self, data: bytes) -> None:
        self._kept += data
        extra = len(self._kept) - KEEP_BYTES - _SLACK_BYTES
        if extra > 0:
            del self._kept[:extra]
            self._cut = True

    def _pass_on(self, data: bytes) -> bool:
        view = memoryview(data)
        while view:
            try:
                view = view[os.write(self._target, view) :]
            except BlockingIOError:
                select.select([], [self._target], [], _TICK_S)
            except OSError as error:
                # A terminal that hung up is no reason to stop keeping what is said.
                return error.errno != errno.EPIPE
        return True

    def _follow_size(self) -> bool:
        """Gives the pseudo-terminal the size of the real one; whether it changed."""
        try:
            size = fcntl.ioctl(self._target, termios.TIOCGWINSZ, _SIZE)
            if size == self._size:
                return False
            fcntl.ioctl(self._source, termios.TIOCSWINSZ, size)
        except OSError:
            return False
        self._size = size
        return True
