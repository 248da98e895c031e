"""What the river costs: `draftfleet run` against the bare engine, side by side.

    python benchmarks/pipeline_efficiency.py            520 rows, half an hour on two quiet cores
    python benchmarks/pipeline_efficiency.py --quick    one pair of 40 rows each, minutes; its ratios say little

Two sides take turns (ABBA) over the same plan, which is made beforehand:

    pipeline    `draftfleet run`: Ray with its services, Ray Data, engine actors, commit to the local disk, progress
    bare        as many plain processes as there are engines, each with its part of the plan's shards (dealt so that
                their work is about equal): the same engine, the same requests, as many shards in flight; no Ray, no
                commit
    beside Ray  the same plain processes, while a Ray cluster without any work idles on the machine

Every engine has one torch thread. Output lengths are fixed (`ignore_eos`, a `max_tokens` for each row), so both sides
make exactly as many tokens, and this is checked.

Three comparisons, because a CPU engine shares its cores with whatever drives it, as a GPU does not:

    spare       as many engines as cores but one: what drives them has a core, as it has on a GPU host
    full        an engine on every core: each millisecond of anything else is taken from an engine
    floor       bare engines on every core, beside Ray or not: what of `full` is Ray's own idling, before any work

    start-up excluded   from the moment that the first engine takes up its first shard until the last shard is done.
                        Pipeline: the earliest `started` in the shards' footers to the latest change of a data file, so
                        that dispatch, reading, commit and receipts lie inside. Bare: the first request that any process
                        hands to its engine to the last answer; reading and making the requests come before.
    start-up included   from before the first process is created until the last has ended. Planning is in neither.

Ratios are tokens per second, pipeline / bare. The one without start-up is taken apart exactly:

    tokens/s = engines × tokens per busy second of an engine × share of the time that engines are busy

The first factor falls when rounds get slower, because other processes take the core or the caches; the second when an
engine has no round: before its first shard, after its last, between rounds.

How much other programs took of the machine is told; if that is not near zero, do not trust the ratios of times. Two
numbers that rest on CPU seconds alone still say something then, if less: tokens per CPU second of the threads that run
the model, and tokens per second `undisturbed`: the same times the cores less what everything beside those threads uses.
It is what a side would reach on as many cores as it has engines, had it no tail and no wait.

Results go to `benchmarks/results/pipeline_efficiency.{json,md}`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import yaml
from conditions import conditions
from paired import abba
from river.cpu_account import CpuAccount, sampled
from river.demo_rows import demo_job, write_rows
from river.efficiency_report import Result, report
from river.measurement import EngineSpan, Measurement

from configs.job import Storage
from configs.load import load_job
from pipeline.footer import read_footer
from pipeline.layout import DATA_DIR
from pipeline.local_ray import ALLOCATOR
from pipeline.plan import Plan, PlannedShard, make_plan
from pipeline.pulse import engine_snapshots
from pipeline.store.base import Store
from pipeline.store.open import open_store
from workers.models import resolve

RESULTS = Path(__file__).parent / "results"
RIVER = Path(__file__).parent / "river"
CORES = len(os.sched_getaffinity(0))
WORKLOAD = "efficiency"


@dataclass(frozen=True, slots=True)
class Size:
    """How much is measured, in each comparison."""

    rows: int
    pairs: int
    shortest: int
    """Output tokens of a row."""
    longest: int
    shard_seconds: float
    """By the planner's guess of 150 tokens/s for an engine."""
    sample_s: float
    """Between two looks at the processes; a look costs some milliseconds of what is measured."""


FULL = Size(rows=520, pairs=4, shortest=16, longest=64, shard_seconds=5.0, sample_s=5.0)
QUICK = Size(rows=40, pairs=1, shortest=8, longest=16, shard_seconds=0.5, sample_s=0.5)


