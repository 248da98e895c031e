"""The family is run as transformers runs it; what is not of it is refused by name."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from tiny_llama import save_tiny_llama, tiny_tokenizer
from transformers import PreTrainedConfig, PreTrainedModel

from configs.errors import ConfigError
from workers.architecture import read_architecture
from workers.batch import Segment, build_batch
from workers.checkpoint import Checkpoint
from workers.kv_cache import KVCache, LayerShape
from workers.llama import Llama

SIZES: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "initializer_range": 0.2,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
FAMILY: dict[str, PreTrainedConfig] = {
    "llama": transformers.LlamaConfig(**SIZES),
    "llama, tied": transformers.LlamaConfig(**SIZES, tie_word_embeddings=True),
    "llama, biases": transformers.LlamaConfig(**SIZES, attention_bias=True, mlp_bias=True),
    "llama, wide heads": transformers.LlamaConfig(**SIZES, head_dim=16),
    "llama, llama3 rope": transformers.LlamaConfig(**SIZES, rope_parameters=LLAMA3),
    "llama, linear rope": transformers.LlamaConfig(
        **SIZES, rope_parameters={"rope_type": "linear", "factor": 2.0, "rope_theta": 10000.0}
    ),
    "llama, yarn rope": transformers.LlamaConfig(
        **SIZES,
        rope_parameters={
            "rope_type": "yarn",
            "factor": 4.0,
            "rope_theta": 10000.0,
            "original_max_position_embeddings": 64,
        },
    ),
    "mistral": transformers.MistralConfig(**SIZES, sliding_window=None),
    "qwen2": transformers.Qwen2Config(**SIZES),
    "qwen3": transformers.Qwen3Config(**SIZES, head_dim=16),
}


def saved(config: PreTrainedConfig, folder: Path) -> PreTrainedModel:
    """A random model of this config, its biases and norms random too."""
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config).double()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter += torch.randn_like(parameter) * 0.2
    model.save_pretrained(folder)
    tiny_tokenizer().save(str(folder / "tokenizer.json"))
    return model


def our_logits(folder: Path, prompts: list[list[int]]) -> list[torch.Tensor]:
    """Every row's logits, computed together in uneven chunks."""
    arch, cpu = read_architecture(folder), torch.device("cpu")
    model = Llama(arch, Checkpoint(folder, dtype=torch.float64, device=cpu), max_positions=256)
    cache = KVCache(
        [LayerShape(arch.num_kv_heads, arch.head_dim)] * arch.num_layers,
        dtype=torch.float64,
        device=cpu,
        num_slots=len(prompts),
        length=256,
    )
    rng, done, parts = random.Random(0), [0] * len(prompts), [[] for _ in prompts]
    while any(at < len(prompt) for at, prompt in zip(done, prompts, strict=True)):
        segments, owners = [], []
        for i, prompt in enumerate(prompts):
            if rows := min(rng.choice([1, 3, 20]), len(prompt) - done[i]):
                segments.append(Segment(i, done[i], prompt[done[i] : done[i] + rows], rows))
                owners.append((i, rows))
                done[i] += rows
        batch = build_batch(segments, sharing=model.sharing, dtype=torch.float64, device=cpu)
        logits = model.logits(model.forward(batch, cache)[0][batch.logit_rows])
        for (i, _), part in zip(owners, logits.split([rows for _, rows in owners]), strict=True):
            parts[i].append(part)
    return [torch.cat(part) for part in parts]


@pytest.mark.parametrize("config", FAMILY.values(), ids=FAMILY)
def test_logits_are_those_of_transformers(config: PreTrainedConfig, tmp_path: Path) -> None:
    model = saved(config, tmp_path)
    rng = random.Random(1)
    prompts = [[rng.randrange(64) for _ in range(length)] for length in (5, 90, 31)]
    with torch.inference_mode():
        for prompt, ours in zip(prompts, our_logits(tmp_path, prompts), strict=True):
            theirs = model(torch.tensor([prompt])).logits[0]
            # Its norms and rotary angles pass through float32, whatever the weights are.
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"]}, "GPT2LMHeadModel"),
        ({"hidden_act": "gelu"}, "gelu"),
        ({"quantization_config": {"quant_method": "bitsandbytes"}}, "dequantized"),
        ({"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}}, "dynamic"),
        ({"model_type": "no-such-model"}, "no-such-model"),
    ],
)
def test_what_is_not_implemented_is_refused(tmp_path: Path, change: dict[str, object], named: str) -> None:
    save_tiny_llama(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text()) | change
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ConfigError, match=named):
        read_architecture(tmp_path)


def test_a_sliding_window_bounds_the_length(tmp_path: Path) -> None:
    saved(transformers.MistralConfig(**SIZES, sliding_window=100), tmp_path)
    assert read_architecture(tmp_path).max_position == 100


def test_a_missing_tensor_is_named(tmp_path: Path) -> None:
    save_tiny_llama(tmp_path)
    checkpoint = Checkpoint(tmp_path, dtype=torch.float32, device=torch.device("cpu"))
    assert "model.norm.weight" in checkpoint
    with pytest.raises(ConfigError, match=r"model\.nothing"):
        checkpoint.tensor("model.nothing")


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    save_tiny_llama(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"not weights")
    with pytest.raises(ConfigError, match=r"model\.safetensors"):
        Checkpoint(tmp_path, dtype=torch.float32, device=torch.device("cpu"))
