"""How an attempt begins and ends: what it leaves behind, and how long it takes."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from planned_run import FAR_AWAY, job_with, plan_into

from configs.errors import RunConflict
from jobs import driver, terminated
from jobs.driver import drive
from pipeline.layout import LEASE, MANIFEST, STOP, ledger_key
from pipeline.lease import Lease, read_lease
from pipeline.store.base import NotFound, Store
from pipeline.store.faulty import FaultyStore, StoreFault
from pipeline.store.local import LocalStore

JOB = job_with()


@pytest.fixture
def run(tmp_path: Path) -> LocalStore:
    """A run whose only row was rejected: it ends without an engine, as `failed`."""
    store = LocalStore(str(tmp_path / "w-1"))
    plan_into(store, JOB, rejected={"bad_role": 1})
    return store


def entry(store: Store, attempt: int = 1) -> dict[str, Any]:
    return dict(json.loads(store.get(ledger_key(f"driver-{attempt}"))))


def test_it_ends_in_the_state_that_lease_and_ledger_tell(run: LocalStore) -> None:
    assert drive(JOB, run, "w-1") == "failed"
    assert read_lease(run).state == entry(run)["state"] == "failed"  # type: ignore[union-attr]


def test_a_lost_race_for_the_lease_is_no_attempt_that_runs_for_ever(
    run: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost(*_: object, **__: object) -> Lease:
        raise RunConflict("attempt 7 was quicker to take this run")

    monkeypatch.setattr(Lease, "acquire", lost)
    with pytest.raises(RunConflict, match="was quicker"):
        drive(JOB, run, "w-1")
    assert entry(run)["state"] == "refused"
    assert entry(run)["ended"] >= entry(run)["started"]


def test_a_live_driver_is_told_before_anything_is_written(run: LocalStore) -> None:
    Lease.acquire(run, FAR_AWAY)
    run.put(STOP, b"{}")
    with pytest.raises(RunConflict, match="far-host"):
        drive(JOB, run, "w-1")
    run.head(STOP)  # it was for the other one
    assert not list(run.list("_ledger/"))


def test_an_old_stop_is_forgotten_and_one_of_the_first_seconds_is_not(
    run: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    acquire = Lease.acquire

    def acquire_and_be_stopped(*arguments: Any, **named: Any) -> Lease:
        with pytest.raises(NotFound):
            run.head(STOP)
        lease = acquire(*arguments, **named)
        run.put(STOP, b"{}")
        return lease

    run.put(STOP, b"{}")
    monkeypatch.setattr(Lease, "acquire", acquire_and_be_stopped)
    drive(JOB, run, "w-1")
    run.head(STOP)


def test_a_lease_that_cannot_be_released_does_not_change_the_state(run: LocalStore) -> None:
    store = FaultyStore(run, (StoreFault("unavailable", "put_if_match", LEASE, times=9),))
    assert drive(JOB, store, "w-1") == "failed"
    assert read_lease(run).state == "running"  # type: ignore[union-attr]


def test_a_store_that_hangs_at_the_end_is_not_waited_for(
    run: LocalStore, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(driver, "LEAVE_S", 0.2)
    store = FaultyStore(run, (StoreFault("slow", "put_if_match", LEASE, delay_s=20.0),))
    started = time.monotonic()
    assert drive(JOB, store, "w-1") == "failed"
    assert time.monotonic() - started < 10
    assert "the store does not answer" in capsys.readouterr().err


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_before_any_engine_interrupts_the_attempt(
    run: LocalStore, monkeypatch: pytest.MonkeyPatch, signum: signal.Signals
) -> None:
    def be_signalled(*_: object) -> None:
        os.kill(os.getpid(), signum)
        time.sleep(10)

    monkeypatch.setattr(terminated, "_RECEIVED", threading.Event())
    terminated.handle_sigterm()
    monkeypatch.setattr(driver, "_drive", be_signalled)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # whoever starts the tests may ignore it
    try:
        assert drive(JOB, run, "w-1") == "interrupted"
    finally:
        signal.signal(signal.SIGINT, before)
    assert read_lease(run).state == entry(run)["state"] == "interrupted"  # type: ignore[union-attr]


def test_a_limit_that_allows_what_failed_completes_the_run(run: LocalStore) -> None:
    assert drive(JOB, run, "w-1") == "failed"
    assert drive(job_with(limits={"max_error_rate": 1.0}), run, "w-1") == "completed_with_errors"
    assert json.loads(run.get(MANIFEST))["state"] == "completed_with_errors"
