"""Whatever writers, crashes, lost answers, zombies and takeovers do to a run: each sample is there exactly once.

A machine of hypothesis plays drivers and engines over one store. After each of its moves the run is read as a stranger
would read it: each committed shard is whole, each (source file, line, sample) is there once, no success is ever lost.
"""

from __future__ import annotations

import contextlib
import io
import tempfile
import uuid
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test
from s3_server import S3Bucket
from test_commit import footer, plan_rows, sample

from configs.errors import RunConflict, StorageError
from pipeline.commit import Receipt, commit_shard
from pipeline.committed_shard import CommittedShard, read_committed
from pipeline.fault_points import Crash, FaultPoints, PointFault
from pipeline.footer import read_footer
from pipeline.layout import data_key
from pipeline.lease import Lease, LeaseOwner
from pipeline.quarantine import Start
from pipeline.retry import replace_shard
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
FAILING = st.frozensets(st.sampled_from(sorted(EVERYTHING)))
FAULTS = st.one_of(
    st.none(),
    st.none(),
    st.none(),
    st.builds(PointFault, st.sampled_from(["before_put", "after_put"]), st.just("crash")),
    st.builds(
        StoreFault,
        st.sampled_from(["crash_before", "crash_after", "unavailable", "reset", "lost_answer"]),
        st.sampled_from(["put_if_absent", "put_if_match", "put", "get", "head", "delete"]),
        nth=st.integers(1, 3),
    ),
)
Key = tuple[str, int, int]
"""Source file, line, sample index."""


def rows_of(shard: int) -> pa.Table:
    """The plan rows of a shard: its ids and lines are its own."""
    rows = plan_rows(ROWS)
    lines = [shard * ROWS + number + 1 for number in range(ROWS)]
    for name, values in {"_id": [f"row-{line}" for line in lines], "_source_line": lines}.items():
        place = rows.schema.get_field_index(name)
        rows = rows.set_column(place, rows.schema.field(place), pa.array(values, rows.schema.field(place).type))
    return rows


def keys_of(shard: int) -> set[Key]:
    lines = (shard * ROWS + number + 1 for number in range(ROWS))
    return {("in.jsonl", line, index) for line in lines for index in range(SAMPLES)}


def samples_of(shard: int, wanted: Iterable[tuple[int, int]], failing: frozenset[tuple[int, int]]) -> list[Sample]:
    made = []
    for row, index in sorted(wanted):
        plain = sample(row, index, "boom" if (row, index) in failing else None)
        row_id = f"row-{shard * ROWS + row + 1}"
        made.append(replace(plain, request=replace(plain.request, request_id=f"{row_id}#{index}", row_id=row_id)))
    return made


@dataclass(frozen=True)
class Writer:
    """An engine that has generated a shard and is about to commit it; `old`: what it wants to replace."""

    shard: int
    incarnation: str
    shard_attempt: int
    samples: list[Sample]
    old: CommittedShard | None = None

    def commit(self, store: Store, faults: FaultPoints) -> Receipt:
        rows = rows_of(self.shard)
        ok = output_table(rows, self.samples, None, token_ids=False)
        errors = error_table(rows, self.samples, 1)
        ours = replace(footer(self.incarnation, self.samples), shard=self.shard, shard_attempt=self.shard_attempt)
        if self.old is None:
            return commit_shard(store, ours, ok, errors, "zstd", faults)
        ours = replace(ours, usage=self.old.usage_with(ours.usage))
        ok = self.old.rows_with(ok, rows.column("_id").to_pylist())
        return replace_shard(store, self.old, ours, ok, errors, "zstd", faults)


