"""SIGTERM while a library has its own handler in place."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time

import pytest

from jobs import terminated
from jobs.terminated import handler_replaced, was_terminated


@pytest.fixture(autouse=True)
def _nothing_received(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(terminated, "_RECEIVED", threading.Event())


def install_one_that_exits() -> None:
    """As `ray.init` does."""
    signal.signal(signal.SIGTERM, lambda signum, frame: sys.exit(signum))


def be_terminated() -> None:
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(5)


def be_terminated_in_a_library() -> None:
    install_one_that_exits()
    be_terminated()


def test_it_is_an_interrupt_all_the_same() -> None:
    with pytest.raises(KeyboardInterrupt), handler_replaced():
        be_terminated_in_a_library()
    assert was_terminated()


def test_afterwards_ours_is_back() -> None:
    with handler_replaced():
        install_one_that_exits()
    with pytest.raises(KeyboardInterrupt):
        be_terminated()
    assert was_terminated()


def test_another_exit_stays_what_it_is() -> None:
    with pytest.raises(SystemExit), handler_replaced():
        sys.exit(1)
    assert not was_terminated()
