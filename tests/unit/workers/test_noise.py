"""The draws are uniform, unrelated to each other, and the same bits wherever they are computed."""

from __future__ import annotations

import math

import pytest
import torch
from goodness_of_fit import p_value
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from workers import noise

ENOUGH = 1e-6
WORD = st.integers(-(2**31), 2**31 - 1)


def mixed(x: int) -> int:
    """The mixing in plain integers."""
    x &= 0xFFFFFFFF
    x ^= x >> 16
    x = x * 0x21F0AAAD & 0xFFFFFFFF
    x ^= x >> 15
    x = x * 0xD35A2D97 & 0xFFFFFFFF
    return x ^ x >> 15


def draw(key: tuple[int, int], position: int, token: int) -> float:
    """A Gumbel variate by the definition, without torch."""
    first, second = key
    words = [mixed(mixed(position * 0x9E3779B9 + a) ^ b) for a, b in ((first, second), (second, first))]
    word = mixed(token + 0x9E3779B9)
    high, low = mixed(word ^ words[0]), mixed(mixed(word ^ words[1]) + 0x3C6EF372)
    uniform = ((high ^ 0x80000000) * 2**20 + (low >> 12) + 0.5) * 2.0**-52
    return -math.log(-math.log(uniform))


def gumbels(key: tuple[int, int], positions: Tensor, tokens: Tensor) -> Tensor:
    """[positions, tokens]"""
    keys = torch.tensor([key] * len(positions), dtype=torch.int32)
    words = noise.row_words(keys, positions.to(torch.int32))
    return noise.gumbels(noise.token_words(tokens), words[:, None])


@given(WORD, WORD, st.integers(0, 2**20), st.integers(0, 300_000))
def test_the_bits_follow_from_the_definition(first: int, second: int, position: int, token: int) -> None:
    got = gumbels((first, second), torch.tensor([position]), torch.tensor([token]))
    assert got.item() == pytest.approx(draw((first, second), position, token), rel=1e-13)


def test_a_key_depends_on_all_its_parts() -> None:
    keys = {
        noise.sequence_key(seed, row_id, sample) for seed in (0, 1) for row_id in ("a", "b", "1/a") for sample in (0, 1)
    }
    assert len(keys) == 12
    assert noise.sequence_key(0, "a", 0) == noise.sequence_key(0, "a", 0)
    assert noise.sequence_key(2**63 - 1, "\ud800", 127)


@pytest.mark.parametrize("over", ["tokens", "positions", "samples"])
def test_draws_are_uniform_and_neighbours_unrelated(over: str) -> None:
    n = 1 << 18
    steps = torch.arange(n)
    if over == "tokens":
        variates = gumbels(noise.sequence_key(0, "row", 0), torch.tensor([3]), steps)[0]
    elif over == "positions":
        variates = gumbels(noise.sequence_key(0, "row", 0), steps, torch.tensor([42]))[:, 0]
    else:
        keys = torch.tensor([noise.sequence_key(0, f"row{i}", 0) for i in range(n // 8)], dtype=torch.int32)
        words = noise.row_words(keys, torch.zeros(len(keys), dtype=torch.int32))
        variates = noise.gumbels(noise.token_words(torch.tensor(7)), words)
    uniforms = torch.exp(-torch.exp(-variates))
    cells = (uniforms * 64).long()
    assert p_value(cells.bincount(minlength=64), torch.ones(64)) > ENOUGH
    pairs = (cells[:-1] // 4) * 16 + cells[1:] // 4
    assert p_value(pairs[::2].bincount(minlength=256), torch.ones(256)) > ENOUGH


def test_rows_are_unrelated_at_equal_tokens() -> None:
    variates = gumbels(noise.sequence_key(5, "row", 0), torch.arange(2), torch.arange(1 << 17))
    cells = (torch.exp(-torch.exp(-variates)) * 16).long()
    assert p_value((cells[0] * 16 + cells[1]).bincount(minlength=256), torch.ones(256)) > ENOUGH


@given(st.floats(-50, 50), WORD, WORD, st.integers(0, 300_000))
def test_no_winner_lies_below_the_first(margin: float, first: int, second: int, token: int) -> None:
    words = torch.tensor([[first, second]], dtype=torch.int32)
    word = noise.token_words(torch.tensor([token]))
    high = noise.high_words(word, words[:, 0])
    if noise.gumbels(word, words).item() > margin:
        assert high.item() >= noise.first_winner(torch.tensor([margin], dtype=torch.float64)).item()


def test_the_ends_of_the_range_are_finite() -> None:
    ends = torch.tensor([-(2**31), 2**31 - 1], dtype=torch.int32)
    uniforms = noise.uniforms_of(ends, torch.tensor([0, -1], dtype=torch.int32))
    assert 0 < uniforms[0] < uniforms[1] < 1
    assert noise.first_winner(torch.tensor([-40.0, 36.0], dtype=torch.float64)).tolist() == [-(2**31), 2**31 - 3]
