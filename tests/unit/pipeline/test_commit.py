"""A shard is committed once, whole, whoever tries."""

from __future__ import annotations

import dataclasses
import threading
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet as pq
import pytest

from configs.errors import RowError
from configs.job import DraftPolicy, Sampling
from pipeline.commit import Receipt, already_committed, commit_shard
from pipeline.fault_points import Crash, FaultPoints, Point, PointFault
from pipeline.footer import ShardFooter, read_footer, read_footers
from pipeline.schema import SAMPLING, error_schema, output_schema, plan_schema
from pipeline.shard_tables import error_table, output_table
from pipeline.shard_work import Sample
from pipeline.store.base import Store
from pipeline.store.faulty import FaultyStore, StoreFault
from pipeline.store.local import LocalStore
from pipeline.usage import Usage
from workers.contract import Finished, Request, SpeculationStats

CARRIED = pa.schema([("prompt", pa.string()), ("tags", pa.list_(pa.string())), ("big", pa.int64())])


def plan_rows(count: int) -> pa.Table:
    sampling = dict.fromkeys(SAMPLING.names) | {"temperature": 0.0, "n": 1}
    return pa.table(
        {
            "_shard": [7] * count,
            "_ordinal": list(range(count)),
            "_id": [f"row-{number}" for number in range(count)],
            "_task": ["code"] * count,
            "_source_file": ["in.jsonl"] * count,
            "_source_line": [number + 1 for number in range(count)],
            "_sampling": [sampling] * count,
            "_prompt_token_ids": [[1, 2, 3]] * count,
            "prompt": ["é🙂"] * count,
            "tags": [[] if number % 2 else None for number in range(count)],
            "big": [2**53 + 1 + number for number in range(count)],
        },
        schema=plan_schema(CARRIED),
    )


def sample(row: int, index: int = 0, error: str | None = None, text: str = "hello") -> Sample:
    request = Request(
        f"row-{row}#{index}", f"row-{row}", index, "code", (1, 2, 3), Sampling(n=2), 0, DraftPolicy(drafter="ngram")
    )
    stats = SpeculationStats()
    stats.record(3, 1)
    if error is not None:
        return Sample(row, request, RowError(error, "it failed", stage="engine", engine_ns=5))
    return Sample(row, request, Finished(text, (4, 5, 6), "stop", 0, 0.1, 0.2, 0.3, 99, stats, "ngram"))


def footer(incarnation: str, samples: list[Sample]) -> ShardFooter:
    return ShardFooter(
        run="r-1",
        attempt=1,
        incarnation=incarnation,
        shard=7,
        task="code",
        lane="greedy",
        plan="p",
        semantic_fingerprint="s",
        execution={"engine": "torch"},
        model="m",
        weights_sha256="w",
        draft="ngram",
        git_commit="",
        seed=0,
        num_rows=len({sample.row for sample in samples}),
        usage=sum((sample.usage for sample in samples), Usage()),
        started=1.0,
        finished=2.0,
    )


def commit(store: Store, incarnation: str, samples: list[Sample], faults: FaultPoints | None = None) -> Receipt:
    rows = plan_rows(4)
    return commit_shard(
        store,
        footer(incarnation, samples),
        output_table(rows, samples, None, False),
        error_table(rows, samples, attempt=1),
        "zstd",
        faults or FaultPoints(),
    )


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(str(tmp_path / "run"))


def test_ok_and_error_rows_go_to_their_places(store: LocalStore) -> None:
    samples = [sample(0, 0), sample(0, 1), sample(1, error="timeout"), sample(2)]
    receipt = commit(store, "a1-x", samples)
    assert (receipt.status, receipt.usage.samples_ok, receipt.usage.errors) == ("committed", 3, {"timeout": 1})
    data = pq.read_table(Path(store.url) / "data" / "code-000007.parquet")
    assert data.column("row_id").to_pylist() == ["row-0#0", "row-0#1", "row-2#0"]
    assert data.column("big").to_pylist() == [2**53 + 1, 2**53 + 1, 2**53 + 3]
    assert data.column("prompt_tokens").to_pylist() == [3, 0, 3]
    assert data.schema.equals(output_schema(CARRIED))
    named = read_footer(store, "data/code-000007.parquet").errors_key
    assert named is not None
    errors = pq.read_table(Path(store.url) / named)
    assert errors.schema.equals(error_schema(CARRIED))
    assert errors.to_pylist()[0]["error"]["code"] == "timeout"
    assert errors.to_pylist()[0]["engine_ns"] == 5


