"""A separate model drafts its own greedy continuation, and never changes the output."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from drafted import drafts_of
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_llama import make_core, make_request, random_prompt, run, save_tiny_llama
from transformers import LlamaForCausalLM

from configs.errors import ConfigError
from configs.job import Draft as DraftSection
from workers.acceptance import Tree
from workers.drafter import Draft
from workers.kv_cache import KVCache, LayerShape
from workers.torch_engine import TorchEngine


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_llama(tmp_path_factory.mktemp("target"), num_hidden_layers=3)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Other sizes than the target's."""
    shape = {"hidden_size": 24, "num_attention_heads": 3, "num_key_value_heads": 3, "num_hidden_layers": 2}
    return save_tiny_llama(tmp_path_factory.mktemp("small"), seed=3, **shape)


def with_model(target: Path, small: Path, **engine: Any) -> TorchEngine:
    return make_core(target, draft=DraftSection(drafter="model", model=str(small)), **engine)


@torch.no_grad()
def continued(model: LlamaForCausalLM, tokens: list[int], length: int) -> list[int]:
    after = list(tokens)
    for _ in range(length):
        after.append(int(model(torch.tensor([after])).logits[0, -1].argmax()))
    return after[len(tokens) :]


def test_drafts_are_the_models_own_continuation(target: Path, small: Path) -> None:
    """In any batch, with prompts in pieces, shared prefixes, K that differ and rounds that reject."""
    core = with_model(target, small, max_num_seqs=4, prefill_chunk_tokens=16)
    reference = LlamaForCausalLM.from_pretrained(small, dtype=torch.float64)
    rng = random.Random(0)
    prompts = [random_prompt(rng, 3, 60) for _ in range(5)]
    prompts.append(prompts[0] + random_prompt(rng))
    requests = [
        make_request(f"row{i}", prompt, k=1 + i % 5, drafter="model", sample=s, temperature=0.7, max_tokens=12)
        for i, prompt in enumerate(prompts)
        for s in range(2)
    ]
    found = drafts_of(core, requests)
    assert len(found) > 60
    for tokens, ask, draft in found:
        assert draft == Draft(Tree.chain(continued(reference, tokens, ask.max_draft)))


@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_it_never_changes_the_output(target: Path, small: Path, data: st.DataObject) -> None:
    seed, size = data.draw(st.integers(0, 10**6)), data.draw(st.integers(1, 10))
    rng = random.Random(seed)
    core = with_model(target, small, max_num_seqs=rng.choice([1, 4, 16]), max_batched_tokens=rng.choice([32, 256]))
    prompts = [random_prompt(rng) for _ in range(size)]
    sampling: dict[str, Any] = rng.choice([{}, {"temperature": 0.8}, {"stop": ["b", "ca"], "temperature": 0.8}])
    ks = data.draw(st.lists(st.integers(0, 8), min_size=size, max_size=size))
    plain, drafted = (
        run(
            core,
            [
                make_request(f"row{i}", prompt, k=k, drafter=rng.choice(["model", "ngram"]), seed=seed, **sampling)
                for i, (prompt, k) in enumerate(zip(prompts, lengths, strict=True))
            ],
        )
        for lengths in ([0] * size, ks)
    )
    assert {name: end.token_ids for name, end in drafted.items()} == {n: e.token_ids for n, e in plain.items()}


def test_a_model_of_other_tokens_is_refused(target: Path, small: Path, tmp_path: Path) -> None:
    fewer = save_tiny_llama(tmp_path / "fewer", vocab_size=50)
    with pytest.raises(ConfigError, match=r"vocab_size is 50, the target's \d+"):
        with_model(target, fewer)
    other = shutil.copytree(small, tmp_path / "other")
    tokenizer = json.loads((other / "tokenizer.json").read_text())
    vocabulary = tokenizer["model"]["vocab"]
    vocabulary["a"], vocabulary["b"] = vocabulary["b"], vocabulary["a"]
    (other / "tokenizer.json").write_text(json.dumps(tokenizer))
    with pytest.raises(ConfigError, match="token 'a' has id 2, in the target 1"):
        with_model(target, other)
    (other / "tokenizer.json").unlink()
    with pytest.raises(ConfigError, match=r"tokenizer.json cannot be read"):
        with_model(target, other)


@pytest.mark.parametrize(("dtype", "mantissa_bits"), [("float32", 23), ("bfloat16", 7), ("float8_e4m3", 3)])
def test_the_cache_may_be_narrower_than_the_model(target: Path, small: Path, dtype: str, mantissa_bits: int) -> None:
    """Keys and values are those of a wide cache, rounded; drafts, verified over the same cache, change no token."""
    prompts = [random_prompt(random.Random(i), 10, 40) for i in range(8)]

    def tokens(core: TorchEngine, k: int) -> list[tuple[int, ...]]:
        requests = [make_request(f"row{i}", prompt, k=k, drafter="model") for i, prompt in enumerate(prompts)]
        return [end.token_ids for _, end in sorted(run(core, requests).items())]

    def of_a_prompt(core: TorchEngine) -> torch.Tensor:
        run(core, [make_request("row", prompts[0], max_tokens=1)])
        return torch.cat(core._slots.cache.layer(0), 1)[0, :, : len(prompts[0])]

    narrow, wide = of_a_prompt(with_model(target, small, kv_cache_dtype=dtype)), of_a_prompt(with_model(target, small))
    assert narrow.dtype == getattr(torch, dtype.replace("e4m3", "e4m3fn"))
    torch.testing.assert_close(narrow.double(), wide, rtol=2.0 ** -(mantissa_bits + 1), atol=2.0**-10)
    core = with_model(target, small, kv_cache_dtype=dtype)
    assert tokens(core, 4) == tokens(core, 0)


def test_what_eight_bits_cannot_hold_becomes_the_largest(target: Path) -> None:
    cache = KVCache([LayerShape(1, 4)], dtype=torch.float8_e4m3fn, device=torch.device("cpu"), num_slots=2, length=4)
    cells = cache.cells(torch.tensor([0]), torch.tensor([1]), 1)
    cache.write(0, cells, torch.tensor([[[1e9, -1e9, 0.5, 0.0], [1.0, 2.0, 3.0, torch.nan]]]))
    cache.copy_prefix(0, 1, 2)
    cache.reshape(3, 8, {1: 2})
    keys, values = (each[2, 0, 1].float() for each in cache.layer(0))
    assert keys.tolist() == [448.0, -448.0, 0.5, 0.0]
    assert values[:3].tolist() == [1.0, 2.0, 3.0]
    assert values[3].isnan()
    cache.clear(2)
    assert not cache.layer(0)[1][2].float().any()
