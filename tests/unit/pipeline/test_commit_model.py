"""Whatever planners, writers, crashes, lost answers, zombies and takeovers do to a run: each sample is there once.

A machine of hypothesis plays drivers, engines and readers over one store. After each of its moves the run is read as a
stranger would read it: the plan is whole and stays, each committed shard is whole, each (source file, line, sample) is
there once, no success is ever lost.
"""

from __future__ import annotations

import contextlib
import io
import tempfile
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test
from overtaken import Overtaken
from s3_server import S3Bucket
from test_commit import CARRIED, footer, plan_rows, sample

from configs.errors import RunConflict, StorageError
from pipeline.commit import Receipt, commit_shard
from pipeline.committed_shard import CommittedShard, read_committed
from pipeline.fault_points import Crash, FaultPoints, PointFault
from pipeline.finalize import finalize
from pipeline.footer import read_footer
from pipeline.layout import data_key
from pipeline.lease import Lease, LeaseOwner
from pipeline.plan import Plan, PlannedShard, load_plan, read_planned
from pipeline.planning.carried import CarriedSchema
from pipeline.planning.commit import commit_plan
from pipeline.planning.write import WriteSpec, part_path
from pipeline.quarantine import Start
from pipeline.retry import replace_shard
from pipeline.run_state import open_run
from pipeline.schema import plan_schema
from pipeline.shard_tables import error_table, output_table
from pipeline.shard_work import Sample
from pipeline.starts import announce
from pipeline.store.base import Store
from pipeline.store.faulty import FaultyStore, StoreFault
from pipeline.store.local import LocalStore
from pipeline.store.open import open_store

SHARDS, ROWS, SAMPLES = 2, 2, 2
EVERYTHING = frozenset((row, index) for row in range(ROWS) for index in range(SAMPLES))
SHARD = st.integers(0, SHARDS - 1)
FAILING = st.sampled_from([frozenset(some) for some in ((), ((0, 0),), ((1, 1),), ((0, 0), (1, 1)))])
STORE_FAULTS = st.builds(
    StoreFault,
    st.sampled_from(["crash_before", "crash_after", "unavailable", "reset", "lost_answer", "slow"]),
    st.sampled_from(["put_if_absent", "put_if_match", "put", "get", "get_range", "head", "list", "delete"]),
    nth=st.integers(1, 3),
    delay_s=st.just(0.001),
)
POINTS = st.builds(PointFault, st.sampled_from(["before_put", "after_put", "before_receipt"]), st.just("crash"))
FAULTS = st.one_of(st.none(), st.none(), st.none(), POINTS, STORE_FAULTS)
Key = tuple[str, int, int]
"""Source file, line, sample index."""


@dataclass(frozen=True)
class Planner:
    """A driver that has planned the source in its own way, and is about to commit the plan."""

    name: str
    order: tuple[int, ...]
    """The source's lines as they come in the plan."""
    seed: int = 0

    def commit(self, store: Store) -> Plan:
        with tempfile.TemporaryDirectory() as folder:
            write = WriteSpec(Path(folder), ("in.jsonl",), CarriedSchema(CARRIED), None)
            no_duplicates: Any = SimpleNamespace(duplicates=lambda: iter(()))
            return commit_plan(store, self.plan(), write, self._parts(write.spill_dir), (), no_duplicates)

    def plan(self) -> Plan:
        return Plan(
            plan_hash=self.name,
            run="",
            job={"workload": "w", "seed": self.seed},
            fingerprint={"seed": str(self.seed)},
            sources=[],
            shards=tuple(
                PlannedShard(shard, "code", "greedy", 0, shard, ROWS, ROWS * SAMPLES, 3 * ROWS, 8, 8)
                for shard in range(SHARDS)
            ),
            carried=CARRIED,
            json_columns=[],
            counts=(),
            rejected={},
            problems=(),
            num_cut={},
            token_histogram={},
            first_prompts={},
            defaults={},
            warnings=(),
            longest_request_tokens=6,
            max_model_len=512,
        )

    def _parts(self, spill: Path) -> Iterator[int]:
        with pq.ParquetWriter(part_path(spill, 0), plan_schema(CARRIED)) as writer:
            for shard in range(SHARDS):
                writer.write_table(rows_of(self.order[shard * ROWS : (shard + 1) * ROWS]))
        yield 0