class Bench:
    """A folder with a job and its rows, in which both sides run."""

    def __init__(self, folder: Path, size: Size, engines: int) -> None:
        folder.mkdir()
        self._folder = folder
        self._sample_s = size.sample_s
        self.engines = engines
        self._job_file = folder / "job.yaml"
        self.tokens = write_rows(folder / "rows.jsonl", size.rows, shortest=size.shortest, longest=size.longest)
        sections: dict[str, Any] = {
            "engine": {"device": "cpu", "threads": 1, "max_num_seqs": 16},
            "cluster": {"workers": engines},
            "shard": {"target_seconds": size.shard_seconds},
            "sink": {"path": str(folder / "output")},
        }
        self._job_file.write_text(yaml.safe_dump(demo_job(WORKLOAD, **sections)), encoding="utf-8")
        self.job = load_job(self._job_file, ())

    def pipeline(self, key: str) -> Measurement:
        """`draftfleet run` over the plan of a run, to its end."""
        store, _ = self._planned(key)
        command = [sys.executable, "-m", "jobs", "run", str(self._job_file), "--run", key]
        whole_s, account, _ = self._run([command])
        return self._measurement(_committed_tokens(store), whole_s, _spans(store), account)

    def bare(self, key: str) -> Measurement:
        """Plain processes over the plan of a run, to their end."""
        store, plan = self._planned(key)
        hands = [",".join(str(shard.shard) for shard in hand) for hand in dealt(plan.shards, self.engines)]
        in_flight = str(self.job.cluster.shards_in_flight)
        whole_s, account, said = self._run(
            [[sys.executable, str(RIVER / "bare_engine.py"), store.url, hand, in_flight] for hand in hands]
        )
        results = [json.loads(line) for line in said]
        spans = [EngineSpan(each["started"], each["finished"], each["busy_s"]) for each in results]
        return self._measurement(sum(each["tokens"] for each in results), whole_s, spans, account)

    def beside_ray(self, key: str) -> Measurement:
        """`bare`, while Ray idles."""
        idle = subprocess.Popen(
            [sys.executable, str(RIVER / "idle_ray.py")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert idle.stdout is not None
        if idle.stdout.readline() != "up\n":
            raise SystemExit("Ray did not start")
        try:
            return self.bare(key)
        finally:
            idle.communicate()

    def _planned(self, key: str) -> tuple[Store, Plan]:
        """A run's folder with its plan in it, as `draftfleet plan --run KEY` makes it."""
        store = open_store(str(self._folder / "output" / f"{WORKLOAD}-{key}"), Storage())
        plan = make_plan(self.job, self._folder, resolve(self.job.model.path), store, processes=1)
        assert plan.num_rejected == 0, plan.problems
        return store, plan

    def _measurement(
        self, tokens: int, whole_s: float, spans: Sequence[EngineSpan], account: CpuAccount
    ) -> Measurement:
        assert len(spans) == self.engines, f"{len(spans)} of {self.engines} engines did the work: change shard_seconds"
        assert tokens == self.tokens, f"{tokens} tokens came, {self.tokens} were asked for"
        inside = min(span.started for span in spans), max(span.finished for span in spans)
        return Measurement(
            tokens=tokens,
            whole_s=whole_s,
            engines=tuple(spans),
            cpu=account.rates(*inside),
            other_cpu=account.rate_of_others(*inside),
            cores=CORES,
        )

    def _run(self, commands: Sequence[Sequence[str]]) -> tuple[float, CpuAccount, list[str]]:
        """Processes side by side, to the end of the last: wall seconds, CPU account, what each printed."""
        began = time.perf_counter()
        pipe, environment = subprocess.PIPE, os.environ | ALLOCATOR  # which draftfleet gives its workers itself
        processes = [
            subprocess.Popen(command, cwd=self._folder, env=environment, stdout=pipe, stderr=pipe, text=True)
            for command in commands
        ]
        with sampled([process.pid for process in processes], self._sample_s) as account:
            answers = [process.communicate() for process in processes]
            whole_s = time.perf_counter() - began
        for process, (out, err) in zip(processes, answers, strict=True):
            if process.returncode:
                raise SystemExit(f"{process.args!r} ended with {process.returncode}\n{out}\n{err}")
        return whole_s, account, [out for out, _ in answers]


def dealt(shards: Sequence[PlannedShard], hands: int) -> list[list[PlannedShard]]:
    """The shards in as many hands: the largest first, each to the hand with the least work; in the plan's order."""
    held: list[list[PlannedShard]] = [[] for _ in range(hands)]
    for shard in sorted(shards, key=lambda shard: shard.work_tokens, reverse=True):
        min(held, key=lambda hand: sum(each.work_tokens for each in hand)).append(shard)
    return [sorted(hand, key=lambda shard: shard.shard) for hand in held]


def _committed_tokens(store: Store) -> int:
    return sum(read_footer(store, stat.key).usage.output_tokens for stat in store.list(DATA_DIR))


def _spans(store: Store) -> list[EngineSpan]:
    """The engines of a run by its footers, ledger and data files."""
    started: dict[str, list[float]] = {}
    finished: dict[str, list[float]] = {}
    for stat in store.list(DATA_DIR):
        footer = read_footer(store, stat.key)
        started.setdefault(footer.incarnation, []).append(footer.started)
        finished.setdefault(footer.incarnation, []).append(stat.modified)
    busy_s = {each["incarnation"]: each["seconds_ns"]["busy"] / 1e9 for each in engine_snapshots(store)}
    return [EngineSpan(min(started[name]), max(finished[name]), busy_s[name]) for name in started]


def compared(bench: Bench, size: Size, ours: str, theirs: str) -> Result:
    """Two methods of a bench in turn, as often as asked."""
    before = conditions()
    sides: dict[str, list[Measurement]] = {ours: [], theirs: []}
    for pair, is_ours in abba(size.pairs):
        side = ours if is_ours else theirs
        done = getattr(bench, side)(f"{ours.replace('_', '-')}-{pair}-{int(is_ours)}")
        sides[side].append(done)
        print(_told(side, pair, done), file=sys.stderr, flush=True)
    return Result(before, _settings(bench, size), ours, theirs, tuple(sides[ours]), tuple(sides[theirs]))


def measure(scratch: Path, size: Size) -> dict[str, Result]:
    """The three comparisons, by name."""
    spare, full = Bench(scratch / "spare", size, max(1, CORES - 1)), Bench(scratch / "full", size, CORES)
    return {
        "spare": compared(spare, size, "pipeline", "bare"),
        "full": compared(full, size, "pipeline", "bare"),
        "floor": compared(full, replace(size, pairs=max(1, size.pairs // 2)), "beside_ray", "bare"),
    }


def _settings(bench: Bench, size: Size) -> dict[str, Any]:
    sections = {name: getattr(bench.job, name).model_dump(mode="json") for name in ("model", "engine", "cluster")}
    return {**asdict(size), "output_tokens": bench.tokens, "engines": bench.engines, **sections}


def _told(side: str, pair: int, done: Measurement) -> str:
    return (
        f"pair {pair} {side}: {done.tokens_per_s:.1f} tok/s, {done.generating_s:.1f} s of {done.whole_s:.1f} s; "
        f"busy {done.busy_share:.1%}, {done.tokens_per_busy_s:.1f} tok per busy s, others {done.other_cpu:.2f} cores"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one small pair, to see that everything works")
    parser.add_argument("--pairs", type=int, help="how many pairs")
    parser.add_argument("--rows", type=int, help="rows of the source")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder for the JSON and the Markdown")
    arguments = parser.parse_args()
    asked = {name: value for name in ("pairs", "rows") if (value := getattr(arguments, name)) is not None}
    size = Size(**{**asdict(QUICK if arguments.quick else FULL), **asked})
    with tempfile.TemporaryDirectory(prefix="pipeline-efficiency-") as scratch:
        results = measure(Path(scratch), size)
    arguments.results.mkdir(parents=True, exist_ok=True)
    (arguments.results / "pipeline_efficiency.json").write_text(
        json.dumps({name: result.to_json() for name, result in results.items()}, indent=1) + "\n"
    )
    (arguments.results / "pipeline_efficiency.md").write_text(report(results))
    print(report(results))


if __name__ == "__main__":
    main()
