"""Blocks of rounds without drafts, beside their neighbours."""

from __future__ import annotations

import random

import pytest

from workers.draft_length.comparison import Comparer, Comparison
from workers.draft_length.plain_blocks import BLOCK_ROUNDS, PlainBlocks


def run(blocks: PlainBlocks, rounds: int, seed: int = 0) -> tuple[int, list[Comparison]]:
    """Rounds at a batch that wanders; drafting makes 2.5 tokens per sequence in 1.4 of the time."""
    draws, plain, found = random.Random(seed), 0, list[Comparison]()
    batch, comparer = 16, Comparer()
    for _ in range(rounds):
        batch = max(1, min(32, batch + draws.choice((-1, 0, 0, 1))))
        phase = blocks.next_round()
        plain += phase == "plain"
        base = 1_000_000 * (1 + batch / 16)
        ns = round(base if phase == "plain" else 1.4 * base)
        if phase == "catching_up":
            ns *= 5
        tokens = batch if phase == "plain" else round(2.5 * batch)
        comparer.observe(phase, batch, tokens, ns, has_prefill=draws.random() < 0.1)
        found += comparer.drain()
    return plain, found


def test_the_share_is_kept() -> None:
    plain, _ = run(PlainBlocks(0.02, seed=1), 400_000)
    assert plain / 400_000 == pytest.approx(0.02, rel=0.15)


def test_comparisons_find_the_gain() -> None:
    _, found = run(PlainBlocks(0.1, seed=2), 50_000)
    assert len(found) > 80
    plain = sum(each.plain.tokens for each in found) / sum(each.plain.ns for each in found)
    drafting = sum(each.drafting.tokens for each in found) / sum(each.drafting.ns for each in found)
    assert drafting / plain == pytest.approx(2.5 / 1.4, rel=0.02)


def test_both_sides_are_alike() -> None:
    _, found = run(PlainBlocks(0.1, seed=3), 50_000)
    plain = sum(each.plain.sequences for each in found) / sum(each.plain.rounds for each in found)
    drafting = sum(each.drafting.sequences for each in found) / sum(each.drafting.rounds for each in found)
    assert drafting == pytest.approx(plain, rel=0.05)
    assert all(each.plain.rounds <= BLOCK_ROUNDS < 2 * BLOCK_ROUNDS >= each.drafting.rounds for each in found)


def test_the_round_that_catches_up_is_told_apart() -> None:
    _, found = run(PlainBlocks(0.1, seed=4), 20_000)
    assert sum(each.catching_up_ns > 0 for each in found) > 0.8 * len(found)


def test_no_share_is_no_block() -> None:
    assert run(PlainBlocks(0.0, seed=5), 10_000) == (0, [])


def test_the_same_seed_gives_the_same_rounds() -> None:
    one, other = PlainBlocks(0.05, seed=6), PlainBlocks(0.05, seed=6)
    assert [one.next_round() for _ in range(3000)] == [other.next_round() for _ in range(3000)]


def test_json_gives_a_comparison_back() -> None:
    _, found = run(PlainBlocks(0.1, seed=7), 3000)
    assert [Comparison.from_json(each.to_json()) for each in found] == found != []
