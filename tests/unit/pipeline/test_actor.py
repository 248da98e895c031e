"""The engine actor around an engine that does as it is told: what is on record, what counts, what ends it."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from planning import job_over, write_jsonl

from configs.errors import ConfigError, EngineError, RowError, StorageError
from configs.job import Job, Storage
from pipeline.actor import Assignment, EngineActor
from pipeline.plan import Plan, make_plan
from pipeline.pulse import engine_snapshots
from pipeline.quarantine import Start
from pipeline.starts import announce, read_starts
from pipeline.store.faulty import FaultKind, FaultyStore, StoreFault
from pipeline.store.local import LocalStore
from workers.contract import EngineInfo, Event, Finished, Request, SpeculationStats

STALL_TIMEOUT_S = 7.0


@dataclass
class Timer:
    """faulthandler's, which would end the tests' own process."""

    seconds: float | None = None

    def dump_traceback_later(self, seconds: float, exit: bool, file: int) -> None:
        assert exit
        self.seconds = seconds

    def cancel_dump_traceback_later(self) -> None:
        self.seconds = None


@dataclass
class ToldEngine:
    """Answers every request with the same text, but those of rows that are to fail or to break it."""

    weights_sha256: str
    failing: frozenset[str] = frozenset()
    breaking: frozenset[str] = frozenset()
    asked: list[str] = field(default_factory=list)
    on_request: Callable[[], None] = lambda: None

    def info(self) -> EngineInfo:
        return EngineInfo("told", "0", "cpu", "float32", "the-model", self.weights_sha256, "none", 1, 1)

    async def generate(self, request: Request) -> AsyncIterator[Event]:
        self.asked.append(request.request_id)
        self.on_request()
        if request.row_id in self.breaking:
            raise EngineError("it broke")
        if request.row_id in self.failing:
            raise RowError("boom", "it failed", stage="engine")
        yield Finished("hello", (1, 2), "stop", 0, 0.0, 0.0, 0.0, 1, SpeculationStats(), "none")

    def drain_rounds(self) -> list[Any]:
        return []


@dataclass
class Run:
    """A planned run of two shards with two rows each, a to d, and engines that work on it."""

    store: LocalStore
    plan: Plan
    job: Job
    timer: Timer
    monkeypatch: pytest.MonkeyPatch

    def engine(self, **told: Any) -> ToldEngine:
        return ToldEngine(json.loads(self.plan.fingerprint["model.weights_sha256"]), **told)

    def actor(
        self,
        engine: ToldEngine,
        attempt: int = 1,
        retry_errors: bool = False,
        on_load: Callable[[], None] = lambda: None,
    ) -> EngineActor:
        def load(*_: Any, **__: Any) -> ToldEngine:
            on_load()
            return engine

        self.monkeypatch.setattr("workers.factory.create_engine", load)
        return EngineActor(
            Assignment(
                run_url=self.store.url,
                storage=Storage(),
                run="w-1",
                attempt=attempt,
                threads=1,
                shards_in_flight=2,
                heartbeat_s=60.0,
                fleet={},
                job=self.job.model_dump_json(),
                retry_errors=retry_errors,
            )
        )


@pytest.fixture
def run(tmp_path: Path, chat_model: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    timer = Timer()
    monkeypatch.setattr("pipeline.watchdog.faulthandler", timer)
    source = write_jsonl(tmp_path / "in.jsonl", [{"id": name, "prompt": "x"} for name in "abcd"])
    job = job_over(source, shard={"max_rows": 2}, engine={"stall_timeout_s": STALL_TIMEOUT_S})
    store = LocalStore(str(tmp_path / "w-1"))
    return Run(store, make_plan(job, tmp_path, chat_model, store), job, timer, monkeypatch)


def answers(actor: EngineActor, *shards: int) -> list[dict[str, Any]]:
    """The receipts of calls one after the other."""

    async def calls() -> list[dict[str, Any]]:
        try:
            return [(await actor(pa.table({"shard": [shard]}))).to_pylist()[0] for shard in shards]
        finally:
            actor._loop = None  # there is no engine to close

    return asyncio.run(calls())


class Ended(Exception):
    """Instead of the process."""


def life_of(run: Run, actor: EngineActor) -> float:
    """How many seconds the actor took with shard 0 to end its process."""
    ended: list[float] = []

    def end(code: int) -> None:
        ended.append(time.monotonic())
        raise Ended

    run.monkeypatch.setattr("pipeline.actor.os._exit", end)
    started = time.monotonic()
    with pytest.raises(Ended):
        answers(actor, 0)
    return ended[0] - started


def counted(run: Run, actor: EngineActor) -> dict[str, Any]:
    """What the engine's account says of its samples."""
    actor._put_ledger()
    [snapshot] = [each for each in engine_snapshots(run.store) if each["incarnation"] == actor._incarnation]
    return dict(snapshot["error_rate"])