PLANNERS = st.sampled_from(
    [
        Planner("as-they-come", (1, 2, 3, 4)),
        Planner("other-bounds", (3, 1, 4, 2)),
        Planner("another-job", (4, 3, 2, 1), seed=1),
    ]
)


def rows_of(lines: Iterable[int]) -> pa.Table:
    """Plan rows of these source lines."""
    rows = plan_rows(ROWS)
    for name, values in {"_id": [f"row-{line}" for line in lines], "_source_line": list(lines)}.items():
        place = rows.schema.get_field_index(name)
        rows = rows.set_column(place, rows.schema.field(place), pa.array(values, rows.schema.field(place).type))
    return rows


def keys_of(rows: pa.Table) -> set[Key]:
    return {("in.jsonl", line, index) for line in rows.column("_source_line").to_pylist() for index in range(SAMPLES)}


def samples_of(rows: pa.Table, wanted: Iterable[tuple[int, int]], failing: frozenset[tuple[int, int]]) -> list[Sample]:
    made = []
    for row, index in sorted(wanted):
        plain = sample(row, index, "boom" if (row, index) in failing else None)
        row_id = rows.column("_id")[row].as_py()
        made.append(replace(plain, request=replace(plain.request, request_id=f"{row_id}#{index}", row_id=row_id)))
    return made


@dataclass(frozen=True)
class Writer:
    """An engine that has generated a shard and is about to commit it; `old`: what it wants to replace."""

    plan: str
    shard: int
    rows: pa.Table
    incarnation: str
    shard_attempt: int
    samples: list[Sample]
    old: CommittedShard | None = None

    @property
    def key(self) -> str:
        return data_key("code", self.shard)

    def commit(self, store: Store, faults: FaultPoints) -> Receipt:
        ok = output_table(self.rows, self.samples, None, token_ids=False)
        errors = error_table(self.rows, self.samples, 1)
        ours = footer(self.incarnation, self.samples)
        ours = replace(ours, plan=self.plan, shard=self.shard, shard_attempt=self.shard_attempt)
        if self.old is None:
            return commit_shard(store, ours, ok, errors, "zstd", faults)
        ours = replace(ours, usage=self.old.usage_with(ours.usage))
        ok = self.old.rows_with(ok, self.rows.column("_id").to_pylist())
        return replace_shard(store, self.old, ours, ok, errors, "zstd", faults)


