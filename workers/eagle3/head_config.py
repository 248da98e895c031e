"""The shape of a draft head, read from the config.json of any of its publishers.

EAGLE, SpecForge, SGLang and ModelOpt write the fields of one Llama layer at the top; speculators nests them under
`transformer_layer_config`. What a head needs that is not implemented here is refused rather than ignored, and so is a
head made for another target.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from configs.errors import ConfigError
from configs.job import Draft
from workers.architecture import Architecture

ARCHITECTURES = ("LlamaForCausalLMEagle3", "Eagle3LlamaForCausalLM", "Eagle3Speculator", "Eagle3DraftModel")
_NOT_IMPLEMENTED = ("norm_before_fc", "norm_output", "fc_norm", "attention_bias", "mlp_bias")
"""Switches of later variants (EAGLE-3.1); false or absent in EAGLE-3."""


@dataclass(frozen=True, slots=True)
class HeadConfig:
    """Sizes of a head that fits its target."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    rms_norm_eps: float
    rope_theta: float
    draft_vocab_size: int
    """Tokens that it can propose; at most the target's."""
    capture: tuple[int, int, int]
    """Layers of the target whose input it reads."""
    norm_before_residual: bool
    """The residual is the normed feature (speculators), not the feature itself."""

    @property
    def inverse_frequencies(self) -> Tensor:
        """[head_dim / 2] float32, of the rotary embedding."""
        exponents = torch.arange(0, self.head_dim, 2, dtype=torch.float32) / self.head_dim
        return 1.0 / (self.rope_theta**exponents)


def default_capture(num_layers: int) -> tuple[int, int, int]:
    """The inputs of layers 2, L/2 and L-3, as EAGLE's own code takes them; TensorRT-LLM counts the same places as
    outputs of the layers before."""
    return min(2, num_layers - 1), num_layers // 2, max(0, num_layers - 3)


def read_head_config(folder: Path, target: Architecture) -> HeadConfig:
    """Read and check config.json.

    Raises:
        ConfigError: it is no EAGLE-3 head, was made for another target, or needs what is not implemented; the message
            names the field.
    """
    path = folder / "config.json"
    raw = _read(path)
    layer = raw.get("transformer_layer_config") or raw
    _refuse_foreign(raw, layer, path)
    _refuse_other_target(raw, layer, path, target)
    hidden, heads = target.hidden_size, int(_needed(layer, "num_attention_heads", path))
    return HeadConfig(
        num_heads=heads,
        num_kv_heads=int(layer.get("num_key_value_heads") or heads),
        head_dim=int(layer.get("head_dim") or hidden // heads),
        intermediate_size=int(_needed(layer, "intermediate_size", path)),
        rms_norm_eps=float(layer.get("rms_norm_eps", 1e-6)),
        rope_theta=_rope_theta(layer, path),
        draft_vocab_size=_draft_vocab_size(raw, path, target),
        capture=_capture(raw, path, target.num_layers),
        # The one default on which publishers differ: https://github.com/vllm-project/vllm (speculators/algos.py).
        norm_before_residual=bool(raw.get("norm_before_residual", "speculators_model_type" in raw)),
    )


def head_config_of(draft: Draft, target: Architecture) -> HeadConfig | None:
    """The shape of a job's draft head, with the job's own word on the layers it reads; None without a head.

    Raises:
        ConfigError: as `read_head_config`, or draft.capture_layers names a layer that the target lacks.
    """
    if draft.path is None:
        return None
    config = read_head_config(Path(draft.path).expanduser(), target)
    if draft.capture_layers is None:
        return config
    if not all(0 <= layer < target.num_layers for layer in draft.capture_layers):
        raise ConfigError(
            f"draft.capture_layers {list(draft.capture_layers)}: the target has layers 0 to {target.num_layers - 1}"
        )
    return replace(config, capture=draft.capture_layers)


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{path} does not exist; draft.path must be the folder of a draft head") from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from None
    if not isinstance(found, dict):
        raise ConfigError(f"{path} holds no JSON object; copy the head's config again")
    return found


def _needed(layer: Mapping[str, Any], name: str, path: Path) -> Any:
    if layer.get(name) is None:
        raise ConfigError(f"{path} has no {name}; the head's config is incomplete")
    return layer[name]


def _refuse_foreign(raw: Mapping[str, Any], layer: Mapping[str, Any], path: Path) -> None:
    names = raw.get("architectures") or []
    if raw.get("speculators_model_type") != "eagle3" and not set(names) & set(ARCHITECTURES):
        raise ConfigError(
            f"{path}: architectures {names} is no EAGLE-3 head; known are {', '.join(ARCHITECTURES)}. "
            "draft.path must be the folder of a head, not of a model"
        )
    for name in _NOT_IMPLEMENTED:
        if raw.get(name) or layer.get(name):
            raise ConfigError(f"{path}: {name} is not implemented; use a head without it")
    if int(layer.get("num_hidden_layers") or 1) != 1:
        raise ConfigError(f"{path}: num_hidden_layers is {layer['num_hidden_layers']}; an EAGLE-3 head has one")
    if (activation := layer.get("hidden_act", "silu")) != "silu":
        raise ConfigError(f"{path}: hidden_act {activation!r} is not implemented; EAGLE-3 heads use silu")


def _refuse_other_target(raw: Mapping[str, Any], layer: Mapping[str, Any], path: Path, target: Architecture) -> None:
    for name, expected in (("hidden_size", target.hidden_size), ("vocab_size", target.vocab_size)):
        found = _needed(layer, name, path)
        if found != expected:
            raise ConfigError(f"{path}: {name} is {found}, the target's is {expected}; the head is for another model")
    wanted = raw.get("target_hidden_size") or target.hidden_size
    if wanted != target.hidden_size:
        raise ConfigError(
            f"{path}: target_hidden_size is {wanted}, the target's hidden_size is {target.hidden_size}; "
            "the head is for another model"
        )


def _draft_vocab_size(raw: Mapping[str, Any], path: Path, target: Architecture) -> int:
    size = int(raw.get("draft_vocab_size") or target.vocab_size)
    if not 0 < size <= target.vocab_size:
        raise ConfigError(f"{path}: draft_vocab_size is {size}, outside 1..{target.vocab_size} of the target")
    return size


def _rope_theta(layer: Mapping[str, Any], path: Path) -> float:
    rope = layer.get("rope_parameters") or layer.get("rope_scaling") or {}
    if rope.get("rope_type", rope.get("type", "default")) != "default":
        raise ConfigError(f"{path}: scaled rotary embedding {rope} is not implemented for a head")
    return float(layer.get("rope_theta") or rope.get("rope_theta") or 10_000.0)


def _capture(raw: Mapping[str, Any], path: Path, num_layers: int) -> tuple[int, int, int]:
    """speculators and vLLM name layers by their input; `eagle_config`, of SpecForge and ModelOpt, by the output."""
    inputs = raw.get("eagle_aux_hidden_state_layer_ids")
    outputs = (raw.get("eagle_config") or {}).get("eagle_aux_hidden_state_layer_ids")
    found = inputs if inputs is not None else [layer + 1 for layer in outputs] if outputs is not None else None
    if found is None:
        found = default_capture(num_layers)
    if len(found) != 3 or not all(0 <= layer < num_layers for layer in found):
        raise ConfigError(
            f"{path}: eagle_aux_hidden_state_layer_ids {inputs or outputs or list(found)} does not name three of the "
            f"target's {num_layers} layers; the head is for another model"
        )
    low, middle, high = found
    return int(low), int(middle), int(high)
