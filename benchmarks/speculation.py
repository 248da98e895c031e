"""What speculation brings on the torch engine: acceptance, speed, and the cost of a step that explains it.

    python benchmarks/draft_head/prompts.py DIR
    python benchmarks/speculation.py DIR/held_out.jsonl --head HEAD [--small MODEL]

One engine of one thread, demo model in bf16, greedy, prompts that no head has seen (JSONL with `task` and `prompt`).

    acceptance  each arm answers all prompts: tokens per round, and how often each draft position was accepted
    speed       1, 4 and 16 prompts at once, answers of 64 tokens: tokens per second of each arm over those of plain
                decoding, in pairs taken right after each other in one process
    cost        median milliseconds of the target's pass and of drafting, by the rows that the pass verifies

Results go to `benchmarks/results/speculation.{json,md}`.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from bench_engine import ANSWER, BenchEngine, read_prompts
from conditions import conditions, told
from paired import Ratio, paired_ratio

from configs.job import DraftPolicy, Sampling
from workers.contract import SpeculationStats
from workers.distillation.evaluation import over_tasks

RESULTS = Path(__file__).parent / "results"
BATCHES = (1, 4, 16)
SHOWN = 5
"""Draft positions in a table."""


@dataclass(frozen=True, slots=True)
class Arm:
    """One way to draft."""

    name: str
    policy: DraftPolicy
    max_batch: int = 16


@dataclass(slots=True)
class Speed:
    """One arm at one batch size."""

    arm: str
    batch: int
    ratio: Ratio
    tokens_per_s: float
    mean_acceptance_length: float | None


@dataclass(slots=True)
class Found:
    """Everything that was measured."""

    acceptance: dict[str, dict[str, dict[str, Any]]] = field(default_factory=dict)
    """Arm -> task -> counters."""
    speed: list[Speed] = field(default_factory=list)
    cost: dict[int, tuple[float, float, int]] = field(default_factory=dict)
    """Rows verified -> median ms of the pass, of drafting, and how many rounds."""


def arms_of(with_small: bool) -> list[Arm]:
    """Plain decoding first."""

    def fixed(k: int, **more: Any) -> DraftPolicy:
        return DraftPolicy.model_validate({"policy": "fixed", "k": k, **more})

    small = [Arm(f"draft model, K {k}", fixed(k, drafter="model")) for k in (2, 4)] if with_small else []
    tree = {"top_k": 4, "max_nodes": 12, "min_path_probability": 0.02}
    return [
        Arm("plain", DraftPolicy(policy="off", drafter="none")),
        *(Arm(f"n-gram, K {k}", fixed(k, drafter="ngram")) for k in (2, 4)),
        *(Arm(f"EAGLE-3, K {k}", fixed(k, drafter="eagle3")) for k in (1, 2, 3, 4, 5)),
        Arm("EAGLE-3 tree, K 5", fixed(5, drafter="eagle3", tree=tree), max_batch=4),
        *small,
    ]


def acceptance(bench: BenchEngine, arm: Arm) -> dict[str, SpeculationStats]:
    found: dict[str, SpeculationStats] = {}
    for prompt, end in bench.answer(bench.prompts, arm.policy, Sampling(max_tokens=128)):
        found[prompt.task] = found.get(prompt.task, SpeculationStats()) + end.speculation
    return dict(sorted(found.items()))


def measure_speed(bench: BenchEngine, arms: Sequence[Arm], repeats: int, found: Found) -> None:
    """Each repeat asks other prompts; an arm's time stands beside that of plain decoding just before it."""
    rng = random.Random(0)
    costs: dict[int, list[tuple[int, int]]] = {}
    for batch in BATCHES:
        pairs: dict[str, list[tuple[float, float]]] = {}
        stats: dict[str, SpeculationStats] = {}
        for _ in range(repeats):
            prompts = rng.choices(bench.prompts, k=batch)
            for arm in arms[1:]:
                if arm.max_batch < batch:
                    continue
                plain, _, before = bench.seconds(prompts, arms[0].policy)
                drafted, counted, rounds = bench.seconds(prompts, arm.policy)
                pairs.setdefault(arm.name, []).append((plain, drafted))
                stats[arm.name] = stats.get(arm.name, SpeculationStats()) + counted
                for each in [*before, *rounds]:
                    if not each.num_prefill_tokens:
                        costs.setdefault(each.num_verify_tokens, []).append((each.verify_ns, each.draft_ns))
        for name, times in pairs.items():
            ratio = paired_ratio([plain for plain, _ in times], [drafted for _, drafted in times])
            rate = batch * ANSWER * len(times) / sum(drafted for _, drafted in times)
            found.speed.append(Speed(name, batch, ratio, rate, stats[name].mean_acceptance_length))
            print(f"{name:<20} x{batch:<3} {ratio} {rate:.0f} tok/s", file=sys.stderr, flush=True)
    for rows, times in sorted(costs.items()):
        if len(times) >= 5:
            verify, draft = (statistics.median(part) / 1e6 for part in zip(*times, strict=True))
            found.cost[rows] = (verify, draft, len(times))


