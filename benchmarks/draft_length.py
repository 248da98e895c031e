"""The draft-length controller against fixed lengths and the field's rules, in simulated rounds.

    python benchmarks/draft_length.py          200,000 tokens of each task, most of an hour on two cores
    python benchmarks/draft_length.py --quick  a tenth of that

Tasks with known hazards: easy, middling, hard, one whose drafts are hardly ever accepted, one that no earlier run has
seen, and one that changes half way. They take turns, ten each, with a whole batch at a time, so that tokens per second
of a task are exactly its own; in `mixed` all but the changing one share every batch. Costs: a CPU, an H100 at batch 1
to 256, and a machine on which drafting never pays (`configs/hardware/`). Rounds vary by 3 % at random.

    of oracle      harmonic mean over tasks, as a share of that with the best K of each, and of each half of the one
                   that changes; mixed: tokens per second of the batch, as a share of the best combination's
    of best K      the same, as a share of the best single K for all
    worst task     its tokens per second over plain decoding's
    switches       changes of a task's K per thousand rounds

Fixed lengths are computed, not simulated: their rounds are alike. The share of rounds without drafts (`measure_share`)
is 0 here; with 0.02 a run pays at most that share of the gain.

Results go to `benchmarks/results/draft_length.{json,md}`.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import cache
from itertools import accumulate, product
from operator import mul
from pathlib import Path

import numpy as np
from conditions import conditions, told

from configs.hardware import load_hardware
from workers.contract import MAX_DRAFT_LEN
from workers.draft_length.controller import DraftLengthController
from workers.draft_length.cost import Cost, LinearCost, RoundShape
from workers.draft_length.experience import Experience
from workers.draft_length.policies import Controlled, EmaTiers, Fallback, Heuristic
from workers.draft_length.simulation import LengthPolicy, SimulatedTask, Simulation, Spent
from workers.draft_length.stratum import Stratum

RESULTS = Path(__file__).parent / "results"
TOKENS, QUICK_TOKENS, TURNS = 200_000, 20_000, 10
RIVAL_SHARE = 0.2
"""Of the tokens: rules that do not learn over a run need fewer to be known."""
CONTEXT = 600
NOISE = 0.03
CASES = [
    ("cpu-2-cores-smollm2-135m", (1, 4, 16, 64)),
    ("h100-llama-3.1-8b", (1, 8, 32, 128, 256)),
    ("never-pays", (1, 8, 64)),
]
Hazards = Sequence[float]
EASY: Hazards = (0.85, 0.88, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9)
MIDDLING: Hazards = (0.70, 0.68, 0.66, 0.66, 0.66, 0.66, 0.66, 0.66)
HARD: Hazards = (0.45, 0.40, 0.40, 0.40, 0.40, 0.40, 0.40, 0.40)
HOPELESS: Hazards = (0.02,) * 8
CONSTANT = {"easy": EASY, "middling": MIDDLING, "hard": HARD, "hopeless": HOPELESS, "unseen": MIDDLING}
LENGTHS = range(MAX_DRAFT_LEN + 1)


@dataclass(frozen=True, slots=True)
class Result:
    """One policy in one case."""

    hardware: str
    batch: int
    order: str
    policy: str
    of_oracle: float
    of_best_k: float
    worst_task: str | None = None
    worst_over_plain: float | None = None
    switches_per_1000: float | None = None


@dataclass(frozen=True, slots=True)
class Case:
    """Tasks on some hardware at some batch."""

    hardware: str
    batch: int
    tokens: int
    """Of each task."""
    seed: int

    @property
    def cost(self) -> Cost:
        return cost_on(self.hardware)

    @property
    def noisy_cost(self) -> Cost:
        cost, draws = self.cost, np.random.default_rng(self.seed)
        return lambda shape: cost(shape) * max(0.5, float(draws.normal(1.0, NOISE)))

    def play(self, policies: dict[str, LengthPolicy], order: str) -> Iterator[Result]:
        """What becomes of each policy."""
        judge = self._judge_turns if order == "turns" else self._judge_mixed
        for name, policy in policies.items():
            learns = isinstance(policy, Controlled)
            tokens = self.tokens if learns else round(RIVAL_SHARE * self.tokens)
            result = judge(name, self._simulated(policy, order, tokens))
            if isinstance(policy, Controlled):
                switches = 1000 * policy.controller.num_switches / policy.controller.num_rounds
                result = replace(result, switches_per_1000=switches)
            yield result

    def fixed(self) -> Iterator[Result]:
        """Every single K, computed."""
        for k in range(MAX_DRAFT_LEN + 1):
            spent = {task.name: Spent(1, 1 / self._ideal(task, [k])) for task in tasks(self.tokens)}
            yield self._judge_turns(f"fixed {k}", spent)

    def _simulated(self, policy: LengthPolicy, order: str, tokens: int) -> dict[str, Spent]:
        each = tasks(tokens) if order == "turns" else constant_tasks()
        simulation = Simulation(each, self.noisy_cost, context_tokens=CONTEXT, seed=self.seed)
        if order == "mixed":
            simulation.run(policy, np.arange(self.batch) % len(each), tokens * len(each))
        else:
            for number in list(range(len(each))) * TURNS:
                simulation.run(policy, np.full(self.batch, number), tokens // TURNS)
        return simulation.spent

    def _judge_turns(self, policy: str, spent: Mapping[str, Spent]) -> Result:
        each = tasks(self.tokens)
        mean = harmonic(spent[task.name].goodput for task in each)
        oracle = harmonic(self._ideal(task, LENGTHS) for task in each)
        best_k = max(harmonic(self._ideal(task, [k]) for task in each) for k in LENGTHS)
        over_plain = {task.name: spent[task.name].goodput / self._ideal(task, [0]) for task in each}
        worst = min(over_plain, key=over_plain.__getitem__)
        where = (self.hardware, self.batch, "turns", policy)
        return Result(*where, mean / oracle, mean / best_k, worst, over_plain[worst])

    def _judge_mixed(self, policy: str, spent: Mapping[str, Spent]) -> Result:
        rate = sum(each.tokens for each in spent.values()) / sum(each.seconds for each in spent.values())
        oracle = max(map(self._mixed_goodput, product(LENGTHS, repeat=len(CONSTANT))))
        best_k = max(self._mixed_goodput([k] * len(CONSTANT)) for k in LENGTHS)
        return Result(self.hardware, self.batch, "mixed", policy, rate / oracle, rate / best_k)

    def _ideal(self, task: SimulatedTask, ks: Sequence[int]) -> float:
        """Tokens per second with the best of these lengths for each half of a task."""
        halves = [task.hazards(at) for at in (0, self.tokens)]
        return harmonic(max(self._goodput(half, k) for k in ks) for half in halves)

    def _goodput(self, hazards: Hazards, k: int) -> float:
        drafted = {"eagle3": [float(self.batch)] * k} if k else {}
        return self.batch * kept(hazards, k) / self.cost(RoundShape(self.batch, CONTEXT * self.batch, 0, drafted))

    def _mixed_goodput(self, ks: Sequence[int]) -> float:
        """Tokens per second of a batch with so long drafts by task."""
        counts = np.bincount(np.arange(self.batch) % len(CONSTANT), minlength=len(CONSTANT)).tolist()
        by_depth = [float(sum(n for n, k in zip(counts, ks, strict=True) if k > depth)) for depth in range(max(ks))]
        drafted = {"eagle3": by_depth} if by_depth else {}
        tokens = sum(n * kept(hazards, k) for n, k, hazards in zip(counts, ks, CONSTANT.values(), strict=True))
        return tokens / self.cost(RoundShape(self.batch, CONTEXT * self.batch, 0, drafted))


@cache
def cost_on(hardware: str) -> Cost:
    return LinearCost.of(load_hardware(hardware))


def constant_tasks() -> list[SimulatedTask]:
    def always(hazards: Hazards) -> Callable[[int], Hazards]:
        return lambda _: hazards

    return [SimulatedTask(name, always(hazards)) for name, hazards in CONSTANT.items()]


def tasks(tokens: int) -> list[SimulatedTask]:
    """The changing one goes from easy to hopeless half way."""
    changing = SimulatedTask("changing", lambda made: EASY if made < tokens / 2 else HOPELESS)
    return [*constant_tasks(), changing]


def kept(hazards: Hazards, k: int) -> float:
    """Tokens of a sequence's round at K, expected."""
    return 1 + sum(list(accumulate(hazards, mul))[:k])


