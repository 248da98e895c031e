"""Ends this process when its engine has stood still for too long, whatever its threads do."""

from __future__ import annotations

import contextlib
import faulthandler
from collections.abc import Iterator

STDERR = 2
"""The descriptor: whatever `sys.stderr` has been replaced by, this is where the process's owner looks."""


class Watchdog:
    """A timer outside Python: an engine that hangs in C code may hold the lock without which no Python code runs.

    The timer is `faulthandler`'s: when it runs out, every thread's traceback goes to the standard error stream (the
    worker's log, with Ray) and the process ends with status 1, without any clean-up. One per process.
    """

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._rounds = -1

    def look(self, rounds: int, is_working: bool) -> None:
        """Start the time anew if `rounds`, a count, has changed, or if there is nothing to do; call once a second.

        Not to be called any more is standing still, too.
        """
        if rounds != self._rounds or not is_working:
            self._rounds = rounds
            faulthandler.dump_traceback_later(self._timeout_s, exit=True, file=STDERR)

    @contextlib.contextmanager
    def allowing(self, timeouts: int) -> Iterator[None]:
        """What happens inside has no rounds to count, as loading has none: it may take so many timeouts."""
        faulthandler.dump_traceback_later(timeouts * self._timeout_s, exit=True, file=STDERR)
        try:
            yield
        finally:
            self.stop()

    def stop(self) -> None:
        faulthandler.cancel_dump_traceback_later()
