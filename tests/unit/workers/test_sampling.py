"""Tokens follow the law that the sampling asks for, and the shortcuts change nothing."""

from __future__ import annotations

import pytest
import torch
import transformers
from goodness_of_fit import p_value
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from configs.job import Sampling
from workers import noise
from workers.sampling import NOT_FINITE, Row, choose, lowest_kept

ENOUGH = 1e-6
CUTOFFS: dict[str, dict[str, float]] = {
    "plain": {},
    "top-k": {"top_k": 7},
    "wide top-k": {"top_k": 100},
    "top-p": {"top_p": 0.8},
    "wide top-p": {"top_p": 0.99},
    "min-p": {"min_p": 0.05},
    "all": {"top_k": 40, "top_p": 0.9, "min_p": 0.01},
}


def rows_of(count: int, **sampling: object) -> list[Row]:
    """Rows of as many samples, all at their first token."""
    settings = Sampling.model_validate({"temperature": 1.0, **sampling})
    return [Row(settings, noise.sequence_key(1, f"row{i}", 0), 0, None, ()) for i in range(count)]


def kept_by_transformers(logits: Tensor, sampling: Sampling) -> Tensor:
    """[R, V] bool, by transformers' own warpers in its own order."""
    warpers: list[transformers.LogitsProcessor] = [transformers.TemperatureLogitsWarper(sampling.temperature)]
    if sampling.top_k:
        warpers.append(transformers.TopKLogitsWarper(sampling.top_k))
    if sampling.top_p < 1:
        warpers.append(transformers.TopPLogitsWarper(sampling.top_p))
    if sampling.min_p:
        warpers.append(transformers.MinPLogitsWarper(sampling.min_p))
    for warper in warpers:
        logits = warper(torch.zeros(len(logits), 1, dtype=torch.long), logits)
    return logits > -torch.inf


def brute_force(logits: Tensor, rows: list[Row]) -> list[int]:
    """Noise on every kept token, then the maximum."""
    scaled = logits / torch.tensor([[row.sampling.temperature] for row in rows], dtype=logits.dtype)
    top = scaled.topk(min(64, scaled.shape[1])).values
    floor = lowest_kept(scaled, top, [row.sampling for row in rows])
    words = noise.row_words(
        torch.tensor([row.key for row in rows], dtype=torch.int32),
        torch.tensor([row.position for row in rows], dtype=torch.int32),
    )
    scores = scaled.double() + noise.gumbels(noise.token_words(torch.arange(scaled.shape[1])), words[:, None])
    return scores.masked_fill(scaled < floor, -torch.inf).argmax(-1).tolist()


@pytest.mark.parametrize("temperature", [0.5, 1.0])
@pytest.mark.parametrize("vocab_size", [12, 300])
@pytest.mark.parametrize("cutoff", CUTOFFS.values(), ids=CUTOFFS)
def test_tokens_follow_the_law(cutoff: dict[str, float], vocab_size: int, temperature: float) -> None:
    torch.manual_seed(0)
    logits = torch.randn(1, vocab_size)
    rows = rows_of(20_000, temperature=temperature, **cutoff)
    counts = torch.tensor(choose(logits.repeat(len(rows), 1), rows)).bincount(minlength=vocab_size)
    kept = kept_by_transformers(logits, rows[0].sampling)
    law = (logits / temperature).masked_fill(~kept, -torch.inf).softmax(-1)[0]
    assert p_value(counts, law) > ENOUGH


def test_a_wrong_law_would_be_noticed() -> None:
    torch.manual_seed(0)
    logits = torch.randn(1, 12)
    rows = rows_of(20_000, temperature=1.0)
    counts = torch.tensor(choose(logits.repeat(len(rows), 1), rows)).bincount(minlength=12)
    assert p_value(counts, (logits / 1.1).softmax(-1)[0]) < ENOUGH


