"""The forward pass of a Llama-family decoder over a ragged batch.

Written out rather than taken from transformers because serving needs what a module for training does not have: rows of
many sequences in one pass, keys and values written in place into slots, joined projections, and logits of chosen rows
only. The mathematics is that of https://arxiv.org/abs/2302.13971 with grouped-query attention; weights keep Hugging
Face's names.

Letters in names: N rows, H query heads, K key heads, D head size.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from workers.architecture import Architecture
from workers.batch import Batch
from workers.checkpoint import Checkpoint
from workers.kv_cache import KVCache
from workers.linear import Gated, Linear


class Llama:
    """Weights on a device, and the pass over them."""

    def __init__(
        self, arch: Architecture, checkpoint: Checkpoint, *, max_positions: int, capture: Sequence[int] = ()
    ) -> None:
        """`max_positions`: how many positions the rotary table covers. `capture`: layers whose input a draft head
        reads."""
        self.arch = arch
        self.capture = tuple(capture)
        self.embedding = checkpoint.tensor("model.embed_tokens.weight")
        norm = UnweightedNorm(arch.hidden_size, arch.rms_norm_eps, like=self.embedding)
        self.layers = [_Layer(arch, checkpoint, index, norm) for index in range(arch.num_layers)]
        self.norm = checkpoint.tensor("model.norm.weight")
        self.lm_head = Linear(self.embedding if arch.tied_embeddings else checkpoint.tensor("lm_head.weight"))
        self.rotary = RotaryTable(arch.inverse_frequencies, arch.rope_scale, max_positions, like=self.embedding)

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

    def forward(self, batch: Batch, cache: KVCache, *, first_layer: int = 0) -> tuple[Tensor, Tensor | None]:
        """Run the rows, writing their keys and values -> hidden states after the last norm [N, hidden], and what was
        captured on the way, side by side [N, layers captured · hidden]. `first_layer`: of the cache's layers that are
        this model's."""
        hidden = F.embedding(batch.token_ids, self.embedding)
        rotation = self.rotary.at(batch.positions)
        cells = cache.cells(batch.slots, batch.places, self.arch.num_kv_heads)
        inputs: dict[int, Tensor] = {}
        for index, layer in enumerate(self.layers):
            if index in self.capture:
                inputs[index] = hidden
            attended = layer.attention(hidden, rotation, cells, batch, cache, first_layer + index)
            hidden = layer.feed_forward(attended)
        last = F.rms_norm(hidden, self.norm.shape, self.norm, self.arch.rms_norm_eps)
        return last, torch.cat([inputs[index] for index in self.capture], dim=1) if self.capture else None

    def logits(self, hidden: Tensor) -> Tensor:
        """[R, hidden] -> [R, vocab]"""
        return self.lm_head(hidden)


class _Layer:
    """One decoder layer: attention, then a gated feed-forward network, each after a norm and around a residual."""

    def __init__(self, arch: Architecture, checkpoint: Checkpoint, index: int, norm: UnweightedNorm) -> None:
        prefix = f"model.layers.{index}."

        def linear(has_bias: bool, *parts: str, after: str | None = None) -> Linear:
            weight = checkpoint.stacked(*(f"{prefix}{part}_proj.weight" for part in parts))
            if after is not None:
                weight = self._norm.folded_into(weight, checkpoint.tensor(f"{prefix}{after}.weight"))
            return Linear(
                weight, checkpoint.stacked(*(f"{prefix}{part}_proj.bias" for part in parts)) if has_bias else None
            )

        self._arch = arch
        self._norm = norm
        self._qkv = linear(arch.qkv_bias, "self_attn.q", "self_attn.k", "self_attn.v", after="input_layernorm")
        self._output = linear(arch.output_bias, "self_attn.o")
        gate = linear(arch.mlp_bias, "mlp.gate", after="post_attention_layernorm")
        self._gated = Gated(gate, linear(arch.mlp_bias, "mlp.up", after="post_attention_layernorm"))
        self._down = linear(arch.mlp_bias, "mlp.down")
        self._qk_norm = _qk_norm(arch, checkpoint, prefix) if arch.qk_norm else None

    def attention(
        self, hidden: Tensor, rotation: Rotation, cells: Tensor, batch: Batch, cache: KVCache, index: int
    ) -> Tensor:
        """Attend over the cache, to which the rows' own keys and values are added first -> [N, hidden]"""
        heads, kv_heads = self._arch.num_heads, self._arch.num_kv_heads
        qkv_NHD = self._qkv(self._norm(hidden)).view(len(hidden), heads + 2 * kv_heads, self._arch.head_dim)
        if self._qk_norm is not None:
            qk_NHD = F.rms_norm(qkv_NHD[:, :-kv_heads], (self._arch.head_dim,), None, self._arch.rms_norm_eps)
            qkv_NHD = torch.cat([qk_NHD * self._qk_norm, qkv_NHD[:, -kv_heads:]], dim=1)
        rotate_(qkv_NHD[:, :-kv_heads], rotation)
        cache.write(index, cells, qkv_NHD[:, heads:])
        return self._output.added_to(hidden, batch.attention.attend(qkv_NHD[:, :heads], *cache.layer(index)))

    def feed_forward(self, hidden: Tensor) -> Tensor:
        """[N, hidden] -> [N, hidden]"""
        return self._down.added_to(hidden, self._gated(self._norm(hidden)))


