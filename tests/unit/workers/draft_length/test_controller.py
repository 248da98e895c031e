"""The controller over simulated rounds: close to the best length in hindsight, never far below plain decoding."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from operator import mul

import numpy as np
import pytest

from workers.contract import MAX_DRAFT_LEN
from workers.draft_length.controller import (
    PROBE_AFTER,
    PROBE_SEQS,
    DraftLengthController,
    Standing,
    Tally,
)
from workers.draft_length.cost import SEGMENTS, Cost, LinearCost, RoundShape
from workers.draft_length.experience import Experience
from workers.draft_length.policies import Controlled
from workers.draft_length.simulation import SimulatedTask, Simulation
from workers.draft_length.stratum import Stratum

EASY, MIDDLING, HARD, HOPELESS = [0.92] * 8, [0.7] * 8, [0.45] * 8, [0.02] * 8
GPU = LinearCost(
    7e-3, 0.0, (2e-5,) * len(SEGMENTS), 4e-8, 2e-5, {"eagle3": 7e-4, "ngram": 1e-5}, {"eagle3": 0.0, "ngram": 0.0}
)
"""Rows are cheap: speculation pays."""
DEAR = LinearCost(1e-3, 0.0, (1e-3,) * len(SEGMENTS), 0.0, 1e-3, {"eagle3": 5e-4}, {"eagle3": 1e-4})
"""A row costs as much as a round: speculation never pays."""


def always(hazards: Sequence[float]) -> Callable[[int], Sequence[float]]:
    return lambda _: hazards


def stratum(name: str, drafter: str = "eagle3") -> Stratum:
    return Stratum(name, "greedy", drafter)


def round_shape(num_seqs: int, k: int, drafter: str = "eagle3") -> RoundShape:
    return RoundShape(num_seqs, 600 * num_seqs, 0, {drafter: [float(num_seqs)] * k} if k else {})


def goodput_of(hazards: Sequence[float], k: int, num_seqs: int, cost: Cost) -> float:
    return num_seqs * (1 + sum(list(accumulate(hazards, mul))[:k])) / cost(round_shape(num_seqs, k))


def best_of(hazards: Sequence[float], num_seqs: int, cost: Cost) -> float:
    return max(goodput_of(hazards, k, num_seqs, cost) for k in range(MAX_DRAFT_LEN + 1))


class World:
    """Tasks taken in turns, a batch of one task at a time."""

    def __init__(self, tasks: dict[str, Sequence[float]], cost: Cost, start: Experience | None = None) -> None:
        self.tasks = [SimulatedTask(name, always(hazards)) for name, hazards in tasks.items()]
        self.controller = DraftLengthController(["eagle3"], start, plain_share=0.0)
        self.policy = Controlled(self.controller, [stratum(name) for name in tasks])
        self.simulation = Simulation(self.tasks, cost)

    def run(self, num_seqs: int, num_tokens: int, turns: int = 4) -> dict[str, float]:
        for _ in range(turns):
            for task in range(len(self.tasks)):
                self.simulation.run(self.policy, np.full(num_seqs, task), num_tokens // turns)
        return {name: spent.goodput for name, spent in self.simulation.spent.items()}


TASKS = {"easy": EASY, "middling": MIDDLING, "hard": HARD, "hopeless": HOPELESS}


@pytest.mark.parametrize("cost", [GPU, DEAR], ids=["gpu", "dear"])
@pytest.mark.parametrize("num_seqs", [2, 32])
def test_from_nothing_it_is_close_to_the_best_length_of_each_task(cost: Cost, num_seqs: int) -> None:
    found = World(TASKS, cost).run(num_seqs, 12_000)
    best = {name: best_of(hazards, num_seqs, cost) for name, hazards in TASKS.items()}
    assert sum(1 / speed for speed in best.values()) / sum(1 / speed for speed in found.values()) >= 0.97
    for name, hazards in TASKS.items():
        assert found[name] >= 0.97 * goodput_of(hazards, 0, num_seqs, cost)


def test_with_experience_it_is_there_from_the_first_round() -> None:
    cold = World(TASKS, GPU)
    cold.run(8, 20_000)
    evidence = {key: cold.controller.evidence(key).capped(200) for key in cold.controller.lengths}
    rounds = cold.controller.rounds
    warm = World(TASKS, GPU, Experience(evidence, rounds.scaled(200 / rounds.weight))).run(8, 4000, turns=1)
    best = {name: best_of(hazards, 8, GPU) for name, hazards in TASKS.items()}
    assert sum(1 / speed for speed in best.values()) / sum(1 / speed for speed in warm.values()) >= 0.98


def test_the_length_rises_as_the_batch_drains() -> None:
    world = World({"middling": MIDDLING}, GPU)
    world.run(512, 30_000)
    lengths = []
    for num_seqs in (512, 64, 8, 1):
        world.run(num_seqs, 300 * num_seqs, turns=1)
        lengths.append(world.controller.lengths[stratum("middling")])
    assert lengths == sorted(lengths)
    assert lengths[0] <= 2 < 4 <= lengths[-1]


def test_a_mixed_batch_has_a_length_for_each_task() -> None:
    world = World(TASKS, GPU)
    batch = np.array([0] * 8 + [3] * 8)
    world.simulation.run(world.policy, batch, 20_000)
    assert world.controller.lengths[stratum("easy")] >= 5
    assert world.controller.lengths[stratum("hopeless")] == 0


def test_an_unknown_task_begins_like_the_known_ones() -> None:
    world = World({"easy": EASY, "also easy": EASY}, GPU)
    world.run(4, 8000)
    plan = world.controller.plan([Standing(stratum("new"), 4)], kv_tokens=2400)
    assert plan.lengths[0] >= 4


def test_bounds_are_kept_from_the_first_round_on() -> None:
    controller = DraftLengthController(["eagle3"], plain_share=0.0)
    bounded = [
        Standing(stratum("fixed"), 2, 3, 3),
        Standing(stratum("most"), 2, 0, 2),
        Standing(stratum("off"), 2, 0, 0),
    ]
    for _ in range(200):
        lengths = controller.plan(bounded, kv_tokens=0).lengths
        assert lengths[0] == 3
        assert lengths[1] <= 2
        assert lengths[2] == 0
        tallies = [Tally(each.stratum, k, k, k, 2) for each, k in zip(bounded, lengths, strict=True) if k]
        controller.record(round_shape(6, 2), 10_000_000, tallies)


def test_a_change_is_answered_within_six_hundred_rounds() -> None:
    """Of a task that was off for so long that it is hardly probed any more; one that drafts is told within fifty."""
    for before, after, within in ((HOPELESS, EASY, 600), (EASY, HOPELESS, 50)):
        world = World({"task": before}, GPU)
        world.run(4, 20_000)
        world.simulation.tasks = [SimulatedTask("task", always(after))]
        rounds = world.simulation.spent["task"].rounds
        while world.simulation.spent["task"].rounds < rounds + within:
            world.simulation.run(world.policy, np.zeros(4, dtype=np.int64), 8)
        late = Simulation([SimulatedTask("task", always(after))], GPU, seed=9)
        late.run(world.policy, np.zeros(4, dtype=np.int64), 4000)
        assert late.spent["task"].goodput >= 0.97 * best_of(after, 4, GPU)


def test_off_it_probes_few_sequences_and_ever_more_rarely() -> None:
    controller = DraftLengthController(["eagle3"], plain_share=0.0)
    probes = []
    for at in range(4000):
        plan = controller.plan([Standing(stratum("hopeless"), 16)], kv_tokens=0)
        (k,) = plan.lengths
        drafting = sum(plan.probed) if k == 0 else 16
        if plan.probed:
            probes.append(at)
            assert drafting == PROBE_SEQS
        tallies = [Tally(stratum("hopeless"), max(k, 1), max(k, 1), 0, drafting)] if drafting else []
        controller.record(round_shape(16, k), round(1e9 * GPU(round_shape(16, k))), tallies)
    gaps = np.diff(probes)
    assert len(probes) < 14
    assert gaps[0] >= PROBE_AFTER
    assert list(gaps) == sorted(gaps)


def test_of_two_drafters_each_task_gets_the_better_one() -> None:
    controller = DraftLengthController(["eagle3", "ngram"], plain_share=0.0)
    draws = np.random.default_rng(0)
    hazard = {
        ("copying", "ngram"): 0.95,
        ("copying", "eagle3"): 0.6,
        ("chatting", "ngram"): 0.1,
        ("chatting", "eagle3"): 0.7,
    }
    chosen: dict[str, list[str]] = {"copying": [], "chatting": []}
    for turn in range(400):
        task = ("copying", "chatting")[turn % 2]
        name = controller.choose_drafter(stratum(task, ""), ["eagle3", "ngram"], 4, MAX_DRAFT_LEN)
        chosen[task].append(name)
        mine = stratum(task, name)
        for _ in range(10):
            k = controller.plan([Standing(mine, 4)], kv_tokens=0).lengths[0]
            kept = draws.random((4, MAX_DRAFT_LEN)) < hazard[task, name]
            accepted = [int(np.logical_and.accumulate(row[:k]).sum()) for row in kept]
            tallies = [Tally(mine, k, k, each) for each in accepted] if k else []
            shape = round_shape(4, k, name)
            controller.record(shape, round(1e9 * GPU(shape)), tallies)
    assert chosen["copying"][-100:].count("ngram") >= 95
    assert chosen["chatting"][-100:].count("eagle3") >= 95


def test_the_same_rounds_give_the_same_lengths() -> None:
    assert World(TASKS, GPU).run(4, 4000) == World(TASKS, GPU).run(4, 4000)


def test_plain_blocks_are_plain_for_all_and_teach_the_cost() -> None:
    controller = DraftLengthController(["eagle3"], plain_share=0.3, seed=1)
    plain = 0
    for _ in range(2000):
        (k,) = controller.plan([Standing(stratum("easy"), 4, 4, 4)], kv_tokens=0).lengths
        plain += k == 0
        tallies = [Tally(stratum("easy"), k, k, k, 4)] if k else []
        controller.record(round_shape(4, k), round(1e9 * GPU(round_shape(4, k))), tallies)
    assert plain / 2000 == pytest.approx(0.3, abs=0.07)


def test_prefill_in_the_first_rounds_does_not_end_the_learning() -> None:
    controller, mine = DraftLengthController(["eagle3"], plain_share=0.0), [Standing(stratum("easy"), 4)]
    lengths = []
    for at in range(200):
        k = controller.plan(mine, kv_tokens=2400).lengths[0]
        lengths.append(k)
        shape = RoundShape(4, 2400, 300 if at < 50 else 0, round_shape(4, k).drafted)
        tallies = [Tally(stratum("easy"), k, k, k, 4)] if k else []
        controller.record(shape, round(1e9 * GPU(shape)), tallies)
    assert {0, 1, 2, 4} <= set(lengths[50:70]), "the cost of rounds is seen from different sides"
    assert lengths[-1] >= 6


def test_a_drafter_that_hardly_ever_drafts_does_not_keep_its_sequences() -> None:
    """Nothing of it is seen then, but it is not unknown."""
    controller = DraftLengthController(["eagle3", "ngram"], plain_share=0.0)
    chosen = []
    for _ in range(200):
        name = controller.choose_drafter(stratum("task", ""), ["eagle3", "ngram"], 4, MAX_DRAFT_LEN)
        chosen.append(name)
        mine = stratum("task", name)
        for _ in range(10):
            k = controller.plan([Standing(mine, 4, 0, 0 if name == "ngram" else 8)], kv_tokens=0).lengths[0]
            tallies = [Tally(mine, k, k, k, 4)] if k else []
            shape = round_shape(4, k, name)
            controller.record(shape, round(1e9 * GPU(shape)), tallies)
    assert chosen.count("ngram") <= 20
