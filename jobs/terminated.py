"""SIGTERM, which a scheduler sends before it takes the machine away."""

from __future__ import annotations

import signal
from typing import NoReturn


class Terminated(KeyboardInterrupt):
    """Raised in the main thread at SIGTERM. A kind of Ctrl-C, so that whatever is open is closed on the way out."""


def handle_sigterm() -> None:
    """From now on SIGTERM raises Terminated. `ray.init` puts its own handler in place: call this again after it."""
    signal.signal(signal.SIGTERM, _terminate)


def _terminate(signum: int, frame: object) -> NoReturn:
    raise Terminated
