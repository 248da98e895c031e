"""A GGUF file of the Llama architecture, written out as a Hugging Face folder in float32.

Dequantisation to float32 is exact: a Q4_1 or Q8_0 weight is a small integer times a half-precision scale plus a
half-precision offset, and float32 holds that product and sum as the format defines them. Serving rounds once, at load.

GGUF format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFReader, dequantize
from numpy.typing import NDArray
from safetensors.numpy import save_file

from configs.errors import ConfigError

_LAYER_TENSORS = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_MODEL_TENSORS = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}


def write_hf_folder(gguf_file: Path, folder: Path) -> None:
    """Write model.safetensors (float32), config.json, generation_config.json and the tokenizer's files.

    Raises:
        ConfigError: the file's architecture is not Llama.
    """
    reader = GGUFReader(gguf_file)
    metadata = {name: entry.contents() for name, entry in reader.fields.items()}
    if metadata.get("general.architecture") != "llama":
        raise ConfigError(
            f"{gguf_file} holds the architecture {metadata.get('general.architecture')!r}; only llama is converted. "
            "Convert it to a Hugging Face folder and give that folder as model.path"
        )
    weights = _weights(reader, metadata)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    _write_configs(metadata, tied="lm_head.weight" not in weights, folder=folder)
    _write_tokenizer(gguf_file, metadata, folder)


def _weights(reader: GGUFReader, metadata: dict[str, Any]) -> dict[str, NDArray[np.float32]]:
    heads = metadata["llama.attention.head_count"]
    kv_heads = metadata.get("llama.attention.head_count_kv", heads)
    weights = {}
    for tensor in reader.tensors:
        name = _hf_name(tensor.name)
        weight = np.ascontiguousarray(dequantize(tensor.data, tensor.tensor_type), dtype=np.float32)
        if name.endswith(("q_proj.weight", "k_proj.weight")):
            weight = _split_rotary_halves(weight, heads if "q_proj" in name else kv_heads)
        weights[name] = weight
    return weights


def _hf_name(gguf_name: str) -> str:
    parts = gguf_name.split(".")
    if parts[0] == "blk":
        return f"model.layers.{parts[1]}.{_LAYER_TENSORS[parts[2]]}.{parts[3]}"
    return f"{_MODEL_TENSORS[parts[0]]}.{parts[1]}"


def _split_rotary_halves(weight: NDArray[np.float32], heads: int) -> NDArray[np.float32]:
    """GGUF keeps the two members of a rotary pair in neighbouring rows, Hugging Face half a head apart."""
    pairs = weight.reshape(heads, -1, 2, weight.shape[-1])
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(weight.shape)


def _write_configs(metadata: dict[str, Any], *, tied: bool, folder: Path) -> None:
    from transformers import GenerationConfig, LlamaConfig

    tokens = {part: metadata.get(f"tokenizer.ggml.{name}_token_id") for part, name in _TOKEN_IDS.items()}
    heads = metadata["llama.attention.head_count"]
    config = LlamaConfig(
        vocab_size=metadata["llama.vocab_size"],
        hidden_size=metadata["llama.embedding_length"],
        intermediate_size=metadata["llama.feed_forward_length"],
        num_hidden_layers=metadata["llama.block_count"],
        num_attention_heads=heads,
        num_key_value_heads=metadata.get("llama.attention.head_count_kv", heads),
        max_position_embeddings=metadata["llama.context_length"],
        # GGUF rounds it to float32; six digits give back the number that was written.
        rms_norm_eps=float(f"{metadata['llama.attention.layer_norm_rms_epsilon']:.6g}"),
        rope_parameters={"rope_type": "default", "rope_theta": float(metadata.get("llama.rope.freq_base", 10000.0))},
        tie_word_embeddings=tied,
        dtype="float32",
        architectures=["LlamaForCausalLM"],
        **tokens,
    )
    config.save_pretrained(folder)
    GenerationConfig(**tokens).save_pretrained(folder)


_TOKEN_IDS = {"bos_token_id": "bos", "eos_token_id": "eos", "pad_token_id": "padding"}


def _write_tokenizer(gguf_file: Path, metadata: dict[str, Any], folder: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(gguf_file.parent, gguf_file=gguf_file.name)
    if not tokenizer.chat_template:
        tokenizer.chat_template = metadata.get("tokenizer.chat_template")
    tokenizer.save_pretrained(folder)
