"""SIGTERM, which a scheduler sends before it takes the machine away."""

from __future__ import annotations

import signal
import threading
from typing import NoReturn

_RECEIVED = threading.Event()


def handle_sigterm() -> None:
    """From now on SIGTERM is a Ctrl-C, so that whatever is open is closed on the way out. `ray.init` puts its own
    handler in place: call this again after it."""
    signal.signal(signal.SIGTERM, _terminate)


def was_terminated() -> bool:
    """Whether the interrupt was a SIGTERM. The exception cannot tell: libraries replace it by one of their own."""
    return _RECEIVED.is_set()


def _terminate(signum: int, frame: object) -> NoReturn:
    _RECEIVED.set()
    raise KeyboardInterrupt
