"""The EAGLE-3 head as a module that can be trained, with the unrolled steps of training-time test.

At step j the head drafts the token j + 1 places ahead, from its own output of step j - 1 in place of a target feature,
and is judged against the target there. So it learns from what it will meet when it drafts (arXiv 2503.01840, §3.1).

An anchor is the last position p whose feature is the target's. Its query at step j sits at position p + j and sees the
pairs of true features up to p, and of the pairs drafted since only its own: one further key per step.

Letters in names: B sequences, S anchors, H hidden size, N heads, D head size, V draft vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from workers.eagle3.head_config import HeadConfig
from workers.llama import RotaryTable


class Attention(nn.Module):
    """Projections of a layer whose queries, keys and values read token and feature side by side."""

    def __init__(self, config: HeadConfig, hidden_size: int) -> None:
        super().__init__()
        heads, keys = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
        self.q_proj = nn.Linear(2 * hidden_size, heads, bias=False)
        self.k_proj = nn.Linear(2 * hidden_size, keys, bias=False)
        self.v_proj = nn.Linear(2 * hidden_size, keys, bias=False)
        self.o_proj = nn.Linear(heads, hidden_size, bias=False)


class FeedForward(nn.Module):
    """silu(gate) * up, then down."""

    def __init__(self, config: HeadConfig, hidden_size: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return out


class Layer(nn.Module):
    """The head's one decoder layer."""

    def __init__(self, config: HeadConfig, hidden_size: int) -> None:
        super().__init__()
        self.input_layernorm = nn.RMSNorm(hidden_size, eps=config.rms_norm_eps)
        self.hidden_norm = nn.RMSNorm(hidden_size, eps=config.rms_norm_eps)
        self.post_attention_layernorm = nn.RMSNorm(hidden_size, eps=config.rms_norm_eps)
        self.self_attn = Attention(config, hidden_size)
        self.mlp = FeedForward(config, hidden_size)


class Trainee(nn.Module):
    """A head's weights under EAGLE's own names, so that its state is a checkpoint as it stands."""

    def __init__(self, config: HeadConfig, hidden_size: int, max_positions: int) -> None:
        super().__init__()
        self.config = config
        self.fc = nn.Linear(3 * hidden_size, hidden_size, bias=False)
        self.midlayer = Layer(config, hidden_size)
        self.norm = nn.RMSNorm(hidden_size, eps=config.rms_norm_eps)
        self.lm_head = nn.Linear(hidden_size, config.draft_vocab_size, bias=False)
        self._rotary = RotaryTable(config.inverse_frequencies, 1.0, max_positions, like=self.fc.weight.detach())

    def unrolled(self, embedded_BSH: Tensor, taps_BS3H: Tensor, steps: int) -> Iterator[Tensor]:
        """Logits [B, S - j, V] of step j = 0 … steps - 1.

        `embedded`: the embeddings of the tokens *after* each anchor. `taps`: the target's hidden states at the anchors.
        An anchor whose token at step j lies beyond the sequence drops out.
        """
        features = self.fc(taps_BS3H)
        keys: list[Tensor] = []
        values: list[Tensor] = []
        for step in range(min(steps, embedded_BSH.shape[1])):
            anchors = embedded_BSH.shape[1] - step
            features = self._layer(embedded_BSH[:, step:], features[:, :anchors], step, keys, values)
            yield self.logits(features)

    def logits(self, hidden: Tensor) -> Tensor:
        """The layer's output [..., H] -> [..., V]"""
        out: Tensor = self.lm_head(self.norm(hidden))
        return out

    def _layer(self, embedded: Tensor, features: Tensor, step: int, keys: list[Tensor], values: list[Tensor]) -> Tensor:
        layer = self.midlayer
        normed = layer.hidden_norm(features)
        joined = torch.cat([layer.input_layernorm(embedded), normed], dim=-1)
        residual = normed if self.config.norm_before_residual else features
        hidden: Tensor = residual + self._attention(joined, step, keys, values)
        out: Tensor = hidden + layer.mlp(layer.post_attention_layernorm(hidden))
        return out

    def _attention(self, joined: Tensor, step: int, keys: list[Tensor], values: list[Tensor]) -> Tensor:
        """Adds the step's own keys and values [B, N, S, D] to those of the steps before."""
        attention, anchors = self.midlayer.self_attn, joined.shape[1]
        query, key, value = (self._heads(p(joined)) for p in (attention.q_proj, attention.k_proj, attention.v_proj))
        positions = torch.arange(step, step + anchors, device=joined.device)
        keys.append(self._rotated(key, positions).repeat_interleave(self._sharing, dim=1))
        values.append(value.repeat_interleave(self._sharing, dim=1))
        query = self._rotated(query, positions) * self.config.head_dim**-0.5
        causal = torch.ones(anchors, anchors, dtype=torch.bool, device=joined.device).tril()
        true_scores = (query @ keys[0][:, :, :anchors].transpose(2, 3)).masked_fill(~causal, -torch.inf)
        own_scores = [(query * own[:, :, :anchors]).sum(-1, keepdim=True) for own in keys[1:]]
        weights = torch.cat([true_scores, *own_scores], dim=-1).softmax(-1)
        out = weights[..., :anchors] @ values[0][:, :, :anchors]
        for place, own in enumerate(values[1:], start=anchors):
            out = out + weights[..., place, None] * own[:, :, :anchors]
        attended: Tensor = attention.o_proj(out.transpose(1, 2).flatten(2))
        return attended

    @property
    def _sharing(self) -> int:
        return self.config.num_heads // self.config.num_kv_heads

    def _heads(self, x_BSX: Tensor) -> Tensor:
        heads: Tensor = x_BSX.unflatten(2, (-1, self.config.head_dim))
        return heads.transpose(1, 2)

    def _rotated(self, x_BNSD: Tensor, positions_S: Tensor) -> Tensor:
        cos, sin = (table[:, 0] for table in self._rotary.at(positions_S))
        return x_BNSD * cos + x_BNSD.roll(x_BNSD.shape[-1] // 2, -1) * sin
