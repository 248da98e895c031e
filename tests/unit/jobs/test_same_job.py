"""Which changes of a job a run takes: none that would change its rows, but a resume needs no source any more."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
from planned_run import job_with, plan_into

from configs.errors import RunConflict
from configs.job import Job
from jobs.run_folder import RunFolder
from jobs.same_job import changed_sources, refuse_changed_job
from pipeline.plan import current_fingerprint
from pipeline.run_state import RunView, open_run
from pipeline.source.opening import open_source
from pipeline.store.local import LocalStore


@dataclass(frozen=True)
class Run:
    """A planned run, its job, and its source."""

    job: Job
    source: Path
    folder: RunFolder

    @property
    def view(self) -> RunView:
        return open_run(self.folder.store)


@pytest.fixture
def planned(tmp_path: Path) -> Run:
    source = tmp_path / "rows.jsonl"
    source.write_text('{"prompt": "x"}\n')
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    (model / "model.safetensors").write_bytes(b"weights")
    job = job_with(source={"path": str(source)}, model={"path": str(model)})
    store = LocalStore(str(tmp_path / "w-1"))
    sources = [file.identity() for file in open_source(job, tmp_path).files]
    plan_into(store, job, fingerprint=current_fingerprint(job), sources=sources)
    return Run(job, source, RunFolder("w-1", store))


def test_a_source_that_stayed_is_not_spoken_of(planned: Run) -> None:
    refuse_changed_job(planned.job, planned.folder, planned.view)
    assert list(changed_sources(planned.job, planned.view)) == []


def test_an_edited_source_is_another_run_and_no_matter_for_a_resume(planned: Run) -> None:
    planned.source.write_text('{"prompt": "y"}\n')
    with pytest.raises(RunConflict) as refused:
        refuse_changed_job(planned.job, planned.folder, planned.view)
    assert f"source.files[{planned.source}]" in str(refused.value)
    assert f"draftfleet resume {planned.folder.store.url}" in str(refused.value)
    refuse_changed_job(planned.job, planned.folder, planned.view, as_planned=True)
    assert list(changed_sources(planned.job, planned.view)) == [
        f"{planned.source} has changed since the plan; the run goes on with the rows as they were planned"
    ]


def test_a_source_that_is_gone_is_no_matter_for_a_resume(planned: Run) -> None:
    planned.source.unlink()
    refuse_changed_job(planned.job, planned.folder, planned.view, as_planned=True)
    assert list(changed_sources(planned.job, planned.view)) == [
        f"{planned.source} can no longer be read; the run goes on with the rows as they were planned"
    ]


def test_what_changes_the_text_is_refused_on_a_resume_too(planned: Run) -> None:
    planned.source.write_text("")
    hotter = planned.job.model_copy(update={"seed": 7})
    with pytest.raises(RunConflict) as refused:
        refuse_changed_job(hotter, planned.folder, planned.view, as_planned=True)
    assert "seed: 0 -> 7" in str(refused.value)
    assert "rows.jsonl" not in str(refused.value)
