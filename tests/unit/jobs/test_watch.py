"""When the driver's watch gives a run up."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest

from configs.errors import RunFailed, TooManyErrors
from jobs.attempt import Attempt
from jobs.progress import Progress
from jobs.watch import Watch
from pipeline.error_rate import ErrorRate
from pipeline.forecast import Forecast
from pipeline.layout import ledger_key
from pipeline.lease import Lease, LeaseOwner
from pipeline.ledger import Ledger
from pipeline.store.local import LocalStore


class Looked(Watch):
    """A watch that looks when it is told to, and only notes how it ends."""

    def look(self, max_engines: int = 9, max_error_rate: float = 0.01) -> Looked:
        self._max_engines, self._max_error_rate = max_engines, max_error_rate
        self._look()
        return self

    def _end(self, state: Any) -> None:
        self.ended = state


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(str(tmp_path))


def watch(store: LocalStore, stream: io.StringIO | None = None) -> Looked:
    attempt = Attempt.begin(store, "w-1")
    lease = Lease.acquire(store, LeaseOwner("host", 1, 1, 0.0))
    return Looked(store, attempt, lease, Progress(1000, Forecast([]), stream=stream or io.StringIO()), None)


def engine(store: LocalStore, name: str, errors: int = 0, samples: int = 0, is_up: bool = True) -> None:
    """The account of an engine's life so far."""
    ledger, counted = Ledger({"incarnation": name}), ErrorRate(1.0)
    if is_up:
        ledger.enter("waiting_input")
    counted.add(samples=samples, errors={"timeout": errors} if errors else {}, example="row-7: slow" if errors else "")
    store.put(ledger_key(name), json.dumps({**ledger.snapshot(), "error_rate": counted.to_json()}).encode())


def test_engines_that_each_failed_too_few_rows_to_tell_are_too_many_together(store: LocalStore) -> None:
    looking = watch(store)
    for number in range(3):
        engine(store, f"a1-{number}", errors=100, samples=100)
        assert (looking.look().ended is None) == (number == 0)
    assert isinstance(looking.failure, TooManyErrors)
    assert "200 of the first 200 samples failed (timeout 200)" in str(looking.failure)
    assert "for example row-7: slow" in str(looking.failure)


def test_engines_that_never_came_up_have_died_as_well(store: LocalStore) -> None:
    looking = watch(store)
    for number in range(3):
        engine(store, f"a1-{number}", is_up=False)
    assert looking.look(max_engines=3).failure is None
    assert isinstance(looking.look(max_engines=2).failure, RunFailed)
    assert "limits.max_engine_deaths" in str(looking.failure)


def test_an_engine_that_loads_is_still_starting(store: LocalStore) -> None:
    stream = io.StringIO()
    looking = watch(store, stream)
    engine(store, "a1-0", is_up=False)
    looking.look()
    assert "starting engines" in stream.getvalue()
    assert looking._progress.reading().engines == 0
    engine(store, "a1-0")
    looking.look()
    assert looking._progress.reading().engines == 1
