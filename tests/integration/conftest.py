"""What the integration tests share: a tiny model that loads at once, and a workplace with a job in it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from workplace import Workplace

from workers.models import fetch

TINY = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
}


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random two-layer Llama with the demo model's own tokenizer and chat template: real text in, noise out, fast."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    source = fetch("smollm2-135m-instruct")
    folder: Path = tmp_path_factory.mktemp("tiny-model")
    for name in os.listdir(source):
        if name.startswith(("tokenizer", "special_tokens", "chat_template", "generation_config")):
            shutil.copy(source / name, folder / name)
    torch.manual_seed(0)
    config = LlamaConfig(
        **TINY, vocab_size=49152, max_position_embeddings=2048, tie_word_embeddings=True, eos_token_id=2, bos_token_id=1
    )
    model = LlamaForCausalLM(config)
    model.save_pretrained(folder)
    return folder


@pytest.fixture
def workplace(tmp_path: Path) -> Workplace:
    return Workplace(tmp_path, {**os.environ, "PYTHONWARNINGS": "default"})


@pytest.fixture
def tiny_job(workplace: Workplace, tiny_model: Path) -> Callable[..., Path]:
    """Write a job over given rows for the tiny model; sections given replace the defaults."""

    def write(rows: Sequence[Mapping[str, Any]], **sections: Any) -> Path:
        workplace.write_rows(rows)
        job = {
            "workload": "tiny",
            "source": {"path": "rows.jsonl"},
            "tasks": {"default": {"sampling": {"max_tokens": 8}}},
            "model": {"path": str(tiny_model), "dtype": "float32"},
            "engine": {"max_num_seqs": 8},
            "cluster": {"workers": 1},
            "shard": {"target_seconds": 1, "tokens_per_second": 64},
        }
        return workplace.write_job(**(job | sections))

    return write
