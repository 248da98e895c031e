"""Adaptive draft lengths against plain decoding and every fixed length, on the torch engine.

    python benchmarks/draft_head/prompts.py DIR
    python benchmarks/adaptive.py DIR/held_out.jsonl --head HEAD

One engine of one thread, demo model, greedy, prompts that the head has not seen, 1, 4, 16 and 64 at once. All arms
take turns in one process, once forth and once back, on the same prompts of one task at a time, each with answers of 64
tokens:

    plain                no drafts
    K 1 to K 6           the head, always so long
    auto, cold           `policy: auto` with the head; it begins at each batch size with nothing
    auto, warm           the same, with what it had learned from other prompts at that batch size
    auto, two drafters   the same, which may also choose prompt lookup
    best K per task      computed: of each task the fastest of plain and K 1 to K 6, found afterwards

Time is that of rounds without prefill. Ratios are plain decoding's time over the arm's, for equal tokens of each task,
by pairs taken in one turn. Before that all arms answer the same prompts in float32, and must give the same tokens.

Results go to `benchmarks/results/adaptive.{json,md}`.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from bench_engine import ANSWER, BenchEngine, Prompt, read_prompts
from conditions import conditions, told
from paired import Ratio, paired_ratio

from configs.job import DraftPolicy, Sampling
from workers.contract import SpeculationStats
from workers.draft_length.controller import DraftLengthController
from workers.draft_length.experience import Experience
from workers.pacing import Pacing

RESULTS = Path(__file__).parent / "results"
TURNS = {1: 8, 4: 6, 16: 4, 64: 4}
"""At once -> turns; each asks every task other prompts."""
LEARNING_TURNS = 2
KNOWN = 200.0
"""Rounds that what was learned counts for, as at the start of a run."""
DRAFTERS = ("eagle3", "ngram", "model")
ORACLE = "best K per task"
Turn = Mapping[str, float]
"""Task -> seconds."""


@dataclass(frozen=True, slots=True)
class Arm:
    """One way to choose draft lengths."""

    name: str
    policy: DraftPolicy


def _auto(*drafters: str) -> DraftPolicy:
    return DraftPolicy.model_validate({"policy": "auto", "drafters": drafters})


def _fixed(k: int) -> DraftPolicy:
    return DraftPolicy.model_validate({"policy": "fixed", "k": k, "drafter": "eagle3"})


PLAIN = Arm("plain", DraftPolicy(policy="off"))
FIXED = [Arm(f"K {k}", _fixed(k)) for k in range(1, 7)]
COLD, WARM = Arm("auto, cold", _auto("eagle3")), Arm("auto, warm", _auto("eagle3"))
TWO = Arm("auto, two drafters", _auto("eagle3", "ngram"))
ARMS = [PLAIN, *FIXED, COLD, WARM, TWO]


@dataclass(slots=True)
class Measured:
    """At one batch size."""

    batch: int
    turns: dict[str, list[Turn]] = field(default_factory=dict)
    """Arm -> its turns."""
    stats: dict[str, dict[str, SpeculationStats]] = field(default_factory=dict)
    """Arm -> task -> counters."""
    switches_per_1000: dict[str, float] = field(default_factory=dict)
    """Of arms that change lengths: changes per thousand rounds."""

    @property
    def tasks(self) -> list[str]:
        return sorted(self.turns[PLAIN.name][0])

    @property
    def best(self) -> dict[str, str]:
        """Task -> the fastest fixed length's arm."""
        names = [PLAIN.name, *(arm.name for arm in FIXED)]
        return {task: min(names, key=lambda name: self.seconds(name, task)) for task in self.tasks}

    def seconds(self, arm: str, task: str) -> float:
        return sum(turn[task] for turn in self.turns[arm])

    def turns_of(self, arm: str) -> list[Turn]:
        if arm != ORACLE:
            return self.turns[arm]
        best = self.best
        count = len(self.turns[PLAIN.name])
        return [{task: self.turns[best[task]][at][task] for task in self.tasks} for at in range(count)]

    def over(self, arm: str, other: str, task: str | None = None) -> Ratio:
        """The other's time over the arm's; of one task, or of equal tokens of all."""
        times = [[turn[task] if task else sum(turn.values()) for turn in self.turns_of(name)] for name in (other, arm)]
        return paired_ratio(*times)

    def mean_k(self, arm: str) -> float:
        total = sum(self.stats[arm].values(), SpeculationStats())
        return total.num_draft_tokens / total.num_rounds


def pacing(start: Experience | None = None) -> tuple[Pacing, DraftLengthController]:
    controller = DraftLengthController(DRAFTERS, start, plain_share=0.0)
    return Pacing(controller), controller


def learned(controller: DraftLengthController) -> Experience:
    """As strong as at the start of a run."""
    evidence = {stratum: controller.evidence(stratum).capped(KNOWN) for stratum in controller.lengths}
    return Experience(evidence, controller.rounds.scaled(min(1.0, KNOWN / controller.rounds.weight)))


def by_task(prompts: Sequence[Prompt]) -> dict[str, list[Prompt]]:
    found: dict[str, list[Prompt]] = {}
    for prompt in prompts:
        found.setdefault(prompt.task, []).append(prompt)
    return dict(sorted(found.items()))


