"""How fast many short rows are planned, and in how much memory.

    python benchmarks/plan_rows.py --rows 1000000

Writes JSON lines of short questions over two tasks, one greedy and one sampled, plans them into a local folder, and
tells rows per second and the peak memory of the planning process and of all of them together, sampled ten times a
second. Memory is what must be in RAM (RssAnon): pages of the mapped temporary files, which the kernel may drop at any
time, are told apart. Results go to `benchmarks/results/plan_rows.{json,md}`.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

import psutil

from configs.job import Job
from pipeline.plan import Plan, PlanProgress, make_plan
from pipeline.store.open import open_store
from workers.models import resolve

RESULTS = Path(__file__).parent / "results"
TOPICS = ("rivers", "compilers", "bees", "tax law", "volcanoes", "chess openings", "bread", "the moons of Jupiter")


@dataclass
class Memory:
    """Peaks in MiB."""

    parent: float = 0.0
    total: float = 0.0
    mapped: float = 0.0
    """Of files, all processes together."""


@dataclass
class Result:
    """One run; times in seconds."""

    rows: int
    input_mib: float
    processes: int
    rows_s: float
    sort_and_write_s: float
    total_s: float
    rows_per_s: float
    peak_parent_mib: float
    peak_total_mib: float
    peak_mapped_mib: float
    shards: int
    prompt_tokens: int
    plan_mib: float
    machine: str = field(
        default_factory=lambda: f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}"
    )


def write_rows(path: Path, num_rows: int) -> None:
    with path.open("w", encoding="utf-8") as file:
        for number in range(num_rows):
            row = {
                "id": f"row-{number}",
                "task": "facts" if number % 2 else "ideas",
                "question": f"Tell me of {TOPICS[number % len(TOPICS)]}, part {number}. {'Briefly. ' * (number % 7)}",
                "labels": ["short"] if number % 3 else [],
                "origin": {"page": number % 500, "score": number / 7},
            }
            file.write(json.dumps(row) + "\n")


def job_for(path: Path, model: str) -> Job:
    return Job.model_validate(
        {
            "workload": "plan-rows",
            "source": {"path": str(path)},
            "model": {"path": model},
            "tasks": {
                "facts": {"template": "{{ question }}", "sampling": {"max_tokens": 64}},
                "ideas": {"template": "{{ question }}", "sampling": {"max_tokens": 64, "temperature": 0.7}},
            },
        }
    )


@contextmanager
def watched() -> Iterator[Memory]:
    """Peak memory of this process and its children while the block runs."""
    peak, done = Memory(), threading.Event()
    thread = threading.Thread(target=_watch, args=(psutil.Process(), peak, done), daemon=True)
    thread.start()
    try:
        yield peak
    finally:
        done.set()
        thread.join()


def _watch(process: psutil.Process, peak: Memory, done: threading.Event) -> None:
    while not done.wait(0.1):
        everyone = [process.pid, *(child.pid for child in process.children(recursive=True))]
        peak.parent = max(peak.parent, _resident(process.pid, "RssAnon"))
        peak.total = max(peak.total, sum(_resident(pid, "RssAnon") for pid in everyone))
        peak.mapped = max(peak.mapped, sum(_resident(pid, "RssFile") for pid in everyone))


def _resident(pid: int, kind: str) -> float:
    """MiB; 0 for a process that has just ended."""
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith(f"{kind}:"):
                return int(line.split()[1]) / 1024
    return 0.0


def measure(num_rows: int, model: str, processes: int, folder: Path) -> Result:
    source, stages = folder / "rows.jsonl", dict[str, float]()
    write_rows(source, num_rows)
    model_folder = resolve(model)
    started = time.perf_counter()

    def note(progress: PlanProgress) -> None:
        stages.setdefault(progress.stage, time.perf_counter() - started)

    with watched() as peak:
        plan = make_plan(
            job_for(source, model),
            folder,
            model_folder,
            open_store(str(folder / "run"), job_for(source, model).storage),
            on_progress=note,
            processes=processes,
        )
    total = time.perf_counter() - started
    assert plan.num_rows == num_rows, plan.rejected
    return _result(plan, source, folder, processes, stages["sort"], total, peak)


def _result(
    plan: Plan, source: Path, folder: Path, processes: int, rows_s: float, total: float, peak: Memory
) -> Result:
    plan_bytes = sum(file.stat().st_size for file in (folder / "run").rglob("*") if file.is_file())
    return Result(
        rows=plan.num_rows,
        input_mib=round(source.stat().st_size / 2**20, 1),
        processes=processes,
        rows_s=round(rows_s, 1),
        sort_and_write_s=round(total - rows_s, 1),
        total_s=round(total, 1),
        rows_per_s=round(plan.num_rows / total),
        peak_parent_mib=round(peak.parent),
        peak_total_mib=round(peak.total),
        peak_mapped_mib=round(peak.mapped),
        shards=len(plan.shards),
        prompt_tokens=sum(shard.prompt_tokens for shard in plan.shards),
        plan_mib=round(plan_bytes / 2**20, 1),
    )


def report(results: list[Result]) -> str:
    lines = [
        "# Planning many short rows",
        "",
        f"Measured by `benchmarks/plan_rows.py` on {results[0].machine}. One run each; the machine did other work too.",
        "",
        "| rows | input MiB | processes | check s | sort, write s | total s | rows/s | parent MiB | all MiB | mapped |",
        "|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    lines += [
        f"| {each.rows:,} | {each.input_mib} | {each.processes} | {each.rows_s} | {each.sort_and_write_s} "
        f"| {each.total_s} | {each.rows_per_s:,} | {each.peak_parent_mib:,} | {each.peak_total_mib:,} "
        f"| {each.peak_mapped_mib:,} |"
        for each in results
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[100_000, 1_000_000], help="one run per number")
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--processes", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--results", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    results = []
    for num_rows in arguments.rows:
        with tempfile.TemporaryDirectory(prefix="plan-rows-") as folder:
            results.append(measure(num_rows, arguments.model, arguments.processes, Path(folder)))
        print(results[-1])
    arguments.results.mkdir(parents=True, exist_ok=True)
    (arguments.results / "plan_rows.json").write_text(json.dumps([asdict(each) for each in results], indent=1) + "\n")
    (arguments.results / "plan_rows.md").write_text(report(results))
    print(report(results))


if __name__ == "__main__":
    main()
