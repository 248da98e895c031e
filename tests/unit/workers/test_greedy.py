"""Greedy output equals transformers' own generate, token for token, on the demo model in float32."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from tiny_llama import make_core, make_request, run
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, PreTrainedModel

from workers.models import fetch

MAX_TOKENS = 24
PROMPTS = [
    "Hi",
    "What is the capital of France?",
    "Write a Python function that adds two numbers.",
    "List three fruits, separated by commas.",
    "Extract the year as JSON: The bridge over the river was opened to traffic in the spring of 1932.",
    "Summarize in one sentence: Bees collect nectar from flowers and carry it to the hive, where they turn it into "
    "honey by adding enzymes and letting water evaporate. The honey feeds the colony in winter. On their way the bees "
    "carry pollen from flower to flower, and many plants depend on that to make seeds.",
    "Continue: one, two, three, one, two, three, one,",
    "Why is the sky blue? Answer for a child.",
]


@pytest.fixture(scope="module")
def demo_folder() -> Path:
    return fetch("smollm2-135m-instruct")


@pytest.fixture(scope="module")
def reference(demo_folder: Path) -> PreTrainedModel:
    return AutoModelForCausalLM.from_pretrained(demo_folder, dtype=torch.float32)


def chat_tokens(folder: Path, text: str) -> list[int]:
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    return list(tokenizer.encode(f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n").ids)


def by_transformers(model: PreTrainedModel, prompt: Sequence[int], max_tokens: int) -> tuple[int, ...]:
    output = model.generate(
        torch.tensor([prompt]), attention_mask=torch.ones(1, len(prompt)), do_sample=False, max_new_tokens=max_tokens
    )
    return tuple(output[0, len(prompt) :].tolist())


@pytest.mark.slow
def test_greedy_equals_transformers(demo_folder: Path, reference: PreTrainedModel) -> None:
    """Alone and sixteen at once, lengths mixed, plain and drafted."""
    prompts = {f"row{i}": chat_tokens(demo_folder, text) for i, text in enumerate(PROMPTS)}
    lengths = {name: MAX_TOKENS if i % 2 else MAX_TOKENS // 2 for i, name in enumerate(prompts)}
    expected = {f"{name}#0": by_transformers(reference, prompt, lengths[name]) for name, prompt in prompts.items()}
    core = make_core(demo_folder, dtype="float32", max_num_seqs=16, max_batched_tokens=256, prefill_chunk_tokens=50)
    alone = {
        request_id: end.token_ids
        for name, prompt in prompts.items()
        for request_id, end in run(core, [make_request(name, prompt, max_tokens=lengths[name])]).items()
    }
    assert alone == expected
    twice = [
        make_request(name, prompt, sample=k // 4, k=k, max_tokens=lengths[name])
        for k in (0, 4)
        for name, prompt in prompts.items()
    ]
    together = run(core, twice)
    assert {name: end.token_ids for name, end in together.items() if name.endswith("#0")} == expected
    assert {name[:-1] + "0": end.token_ids for name, end in together.items() if name.endswith("#1")} == expected
