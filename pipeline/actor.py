"""The engine actor: one engine, several shards in flight, each read and committed here and answered with a receipt.

Ray Data builds one per worker and calls it with the number of one shard at a time; the calls overlap, so the engine's
batch never drains between shards. The rows come from the plan straight into this process: a second process to read them
would take its time from the engine, and Ray would carry them through its object store.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import time
import uuid
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pyarrow as pa

from configs.errors import ConfigError, EngineError, StorageError, TooManyErrors
from configs.fingerprint import execution_fingerprint
from configs.job import DraftPolicy, Job, Sampling, Storage
from pipeline.commit import Receipt, already_committed, commit_shard
from pipeline.committed_shard import CommittedShard, read_committed
from pipeline.error_rate import ErrorRate
from pipeline.fault_points import FaultPoints
from pipeline.footer import ShardFooter
from pipeline.layout import data_key, ledger_key
from pipeline.ledger import Ledger
from pipeline.plan import Plan, PlannedShard, load_plan, read_planned
from pipeline.policy import Policy
from pipeline.provenance import git_commit, versions
from pipeline.quarantine import Start, Step, next_step
from pipeline.recheck import Recheck, recheck, sum_of
from pipeline.retry import replace_shard
from pipeline.shard_tables import error_table, output_table
from pipeline.shard_work import Sample, drafting_of, generate_shard
from pipeline.starts import announce, read_starts
from pipeline.store.base import Store
from pipeline.store.open import open_store
from pipeline.trace import TraceWriter
from pipeline.usage import Usage
from pipeline.watchdog import Watchdog
from workers.contract import Engine, EngineInfo, Finished, Request
from workers.draft_length.experience import Experience

LOOK_PERIOD_S = 1.0
"""Of the watchdog."""
LOAD_TIMEOUTS = 10
"""Loading may take so many times `engine.stall_timeout_s`: weights may come over a network."""
KNOWN_OBSERVATIONS, KNOWN_ROUNDS = 200.0, 200.0
"""What earlier work counts for at most, per draft position and in rounds: what is new soon outweighs it."""
LAST_WORDS_S = 10.0
"""For the account of a broken engine, which its replacement must not wait for."""
RECEIPT_SCHEMA = pa.schema(
    [
        ("shard", pa.int32()),
        ("status", pa.string()),
        ("usage", pa.string()),
        ("rows", pa.int64()),
        ("failure", pa.string()),
    ]
)
"""`failure`, alone then: why the run has to end. Ray would carry an exception only as the text of a traceback."""


@dataclass(frozen=True, slots=True)
class Assignment:
    """What an actor is told; small, because Ray keeps it for restarts. The rest it reads from the plan."""

    run_url: str
    storage: Storage
    run: str
    attempt: int
    threads: int
    shards_in_flight: int
    """Shards that generate at once; a further call may have its rows read and wait, or commit."""
    heartbeat_s: float
    fleet: Mapping[str, object]
    """What the driver decided: workers, shards in flight."""
    job: str
    """The job as JSON: operational settings may differ from the plan's on a resume."""
    retry_errors: bool = False
    """Try the failed samples of committed shards again."""
    known: str | None = None
    """Key of what is known of drafting; None: nothing."""


