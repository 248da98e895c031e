"""A run named by its URL: found with the environment alone, then reached as its job says."""

from __future__ import annotations

from typing import Any

import pytest
from click import Command
from click.testing import CliRunner
from planned_run import FAR_AWAY, job_with, plan_into
from s3_server import S3Bucket

from configs.job import Job, Storage
from jobs import resume, run_folder, stop
from pipeline.layout import STOP
from pipeline.lease import Lease
from pipeline.store.base import Store
from pipeline.store.open import open_answering


@pytest.fixture
def job(s3_bucket: S3Bucket, monkeypatch: pytest.MonkeyPatch) -> Job:
    """A planned run's, whose store the environment leads to as well."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", str(s3_bucket.storage.endpoint_url))
    monkeypatch.setenv("AWS_DEFAULT_REGION", str(s3_bucket.storage.region))
    planned = job_with(storage={**s3_bucket.storage.model_dump(), "max_attempts": 3})
    plan_into(open_answering(s3_bucket.url, planned.storage), planned)
    return planned


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[Storage]:
    """The settings with which stores are opened, in order."""
    seen: list[Storage] = []

    def open_and_note(url: str, storage: Storage) -> Store:
        seen.append(storage)
        return open_answering(url, storage)

    monkeypatch.setattr(run_folder, "open_answering", open_and_note)
    return seen


def call(command: Command, *arguments: str) -> None:
    CliRunner().invoke(command, arguments, catch_exceptions=False, standalone_mode=False)


def test_resume_drives_it_through_the_jobs_settings(
    job: Job, s3_bucket: S3Bucket, opened: list[Storage], monkeypatch: pytest.MonkeyPatch
) -> None:
    driven: list[Any] = []
    monkeypatch.setattr(resume, "go_on", lambda job, folder, *_, **__: driven.append(folder.store.storage))
    call(resume.command, s3_bucket.url)
    call(resume.command, s3_bucket.url, "--set", "storage.max_attempts=5")
    assert driven == [job.storage, job.storage.model_copy(update={"max_attempts": 5})]
    assert opened == [Storage(), driven[0], Storage(), driven[1]]


def test_stop_asks_through_the_jobs_settings(job: Job, s3_bucket: S3Bucket, opened: list[Storage]) -> None:
    store = open_answering(s3_bucket.url, job.storage)
    Lease.acquire(store, FAR_AWAY)
    call(stop.command, s3_bucket.url, "--wait", "0")
    assert opened == [Storage(), job.storage]
    store.head(STOP)