def test_the_second_commit_changes_nothing_and_reports_the_first(store: LocalStore) -> None:
    commit(store, "a1-x", [sample(0, text="first"), sample(1, error="timeout")])
    before = {stat.key: store.get(stat.key) for stat in store.list("")}
    receipt = commit(store, "a1-zombie", [sample(0, text="second"), sample(1, error="aborted")])
    assert receipt.status == "already"
    assert receipt.usage.errors == {"timeout": 1}
    assert {stat.key: store.get(stat.key) for stat in store.list("")} == before


def test_who_lost_the_race_and_cannot_clean_up_has_done_no_harm(store: LocalStore) -> None:
    commit(store, "a1-x", [sample(0), sample(1, error="timeout")])
    faulty = FaultyStore(store, (StoreFault("unavailable", "delete", times=99),))
    receipt = commit(faulty, "a1-zombie", [sample(0), sample(1, error="aborted")])
    assert (receipt.status, receipt.usage.errors) == ("already", {"timeout": 1})


def test_what_stands_is_told_without_generating_it(store: LocalStore) -> None:
    assert already_committed(store, "code", 7) is None
    made = commit(store, "a1-x", [sample(0), sample(1, error="timeout")])
    assert already_committed(store, "code", 7) == dataclasses.replace(made, status="already")


def test_the_same_engine_trying_again_leaves_one_error_object(store: LocalStore) -> None:
    samples = [sample(0), sample(1, error="timeout")]
    commit(store, "a1-x", samples)
    assert commit(store, "a1-x", samples).status == "already"
    assert len(list(store.list("errors/"))) == 1


def test_a_shard_whose_rows_all_failed_is_committed_too(store: LocalStore) -> None:
    commit(store, "a1-x", [sample(0, error="timeout"), sample(1, error="timeout")])
    data = pq.read_table(Path(store.url) / "data" / "code-000007.parquet")
    assert data.num_rows == 0
    assert data.schema.equals(output_schema(CARRIED))


@pytest.mark.parametrize("point", ["before_put", "after_put"])
def test_dying_around_the_put_leaves_the_shard_out_or_whole(store: LocalStore, point: Point) -> None:
    faults = FaultPoints([PointFault(point, "crash")])
    with pytest.raises(Crash):
        commit(store, "a1-x", [sample(0), sample(1, error="timeout")], faults)
    assert len(list(store.list("data/"))) == (1 if point == "after_put" else 0)
    receipt = commit(store, "a2-y", [sample(0), sample(1, error="timeout")])
    assert receipt.status == ("already" if point == "after_put" else "committed")
    named = read_footer(store, "data/code-000007.parquet").errors_key
    assert named is not None
    assert named in {stat.key for stat in store.list("errors/")}


def test_of_many_racing_engines_one_commits(store: LocalStore) -> None:
    receipts: list[Receipt] = []
    threads = [
        threading.Thread(target=lambda n=number: receipts.append(commit(store, f"a1-{n}", [sample(0, text=str(n))])))
        for number in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(receipt.status for receipt in receipts) == ["already"] * 7 + ["committed"]
    assert len(list(store.list(""))) == 1


def test_footers_round_trip_and_survive_a_foreign_reader(store: LocalStore) -> None:
    commit(store, "a1-x", [sample(0)])
    made = footer("a1-x", [sample(0)])
    [found] = read_footers(store, ["data/code-000007.parquet"])
    assert found == dataclasses.replace(made, errors_key=found.errors_key)
    table = pyarrow.dataset.dataset(f"{store.url}/data", format="parquet").to_table()
    assert table.num_rows == 1


def test_a_foreign_file_is_told_apart(store: LocalStore) -> None:
    (Path(store.url) / "data").mkdir(parents=True)
    pq.write_table(pa.table({"a": [1]}), Path(store.url) / "data" / "code-000001.parquet")
    with pytest.raises(ValueError, match="not committed by Draftfleet"):
        read_footer(store, "data/code-000001.parquet")


def test_only_the_chosen_columns_are_kept() -> None:
    table = output_table(plan_rows(2), [sample(0), sample(1)], ("text", "big"), False)
    assert table.column_names == ["row_id", "text", "big"]
