"""SIGTERM, which a scheduler sends before it takes the machine away."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from typing import NoReturn

_RECEIVED = threading.Event()


def handle_sigterm() -> None:
    """From now on SIGTERM is a Ctrl-C, so that whatever is open is closed on the way out."""
    signal.signal(signal.SIGTERM, _terminate)


@contextlib.contextmanager
def handler_replaced() -> Iterator[None]:
    """Around what puts its own handler in place, one that exits, as `ray.init` does: a SIGTERM means the same there,
    and afterwards ours is back."""
    try:
        yield
    except SystemExit as left:
        if left.code != signal.SIGTERM:
            raise
        _RECEIVED.set()
        raise KeyboardInterrupt from None
    finally:
        handle_sigterm()


def was_terminated() -> bool:
    """Whether the interrupt was a SIGTERM. The exception cannot tell: libraries replace it by one of their own."""
    return _RECEIVED.is_set()


def _terminate(signum: int, frame: object) -> NoReturn:
    _RECEIVED.set()
    raise KeyboardInterrupt
