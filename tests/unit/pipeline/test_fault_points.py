"""Faults at the points of a commit: where asked, and nowhere else."""

from __future__ import annotations

import contextlib
import pickle
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pipeline.fault_points import Crash, FaultPoints, PointFault


def test_without_faults_nothing_happens() -> None:
    points = FaultPoints()
    for point in ("before_put", "after_put", "before_receipt"):
        points.reach(point, "data/a.parquet")
        points.reach(point)


def test_a_crash_comes_at_its_point_its_key_and_its_visit() -> None:
    points = FaultPoints([PointFault("after_put", "crash", "data/*", nth=2)])
    points.reach("before_put", "data/a")
    points.reach("after_put", "data/a")
    points.reach("after_put", "errors/a")
    with pytest.raises(Crash, match="after_put data/b"):
        points.reach("after_put", "data/b")
    points.reach("after_put", "data/c")


def test_a_crash_is_not_caught_by_those_who_handle_errors() -> None:
    points = FaultPoints([PointFault("before_put", "crash")])
    with pytest.raises(Crash), contextlib.suppress(Exception):
        points.reach("before_put", "a")


def test_sleep_waits() -> None:
    started = time.monotonic()
    FaultPoints([PointFault("before_put", "sleep", seconds=0.1)]).reach("before_put", "a")
    assert time.monotonic() - started >= 0.1


def test_a_copy_counts_from_zero() -> None:
    points = FaultPoints([PointFault("before_put", "crash")])
    with pytest.raises(Crash):
        points.reach("before_put", "a")
    points.reach("before_put", "a")
    with pytest.raises(Crash):
        pickle.loads(pickle.dumps(points)).reach("before_put", "a")


def test_once_is_once_over_all_processes(tmp_path: Path) -> None:
    faults = [PointFault("before_put", "crash", once=str(tmp_path / "happened"))]
    with pytest.raises(Crash):
        FaultPoints(faults).reach("before_put", "a")
    FaultPoints(faults).reach("before_put", "a")


def test_kill_ends_the_process_on_the_spot() -> None:
    code = (
        "from pipeline.fault_points import FaultPoints, PointFault\n"
        "FaultPoints([PointFault('before_put', 'kill')]).reach('before_put', 'a')\n"
        "print('alive')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True)
    assert done.returncode == -signal.SIGKILL
    assert done.stdout == b""
