"""What a fleet learns of drafting is the sum of what its engines saw, and the next run starts from it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tiny_head import save_tiny_head
from transformers import LlamaConfig
from workplace import Workplace

from pipeline.footer import read_footers
from pipeline.store.local import LocalStore

DRAFTING = {"sampling": {"max_tokens": 24, "ignore_eos": True}}


def rows(count: int) -> list[dict[str, Any]]:
    return [{"id": f"row-{n:03d}", "prompt": f"Repeat after me: {n} {n} {n}."} for n in range(count)]


def drafting(head: Path, **policy: Any) -> dict[str, Any]:
    return {"drafter": "eagle3", "path": str(head), "capture_layers": [0, 1, 1], "measure_share": 0.2, **policy}


@pytest.fixture
def head(tmp_path: Path, tiny_model: Path) -> Path:
    return save_tiny_head(tmp_path / "head", LlamaConfig.from_pretrained(tiny_model), heads=2, kv_heads=1)


@pytest.fixture
def other_head(tmp_path: Path, tiny_model: Path) -> Path:
    return save_tiny_head(
        tmp_path / "other-head", LlamaConfig.from_pretrained(tiny_model), heads=2, kv_heads=1, without="t2d"
    )


def by_stratum(strata: list[dict[str, Any]]) -> dict[tuple[str, ...], list[float]]:
    """(task, band, drafter, hash) -> counts, all four lists one after the other."""
    found: dict[tuple[str, ...], list[float]] = {}
    for each in strata:
        key = tuple(each[name] for name in ("task", "band", "drafter", "drafter_sha256"))
        counts = [value for name in ("asked", "offered", "tried", "accepted") for value in each[name]]
        found[key] = [a + b for a, b in zip(found.get(key, [0.0] * len(counts)), counts, strict=True)]
    return found


def test_two_engines_add_up_and_the_next_run_starts_from_them(
    workplace: Workplace, tiny_job: Callable[..., Path], head: Path, other_head: Path
) -> None:
    tiny_job(rows(60), tasks={"default": DRAFTING}, draft=drafting(head), cluster={"workers": 2})
    workplace.run("run", "job.yaml")

    run = LocalStore(workplace.folder / "output" / "tiny-1")
    footers = list(read_footers(run, [stat.key for stat in run.list("data/")]))
    assert len({footer.incarnation for footer in footers}) == 2, "the test proves nothing with one engine"
    seen = by_stratum([stratum for footer in footers for stratum in footer.drafting])
    drafted = sum(footer.usage.speculation.num_draft_tokens for footer in footers)
    assert sum(sum(counts[8:16]) for counts in seen.values()) == drafted > 0, "offered drafts, each once"
    snapshots = [json.loads(run.get(stat.key)) for stat in run.list("_ledger/a")]
    rounds = sum(snapshot["round_sums"]["weight"] for snapshot in snapshots)

    (lesson,) = (workplace.folder / "output" / "_policy").rglob("*.json")
    learned = json.loads(lesson.read_text())
    assert by_stratum(learned["strata"]) == seen
    assert sum(sums["weight"] for sums in learned["rounds"].values()) == rounds > 0
    assert json.loads(run.get("_policy/start.json"))["runs"] == [], "the first run knew nothing"

    workplace.run("run", "job.yaml", "--new-run")
    second = json.loads((workplace.folder / "output" / "tiny-2" / "_policy" / "start.json").read_text())
    assert second["runs"] == ["tiny-1"]
    assert by_stratum(second["strata"]) == seen

    # Another head: the run starts from the store, but of its evidence only what prompt lookup taught fits.
    workplace.run("run", "job.yaml", "--new-run", "--set", f"draft.path={other_head}")
    third = LocalStore(workplace.folder / "output" / "tiny-3")
    shards = read_footers(third, [stat.key for stat in third.list("data/")])
    taught = [each for footer in shards for each in footer.drafting]
    heads = {each["drafter_sha256"] for each in taught if each["drafter"] == "eagle3"}
    assert heads
    assert not heads & {key[3] for key in seen}
    assert len(list((workplace.folder / "output" / "_policy").rglob("*.json"))) == 3


def test_status_tells_what_drafting_saved_and_what_a_recheck_found(
    workplace: Workplace, tiny_job: Callable[..., Path]
) -> None:
    tiny_job(
        rows(80),
        tasks={"default": {"sampling": {"max_tokens": 48, "ignore_eos": True}}},
        draft={"policy": {"policy": "fixed", "k": 2}, "measure_share": 0.3, "recheck_fraction": 0.2, "ngram_min": 1},
        engine={"max_num_seqs": 4},
    )
    told = workplace.run("run", "job.yaml")
    told += workplace.run("status")
    assert "times plain decoding in this engine" in told
    assert "samples are the same without drafts" in told


def test_a_resume_starts_from_the_runs_own_snapshot_and_shards(
    workplace: Workplace, tiny_job: Callable[..., Path]
) -> None:
    tiny_job(rows(24), tasks={"default": DRAFTING}, draft={"ngram_min": 1})
    workplace.run("run", "job.yaml", "--run", "other")
    workplace.run("run", "job.yaml", "--run", "mine")
    mine = workplace.folder / "output" / "tiny-mine"
    first = json.loads((mine / "_policy" / "start.json").read_text())
    gone = sorted((mine / "data").glob("*.parquet"))[0]
    gone.unlink()
    (mine / "_manifest.json").unlink()
    workplace.run("run", "job.yaml", "--run", "third")  # the store learns meanwhile
    workplace.run("run", "job.yaml", "--run", "mine")
    assert json.loads((mine / "_policy" / "start.json").read_text()) == first
    again = by_stratum(json.loads((mine / "_policy" / "2.json").read_text())["strata"])
    known = by_stratum(first["strata"])
    assert sum(map(sum, again.values())) > sum(map(sum, known.values())), "and what its own shards taught"


def test_a_foreign_policy_stops_a_run_before_any_engine(workplace: Workplace, tiny_job: Callable[..., Path]) -> None:
    tiny_job(rows(4), tasks={"default": DRAFTING})
    workplace.run("run", "job.yaml")
    (lesson,) = (workplace.folder / "output" / "_policy").rglob("*.json")
    data = json.loads(lesson.read_text())
    lesson.write_text(json.dumps(data | {"target_sha256": "f" * 64}))
    told = workplace.run("run", "job.yaml", "--new-run", code=2)
    assert "was learned with another target" in told
    assert lesson.name in told


def test_a_traced_run_is_simulated(workplace: Workplace, tiny_job: Callable[..., Path]) -> None:
    engine = {"max_num_seqs": 8, "trace_rounds": True}
    tiny_job(rows(40), tasks={"default": DRAFTING}, draft={"ngram_min": 1}, engine=engine)
    workplace.run("run", "job.yaml")
    told = workplace.run("simulate", "--policy", "auto", "--policy", "fixed:2", "--policy", "oracle")
    assert "40 requests of" in told
    assert [line.split()[0] for line in told.splitlines() if "equal tokens" in line] == ["auto", "fixed:2", "oracle"]
    assert told == workplace.run("simulate", "--policy", "auto", "--policy", "fixed:2", "--policy", "oracle")
    elsewhere = workplace.run("simulate", "--hardware", "h100-llama-3.1-8b", "--batch", "4")
    assert "4 at once, priced by h100-llama-3.1-8b" in elsewhere
    told = workplace.run("simulate", "--write-profile", "mine.yaml", "--hardware", "mine.yaml")
    assert "mine.yaml prices the traced rounds with a median error of" in told
    assert "priced by mine.yaml" in told
    (trace,) = (workplace.folder / "output" / "tiny-1" / "_traces").glob("*.parquet")
    assert "40 requests of" in workplace.run("simulate", str(trace))
    assert "did you mean h100-llama-3.1-8b?" in workplace.run("simulate", "--hardware", "h100-llama", code=2)
    assert "write auto, oracle, off, or fixed:0 to fixed:8" in workplace.run("simulate", "--policy", "fixed:9", code=2)