class EngineActor:
    """Callable class for `map_batches`: the number of a shard in (column `shard`), one receipt row out."""

    def __init__(self, assignment: Assignment, faults: FaultPoints | None = None) -> None:
        self._assignment = assignment
        self._faults = faults or FaultPoints()
        self._incarnation = f"a{assignment.attempt}-{uuid.uuid4().hex[:8]}"
        self._ledger = Ledger(_identity(assignment, self._incarnation))
        self._store: Store = open_store(assignment.run_url, assignment.storage)
        self._plan = _planned(self._store)
        self._job = Job.model_validate_json(assignment.job)
        self._errors = ErrorRate(self._job.limits.max_error_rate)
        self._watchdog = Watchdog(self._job.engine.stall_timeout_s)
        self._trace = TraceWriter(self._store, self._incarnation)
        self._put_ledger()  # an engine that dies before it is up is told by nothing else
        with self._watchdog.allowing(LOAD_TIMEOUTS):
            self._engine = self._load()
        self._beat: asyncio.Task[None] | None = None
        self._watch: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ready = asyncio.Lock()
        self._room = asyncio.Semaphore(assignment.shards_in_flight)
        self._emptying = asyncio.Lock()

    async def __call__(self, block: pa.Table) -> pa.Table:
        shard = self._plan.shard(block.column("shard")[0].as_py())
        try:
            await self._warm_up_once()
            receipt = await self._work(shard)
        except TooManyErrors as error:
            return pa.table([[shard.shard], [None], [None], [None], [str(error)]], schema=RECEIPT_SCHEMA)
        except EngineError as error:
            # Ray would keep calling a broken engine for ever; a dead actor it replaces. (ray-project/ray#59522)
            with contextlib.suppress(Exception):
                await asyncio.wait_for(asyncio.to_thread(self._put_ledger, str(error)), LAST_WORDS_S)
            os._exit(1)
        return pa.table(
            [[receipt.shard], [receipt.status], [json.dumps(receipt.usage.to_json())], [receipt.rows], [None]],
            schema=RECEIPT_SCHEMA,
        )

    def _load(self) -> Engine:
        # It brings torch, which the driver, who only names this class, need not load.
        from workers.factory import create_engine

        return create_engine(
            self._job.model,
            self._job.draft,
            self._job.engine,
            longest_request_tokens=self._plan.longest_request_tokens,
            threads=self._assignment.threads,
            learned=self._learned,
        )

    def _learned(self, info: EngineInfo) -> Experience:
        """What earlier runs, and this one before, taught about drafting with such an engine."""
        if self._assignment.known is None:
            return Experience()
        policy = Policy.from_json(json.loads(self._store.get(self._assignment.known)))
        return policy.for_engine(info, KNOWN_OBSERVATIONS, KNOWN_ROUNDS)

    async def _work(self, shard: PlannedShard) -> Receipt:
        if (stands := await asyncio.to_thread(self._stands, shard)) is not None:
            return stands
        rows = await asyncio.to_thread(self._read, shard)
        old = await asyncio.to_thread(self._committed, shard)
        step = await self._next_step(shard, rows)
        async with self._turn(step.alone):
            while step.is_probe:
                await self._run(shard, rows, step, old)
                self._ledger.shard_committed(0)
                step = await self._next_step(shard, rows)
            samples, footer = await self._run(shard, rows, step, old)
            if step.alone:
                # Before anything else may kill the engine: such a death would be taken for this shard's own.
                return await self._finish(rows, samples, footer, old)
        return await self._finish(rows, samples, footer, old)

    async def _next_step(self, shard: PlannedShard, rows: pa.Table) -> Step:
        starts = await asyncio.to_thread(self._starts, shard.shard)
        return next_step(starts, rows.num_rows, self._assignment.attempt, self._incarnation)

    async def _run(
        self, shard: PlannedShard, rows: pa.Table, step: Step, old: CommittedShard | None
    ) -> tuple[list[Sample], ShardFooter]:
        started = time.time()
        shard_attempt = await asyncio.to_thread(self._announce, shard.shard, step)
        samples, rechecked = await self._generate(rows, step, old)
        footer = self._footer(shard, rows, samples, shard_attempt, started)
        return samples, footer if rechecked is None else replace(footer, recheck=rechecked.to_json())

    async def _finish(
        self, rows: pa.Table, samples: list[Sample], footer: ShardFooter, old: CommittedShard | None
    ) -> Receipt:
        committed_ns = 0
        try:
            receipt = await asyncio.to_thread(self._commit, rows, samples, footer, old)
            if receipt.status == "committed":
                committed_ns = footer.usage.engine_ns_ok + footer.usage.engine_ns_error
        finally:
            self._ledger.shard_committed(committed_ns)
        self._faults.reach("before_receipt", data_key(footer.task, footer.shard))
        return receipt

    @contextlib.asynccontextmanager
    async def _turn(self, alone: bool) -> AsyncIterator[None]:
        """Wait for room in the engine; with `alone`, for all of it."""
        taken = 0
        async with self._emptying if alone else contextlib.nullcontext():  # two that wait for all would wait for ever
            try:
                for _ in range(self._assignment.shards_in_flight if alone else 1):
                    await self._room.acquire()
                    taken += 1
                yield
            finally:
                for _ in range(taken):
                    self._room.release()

    def _read(self, shard: PlannedShard) -> pa.Table:
        rows = read_planned(self._store, self._plan.plan_hash, shard)
        assert rows.num_rows == shard.num_rows, f"shard {shard.shard}: {rows.num_rows} rows, planned {shard.num_rows}"
        return rows

    def _stands(self, shard: PlannedShard) -> Receipt | None:
        """The receipt of a shard that is done: its engine died before it could say so, or was only believed dead."""
        return None if self._assignment.retry_errors else already_committed(self._store, shard.task, shard.shard)

    def _committed(self, shard: PlannedShard) -> CommittedShard | None:
        return read_committed(self._store, shard.task, shard.shard) if self._assignment.retry_errors else None

    async def _generate(
        self, rows: pa.Table, step: Step, old: CommittedShard | None
    ) -> tuple[list[Sample], Recheck | None]:
        # What a probe generates comes again; and of samples that failed once, many may fail again: no reason to stop.
        errors = self._errors if old is None and not step.is_probe else None
        only = None if old is None else old.failed
        self._ledger.shard_started()
        try:
            samples = await generate_shard(self._engine, self._job, rows, step, errors, only)
            return samples, None if step.is_probe else await self._recheck(samples)
        finally:
            self._account()
            self._ledger.shard_generated()

    async def _recheck(self, samples: list[Sample]) -> Recheck | None:
        fraction = self._job.draft.recheck_fraction
        if not fraction:
            return None
        done = ((each.request, each.result) for each in samples if isinstance(each.result, Finished))
        return await recheck(self._engine, done, fraction)

    def _starts(self, shard: int) -> list[Start]:
        # Whoever has failed samples tried again has changed something: what earlier drivers saw is not for this one.
        attempt = self._assignment.attempt
        starts = read_starts(self._store, shard)
        return [start for start in starts if start.attempt == attempt or not self._assignment.retry_errors]

    def _announce(self, shard: int, step: Step) -> int:
        rows = None if not step.is_probe and not step.killers else step.rows
        start = Start(self._assignment.attempt, self._incarnation, time.time(), step.alone, rows)
        return announce(self._store, shard, start)

    def _commit(
        self, rows: pa.Table, samples: list[Sample], footer: ShardFooter, old: CommittedShard | None
    ) -> Receipt:
        sink = self._job.sink
        ok = output_table(rows, samples, sink.columns, sink.token_ids)
        errors = error_table(rows, samples, self._assignment.attempt)
        if old is None:
            return commit_shard(self._store, footer, ok, errors, sink.compression, self._faults)
        usage, drafting = old.usage_with(footer.usage), (*old.footer.drafting, *footer.drafting)
        footer = replace(footer, usage=usage, drafting=drafting, recheck=sum_of(old.footer.recheck, footer.recheck))
        ok = old.rows_with(ok, rows.column("_id").to_pylist())
        return replace_shard(self._store, old, footer, ok, errors, sink.compression, self._faults)

    def _footer(
        self, shard: PlannedShard, rows: pa.Table, samples: list[Sample], shard_attempt: int, started: float
    ) -> ShardFooter:
        job, info = self._job, self._engine.info()
        return ShardFooter(
            run=self._assignment.run,
            attempt=self._assignment.attempt,
            incarnation=self._incarnation,
            shard=shard.shard,
            task=shard.task,
            lane=shard.lane,
            plan=self._plan.plan_hash,
            semantic_fingerprint=self._plan.fingerprint_hash,
            execution=execution_fingerprint(job, {**versions(), **info.versions}, self._host(info)),
            model=info.model,
            weights_sha256=info.weights_sha256,
            draft=info.draft,
            git_commit=git_commit(),
            seed=job.seed,
            num_rows=rows.num_rows,
            usage=sum((sample.usage for sample in samples), Usage()),
            started=started,
            finished=time.time(),
            shard_attempt=shard_attempt,
            drafting=tuple(drafting_of(samples, info).to_json()["strata"]),
        )

    def _host(self, info: EngineInfo) -> dict[str, object]:
        """Where and by what this shard was generated, as far as the job does not say."""
        found = {"engine": info.name, "engine_version": info.version, "device": info.device, "threads": info.threads}
        return {**found, "name": os.uname().nodename, **self._assignment.fleet}

    async def _warm_up_once(self) -> None:
        async with self._ready:
            if self._beat is not None:
                return
            _refuse_other_weights(self._plan, self._engine.info())
            self._ledger.runs_on(self._engine.info().machine)
            self._ledger.enter("warm_up")
            with self._watchdog.allowing(1):
                await _warm_up(self._engine)
            self._engine.drain_rounds()  # the warm-up's own rounds are no work
            self._ledger.enter("waiting_input")
            self._loop = asyncio.get_running_loop()
            # Plain arguments, not self: the task must not keep the actor alive past its last handle.
            put = partial(_put_snapshot, self._ledger, self._errors, self._store, self._incarnation)
            self._beat = asyncio.create_task(_heartbeat(put, self._trace, self._assignment.heartbeat_s))
            self._watch = asyncio.create_task(_watch(self._engine, self._ledger, self._trace, self._watchdog))

    def _account(self) -> None:
        _take_rounds(self._engine, self._ledger, self._trace)

    def _put_ledger(self, died_of: str | None = None) -> None:
        _put_snapshot(self._ledger, self._errors, self._store, self._incarnation, died_of)

    def __del__(self) -> None:
        """Ray Data drops the actor when no shard is left: close the engine and write the last account."""
        if self.__dict__.get("_loop") is None or self._loop is None:
            return
        self._watchdog.stop()
        self._account()
        self._ledger.enter("teardown")
        with contextlib.suppress(Exception):  # the process ends next; a lost last heartbeat is allowed
            asyncio.run_coroutine_threadsafe(self._engine.close(), self._loop).result(timeout=10)
            self._put_ledger()
            self._trace.flush(least=1)


