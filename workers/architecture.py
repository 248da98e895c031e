"""The shape of a Llama-family decoder, read from a checkpoint's config.json.

Llama, Mistral, Qwen2 and Qwen3 share one forward pass and differ in three switches: biases on q, k, v; a norm on q and
k; and how rotary frequencies are scaled. Whatever else a config asks for is refused rather than ignored.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from configs.errors import ConfigError

FAMILY = ("llama", "mistral", "qwen2", "qwen3")
_STATIC_ROPE = ("default", "linear", "llama3", "yarn")
"""Scalings whose frequencies do not change with the length of the sequence."""


@dataclass(frozen=True, slots=True)
class Architecture:
    """Sizes and switches of a decoder."""

    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    rms_norm_eps: float
    max_position: int
    """Prompt + output tokens that the model was made for, its sliding window included."""
    tied_embeddings: bool
    qkv_bias: bool
    output_bias: bool
    mlp_bias: bool
    qk_norm: bool
    inverse_frequencies: Tensor
    """[head_dim / 2] float32"""
    rope_scale: float
    """Factor on the cosines and sines (YaRN's attention factor; 1 elsewhere)."""

    @property
    def kv_values_per_token(self) -> int:
        """Numbers that the KV cache holds per token, over all layers."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim


def read_architecture(folder: Path) -> Architecture:
    """Read config.json.

    Raises:
        ConfigError: the model is not of the family, or uses a part of it that is not implemented.
    """
    from transformers import AutoConfig

    try:
        config = AutoConfig.from_pretrained(folder, local_files_only=True)
    except (ValueError, OSError, KeyError) as error:
        raise ConfigError(f"{folder / 'config.json'} cannot be read: {error}") from error
    _refuse_foreign(config, folder)
    frequencies, rope_scale = _rotary(config, folder)
    model_type = config.model_type
    attention_bias = bool(getattr(config, "attention_bias", False))
    return Architecture(
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        num_layers=config.num_hidden_layers,
        num_heads=config.num_attention_heads,
        num_kv_heads=config.num_key_value_heads,
        head_dim=_head_dim(config),
        intermediate_size=config.intermediate_size,
        rms_norm_eps=config.rms_norm_eps,
        max_position=_max_position(config),
        tied_embeddings=bool(config.tie_word_embeddings),
        qkv_bias=attention_bias or model_type == "qwen2",
        output_bias=attention_bias,
        mlp_bias=bool(getattr(config, "mlp_bias", False)),
        qk_norm=model_type == "qwen3",
        inverse_frequencies=frequencies,
        rope_scale=rope_scale,
    )


def _refuse_foreign(config: Any, folder: Path) -> None:
    if config.model_type not in FAMILY:
        raise ConfigError(
            f"{folder} holds a {config.model_type!r} model ({', '.join(config.architectures or ['unnamed'])}); "
            f"the torch engine runs {', '.join(FAMILY)}. Choose a checkpoint of these"
        )
    if config.hidden_act != "silu":
        raise ConfigError(f"{folder}: hidden_act {config.hidden_act!r} is not implemented; the family uses silu")
    if getattr(config, "quantization_config", None):
        raise ConfigError(f"{folder} is quantized; save it dequantized (bf16 or fp32 safetensors) first")


def _head_dim(config: Any) -> int:
    return int(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)


def _max_position(config: Any) -> int:
    """Inside its window, sliding attention is full attention; beyond it the model is not run."""
    window = getattr(config, "sliding_window", None)
    slides = window and getattr(config, "use_sliding_window", True)
    return int(min(config.max_position_embeddings, window) if slides else config.max_position_embeddings)


def _rotary(config: Any, folder: Path) -> tuple[Tensor, float]:
    """Inverse frequencies and scale, by transformers' own functions for the scaled kinds."""
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    kind = config.rope_parameters.get("rope_type", "default")
    if kind not in _STATIC_ROPE or config.rope_parameters.get("partial_rotary_factor", 1.0) != 1.0:
        raise ConfigError(
            f"{folder}: rotary embedding {config.rope_parameters} is not implemented; known: {', '.join(_STATIC_ROPE)}"
        )
    if kind != "default":
        frequencies, scale = ROPE_INIT_FUNCTIONS[kind](config, torch.device("cpu"))
        return frequencies.float(), float(scale)
    exponents = torch.arange(0, _head_dim(config), 2, dtype=torch.float32) / _head_dim(config)
    return 1.0 / (config.rope_parameters["rope_theta"] ** exponents), 1.0
