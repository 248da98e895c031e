"""The end of a run: complete only if nothing is missing, and then whatever happens to the rest."""

from __future__ import annotations

from pathlib import Path

import pytest
from planning import job_over, write_jsonl

from configs.errors import RunFailed
from pipeline.finalize import finalize
from pipeline.layout import MANIFEST
from pipeline.plan import make_plan
from pipeline.run_state import look
from pipeline.store.base import Store
from pipeline.store.faulty import FaultyStore, StoreFault
from pipeline.store.local import LocalStore


def planned_run(tmp_path: Path, chat_model: Path, prompt: str) -> LocalStore:
    store = LocalStore(str(tmp_path / "w-1"))
    make_plan(job_over(write_jsonl(tmp_path / "in.jsonl", [{"prompt": prompt}])), tmp_path, chat_model, store)
    return store


def finish(store: Store) -> str:
    view = look(store)
    assert view is not None
    return str(finalize(view, 0.01)["state"])


def test_a_shard_that_is_gone_is_named(tmp_path: Path, chat_model: Path) -> None:
    store = planned_run(tmp_path, chat_model, "x")
    with pytest.raises(RunFailed, match=r"data/default-000000\.parquet is missing .*draftfleet resume"):
        finish(store)
    assert MANIFEST not in [stat.key for stat in store.list("")]


def test_a_sweep_that_fails_leaves_a_complete_run(tmp_path: Path, chat_model: Path) -> None:
    store = planned_run(tmp_path, chat_model, "")  # whose only row is rejected: nothing is missing
    store.put("errors/default-000000-a1-loser-1.parquet", b"nobody's")
    assert finish(FaultyStore(store, (StoreFault("unavailable", "delete", times=99),))) == "failed"
    assert MANIFEST in [stat.key for stat in store.list("")]
    assert [stat.key for stat in store.list("errors/")] == ["errors/default-000000-a1-loser-1.parquet"]
    assert finish(store) == "failed"
    assert list(store.list("errors/")) == []