class CommitModel(RuleBasedStateMachine):
    """`self.successes`: every sample that a reader ever found ok."""

    store: Store

    def __init__(self) -> None:
        super().__init__()
        self.writers: list[Writer] = []
        self.leases: list[Lease] = []
        self.successes: set[Key] = set()
        self.with_errors: set[int] = set()
        """Committed shards in which samples failed."""
        self.number = 0

    def name(self) -> str:
        self.number += 1
        return f"a1-{self.number:08d}"

    @rule(shard=SHARD, failing=FAILING)
    def generate(self, shard: int, failing: frozenset[tuple[int, int]]) -> None:
        """Nothing keeps two engines from the same shard: a retry, a zombie, a second driver."""
        incarnation = self.name()
        number = announce(self.store, shard, Start(1, incarnation, 0.0))
        self.writers.append(Writer(shard, incarnation, number, samples_of(shard, EVERYTHING, failing)))

    @precondition(lambda self: self.with_errors)
    @rule(data=st.data(), failing=FAILING)
    def retry_errors(self, data: st.DataObject, failing: frozenset[tuple[int, int]]) -> None:
        shard = data.draw(st.sampled_from(sorted(self.with_errors)))
        old = read_committed(self.store, "code", shard)
        assert old is not None
        incarnation = self.name()
        number = announce(self.store, shard, Start(1, incarnation, 0.0))
        wanted = {(row, index) for row, index in EVERYTHING if f"row-{shard * ROWS + row + 1}#{index}" in old.failed}
        self.writers.append(Writer(shard, incarnation, number, samples_of(shard, wanted, failing), old))

    @precondition(lambda self: self.writers)
    @rule(data=st.data(), fault=FAULTS, stays=st.booleans())
    def commit(self, data: st.DataObject, fault: PointFault | StoreFault | None, stays: bool) -> None:
        """`stays`: it will come again with the same shard, as a call does that is sent twice, or a zombie."""
        place = data.draw(st.integers(0, len(self.writers) - 1))
        writer = self.writers[place] if stays else self.writers.pop(place)
        store = FaultyStore(self.store, (fault,) if isinstance(fault, StoreFault) else ())
        points = FaultPoints([fault] if isinstance(fault, PointFault) else [])
        with contextlib.suppress(Crash, StorageError):
            receipt = writer.commit(store, points)
            stands = read_footer(self.store, data_key("code", writer.shard))
            assert receipt.usage == stands.usage

    @rule(takeover=st.booleans())
    def acquire(self, takeover: bool) -> None:
        """Every lease is older than its ttl of nothing, so `takeover` alone decides."""
        owner = LeaseOwner("host", 1, len(self.leases) + 1, 0.0)
        if self.leases and not takeover:
            with pytest.raises(RunConflict):
                Lease.acquire(self.store, owner, ttl_s=-1.0)
            return
        self.leases.append(Lease.acquire(self.store, owner, takeover=takeover, ttl_s=-1.0))

    @precondition(lambda self: self.leases)
    @rule(data=st.data(), lost=st.booleans())
    def heartbeat(self, data: st.DataObject, lost: bool) -> None:
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
    def each_sample_is_there_once(self) -> None:
        ok_everywhere: list[Key] = []
        self.with_errors.clear()
        for stat in self.store.list("data/"):
            body = self.store.get(stat.key)
            ok, stands = keys(body), read_footer(self.store, stat.key)
            failed = keys(self.store.get(stands.errors_key)) if stands.errors_key else []
            assert len(ok) + len(failed) == ROWS * SAMPLES
            assert {*ok, *failed} == keys_of(stands.shard)
            assert (stands.usage.samples_ok, stands.usage.samples_error) == (len(ok), len(failed))
            ok_everywhere += ok
            if failed:
                self.with_errors.add(stands.shard)
        assert len(ok_everywhere) == len(set(ok_everywhere))
        assert self.successes <= set(ok_everywhere)
        self.successes |= set(ok_everywhere)


def keys(body: bytes) -> list[Key]:
    table = pq.read_table(io.BytesIO(body), columns=["source_file", "source_line", "sample_index"])
    return [(row["source_file"], row["source_line"], row["sample_index"]) for row in table.to_pylist()]


def test_on_the_local_disk() -> None:
    with tempfile.TemporaryDirectory() as folder:

        class OnDisk(CommitModel):
            def __init__(self) -> None:
                super().__init__()
                self.store = LocalStore(Path(folder) / uuid.uuid4().hex)

        run_state_machine_as_test(OnDisk, settings=settings(max_examples=50, stateful_step_count=40, deadline=None))  # type: ignore[no-untyped-call]


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
