"""Beside the main thread: the lease beats from the first moment, and an end is told once and never waited for."""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from planned_run import FAR_AWAY, planned_shard

from configs.errors import TooManyErrors
from jobs import watch as module
from jobs.attempt import Attempt
from jobs.progress import Progress
from jobs.watch import Watch
from pipeline.error_rate import ErrorRate
from pipeline.forecast import Forecast
from pipeline.layout import LEASE, STOP, ledger_key
from pipeline.lease import Lease, read_lease
from pipeline.ledger import Ledger
from pipeline.store.base import Store
from pipeline.store.faulty import FaultyStore, StoreFault
from pipeline.store.local import LocalStore

BEAT_S = 0.05


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOOK_PERIOD_S", 0.01)


@pytest.fixture
def disk(tmp_path: Path) -> LocalStore:
    return LocalStore(str(tmp_path))


def watch_over(store: Store) -> Watch:
    return Watch(store, Attempt.begin(store, "w-1"), Lease.acquire(store, FAR_AWAY, ttl_s=3 * BEAT_S))


def progress() -> Progress:
    return Progress(10, Forecast([planned_shard(0)]), stream=io.StringIO())


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@contextlib.contextmanager
def counted_interrupts() -> Iterator[list[int]]:
    """Ctrl-C, counted and otherwise ignored."""
    seen: list[int] = []
    before = signal.signal(signal.SIGINT, lambda signum, frame: seen.append(signum))
    try:
        yield seen
    finally:
        signal.signal(signal.SIGINT, before)


def test_the_lease_beats_before_any_engine_is_followed(disk: LocalStore) -> None:
    watch = watch_over(disk)
    first = disk.head(LEASE).etag
    with watch.watching():
        wait_for(lambda: disk.head(LEASE).etag != first)


def test_a_driver_that_is_replaced_says_so_and_ends_once(disk: LocalStore, capsys: pytest.CaptureFixture[str]) -> None:
    watch = watch_over(disk)
    time.sleep(4 * BEAT_S)  # silent for longer than it promised
    ben = Lease.acquire(disk, FAR_AWAY, takeover=True)
    with counted_interrupts() as interrupts, watch.watching():
        wait_for(lambda: bool(interrupts))
        time.sleep(5 * BEAT_S)
    assert len(interrupts) == 1
    assert watch.ended == "interrupted"
    assert capsys.readouterr().err.count("taken over by attempt 1 (host far-host, pid 11)") == 1
    assert read_lease(disk).holder == ben.holder  # type: ignore[union-attr]


def test_a_stop_is_heard_once_while_the_lease_goes_on_to_beat(disk: LocalStore) -> None:
    watch = watch_over(disk)
    with counted_interrupts() as interrupts, watch.watching():
        disk.put(STOP, b"{}")
        wait_for(lambda: bool(interrupts))
        etag = disk.head(LEASE).etag
        wait_for(lambda: disk.head(LEASE).etag != etag)
    assert len(interrupts) == 1
    assert watch.ended == "cancelled"


def test_a_look_that_hangs_does_not_hold_up_the_end(disk: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LEAVE_S", 0.2)
    stuck = FaultyStore(disk, (StoreFault("slow", "list", times=10**9, delay_s=20.0),))
    watch = watch_over(stuck)
    started = time.monotonic()
    with watch.watching(), watch.following(progress(), 9, 0.01, 1.0, None):
        wait_for(lambda: stuck.calls.counts.total() > 0)
    assert time.monotonic() - started < 5


def test_engines_are_looked_at_as_often_as_they_speak(disk: LocalStore) -> None:
    counting = FaultyStore(disk, (StoreFault("slow", "list", times=10**9),))
    watch = watch_over(counting)
    with watch.watching(), watch.following(progress(), 9, 0.01, 60.0, None):
        wait_for(lambda: counting.calls.counts.total() > 0)
        time.sleep(0.3)
    assert counting.calls.counts.total() == 1


def engine(store: Store, name: str, *, errors: int = 0, samples: int = 0, is_up: bool = True) -> None:
    """The account of an engine's life so far."""
    ledger, counted = Ledger({"incarnation": name}), ErrorRate(1.0)
    if is_up:
        ledger.enter("waiting_input")
    counted.add(samples=samples, errors={"timeout": errors} if errors else {}, example="row-7: slow" if errors else "")
    store.put(ledger_key(name), json.dumps({**ledger.snapshot(), "error_rate": counted.to_json()}).encode())


def test_more_deaths_than_allowed_end_the_run(disk: LocalStore) -> None:
    watch = watch_over(disk)
    for life in range(3):
        engine(disk, f"a1-{life}", is_up=False)  # all of them while loading
    with counted_interrupts() as interrupts, watch.watching(), watch.following(progress(), 2, 0.01, 0.02, os.abort):
        wait_for(lambda: bool(interrupts))
    assert watch.ended == "failed"
    assert "limits.max_engine_deaths" in str(watch.failure)


def test_engines_that_each_failed_too_few_rows_to_tell_are_too_many_together(disk: LocalStore) -> None:
    watch = watch_over(disk)
    engine(disk, "a1-0", errors=100, samples=100)
    with counted_interrupts() as interrupts, watch.watching(), watch.following(progress(), 9, 0.01, 0.02, None):
        time.sleep(0.3)
        assert not interrupts
        engine(disk, "a1-1", errors=100, samples=100)
        wait_for(lambda: bool(interrupts))
    assert isinstance(watch.failure, TooManyErrors)
    assert "200 of the first 200 samples failed (timeout 200)" in str(watch.failure)
    assert "for example row-7: slow" in str(watch.failure)


def test_an_engine_that_loads_is_still_starting(disk: LocalStore) -> None:
    watch, drawn = watch_over(disk), progress()
    engine(disk, "a1-0", is_up=False)
    with watch.watching(), watch.following(drawn, 9, 0.01, 0.02, None):
        time.sleep(0.3)
        assert drawn.reading().engines == 0
        engine(disk, "a1-0")
        wait_for(lambda: drawn.reading().engines == 1)
