"""Faults come where the schedule says, every time, and do what their name says."""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from configs.errors import StorageError
from pipeline.fault_points import Crash
from pipeline.store.base import AlreadyExists, NotFound
from pipeline.store.faulty import FaultKind, FaultyStore, StoreFault
from pipeline.store.local import LocalStore


@pytest.fixture
def disk(tmp_path: Path) -> LocalStore:
    return LocalStore(str(tmp_path))


def outcome(call: Callable[[], object]) -> str:
    try:
        call()
    except (AlreadyExists, NotFound, StorageError, Crash) as error:
        return type(error).__name__
    return "ok"


@pytest.mark.parametrize(
    ("kind", "seen", "written"),
    [
        ("crash_before", "Crash", False),
        ("crash_after", "Crash", True),
        ("unavailable", "StorageError", False),
        ("reset", "StorageError", False),
        ("lost_answer", "StorageError", True),
        ("slow", "ok", True),
    ],
)
def test_what_each_kind_does(disk: LocalStore, kind: FaultKind, seen: str, written: bool) -> None:
    store = FaultyStore(disk, (StoreFault(kind, "put_if_absent"),))
    assert outcome(lambda: store.put_if_absent("a", b"x")) == seen
    assert [stat.key for stat in disk.list("")] == (["a"] if written else [])
    # The fault is over: calling again does what it should.
    assert outcome(lambda: store.put_if_absent("a", b"x")) == ("AlreadyExists" if written else "ok")


def test_slow_takes_its_time(disk: LocalStore) -> None:
    store = FaultyStore(disk, (StoreFault("slow", delay_s=0.2),))
    started = time.monotonic()
    store.put("a", b"x")
    assert time.monotonic() - started >= 0.2


def test_a_fault_counts_its_own_calls(disk: LocalStore) -> None:
    store = FaultyStore(disk, (StoreFault("reset", "put", "data/*", nth=2, times=2),))
    calls = ["data/1", "other", "data/2", "data/3", "other", "data/4"]
    assert [outcome(lambda key=key: store.put(key, b"x")) for key in calls] == [
        *("ok", "ok", "StorageError", "StorageError", "ok", "ok")
    ]
    assert outcome(lambda: store.get("data/1")) == "ok"


def test_two_equal_faults_are_two_faults(disk: LocalStore) -> None:
    fault = StoreFault("reset", "put", nth=2)
    store = FaultyStore(disk, (fault, fault))
    assert [outcome(lambda: store.put("a", b"x")) for _ in range(3)] == ["ok", "StorageError", "ok"]


def test_children_share_the_count(disk: LocalStore) -> None:
    store = FaultyStore(disk, (StoreFault("reset", "put", nth=2),))
    assert outcome(lambda: store.put("a", b"x")) == "ok"
    assert outcome(lambda: store.child("run").put("b", b"x")) == "StorageError"


def test_a_copy_starts_from_zero(disk: LocalStore) -> None:
    store = FaultyStore(disk, (StoreFault("reset", "put", nth=2),))
    store.put("a", b"x")
    copy = pickle.loads(pickle.dumps(store))
    assert [outcome(lambda: copy.put("a", b"x")) for _ in range(2)] == ["ok", "StorageError"]
