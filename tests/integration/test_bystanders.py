"""Engines come first: what a real local Ray runs beside them, and only that, gets the idle priority."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from workplace import Workplace, wait_for

from pipeline.bystanders import BYSTANDERS

pytestmark = pytest.mark.slow


def policies(driver: int) -> dict[str, int]:
    """The scheduling policy of each process below the driver, by its command line."""
    found = {}
    for process in psutil.Process(driver).children(recursive=True):
        try:
            found[" ".join(process.cmdline())] = os.sched_getscheduler(process.pid)
        except (psutil.Error, OSError):
            continue
    return found


def test_every_bystander_and_nothing_else_yields_to_the_engines(
    workplace: Workplace, tiny_job: Callable[..., Path]
) -> None:
    rows = [{"id": f"row-{n}", "prompt": "Say something."} for n in range(2000)]
    tiny_job(rows, tasks={"default": {"sampling": {"max_tokens": 64, "ignore_eos": True}}})
    process = workplace.start("run", "job.yaml")
    try:
        wait_for(lambda: os.SCHED_IDLE in policies(process.pid).values())
        wait_for(lambda: all(any(name in line for line in policies(process.pid)) for name in BYSTANDERS))
        seen = policies(process.pid)
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate()
    for line, policy in seen.items():
        assert (policy == os.SCHED_IDLE) == any(name in line for name in BYSTANDERS), line
    assert any("EngineActor" in line for line in seen)
    assert any("raylet/raylet" in line for line in seen)
