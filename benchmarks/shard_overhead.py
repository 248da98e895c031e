"""What a shard costs besides its rows: the driver's CPU time and memory, and the time on the clock.

    python benchmarks/shard_overhead.py            300, 1,000 and 3,000 shards, some minutes
    python benchmarks/shard_overhead.py --quick    30 and 100 shards, a minute

`draftfleet run`, as anybody calls it, with two engines on a random model of two layers, over rows that are a shard each
and get one token. The plan is made beforehand. For each number of shards:

    wall ms         per shard, from the first shard's start (by the footers) to the last commit (the data file's time).
                    An engine's own part is in it: reading the row, the marker of its start, one round, the commit.
    driver CPU ms   of the driver's process per shard, within that time: Ray Data's loop, receipts, the progress line
    driver MiB      resident, at the first shard, at the last commit, and the most of its whole life, which includes
                    finishing the run: footers are read and the manifest is written

Memory per shard is the difference in peaks between the largest and the smallest run, over the difference in shards; a
process that has run for longer has also seen more garbage collections, so a few KiB more or less mean nothing.

Results go to `benchmarks/results/shard_overhead.{json,md}`.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil
import yaml
from conditions import conditions, told
from river.tiny_model import save_tiny_model

from configs.job import Storage
from configs.load import load_job
from pipeline.footer import read_footer
from pipeline.layout import DATA_DIR
from pipeline.plan import make_plan
from pipeline.store.base import Store
from pipeline.store.open import open_store

RESULTS = Path(__file__).parent / "results"
FULL, QUICK = (300, 1000, 3000), (30, 100)
ENGINES = 2
WORKLOAD = "overhead"
MIB = 2**20


@dataclass(frozen=True, slots=True)
class Sample:
    """The driver at one moment."""

    at: float
    """Seconds since the epoch."""
    cpu_s: float
    """Since it began."""
    resident: int
    """Bytes."""


@dataclass(frozen=True, slots=True)
class Overhead:
    """One run."""

    shards: int
    generating_s: float
    wall_ms_per_shard: float
    driver_cpu_ms_per_shard: float
    driver_life_cpu_s: float
    mib_at_start: float
    mib_at_end: float
    mib_peak: float


def measure(shards: int, model: Path, folder: Path) -> Overhead:
    """Plan a run of so many shards in a new folder, do it, and look at its driver meanwhile."""
    job_file = write_job(shards, model, folder)
    job, store = load_job(job_file, ()), open_store(str(folder / "output" / f"{WORKLOAD}-1"), Storage())
    plan = make_plan(job, folder, model, store, processes=1)
    assert len(plan.shards) == shards, f"{len(plan.shards)} shards were cut, not {shards}"
    samples = list(watched([sys.executable, "-m", "jobs", "run", str(job_file), "--run", "1"], folder))
    return _overhead(shards, samples, *generating(store))


def write_job(shards: int, model: Path, folder: Path) -> Path:
    """A job with a shard for each row, and its rows."""
    folder.mkdir()
    rows = ({"id": f"row-{number:06d}", "prompt": f"Number {number}"} for number in range(shards))
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    job: dict[str, Any] = {
        "workload": WORKLOAD,
        "source": {"path": "rows.jsonl"},
        "tasks": {"default": {"sampling": {"max_tokens": 1, "ignore_eos": True}}},
        "model": {"path": str(model), "dtype": "float32"},
        "engine": {"device": "cpu", "threads": 1},
        "cluster": {"workers": ENGINES},
        "shard": {"max_rows": 1},
        "sink": {"path": str(folder / "output")},
    }
    path = folder / "job.yaml"
    path.write_text(yaml.safe_dump(job), encoding="utf-8")
    return path


def watched(command: Sequence[str], folder: Path, period_s: float = 0.2) -> Iterator[Sample]:
    """Run a command to its end, and look at its process now and then."""
    with (folder / "log").open("w+", encoding="utf-8") as log:
        process = subprocess.Popen(command, cwd=folder, stdout=log, stderr=subprocess.STDOUT)
        seen = psutil.Process(process.pid)
        while process.poll() is None:
            with seen.oneshot():
                times = seen.cpu_times()
                yield Sample(time.time(), times.user + times.system, seen.memory_info().rss)
            time.sleep(period_s)
        if process.returncode:
            log.seek(0)
            raise SystemExit(f"{command} ended with {process.returncode}\n{log.read()}")


def generating(store: Store) -> tuple[float, float]:
    """When the first shard was taken up, and the last one committed."""
    stats = list(store.list(DATA_DIR))
    return min(read_footer(store, stat.key).started for stat in stats), max(stat.modified for stat in stats)


def _overhead(shards: int, samples: Sequence[Sample], start: float, end: float) -> Overhead:
    inside = [sample for sample in samples if start <= sample.at <= end]
    assert len(inside) > 1, f"{end - start:.1f} s are too short to see anything; take more shards"
    first, last = inside[0], inside[-1]
    rate = (last.cpu_s - first.cpu_s) / (last.at - first.at)
    return Overhead(
        shards=shards,
        generating_s=end - start,
        wall_ms_per_shard=1000 * (end - start) / shards,
        driver_cpu_ms_per_shard=1000 * rate * (end - start) / shards,
        driver_life_cpu_s=samples[-1].cpu_s,
        mib_at_start=first.resident / MIB,
        mib_at_end=last.resident / MIB,
        mib_peak=max(sample.resident for sample in samples) / MIB,
    )


def kib_per_shard(results: Sequence[Overhead]) -> float:
    """Growth of the driver's peak memory, from the smallest run to the largest."""
    few, many = results[0], results[-1]
    return 1024 * (many.mib_peak - few.mib_peak) / (many.shards - few.shards)


def report(where: dict[str, Any], results: Sequence[Overhead]) -> str:
    """Markdown."""
    lines = [
        "# What a shard costs besides its rows",
        "",
        "Measured by `benchmarks/shard_overhead.py`, which says what each column means.",
        "",
        *told(where),
        f"- {ENGINES} engines on a tiny model",
        f"- driver memory per shard: {kib_per_shard(results):.1f} KiB",
        "",
        "| shards | generating s | wall ms | driver CPU ms | driver MiB, first shard | last commit | peak |",
        "|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for each in results:
        times = f"{each.generating_s:.1f} | {each.wall_ms_per_shard:.1f} | {each.driver_cpu_ms_per_shard:.1f}"
        memory = f"{each.mib_at_start:.0f} | {each.mib_at_end:.0f} | {each.mib_peak:.0f}"
        lines.append(f"| {each.shards:,} | {times} | {memory} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few shards, to see that everything works")
    parser.add_argument("--shards", type=int, nargs="+", help="two numbers or more, the smallest first")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder for the JSON and the Markdown")
    arguments = parser.parse_args()
    sizes = arguments.shards or (QUICK if arguments.quick else FULL)
    where, results = conditions(), []
    with tempfile.TemporaryDirectory(prefix="shard-overhead-") as scratch:
        model = save_tiny_model(Path(scratch) / "model")
        for shards in sizes:
            results.append(measure(shards, model, Path(scratch) / str(shards)))
            print(results[-1], file=sys.stderr, flush=True)
    arguments.results.mkdir(parents=True, exist_ok=True)
    found = {"conditions": where, "kib_per_shard": kib_per_shard(results), "runs": [asdict(each) for each in results]}
    (arguments.results / "shard_overhead.json").write_text(json.dumps(found, indent=1) + "\n")
    (arguments.results / "shard_overhead.md").write_text(report(where, results))
    print(report(where, results))


if __name__ == "__main__":
    main()