class CommitModel(RuleBasedStateMachine):
    """`self.successes`: every sample that a reader ever found ok."""

    store: Store

    def __init__(self) -> None:
        super().__init__()
        self.plan: Plan | None = None
        self.plannings = self.heartbeats = 0
        """Counted, because what commits is where most steps should go."""
        self.rows: list[pa.Table] = []
        """The plan's rows, by shard."""
        self.writers: list[Writer] = []
        self.leases: list[Lease] = []
        self.readings: list[Iterator[str]] = []
        self.successes: set[Key] = set()
        self.committed: set[int] = set()
        self.with_errors: set[int] = set()
        """Committed shards in which samples failed."""
        self.number = 0

    def name(self) -> str:
        self.number += 1
        return f"a1-{self.number:08d}"

    @precondition(lambda self: self.plannings < 3)
    @rule(planner=PLANNERS, other=st.none() | PLANNERS, nth=st.integers(1, 4), fault=st.none() | STORE_FAULTS)
    def plan_it(self, planner: Planner, other: Planner | None, nth: int, fault: StoreFault | None) -> None:
        """`other` commits its plan just before the n-th object of this one is put."""
        self.plannings += 1
        store: Any = (
            self.store if other is None else Overtaken(self.store, "put", nth, lambda: self.commit_plan_of(other))
        )
        with contextlib.suppress(Crash, StorageError):
            self.commit_plan_of(planner, FaultyStore(store, () if fault is None else (fault,)))

    def commit_plan_of(self, planner: Planner, store: Store | None = None) -> None:
        """Whoever comes second goes on with the plan that is there, or is told that it is another job's."""
        try:
            adopted = planner.commit(store or self.store)
        except RunConflict:
            stands = load_plan(self.store)
            assert stands is not None
            assert stands.fingerprint != planner.plan().fingerprint
        else:
            assert adopted == load_plan(self.store)

    @precondition(lambda self: self.plan)
    @rule(shard=SHARD, failing=FAILING)
    def generate(self, shard: int, failing: frozenset[tuple[int, int]]) -> None:
        """Nothing keeps two engines from the same shard: a retry, a zombie, a second driver."""
        self.writers.append(self.writer(shard, EVERYTHING, failing))

    @precondition(lambda self: self.with_errors)
    @rule(data=st.data(), failing=FAILING)
    def retry_errors(self, data: st.DataObject, failing: frozenset[tuple[int, int]]) -> None:
        self.writers.append(self.retrying(data.draw(st.sampled_from(sorted(self.with_errors))), failing))

    @precondition(lambda self: self.with_errors)
    @rule(data=st.data(), failing=st.tuples(FAILING, FAILING), nth=st.integers(1, 5), ends=st.booleans())
    def retry_errors_twice(
        self, data: st.DataObject, failing: tuple[frozenset[tuple[int, int]], ...], nth: int, ends: bool
    ) -> None:
        """From one version, by two drivers: the second swaps, or ends the run, before the n-th write of the first."""
        shard = data.draw(st.sampled_from(sorted(self.with_errors)))
        first, second = (self.retrying(shard, each) for each in failing)
        self.commit_overtaken_by(None if ends else second, first, nth)
        self.writers.append(second)

    def retrying(self, shard: int, failing: frozenset[tuple[int, int]]) -> Writer:
        old = read_committed(self.store, "code", shard)
        assert old is not None
        ids = self.rows[shard].column("_id").to_pylist()
        wanted = {(row, index) for row, index in EVERYTHING if f"{ids[row]}#{index}" in old.failed}
        return self.writer(shard, wanted, failing, old)

    def writer(
        self,
        shard: int,
        wanted: Iterable[tuple[int, int]],
        failing: frozenset[tuple[int, int]],
        old: CommittedShard | None = None,
    ) -> Writer:
        assert self.plan is not None
        incarnation = self.name()
        number = announce(self.store, shard, Start(1, incarnation, 0.0))
        rows = read_planned(self.store, self.plan.plan_hash, self.plan.shard(shard))
        return Writer(self.plan.plan_hash, shard, rows, incarnation, number, samples_of(rows, wanted, failing), old)

    @precondition(lambda self: self.writers)
    @rule(data=st.data(), fault=FAULTS, stays=st.booleans())
    def commit(self, data: st.DataObject, fault: PointFault | StoreFault | None, stays: bool) -> None:
        """`stays`: it will come again with the same shard, as a call does that is sent twice, or a zombie."""
        writer = self.draw_writer(data, stays)
        store = FaultyStore(self.store, (fault,) if isinstance(fault, StoreFault) else ())
        points = FaultPoints([fault] if isinstance(fault, PointFault) else [])
        with contextlib.suppress(Crash, StorageError):
            self.commit_of(writer, store, points)
            points.reach("before_receipt", writer.key)

    @precondition(lambda self: self.writers)
    @rule(data=st.data(), nth=st.integers(1, 5), other=st.sampled_from(["writer", "driver"]))
    def commit_overtaken(self, data: st.DataObject, nth: int, other: str) -> None:
        """Just before the n-th write of one engine another one commits, or another driver ends the run."""
        writer = self.draw_writer(data, stays=False)
        rival = self.draw_writer(data, stays=True) if other == "writer" and self.writers else None
        self.commit_overtaken_by(rival, writer, nth)

    def commit_overtaken_by(self, rival: Writer | None, writer: Writer, nth: int) -> None:
        """None: another driver, which ends the run."""

        def act() -> None:
            with contextlib.suppress(StorageError):
                self.end_run(self.store) if rival is None else self.commit_of(rival, self.store, FaultPoints())

        store: Any = Overtaken(self.store, "put", nth, act)
        with contextlib.suppress(StorageError):
            self.commit_of(writer, store, FaultPoints())

    def draw_writer(self, data: st.DataObject, stays: bool) -> Writer:
        place = data.draw(st.integers(0, len(self.writers) - 1))
        return self.writers[place] if stays else self.writers.pop(place)

    def commit_of(self, writer: Writer, store: Store, points: FaultPoints) -> None:
        receipt = writer.commit(store, points)
        assert receipt.usage == read_footer(self.store, writer.key).usage

    @precondition(lambda self: len(self.committed) == SHARDS)
    @rule(fault=st.none() | STORE_FAULTS)
    def end(self, fault: StoreFault | None) -> None:
        with contextlib.suppress(Crash, StorageError):
            self.end_run(FaultyStore(self.store, () if fault is None else (fault,)), is_swept=fault is None)

    def end_run(self, store: Store, is_swept: bool = True) -> None:
        """What a driver does that finds nothing missing: the manifest, and what nobody refers to goes. A sweep that a
        fault cuts short may leave some of it, never take more."""
        view = open_run(store)
        if not view.pending:
            manifest = finalize(view, max_error_rate=1.0)
            usage = manifest["usage"]
            assert usage["samples_ok"] + usage["samples_error"] == SHARDS * ROWS * SAMPLES
            there = {stat.key for stat in self.store.list("errors/")}
            assert there >= set(manifest["errors"])
            assert not is_swept or there == set(manifest["errors"])

    @precondition(lambda self: self.committed)
    @rule()
    def begin_to_read(self) -> None:
        self.readings.append(self.reading())
        next(self.readings[-1])

    @precondition(lambda self: self.readings)
    @rule(data=st.data())
    def read_on(self, data: st.DataObject) -> None:
        place = data.draw(st.integers(0, len(self.readings) - 1))
        if next(self.readings[place], None) is None:
            self.readings.pop(place)

    def reading(self) -> Iterator[str]:
        """Somebody lists the dataset and opens one object after the other, whatever happens between."""
        before, found = set(self.successes), list[Key]()
        listed = [stat.key for stat in self.store.list("data/")]
        yield "listed"
        for key in listed:
            found += keys(self.store.get(key))
            yield key
        assert len(found) == len(set(found))
        assert before <= set(found)

    @precondition(lambda self: len(self.leases) < 3)
    @rule(takeover=st.booleans())
    def acquire(self, takeover: bool) -> None:
        """Every lease is older than its ttl of nothing, so `takeover` alone decides."""
        owner = LeaseOwner("host", 1, len(self.leases) + 1, 0.0)
        if self.leases and not takeover:
            with pytest.raises(RunConflict):
                Lease.acquire(self.store, owner, ttl_s=-1.0)
            return
        self.leases.append(Lease.acquire(self.store, owner, takeover=takeover, ttl_s=-1.0))

    @precondition(lambda self: self.leases and self.heartbeats < 4)
    @rule(data=st.data(), lost=st.booleans())
    def heartbeat(self, data: st.DataObject, lost: bool) -> None:
        self.heartbeats += 1
        lease = data.draw(st.sampled_from(self.leases))
        if lease is not self.leases[-1]:
            with pytest.raises(RunConflict):
                lease.heartbeat()
            return
        if lost:
            whole, lease.store = lease.store, FaultyStore(lease.store, (StoreFault("lost_answer", "put_if_match"),))
            with pytest.raises(StorageError):
                lease.heartbeat()
            lease.store = whole
        lease.heartbeat()

    @invariant()
    def the_plan_is_whole_and_stays(self) -> None:
        plan = load_plan(self.store)
        if self.plan is None and plan is not None:
            self.plan = plan
            self.rows = [read_planned(self.store, plan.plan_hash, shard) for shard in plan.shards]
            lines = pa.concat_tables(self.rows).column("_source_line").to_pylist()
            assert sorted(lines) == list(range(1, SHARDS * ROWS + 1))
        assert plan == self.plan

    @invariant()
    def each_sample_is_there_once(self) -> None:
        ok_everywhere: list[Key] = []
        self.committed.clear()
        self.with_errors.clear()
        for stat in self.store.list("data/"):
            body = self.store.get(stat.key)
            ok, stands = keys(body), read_footer(self.store, stat.key)
            failed = keys(self.store.get(stands.errors_key)) if stands.errors_key else []
            assert len(ok) + len(failed) == ROWS * SAMPLES
            assert {*ok, *failed} == keys_of(self.rows[stands.shard])
            assert (stands.usage.samples_ok, stands.usage.samples_error) == (len(ok), len(failed))
            ok_everywhere += ok
            self.committed.add(stands.shard)
            if failed:
                self.with_errors.add(stands.shard)
        assert len(ok_everywhere) == len(set(ok_everywhere))
        assert self.successes <= set(ok_everywhere)
        self.successes |= set(ok_everywhere)


