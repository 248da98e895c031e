"""The watchdog, in processes of its own: it ends them."""

from __future__ import annotations

import subprocess
import sys
import time

HEAD = "import ctypes, time\nfrom pipeline.watchdog import Watchdog\ndog = Watchdog(1.0)\n"
FREEZE = "ctypes.PyDLL(None).sleep(60)  # keeps the interpreter's lock: no other Python thread runs"


def ended(body: str) -> tuple[int, float, str]:
    started = time.monotonic()
    done = subprocess.run([sys.executable, "-c", HEAD + body], capture_output=True, text=True, timeout=50)
    return done.returncode, time.monotonic() - started, done.stderr


def test_a_frozen_process_ends_with_its_tracebacks() -> None:
    code, seconds, err = ended(f"dog.look(1, True)\n{FREEZE}")
    assert code == 1
    assert 1.0 <= seconds < 20
    assert "most recent call first" in err


def test_work_without_a_round_is_standing_still() -> None:
    code, _, _ = ended("for _ in range(100):\n    dog.look(7, True)\n    time.sleep(0.1)")
    assert code == 1


def test_rounds_keep_it_alive() -> None:
    code, _, err = ended("for n in range(20):\n    dog.look(n, True)\n    time.sleep(0.1)\ndog.stop()")
    assert code == 0, err


def test_having_nothing_to_do_keeps_it_alive() -> None:
    code, _, err = ended(
        "for n in range(20):\n    dog.look(7, False)\n    time.sleep(0.1)\ndog.stop()\ntime.sleep(1.5)"
    )
    assert code == 0, err


def test_what_has_no_rounds_may_take_as_long_as_it_is_allowed() -> None:
    code, seconds, err = ended(f"with dog.allowing(2):\n    time.sleep(1.5)\n    {FREEZE}")
    assert code == 1
    assert 2.0 <= seconds < 20
    assert "most recent call first" in err


def test_what_ends_in_time_is_not_watched_any_more() -> None:
    code, _, err = ended("with dog.allowing(1):\n    pass\ntime.sleep(1.5)")
    assert code == 0, err