def harmonic(rates: Iterable[float]) -> float:
    values = list(rates)
    return len(values) / sum(1 / rate for rate in values)


def controlled(start: Experience | None = None) -> Controlled:
    strata = [Stratum(task.name, "greedy", "eagle3") for task in tasks(1)]
    return Controlled(DraftLengthController(["eagle3"], start, plain_share=0.0), strata)


def left_by(cold: Controlled) -> Experience:
    """By an earlier run, which did not have all tasks; as strong as it is at the start of a run."""
    controller = cold.controller
    known = (Stratum(name, "greedy", "eagle3") for name in CONSTANT if name != "unseen")
    evidence = {stratum: controller.evidence(stratum).capped(200) for stratum in known}
    return Experience(evidence, controller.rounds.scaled(min(1.0, 200 / controller.rounds.weight)))


def results_of(case: Case, order: str) -> list[Result]:
    cold = controlled()
    found = list(case.play({"auto, cold": cold}, order))
    found += case.play({"auto, warm": controlled(left_by(cold))}, order)
    found += case.fixed() if order == "turns" else ()
    return [*found, *case.play({"heuristic": Heuristic(), "EMA tiers": EmaTiers(), "fallback, 5": Fallback(5)}, order)]


def report(where: dict[str, object], tokens: int, results: Sequence[Result]) -> Iterator[str]:
    yield from (
        "# Draft lengths in simulated rounds",
        "",
        "Made by `benchmarks/draft_length.py`, which says what each column means.",
        "",
        *told(where),
        f"- {tokens:,} tokens of each task; rounds vary by {NOISE:.0%}",
        "",
        "| hardware | batch | order | policy | of oracle | of best K | worst task over plain | switches |",
        "|---|---:|---|---|---:|---:|---|---:|",
    )
    for each in results:
        switches = "" if each.switches_per_1000 is None else f"{each.switches_per_1000:.1f}"
        worst = "" if each.worst_over_plain is None else f"{each.worst_over_plain:.3f} ({each.worst_task})"
        numbers = f"{each.of_oracle:.3f} | {each.of_best_k:.3f} | {worst}"
        yield f"| {each.hardware} | {each.batch} | {each.order} | {each.policy} | {numbers} | {switches} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a tenth of the tokens")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder for the JSON and the Markdown")
    arguments = parser.parse_args()
    where, tokens = conditions(), QUICK_TOKENS if arguments.quick else TOKENS
    cases = [(Case(name, batch, tokens, arguments.seed), "turns") for name, batches in CASES for batch in batches]
    cases += [(Case(name, batches[-2], tokens, arguments.seed), "mixed") for name, batches in CASES]
    with ProcessPoolExecutor(arguments.processes) as pool:
        waiting = [pool.submit(results_of, *each) for each in cases]
        results = [result for each in waiting for result in each.result()]
    lines = list(report(where, tokens, results))
    arguments.results.mkdir(parents=True, exist_ok=True)
    written = {"conditions": where, "tokens": tokens, "results": [asdict(result) for result in results]}
    (arguments.results / "draft_length.json").write_text(json.dumps(written, indent=1) + "\n")
    (arguments.results / "draft_length.md").write_text("\n".join(lines) + "\n")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
