"""`run` and `resume`: who is refused at once, what counts as work, and which exit code is true."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from planned_run import FAR_AWAY, job_with, plan_into

from configs.errors import RunConflict, StorageError
from jobs import run as module
from jobs.driver import drive
from jobs.run import has_work, run
from jobs.run_folder import RunFolder
from pipeline.lease import Lease
from pipeline.run_state import State, open_run
from pipeline.store.local import LocalStore

JOB = job_with()


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    store = LocalStore(str(tmp_path / "w-1"))
    plan_into(store, JOB, rejected={"bad_role": 1})
    return RunFolder("w-1", store)


@pytest.fixture
def same_job(monkeypatch: pytest.MonkeyPatch) -> None:
    """The job is the plan's, and no model is read to find that out."""
    monkeypatch.setattr(module, "refuse_changed_job", lambda *_: None)


@pytest.fixture(autouse=True)
def _no_signal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever other tests have sent to this process."""
    monkeypatch.setattr(module, "was_terminated", lambda: False)


def drive_to(state: State, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "drive", lambda *_: state)


def test_a_second_driver_is_refused_before_the_model_is_read(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read_it_all(*_: object) -> None:
        raise AssertionError("140 GB")

    monkeypatch.setattr(module, "refuse_changed_job", read_it_all)
    Lease.acquire(folder.store, FAR_AWAY)
    for takeover in (False, True):
        with pytest.raises(RunConflict, match="this run is driven by attempt 1"):
            run(JOB, folder, 0, takeover)


@pytest.mark.parametrize(("state", "code"), [("interrupted", 5), ("cancelled", 4), ("failed", 3), ("completed", 0)])
@pytest.mark.usefixtures("same_job")
def test_the_exit_code_is_of_what_this_driver_did(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch, state: State, code: int
) -> None:
    """And not of what the run looks like afterwards: here another driver holds it."""

    def drive_and_lose_it(*_: object) -> State:
        Lease.acquire(folder.store, FAR_AWAY)
        return state

    monkeypatch.setattr(module, "drive", drive_and_lose_it)
    assert run(JOB, folder, 0) == code


@pytest.mark.usefixtures("same_job")
def test_a_store_that_is_away_at_the_end_changes_no_exit_code(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def away(*_: object) -> None:
        raise StorageError("cannot list data/: SlowDown")

    drive_to("interrupted", monkeypatch)
    monkeypatch.setattr(module, "open_run", away)
    assert run(JOB, folder, 0) == 5
    assert "w-1: interrupted, and cannot be shown: cannot list data/: SlowDown" in capsys.readouterr().err


@pytest.mark.usefixtures("same_job")
def test_after_a_sigterm_the_store_is_not_looked_at_again(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    drive_to("interrupted", monkeypatch)
    monkeypatch.setattr(module, "was_terminated", lambda: True)
    monkeypatch.setattr(module, "open_run", None)
    assert run(JOB, folder, 0) == 5
    assert capsys.readouterr().out.endswith(f"w-1: interrupted, resume: draftfleet resume {folder.store.url}\n")


def test_a_complete_run_has_work_only_for_who_asks_for_more(folder: RunFolder) -> None:
    assert has_work(JOB, open_run(folder.store), retry_errors=False)
    drive(JOB, folder.store, "w-1")
    failed = open_run(folder.store)
    assert failed.state == "failed"
    lenient = job_with(limits={"max_error_rate": 1.0})
    assert not has_work(JOB, failed, retry_errors=False)
    assert has_work(JOB, failed, retry_errors=True)
    assert has_work(lenient, failed, retry_errors=False)
    drive(lenient, folder.store, "w-1")
    completed = open_run(folder.store)
    assert completed.state == "completed_with_errors"
    assert not has_work(lenient, completed, retry_errors=False)
    assert not has_work(JOB, completed, retry_errors=False)  # a stricter limit does not undo what was accepted


@pytest.mark.usefixtures("same_job")
def test_a_failed_run_that_is_allowed_now_exits_well(folder: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(JOB, folder, 0) == 3
    assert run(JOB, folder, 0) == 3
    lenient: Any = job_with(limits={"max_error_rate": 1.0})
    assert run(lenient, folder, 0) == 0
    assert "w-1: completed with errors" in capsys.readouterr().out