def _qk_norm(arch: Architecture, checkpoint: Checkpoint, prefix: str) -> Tensor:
    """[H + K, D]: the norm's weight for every query head, then for every key head."""
    query = checkpoint.tensor(f"{prefix}self_attn.q_norm.weight").expand(arch.num_heads, -1)
    return torch.cat([query, checkpoint.tensor(f"{prefix}self_attn.k_norm.weight").expand(arch.num_kv_heads, -1)])


class UnweightedNorm:
    """RMS norm (https://arxiv.org/abs/1910.07467) up to a factor per column, which the product that follows has taken
    into its weights: x / sqrt(sum x² + n·eps), in three passes where the whole norm takes eight."""

    def __init__(self, size: int, eps: float, *, like: Tensor) -> None:
        self._sqrt_size = math.sqrt(size)
        self._floor = torch.tensor(math.sqrt(size * eps), dtype=_wide(like.dtype), device=like.device)

    def __call__(self, x_NH: Tensor) -> Tensor:
        """[N, hidden] -> [N, hidden]; sums in at least float32."""
        length_N1 = torch.linalg.vector_norm(x_NH, dim=-1, keepdim=True, dtype=self._floor.dtype)
        return torch.div(x_NH, torch.hypot(length_N1, self._floor), out=torch.empty_like(x_NH))

    def folded_into(self, weight_OH: Tensor, scale_H: Tensor) -> Tensor:
        """The weight of a product after the norm whose scale is `scale_H`; rounded once."""
        wide = self._floor.dtype
        return (weight_OH.to(wide) * (scale_H.to(wide) * self._sqrt_size)).to(weight_OH.dtype)


def _wide(dtype: torch.dtype) -> torch.dtype:
    return dtype if dtype == torch.float64 else torch.float32


Rotation = tuple[Tensor, Tensor]
"""Cosines and sines for the rows of a batch, each [N, 1, D]."""


def rotate_(x_NHD: Tensor, rotation: Rotation) -> None:
    """Rotary position embedding (https://arxiv.org/abs/2104.09864) in place, pairs half a head apart. The sines carry
    the sign of their half, so that swapping halves is the whole of the rotation."""
    cos, sin = rotation
    swapped = x_NHD.roll(x_NHD.shape[-1] // 2, -1)
    x_NHD.mul_(cos).addcmul_(swapped, sin)


class RotaryTable:
    """Cosines and signed sines of every position."""

    def __init__(self, inverse_frequencies: Tensor, scale: float, max_positions: int, *, like: Tensor) -> None:
        """`inverse_frequencies` [D / 2]."""
        angles = torch.outer(torch.arange(max_positions, dtype=torch.float32), inverse_frequencies)
        cos, sin = angles.cos() * scale, angles.sin() * scale
        self._cos = torch.cat([cos, cos], dim=1)[:, None].to(like)
        self._sin = torch.cat([-sin, sin], dim=1)[:, None].to(like)

    def at(self, positions_N: Tensor) -> Rotation:
        """The rotation of rows at these positions."""
        return self._cos[positions_N], self._sin[positions_N]
