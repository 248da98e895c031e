"""A random EAGLE-3 head for a tiny Llama, as any of its publishers would write it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import LlamaConfig

NAMINGS: dict[str, Callable[[str], str]] = {
    "EAGLE": lambda name: name,
    "speculators": lambda name: name.replace("midlayer.", "layers.0."),
    "nested": lambda name: "model." + name,
}


def head_tensors(
    target: LlamaConfig, *, heads: int, kv_heads: int, draft_vocab: int, seed: int = 0
) -> dict[str, Tensor]:
    """Under EAGLE's own names, in float64."""
    generator = torch.Generator().manual_seed(seed)
    hidden, inner, size = target.hidden_size, 48, target.hidden_size // heads

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64) * 0.3

    def scale() -> Tensor:
        return 1 + random(hidden)

    chosen = torch.randperm(target.vocab_size, generator=generator)[:draft_vocab].sort().values
    return {
        "fc.weight": random(hidden, 3 * hidden),
        "midlayer.input_layernorm.weight": scale(),
        "midlayer.hidden_norm.weight": scale(),
        "midlayer.post_attention_layernorm.weight": scale(),
        "midlayer.self_attn.q_proj.weight": random(heads * size, 2 * hidden),
        "midlayer.self_attn.k_proj.weight": random(kv_heads * size, 2 * hidden),
        "midlayer.self_attn.v_proj.weight": random(kv_heads * size, 2 * hidden),
        "midlayer.self_attn.o_proj.weight": random(hidden, heads * size),
        "midlayer.mlp.gate_proj.weight": random(inner, hidden),
        "midlayer.mlp.up_proj.weight": random(inner, hidden),
        "midlayer.mlp.down_proj.weight": random(hidden, inner),
        "norm.weight": scale(),
        "lm_head.weight": random(draft_vocab, hidden),
        "d2t": chosen - torch.arange(draft_vocab),
        "t2d": torch.isin(torch.arange(target.vocab_size), chosen),
    }


def head_config(target: LlamaConfig, *, heads: int, kv_heads: int, draft_vocab: int, **changes: Any) -> dict[str, Any]:
    config = {
        "architectures": ["LlamaForCausalLMEagle3"],
        "hidden_size": target.hidden_size,
        "intermediate_size": 48,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "num_hidden_layers": 1,
        "vocab_size": target.vocab_size,
        "draft_vocab_size": draft_vocab,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500.0,
        "hidden_act": "silu",
    }
    return config | changes


def save_tiny_head(
    folder: Path,
    target: LlamaConfig,
    *,
    heads: int = 4,
    kv_heads: int = 2,
    draft_vocab: int = 50,
    naming: str = "EAGLE",
    without: str = "",
    pickled: bool = False,
    **changes: Any,
) -> Path:
    """`changes`: keys of config.json; `without`: a tensor that is left out."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = head_tensors(target, heads=heads, kv_heads=kv_heads, draft_vocab=draft_vocab)
    named = {NAMINGS[naming](name): tensor for name, tensor in tensors.items() if name != without}
    if pickled:
        torch.save(named, folder / "pytorch_model.bin")
    else:
        save_file(named, folder / "model.safetensors")
    config = head_config(target, heads=heads, kv_heads=kv_heads, draft_vocab=draft_vocab, **changes)
    (folder / "config.json").write_text(json.dumps(config))
    return folder