def _planned(store: Store) -> Plan:
    """The run's plan, which the driver wrote before any actor started."""
    plan = load_plan(store)
    if plan is None:
        raise StorageError(
            f"host {os.uname().nodename} finds no plan in {store.url}; on a cluster, sink.path must be s3:// or a "
            "folder that all hosts mount"
        )
    return plan


def _refuse_other_weights(plan: Plan, info: EngineInfo) -> None:
    planned = json.loads(plan.fingerprint["model.weights_sha256"])
    if info.weights_sha256 != planned:
        raise ConfigError(
            f"host {os.uname().nodename} has other weights in {info.model} (sha256 {info.weights_sha256[:12]}) than "
            f"the run was planned with ({planned[:12]}); copy the checkpoint there again, then resume"
        )


def _identity(assignment: Assignment, incarnation: str) -> dict[str, Any]:
    return {
        "kind": "engine",
        "run": assignment.run,
        "attempt": assignment.attempt,
        "incarnation": incarnation,
        "host": os.uname().nodename,
        "pid": os.getpid(),
        "git_commit": git_commit(),
    }


async def _warm_up(engine: Engine) -> None:
    request = Request(
        request_id="warm-up#0",
        row_id="warm-up",
        sample_index=0,
        task="warm-up",
        prompt_token_ids=(0, 1, 2, 3),
        sampling=Sampling(max_tokens=4, ignore_eos=True),
        seed=0,
        draft=DraftPolicy(policy="off", drafter="none"),
    )
    async for _ in engine.generate(request):
        pass


def _take_rounds(engine: Engine, ledger: Ledger, trace: TraceWriter) -> None:
    rounds = engine.drain_rounds()
    ledger.rounds(rounds)
    trace.add(rounds)


async def _watch(engine: Engine, ledger: Ledger, trace: TraceWriter, watchdog: Watchdog) -> None:
    """Apart from the heartbeat, which a slow store may hold up."""
    while True:
        _take_rounds(engine, ledger, trace)
        watchdog.look(ledger.work.rounds, ledger.is_generating)
        await asyncio.sleep(LOOK_PERIOD_S)


async def _heartbeat(put: Callable[[], None], trace: TraceWriter, period_s: float) -> None:
    while True:
        with contextlib.suppress(Exception):  # the account is late, not lost: the next beat writes all of it
            await asyncio.to_thread(put)
            await asyncio.to_thread(trace.flush)
        await asyncio.sleep(period_s)


def _put_snapshot(
    ledger: Ledger, errors: ErrorRate, store: Store, incarnation: str, died_of: str | None = None
) -> None:
    snapshot = {**ledger.snapshot(), "error_rate": errors.to_json()}
    if died_of is not None:
        snapshot["died_of"] = died_of
    store.put(ledger_key(incarnation), json.dumps(snapshot).encode())