def report(where: dict[str, Any], found: Found) -> str:
    """Markdown."""
    tasks = sorted({task for by_task in found.acceptance.values() for task in by_task})
    lines = ["# What speculation brings", "", "Measured by `benchmarks/speculation.py`, which says how.", ""]
    lines += [*told(where), f"- head {where['head']}, {where['prompts']} prompts that it has not seen", ""]
    lines += ["## Tokens per round, greedy", "", f"| arm | {' | '.join(tasks)} | averaged over tasks | by position |"]
    lines += ["|---|" + "---:|" * (len(tasks) + 1) + "---|"]
    for name, by_task in found.acceptance.items():
        stats = {task: SpeculationStats(**counters) for task, counters in by_task.items()}
        total = sum(stats.values(), SpeculationStats())
        places = zip(total.accepted_by_pos[:SHOWN], total.tried_by_pos[:SHOWN], strict=True)
        rates = " ".join(f"{accepted / tried:.0%}" for accepted, tried in places if tried)
        means = " | ".join(f"{stats[task].mean_acceptance_length or 1.0:.2f}" for task in tasks)
        lines.append(f"| {name} | {means} | {over_tasks(stats):.2f} | {rates} |")
    lines += [
        "",
        "## Tokens per second over plain decoding",
        "",
        "| arm | at once | ratio | tok/s | tokens per round |",
    ]
    lines += ["|---|---:|---:|---:|---:|"]
    for each in found.speed:
        length = each.mean_acceptance_length or 1.0
        lines.append(f"| {each.arm} | {each.batch} | {each.ratio} | {each.tokens_per_s:.0f} | {length:.2f} |")
    lines += ["", "## What a step costs", "", "| rows verified | target's pass, ms | drafting, ms | rounds |"]
    lines += ["|---:|---:|---:|---:|"]
    lines += [f"| {rows} | {verify:.2f} | {draft:.2f} | {n} |" for rows, (verify, draft, n) in found.cost.items()]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("prompts", type=Path)
    parser.add_argument("--head", type=Path, required=True)
    parser.add_argument("--small", help="a model that drafts, with the demo model's tokenizer")
    parser.add_argument("--limit", type=int, help="prompts at most")
    parser.add_argument("--repeats", type=int, default=6)
    parser.add_argument("--results", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    prompts = read_prompts(arguments.prompts)
    random.Random(0).shuffle(prompts)
    bench = BenchEngine(prompts[: arguments.limit], arguments.head, arguments.small)
    arms, found = arms_of(arguments.small is not None), Found()
    where = conditions() | {"head": arguments.head.name, "prompts": len(bench.prompts)}
    started = time.monotonic()
    for arm in arms[1:]:
        found.acceptance[arm.name] = {task: asdict(stats) for task, stats in acceptance(bench, arm).items()}
    measure_speed(bench, arms, arguments.repeats, found)
    arguments.results.mkdir(parents=True, exist_ok=True)
    whole = {"conditions": where, "seconds": time.monotonic() - started, **asdict(found)}
    (arguments.results / "speculation.json").write_text(json.dumps(whole, indent=1) + "\n")
    (arguments.results / "speculation.md").write_text(report(where, found))
    print(report(where, found))


if __name__ == "__main__":
    main()