def measure(bench: BenchEngine, batch: int, turns: int, seed: int) -> Measured:
    """All arms at one batch size. What is learned from and what is measured are different prompts."""
    rng, found = random.Random(seed), Measured(batch)
    halves = {task: (mine[::2], mine[1::2]) for task, mine in by_task(bench.prompts).items()}
    starts: dict[str, Experience] = {}
    for arm in (WARM, TWO):
        bench.core.pacing, controller = pacing()
        for _ in range(LEARNING_TURNS):
            for learning, _ in halves.values():
                bench.seconds(rng.choices(learning, k=batch), arm.policy)
        starts[arm.name] = learned(controller)
    paces = {arm.name: pacing(starts.get(arm.name)) for arm in ARMS}
    for turn in range(turns):
        asked = {task: rng.choices(judged, k=batch) for task, (_, judged) in halves.items()}
        times: dict[str, dict[str, float]] = {arm.name: {} for arm in ARMS}
        for task, prompts in asked.items():
            for arm in ARMS if turn % 2 == 0 else ARMS[::-1]:
                bench.core.pacing = paces[arm.name][0]
                times[arm.name][task], stats, _ = bench.seconds(prompts, arm.policy)
                counted = found.stats.setdefault(arm.name, {})
                counted[task] = counted.get(task, SpeculationStats()) + stats
        for name, each in times.items():
            found.turns.setdefault(name, []).append(each)
    for name, (_, controller) in paces.items():
        found.switches_per_1000[name] = 1000 * controller.num_switches / controller.num_rounds
    return found


def differing(bench: BenchEngine, prompts: Sequence[Prompt]) -> dict[str, int]:
    """Arm -> answers that are not plain decoding's, token for token."""
    answers: dict[str, list[tuple[int, ...]]] = {}
    for arm in ARMS:
        bench.core.pacing, _ = pacing()
        ends = bench.answer(prompts, arm.policy, Sampling(max_tokens=ANSWER))
        of_prompt = {prompt.token_ids: end.token_ids for prompt, end in ends}
        answers[arm.name] = [of_prompt[prompt.token_ids] for prompt in prompts]
    plain = answers.pop(PLAIN.name)
    return {name: sum(a != b for a, b in zip(mine, plain, strict=True)) for name, mine in answers.items()}


def report(where: Mapping[str, Any], differences: Mapping[str, int], found: Sequence[Measured]) -> Iterator[str]:
    """Markdown."""
    same = "all arms gave the same tokens" if not any(differences.values()) else f"answers that differ: {differences}"
    yield from (
        "# Adaptive draft lengths",
        "",
        "Measured by `benchmarks/adaptive.py`, which says how.",
        "",
        *told(where),
    )
    yield f"- head {where['head']}; float32, {where['compared']} prompts: {same}"
    yield from ("", "## Speed over plain decoding, equal tokens of each task", "")
    yield "| arm | at once | over plain | of the best K per task | lowest task | mean K | switches per 1,000 rounds |"
    yield "|---|---:|---:|---:|---|---:|---:|"
    for each in found:
        for name in (*(arm.name for arm in ARMS[1:]), ORACLE):
            ratios = {task: each.over(name, PLAIN.name, task) for task in each.tasks}
            lowest = min(ratios, key=lambda task: ratios[task].mean)
            of_best = "" if name == ORACLE else str(each.over(name, ORACLE))
            k = "" if name == ORACLE else f"{each.mean_k(name):.2f}"
            switches = f"{each.switches_per_1000[name]:.1f}" if name.startswith("auto") else ""
            over = each.over(name, PLAIN.name)
            yield f"| {name} | {each.batch} | {over} | {of_best} | {ratios[lowest]} ({lowest}) | {k} | {switches} |"
    yield from ("", "## By task", "", "| task | at once | plain, tok/s | best | its ratio | auto, cold | auto, warm |")
    yield "|---|---:|---:|---|---:|---:|---:|"
    for each in found:
        for task in each.tasks:
            turns = each.turns[PLAIN.name]
            rate = each.batch * ANSWER * len(turns) / each.seconds(PLAIN.name, task)
            ratios = [str(each.over(name, PLAIN.name, task)) for name in (each.best[task], COLD.name, WARM.name)]
            yield f"| {task} | {each.batch} | {rate:.0f} | {each.best[task]} | {' | '.join(ratios)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("prompts", type=Path)
    parser.add_argument("--head", type=Path, required=True)
    parser.add_argument("--batches", type=int, nargs="+", default=list(TURNS), choices=list(TURNS))
    parser.add_argument("--turns", type=int, help="at every batch size; even, so that forth and back are as many")
    parser.add_argument("--compared", type=int, default=40, help="prompts answered in float32 by all arms")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--results", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    where = conditions() | {"head": arguments.head.name, "compared": arguments.compared}
    prompts = read_prompts(arguments.prompts)
    random.Random(arguments.seed).shuffle(prompts)
    started = time.monotonic()
    exact = BenchEngine(prompts, arguments.head, dtype="float32", max_num_seqs=8)
    differences = differing(exact, prompts[: arguments.compared])
    print(f"answers that differ in float32: {differences}", file=sys.stderr, flush=True)
    del exact
    bench = BenchEngine(prompts, arguments.head, max_num_seqs=max(arguments.batches))
    found = []
    for batch in arguments.batches:
        found.append(measure(bench, batch, arguments.turns or TURNS[batch], arguments.seed))
        print(f"x{batch}: {found[-1].over(WARM.name, PLAIN.name)} warm", file=sys.stderr, flush=True)
    arguments.results.mkdir(parents=True, exist_ok=True)
    whole = {"conditions": where, "differing": differences, "seconds": time.monotonic() - started}
    whole["measured"] = [asdict(each) for each in found]
    (arguments.results / "adaptive.json").write_text(json.dumps(whole, indent=1) + "\n")
    text = "\n".join(report(where, differences, found)) + "\n"
    (arguments.results / "adaptive.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
