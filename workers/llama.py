"""The forward pass of a Llama-family decoder over a ragged batch.

Written out rather than taken from transformers because serving needs what a module for training does not have: rows of
many sequences in one pass, keys and values written in place into slots, joined projections, and logits of chosen rows
only. The mathematics is that of https://arxiv.org/abs/2302.13971 with grouped-query attention; weights keep Hugging
Face's names.

Letters in names: N rows, H query heads, K key heads, D head size.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from workers.architecture import Architecture
from workers.batch import Batch
from workers.checkpoint import Checkpoint
from workers.kv_cache import KVCache
from workers.linear import Linear


class Llama:
    """Weights on a device, and the pass over them."""

    def __init__(self, arch: Architecture, checkpoint: Checkpoint, *, max_positions: int) -> None:
        """`max_positions`: how many positions the rotary table covers."""
        self.arch = arch
        self.embedding = checkpoint.tensor("model.embed_tokens.weight")
        self.layers = [_Layer(arch, checkpoint, index) for index in range(arch.num_layers)]
        self.norm = checkpoint.tensor("model.norm.weight")
        self.lm_head = Linear(self.embedding if arch.tied_embeddings else checkpoint.tensor("lm_head.weight"))
        self.rotary = RotaryTable(arch, max_positions, like=self.embedding)

    @property
    def dtype(self) -> torch.dtype:
        return self.embedding.dtype

    @property
    def device(self) -> torch.device:
        return self.embedding.device

    @property
    def sharing(self) -> int:
        """Query heads per key head."""
        return self.arch.num_heads // self.arch.num_kv_heads

    def forward(self, batch: Batch, cache: KVCache) -> Tensor:
        """Run the rows, writing their keys and values -> hidden states after the last norm [N, hidden]."""
        hidden = F.embedding(batch.token_ids, self.embedding)
        rotation = self.rotary.at(batch.positions)
        places = cache.places(batch.slots, batch.positions)
        for index, layer in enumerate(self.layers):
            attended = layer.attention(hidden, rotation, places, batch, cache, index)
            hidden = layer.feed_forward(attended)
        return F.rms_norm(hidden, self.norm.shape, self.norm, self.arch.rms_norm_eps)

    def logits(self, hidden: Tensor) -> Tensor:
        """[R, hidden] -> [R, vocab]"""
        return self.lm_head(hidden)


class _Layer:
    """One decoder layer: attention, then a gated feed-forward network, each after a norm and around a residual."""

    def __init__(self, arch: Architecture, checkpoint: Checkpoint, index: int) -> None:
        prefix = f"model.layers.{index}."

        def linear(has_bias: bool, *parts: str) -> Linear:
            weight = checkpoint.stacked(*(f"{prefix}{part}_proj.weight" for part in parts))
            return Linear(
                weight, checkpoint.stacked(*(f"{prefix}{part}_proj.bias" for part in parts)) if has_bias else None
            )

        self._arch = arch
        self._input_norm = checkpoint.tensor(prefix + "input_layernorm.weight")
        self._post_norm = checkpoint.tensor(prefix + "post_attention_layernorm.weight")
        self._qkv = linear(arch.qkv_bias, "self_attn.q", "self_attn.k", "self_attn.v")
        self._output = linear(arch.output_bias, "self_attn.o")
        self._gate_up = linear(arch.mlp_bias, "mlp.gate", "mlp.up")
        self._down = linear(arch.mlp_bias, "mlp.down")
        self._qk_norm = _qk_norm(arch, checkpoint, prefix) if arch.qk_norm else None

    def attention(
        self, hidden: Tensor, rotation: Rotation, places: Tensor, batch: Batch, cache: KVCache, index: int
    ) -> Tensor:
        """Attend over the cache, to which the rows' own keys and values are added first -> [N, hidden]"""
        heads, kv_heads = self._arch.num_heads, self._arch.num_kv_heads
        normed = F.rms_norm(hidden, self._input_norm.shape, self._input_norm, self._arch.rms_norm_eps)
        qkv_NHD = self._qkv(normed).view(len(hidden), heads + 2 * kv_heads, self._arch.head_dim)
        if self._qk_norm is not None:
            qk_NHD = F.rms_norm(qkv_NHD[:, :-kv_heads], (self._arch.head_dim,), None, self._arch.rms_norm_eps)
            qkv_NHD = torch.cat([qk_NHD * self._qk_norm, qkv_NHD[:, -kv_heads:]], dim=1)
        qkv_NHD = rotate(qkv_NHD, rotation)
        cache.write(index, places, qkv_NHD[:, heads:])
        return self._output.added_to(hidden, batch.attention.attend(qkv_NHD[:, :heads], *cache.layer(index)))

    def feed_forward(self, hidden: Tensor) -> Tensor:
        """[N, hidden] -> [N, hidden]"""
        normed = F.rms_norm(hidden, self._post_norm.shape, self._post_norm, self._arch.rms_norm_eps)
        gate, up = self._gate_up(normed).chunk(2, dim=1)
        return self._down.added_to(hidden, F.silu(gate).mul_(up))


def _qk_norm(arch: Architecture, checkpoint: Checkpoint, prefix: str) -> Tensor:
    """[H + K, D]: the norm's weight for every query head, then for every key head."""
    query = checkpoint.tensor(f"{prefix}self_attn.q_norm.weight").expand(arch.num_heads, -1)
    return torch.cat([query, checkpoint.tensor(f"{prefix}self_attn.k_norm.weight").expand(arch.num_kv_heads, -1)])


Rotation = tuple[Tensor, Tensor]
"""Cosines and sines for the rows of a batch, each [N, H + 2K, D]."""


def rotate(x_NHD: Tensor, rotation: Rotation) -> Tensor:
    """Rotary position embedding (https://arxiv.org/abs/2104.09864), pairs half a head apart. The sines carry the sign
    of their half, so that swapping halves is the whole of the rotation."""
    cos, sin = rotation
    return torch.addcmul(x_NHD * cos, x_NHD.roll(x_NHD.shape[-1] // 2, -1), sin)


class RotaryTable:
    """Cosines and signed sines of every position. Values are turned by nothing (cosine 1, sine 0), so that queries,
    keys and values go through as one tensor and reach the cache in one copy."""

    def __init__(self, arch: Architecture, max_positions: int, *, like: Tensor) -> None:
        angles = torch.outer(torch.arange(max_positions, dtype=torch.float32), arch.inverse_frequencies)
        cos, sin = angles.cos() * arch.rope_scale, angles.sin() * arch.rope_scale
        self._cos = torch.cat([cos, cos], dim=1)[:, None].to(like)
        self._sin = torch.cat([-sin, sin], dim=1)[:, None].to(like)
        self._turned, self._unturned = arch.num_heads + arch.num_kv_heads, arch.num_kv_heads

    def at(self, positions_N: Tensor) -> Rotation:
        """The rotation of rows at these positions."""
        cos, sin = self._cos[positions_N], self._sin[positions_N]
        return self._over_heads(cos, torch.ones_like(cos)), self._over_heads(sin, torch.zeros_like(sin))

    def _over_heads(self, turned: Tensor, unturned: Tensor) -> Tensor:
        return torch.cat([turned.expand(-1, self._turned, -1), unturned.expand(-1, self._unturned, -1)], dim=1)
