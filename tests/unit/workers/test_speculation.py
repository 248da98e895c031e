"""Speculation never changes the output: on and off give the same tokens, exactly in float64, whatever is combined."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_llama import make_core, make_request, random_prompt, run

from configs.job import Draft
from workers.contract import Finished, Request
from workers.torch_engine import TorchEngine

SAMPLINGS: dict[str, dict[str, object]] = {
    "greedy": {},
    "hot": {"temperature": 0.8},
    "top-p": {"temperature": 0.8, "top_p": 0.7},
    "top-k": {"temperature": 1.2, "top_k": 5},
    "min-p": {"temperature": 1.0, "min_p": 0.1},
    "penalty": {"repetition_penalty": 1.3},
    "hot penalty": {"temperature": 0.8, "repetition_penalty": 1.2, "top_p": 0.9},
    "ignore eos": {"ignore_eos": True, "max_tokens": 40},
    "stops": {"stop": ["b", "ca", "e "], "temperature": 0.8},
    "stop ids": {"stop_token_ids": [5, 9, 20], "ignore_eos": True},
}


@pytest.fixture(scope="module")
def core(tiny_folder: Path) -> TorchEngine:
    return make_core(tiny_folder, draft=Draft(ngram_min=1, ngram_max=3), max_num_seqs=8, max_batched_tokens=64)


def outcome(end: Finished) -> tuple[object, ...]:
    return end.token_ids, end.text, end.finish_reason


def requests_of(rng: random.Random, ks: Sequence[int], sampling: dict[str, object]) -> list[Request]:
    return [make_request(f"row{i}", random_prompt(rng), k=k, **sampling) for i, k in enumerate(ks)]


@pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS)
def test_every_draft_length_gives_the_plain_output(core: TorchEngine, sampling: dict[str, object]) -> None:
    plain = run(core, requests_of(random.Random(1), [0] * 10, sampling))
    accepted = 0
    for k in range(1, 9):
        drafted = run(core, requests_of(random.Random(1), [k] * 10, sampling))
        assert {name: outcome(end) for name, end in drafted.items()} == {n: outcome(e) for n, e in plain.items()}
        accepted += sum(end.speculation.num_accepted_draft_tokens for end in drafted.values())
    assert accepted > 0, "the test proves nothing if no draft is ever accepted"


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_ragged_lengths_batches_and_orders_do_not_matter(core: TorchEngine, data: st.DataObject) -> None:
    seed = data.draw(st.integers(0, 10**6))
    rng = random.Random(seed)
    size = data.draw(st.integers(1, 12))
    prompts = [random_prompt(rng) for _ in range(size)]
    samplings = [rng.choice(list(SAMPLINGS.values())) for _ in range(size)]

    def requests(ks: Sequence[int], order: Sequence[int]) -> list[Request]:
        return [make_request(f"row{i}", prompts[i], k=ks[i], seed=seed, **samplings[i]) for i in order]

    plain = run(core, requests([0] * size, range(size)))
    ks = data.draw(st.lists(st.integers(0, 8), min_size=size, max_size=size))
    order = data.draw(st.permutations(range(size)))
    together = run(core, requests(ks, order))
    assert {name: outcome(end) for name, end in together.items()} == {n: outcome(e) for n, e in plain.items()}


@pytest.mark.parametrize("chunk", [16, 17, 23])
def test_odd_prefill_chunks_do_not_matter(tiny_folder: Path, core: TorchEngine, chunk: int) -> None:
    def requests(k: int) -> list[Request]:
        rng = random.Random(2)
        return [
            make_request(f"row{i}", random_prompt(rng, 20, 90), k=k, temperature=0.8, repetition_penalty=1.2)
            for i in range(8)
        ]

    chunked = make_core(tiny_folder, max_batched_tokens=40, prefill_chunk_tokens=chunk, max_num_seqs=5)
    assert {n: outcome(e) for n, e in run(chunked, requests(4)).items()} == {
        n: outcome(e) for n, e in run(core, requests(0)).items()
    }


def test_samples_of_a_row_differ_and_repeat(core: TorchEngine) -> None:
    prompt = random_prompt(random.Random(3), 20, 20)

    def samples(k: int) -> list[Request]:
        return [make_request("row", prompt, sample=i, k=k, temperature=1.0, ignore_eos=True) for i in range(4)]

    first = run(core, samples(0))
    assert len({end.token_ids for end in first.values()}) == 4
    alone = {name: end for request in samples(3) for name, end in run(core, [request]).items()}
    assert {n: outcome(e) for n, e in alone.items()} == {n: outcome(e) for n, e in first.items()}


def test_the_seed_and_the_row_change_the_noise(core: TorchEngine) -> None:
    prompt = random_prompt(random.Random(4), 12, 12)
    settings: dict[str, object] = {"temperature": 1.0, "ignore_eos": True}
    base = run(core, [make_request("row", prompt, seed=1, **settings)])["row#0"]
    other_seed = run(core, [make_request("row", prompt, seed=2, **settings)])["row#0"]
    other_row = run(core, [make_request("rov", prompt, seed=1, **settings)])["rov#0"]
    assert len({base.token_ids, other_seed.token_ids, other_row.token_ids}) == 3


def test_an_end_inside_an_accepted_run_truncates(core: TorchEngine) -> None:
    """A text in a loop is drafted in full, so a stop string that ends anywhere in it often ends inside a run."""
    prompt = random_prompt(random.Random(6), 6, 6)
    whole = run(core, [make_request("row", prompt, ignore_eos=True, max_tokens=48)])["row#0"]
    truncated = 0
    for length in range(4, len(whole.text)):
        stop = whole.text[:length]
        plain, drafted = (
            run(core, [make_request("row", prompt, k=k, ignore_eos=True, max_tokens=48, stop=[stop])])["row#0"]
            for k in (0, 8)
        )
        assert outcome(drafted) == outcome(plain)
        assert plain.text == ""
        assert plain.truncated_tokens == 0
        truncated += drafted.truncated_tokens
    assert truncated > 0


def test_max_tokens_is_never_passed_nor_drafted_past(core: TorchEngine) -> None:
    prompt = random_prompt(random.Random(6), 6, 6)
    for max_tokens in range(1, 20):
        end = run(core, [make_request("row", prompt, k=8, ignore_eos=True, max_tokens=max_tokens)])["row#0"]
        assert len(end.token_ids) == max_tokens
        assert end.finish_reason == "length"
        assert end.truncated_tokens == 0
