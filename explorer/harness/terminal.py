"""Lends the terminal to the command and takes it back, as a shell does for a job.

Owns: which process group reads the terminal, and the terminal's modes.
Must not know: rollouts, output.

The command runs in a process group of its own, so that all of it can be ended. A group
that does not own the terminal is stopped when it reads from it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import termios
import threading
from typing import Any


class Terminal:
    """Standard input, when it is a terminal that is ours to lend."""

    def __init__(self) -> None:
        self._fd = 0
        self._modes: list[Any] | None = None
        self._lent = False
        self._continued = threading.Event()
        try:
            if os.isatty(self._fd) and os.tcgetpgrp(self._fd) == os.getpgrp():
                self._modes = termios.tcgetattr(self._fd)
        except (OSError, termios.error):
            self._modes = None

    def lend(self, group: int) -> None:
        """From now on `group` reads the terminal; Ctrl-C goes to it and not to us."""
        if self._modes is None:
            return
        # As a background job we may write to the terminal and take it back.
        signal.signal(signal.SIGTTOU, signal.SIG_IGN)
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGCONT, self._continued.set)
        self._give(group)
        self._lent = True
        _tell(group, signal.SIGCONT)

    def take_back(self) -> None:
        """The terminal is ours again, in the modes it had."""
        if not self._lent:
            return
        self._lent = False
        self._give(os.getpgrp())
        if self._modes is not None:
            with contextlib.suppress(termios.error):
                termios.tcsetattr(self._fd, termios.TCSADRAIN, self._modes)

    def stopped(self, group: int, number: int) -> None:
        """The command was stopped: with Ctrl-Z, or by reading before it had the terminal.

        Called in a thread, which waits until the shell continues us.
        """
        if self._lent and number in (signal.SIGTTIN, signal.SIGTTOU):
            _tell(group, signal.SIGCONT)
            return
        if not self._lent:
            # Nobody sits here; whoever stopped the command continues it.
            return
        self._give(os.getpgrp())
        sys.stderr.flush()
        self._continued.clear()
        os.killpg(0, signal.SIGSTOP)
        # A process stops a moment later than this call returns to one of its threads.
        self._continued.wait()
        with contextlib.suppress(OSError):
            if os.tcgetpgrp(self._fd) == os.getpgrp():
                self._give(group)
        _tell(group, signal.SIGCONT)

    def _give(self, group: int) -> None:
        with contextlib.suppress(OSError):
            os.tcsetpgrp(self._fd, group)


def _tell(group: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)