def test_shards_are_committed_with_what_became_of_their_rows(run: Run) -> None:
    actor = run.actor(run.engine(failing=frozenset("d")))
    first, second = answers(actor, 0, 1)
    assert (first["status"], second["status"], first["failure"]) == ("committed", "committed", None)
    assert json.loads(second["usage"])["errors"] == {"boom": 1}
    assert counted(run, actor) == {"samples": 4, "errors": {"boom": 1}, "example": "d#0: it failed"}


def test_an_engine_is_on_record_and_watched_before_it_is_up(run: Run) -> None:
    seen: list[tuple[float | None, list[str]]] = []

    def look() -> None:
        seen.append((run.timer.seconds, [each["part"] for each in engine_snapshots(run.store, 1)]))

    engine = run.engine(on_request=look)
    actor = run.actor(engine, on_load=look)
    assert run.timer.seconds is None  # nobody has given it work yet
    answers(actor, 0)
    assert engine.asked[0] == "warm-up#0"
    assert seen[:2] == [(10 * STALL_TIMEOUT_S, ["load"]), (STALL_TIMEOUT_S, ["load"])]


def test_an_engine_that_breaks_in_its_warm_up_ends_its_process(run: Run) -> None:
    life_of(run, run.actor(run.engine(breaking=frozenset({"warm-up"}))))
    assert [each["died_of"] for each in engine_snapshots(run.store, 1)] == ["it broke"]


def test_a_shard_that_stands_is_not_generated_again(run: Run) -> None:
    [before] = answers(run.actor(run.engine()), 0)
    engine = run.engine()
    [after] = answers(run.actor(engine), 0)
    assert (before["status"], after["status"]) == ("committed", "already")
    assert after["usage"] == before["usage"]
    assert engine.asked == ["warm-up#0"]
    assert len(read_starts(run.store, 0)) == 1


def test_the_samples_of_probes_do_not_count(run: Run) -> None:
    for number in range(3):
        announce(run.store, 0, Start(1, f"a1-dead-{number}", 0.0, alone=number == 2))
    engine = run.engine(failing=frozenset("ab"))
    actor = run.actor(engine)
    answers(actor, 0)
    assert sorted(engine.asked) == ["a#0", "a#0", "b#0", "b#0", "warm-up#0"]
    assert counted(run, actor)["errors"] == {"boom": 2}


def test_of_samples_tried_again_none_counts_but_all_of_missing_shards_do(run: Run) -> None:
    answers(run.actor(run.engine(failing=frozenset("ab"))), 0)
    engine = run.engine(failing=frozenset("abcd"))
    actor = run.actor(engine, attempt=2, retry_errors=True)
    answers(actor, 0, 1)
    assert sorted(engine.asked) == ["a#0", "b#0", "c#0", "d#0", "warm-up#0"]
    assert counted(run, actor)["errors"] == {"boom": 2}


@pytest.mark.parametrize("kind", ["unavailable", "slow"])
def test_a_broken_engine_does_not_wait_for_the_store(run: Run, kind: FaultKind) -> None:
    actor = run.actor(run.engine(breaking=frozenset("a")))
    actor._store = FaultyStore(run.store, (StoreFault(kind, "put", "_ledger/*", times=99, delay_s=2.0),))
    run.monkeypatch.setattr("pipeline.actor.LAST_WORDS_S", 0.1)
    assert life_of(run, actor) < 1.5


def test_other_weights_than_planned_are_refused(run: Run) -> None:
    engine = run.engine()
    engine.weights_sha256 = "0" * 64
    with pytest.raises(ConfigError, match=r"has other weights in the-model \(sha256 0{12}\) than the run was planned"):
        answers(run.actor(engine), 0)
    assert engine.asked == []


def test_a_host_that_does_not_see_the_folder_is_told(run: Run, tmp_path: Path) -> None:
    run.store = LocalStore(str(tmp_path / "elsewhere"))
    with pytest.raises(StorageError, match=r"finds no plan in .*elsewhere; on a cluster, sink\.path must be s3://"):
        run.actor(run.engine())
