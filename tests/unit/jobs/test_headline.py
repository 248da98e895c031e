"""A run's first line ends with a command that works where it is read."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from planned_run import EMPTY_PLAN, FAR_AWAY, job_with

from jobs.status import headline
from pipeline.lease import RUNNING, LeaseView
from pipeline.plan import Plan
from pipeline.run_state import RunView
from pipeline.store.local import LocalStore
from pipeline.store.open import open_store

URL = "s3://bucket/runs/w-1"


def plan(**sections: Any) -> Plan:
    return replace(EMPTY_PLAN, job=job_with(**sections).model_dump(mode="json"))


def lease(age_s: float, state: str = RUNNING, gone: bool = False) -> LeaseView:
    return LeaseView(FAR_AWAY, state, age_s, 60.0, {}, "h", "e", gone)


def view(**facts: Any) -> RunView:
    store = LocalStore("/runs/w-1")
    return RunView(**{"store": store, "plan": plan(), "done": frozenset(), "lease": None, "manifest": None, **facts})


@pytest.mark.parametrize(
    ("held", "ending"),
    [
        (lease(75.0), "interrupted, last heartbeat 75 s ago, resume: draftfleet resume --takeover /runs/w-1"),
        (lease(75.0, gone=True), "resume: draftfleet resume /runs/w-1"),
        (lease(75.0, "interrupted"), "resume: draftfleet resume /runs/w-1"),
        (lease(5.0), "running, last heartbeat 5 s ago by attempt 1 (host far-host, pid 11)"),
        (None, "w-1: planned, start: draftfleet resume /runs/w-1"),
    ],
)
def test_takeover_is_named_where_it_is_needed(held: LeaseView | None, ending: str) -> None:
    assert headline("w-1", view(lease=held)).endswith(ending)


@pytest.mark.parametrize(
    ("storage", "ending"),
    [
        ({"region": "eu-central-1", "max_attempts": 3}, f"draftfleet resume {URL}"),
        (
            {"endpoint_url": "http://minio:9000"},
            f"{URL} (where AWS_* variables do not lead to http://minio:9000: draftfleet resume JOB.yaml)",
        ),
        (
            {"profile": "batch"},
            f"{URL} (where AWS_* variables do not lead to the profile batch: draftfleet resume JOB.yaml)",
        ),
    ],
)
def test_where_the_url_may_not_be_enough_the_job_file_is_named(storage: dict[str, Any], ending: str) -> None:
    planned = plan(storage=storage)
    store = open_store(URL, job_with(storage=storage).storage)
    assert headline("w-1", view(store=store, plan=planned, lease=lease(5.0, "cancelled"))).endswith(ending)


def test_a_folder_on_disk_needs_no_settings(tmp_path: Path) -> None:
    planned = plan(storage={"endpoint_url": "http://minio:9000"})
    assert headline("w-1", view(plan=planned)).endswith("draftfleet resume /runs/w-1")


@pytest.mark.parametrize(("errors", "again"), [(0, False), (2, False), (3, True)])
def test_samples_that_failed_in_an_engine_may_be_tried_again(errors: int, again: bool) -> None:
    planned = replace(plan(), rejected={"bad_role": 2})
    manifest = {"state": "completed_with_errors", "usage": {"samples_error": errors}}
    told = headline("w-1", view(plan=planned, manifest=manifest))
    assert told.startswith("w-1: completed with errors")
    assert told.endswith(", try what failed again: draftfleet resume --retry-errors /runs/w-1") == again