def keys(body: bytes) -> list[Key]:
    table = pq.read_table(io.BytesIO(body), columns=["source_file", "source_line", "sample_index"])
    return [(row["source_file"], row["source_line"], row["sample_index"]) for row in table.to_pylist()]


def test_error_rows_survive_an_end_of_the_run_in_the_middle_of_a_swap(tmp_path: Path) -> None:
    """The machine comes here too rarely: what nobody refers to yet is swept a moment before it is referred to."""
    run = CommitModel()
    run.store = LocalStore(tmp_path)
    run.commit_plan_of(Planner("as-they-come", (1, 2, 3, 4)))
    run.the_plan_is_whole_and_stays()
    for shard in range(SHARDS):
        failing = frozenset({(0, 0), (1, 1)})
        run.commit_of(run.writer(shard, EVERYTHING, failing), run.store, FaultPoints())
    run.commit_overtaken_by(None, run.retrying(0, frozenset({(0, 0)})), nth=4)
    assert read_footer(run.store, data_key("code", 0)).usage.samples_error == 1
    run.each_sample_is_there_once()


def test_on_the_local_disk() -> None:
    with tempfile.TemporaryDirectory() as folder:

        class OnDisk(CommitModel):
            def __init__(self) -> None:
                super().__init__()
                self.store = LocalStore(Path(folder) / uuid.uuid4().hex)

        run_state_machine_as_test(OnDisk, settings=settings(max_examples=25, stateful_step_count=40, deadline=None))  # type: ignore[no-untyped-call]


@pytest.mark.slow
def test_on_a_real_s3_server(s3_bucket: S3Bucket) -> None:
    class OnS3(CommitModel):
        def __init__(self) -> None:
            super().__init__()
            self.store = open_store(f"{s3_bucket.url}/{uuid.uuid4().hex}", s3_bucket.storage)

    checks = [HealthCheck.too_slow, HealthCheck.data_too_large]
    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        OnS3, settings=settings(max_examples=10, stateful_step_count=25, deadline=None, suppress_health_check=checks)
    )
