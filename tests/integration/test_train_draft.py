"""The closed loop: a run's own answers train the head that the next run drafts with."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from workplace import Workplace

pytestmark = pytest.mark.slow

SETTINGS = ("--epochs", "2", "--draft-vocab", "600", "--batch-tokens", "400")
ALWAYS = ("--set", "draft.policy.policy=fixed")
"""Under `auto` a task may find that another drafter, or none, serves it better."""


def test_a_runs_answers_train_the_head_of_the_next(
    workplace: Workplace, tiny_job: Callable[..., Path], tiny_model: Path
) -> None:
    rows = [{"id": f"row-{n}", "prompt": f"Say something about the number {n}."} for n in range(90)]
    tiny_job(
        rows,
        model={"path": str(tiny_model), "dtype": "float64"},
        tasks={"default": {"sampling": {"max_tokens": 16, "ignore_eos": True}}},
        sink={"path": "output", "token_ids": True},
    )
    workplace.run("run", "job.yaml")
    out = workplace.run("train-draft", "job.yaml", "-o", "head", *SETTINGS)
    assert "held out" in out
    assert "head is the head now" in out
    tensors = json.loads((workplace.folder / "head" / "provenance.json").read_text())
    assert tensors["runs"] == ["tiny-1"]
    assert tensors["draft_vocab_coverage"] > 0.5
    assert tensors["versions"]["torch"]
    assert tensors["evaluation"]["tokens_per_round_over_tasks"] >= 1
    assert (workplace.folder / "head" / "training.svg").read_text().startswith("<?xml")

    again = workplace.run("train-draft", "job.yaml", "-o", "head", *SETTINGS)  # the same head, so the old one stays
    assert "head stays" in again
    refused = workplace.run("train-draft", "job.yaml", "-o", "head", "--epochs", "3", code=2)
    assert "holds a training of other" in refused

    workplace.run("run", "job.yaml", "--new-run", *ALWAYS, "--set", "draft.drafter=eagle3", "--set", "draft.path=head")
    plain, drafted = (rows_of(workplace.folder / "output" / f"tiny-{n}" / "data") for n in (1, 2))
    assert {row: each["text"] for row, each in drafted.items()} == {row: each["text"] for row, each in plain.items()}
    assert {each["speculation"]["drafter"] for each in drafted.values()} == {"eagle3"}
    assert all(each["speculation"]["num_draft_tokens"] > 0 for each in drafted.values())


def test_a_runs_answers_train_a_small_model(
    workplace: Workplace, tiny_job: Callable[..., Path], tiny_model: Path
) -> None:
    tiny_job(
        [{"id": f"row-{n}", "prompt": f"Say something about the number {n}."} for n in range(60)],
        model={"path": str(tiny_model), "dtype": "float64"},
        tasks={"default": {"sampling": {"max_tokens": 16, "ignore_eos": True}}},
        sink={"path": "output", "token_ids": True},
    )
    workplace.run("run", "job.yaml")
    out = workplace.run("train-draft", "job.yaml", "--kind", "model", "--layers", "1", "-o", "small", "--epochs", "1")
    assert f"use it with --set draft.drafter=model --set draft.model={workplace.folder / 'small'}" in out
    workplace.run(
        "run", "job.yaml", "--new-run", *ALWAYS, "--set", "draft.drafter=model", "--set", "draft.model=./small"
    )
    plain, drafted = (rows_of(workplace.folder / "output" / f"tiny-{n}" / "data") for n in (1, 2))
    assert {row: each["text"] for row, each in drafted.items()} == {row: each["text"] for row, each in plain.items()}
    assert {each["speculation"]["drafter"] for each in drafted.values()} == {"model"}


def test_a_run_without_tokens_is_told_what_to_set(workplace: Workplace, tiny_job: Callable[..., Path]) -> None:
    tiny_job([{"id": "row", "prompt": "Say something."}])
    workplace.run("run", "job.yaml")
    assert "sink.token_ids=true" in workplace.run("train-draft", "job.yaml", code=2)


def rows_of(data: Path) -> dict[str, dict[str, object]]:
    return {row["row_id"]: row for row in pq.read_table(data).to_pylist()}