@pytest.mark.parametrize("cutoff", CUTOFFS.values(), ids=CUTOFFS)
def test_cutoffs_keep_what_transformers_keeps(cutoff: dict[str, float]) -> None:
    torch.manual_seed(1)
    logits = torch.randn(50, 500) * torch.linspace(0.1, 4, 50)[:, None]
    sampling = Sampling.model_validate({"temperature": 0.9, **cutoff})
    scaled = logits / 0.9
    floor = lowest_kept(scaled, scaled.topk(64).values, [sampling] * 50)
    assert torch.equal(scaled >= floor, kept_by_transformers(logits, sampling))


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from([0.05, 0.7, 1.0, 3.0]), st.floats(0.01, 8), st.data())
def test_looking_at_few_tokens_first_changes_nothing(
    seed: int, temperature: float, spread: float, data: st.DataObject
) -> None:
    torch.manual_seed(seed)
    cutoff = data.draw(st.sampled_from(list(CUTOFFS.values())))
    logits = torch.randn(4, data.draw(st.sampled_from([40, 64, 65, 3000]))) * spread
    rows = [
        Row(row.sampling, noise.sequence_key(seed, "row", i), 5, None, ())
        for i, row in enumerate(rows_of(4, temperature=temperature, **cutoff))
    ]
    expected = brute_force(logits, rows)
    assert choose(logits.clone(), rows) == expected


def test_rows_do_not_influence_each_other() -> None:
    torch.manual_seed(2)
    logits = torch.randn(9, 400)
    variants: list[dict[str, float]] = [{}, {"temperature": 0.0}, {"top_p": 0.9}, {"top_k": 3}, {"min_p": 0.1}]
    rows = [rows_of(9, **variants[i % 5])[i] for i in range(9)]
    alone = [choose(logits[i : i + 1].clone(), [rows[i]])[0] for i in range(9)]
    assert choose(logits.clone(), rows) == alone
    assert choose(logits.flip(0).clone(), rows[::-1]) == alone[::-1]


def test_greedy_takes_the_first_of_equals() -> None:
    logits = torch.zeros(2, 50)
    logits[0, [7, 30]] = 2.0
    logits[1, [49, 3]] = 1.0
    assert choose(logits, rows_of(2, temperature=0.0)) == [7, 3]
    assert choose(logits.bfloat16(), rows_of(2, temperature=0.0)) == [7, 3]


@pytest.mark.parametrize("penalty", [1.3, 0.8])
def test_the_penalty_is_that_of_transformers(penalty: float) -> None:
    torch.manual_seed(3)
    logits = torch.randn(6, 40)
    prompt = torch.tensor([[1, 2, 3, 3, 9]] * 6)
    expected = transformers.RepetitionPenaltyLogitsProcessor(penalty)(prompt, logits.clone()).argmax(-1).tolist()
    seen, without_two = prompt[0], torch.tensor([3, 9, 9])
    sampling = Sampling(repetition_penalty=penalty)
    assert choose(logits.clone(), [Row(sampling, (0, 0), 0, seen, ())] * 6) == expected
    at_depth = [Row(sampling, (0, 0), 0, without_two, (2, 1))] * 6
    assert choose(logits.clone(), at_depth) == expected, "drafts before a row count as seen"


def test_a_branch_does_not_leak_into_other_rows() -> None:
    logits = torch.zeros(3, 10)
    logits[:, 4] = 1.0
    logits[:, 5] = 0.9
    seen = torch.tensor([9])
    rows = [Row(Sampling(repetition_penalty=2.0), (0, 0), 0, seen, branch) for branch in ((), (4,), (4, 5))]
    assert choose(logits, rows) == [4, 5, 4]
    assert seen.tolist() == [9]


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_numbers_that_are_not_finite_are_reported(bad: float, temperature: float) -> None:
    logits = torch.randn(3, 100)
    logits[1, 5] = bad
    tokens = choose(logits, rows_of(3, temperature=temperature))
    assert tokens[1] == NOT_FINITE
    assert NOT_FINITE not in (tokens[0], tokens[2])
    assert choose(torch.full((1, 100), -torch.inf), rows_of(1, temperature=temperature)) == [NOT_FINITE]


def test_a_tiny_temperature_is_greedy() -> None:
    logits = torch.randn(5, 100) * 50
    assert choose(logits.clone(), rows_of(5, temperature=1e-30)) == logits.argmax(-1).tolist()
