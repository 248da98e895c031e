"""What is left in the cache after rounds of drafts is what a fresh prefill of the same tokens puts there."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_head import save_tiny_head
from tiny_llama import make_core, make_request, random_prompt, save_tiny_llama
from transformers import LlamaConfig

from configs.job import Draft
from workers.sequence import Sequence
from workers.torch_engine import TorchEngine

LAYERS = 7


@pytest.fixture(scope="module")
def draft(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Draft]:
    folder = tmp_path_factory.mktemp("rollback")
    target = save_tiny_llama(folder / "target", num_hidden_layers=LAYERS)
    head = save_tiny_head(folder / "head", LlamaConfig.from_pretrained(target))
    return target, Draft(drafter="eagle3", path=str(head))


def states(core: TorchEngine, sequence: Sequence, layer: int, length: int) -> torch.Tensor:
    keys, values = core._slots.cache.layer(layer)
    return torch.stack([keys[sequence.slot, :, :length], values[sequence.slot, :, :length]])


def taps(core: TorchEngine, sequence: Sequence) -> torch.Tensor:
    """[tokens, taps] that a head has read or will."""
    places = torch.arange(sequence.num_computed)
    return core._slots.cache.taps(torch.full_like(places, sequence.slot), places)


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10**6), size=st.integers(1, 5))
def test_after_any_rounds_it_is_a_fresh_prefill(draft: tuple[Path, Draft], seed: int, size: int) -> None:
    """Chains and trees of any size, accepted and refused as it comes, side by side."""
    rng = random.Random(seed)
    target, section = draft
    core = make_core(target, draft=section, max_num_seqs=8)
    shapes = [None, {"top_k": 8, "max_nodes": 40}, {"top_k": 3, "max_nodes": 9}]
    for i in range(size):
        core.add(
            make_request(
                f"row{i}",
                random_prompt(rng),
                k=rng.randint(1, 8),
                drafter="eagle3",
                seed=seed,
                policy={"tree": rng.choice(shapes)},
                temperature=rng.choice([0.0, 0.7]),
                ignore_eos=True,
            )
        )
    for _ in range(rng.randint(2, 8)):
        core.step()
    for sequence in list(core._sequences.values()):
        fresh = make_core(target, draft=section)
        computed = sequence.tokens[: sequence.num_computed]
        fresh.add(make_request("fresh", computed, k=1, drafter="eagle3", max_tokens=2, ignore_eos=True))
        fresh.step()
        other = fresh._sequences["fresh#0"]
        for layer in range(LAYERS):
            expected = states(fresh, other, layer, sequence.num_computed)
            torch.testing.assert_close(states(core, sequence, layer, sequence.num_computed), expected)
        torch.testing.assert_close(taps(core, sequence), taps(fresh, other)[: sequence.num_computed])
        pairs = min(sequence.num_followed, other.num_followed)
        assert pairs >= sequence.num_prompt - 1
        torch.testing.assert_close(states(core, sequence, LAYERS, pairs), states(fresh, other, LAYERS, pairs))
