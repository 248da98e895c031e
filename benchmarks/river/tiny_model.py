"""A model that costs next to nothing, so that what is around it can be measured."""

from __future__ import annotations

import shutil
from pathlib import Path

from workers.models import fetch

TOKENIZER_OF = "smollm2-135m-instruct"
TOKENIZER_FILES = ("tokenizer", "special_tokens", "chat_template", "generation_config")
"""How their names begin."""


def save_tiny_model(folder: Path) -> Path:
    """A random Llama of two layers with the demo model's tokenizer, chat template and vocabulary."""
    # They take seconds to load, and are of use only here.
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    folder.mkdir(parents=True)
    for file in fetch(TOKENIZER_OF).iterdir():
        if file.name.startswith(TOKENIZER_FILES):
            shutil.copy(file, folder / file.name)
    torch.manual_seed(0)
    shape = LlamaConfig(
        vocab_size=49152,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        bos_token_id=1,
        eos_token_id=2,
    )
    LlamaForCausalLM(shape).save_pretrained(folder)
    return folder
