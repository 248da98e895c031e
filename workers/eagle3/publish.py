"""Writing a head as EAGLE, SGLang, vLLM and TensorRT-LLM read it: config.json and model.safetensors."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from workers.architecture import Architecture
from workers.distillation.provenance import write_json
from workers.eagle3.head_config import HeadConfig, default_capture
from workers.eagle3.vocabulary import DraftVocabulary


def publish(
    folder: Path,
    config: HeadConfig,
    weights: Mapping[str, Tensor],
    vocabulary: DraftVocabulary,
    target: Architecture,
    *,
    dtype: torch.dtype = torch.bfloat16,
) -> None:
    """`weights` under EAGLE's names, as `Trainee.state_dict()` has them."""
    tensors = {name: weight.detach().to(dtype).contiguous() for name, weight in weights.items()}
    # t2d is not read by us, but SGLang and TensorRT-LLM expect it.
    save_file(tensors | {"d2t": vocabulary.d2t, "t2d": vocabulary.t2d}, folder / "model.safetensors")
    write_json(folder / "config.json", config_of(config, target, dtype))


def config_of(config: HeadConfig, target: Architecture, dtype: torch.dtype) -> dict[str, Any]:
    """In EAGLE's own fields; the captured layers only where they are not the default, since publishers count them
    differently."""
    found: dict[str, Any] = {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": target.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": 1,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "rms_norm_eps": config.rms_norm_eps,
        "rope_theta": config.rope_theta,
        "max_position_embeddings": target.max_position,
        "vocab_size": target.vocab_size,
        "draft_vocab_size": config.draft_vocab_size,
        "tie_word_embeddings": False,
        "torch_dtype": str(dtype).removeprefix("torch."),
    }
    if config.capture != default_capture(target.num_layers):
        outputs = [layer - 1 for layer in config.capture]
        found["eagle_config"] = {"eagle_aux_hidden_state_layer_ids": outputs}
    if config.norm_before_residual:
        found["norm_before_residual"] = True
    return found
