"""The EAGLE-3 head's network over a ragged batch.

    feature_i = fc [tap_low ; tap_middle ; tap_high]_i      of the target at position i
    h_i       = layer([embed(x_{i+1}) ; feature_i])          one decoder layer; q, k, v read both halves
    logits_i  = lm_head norm(h_i)                            over the draft vocabulary: the token after x_{i+1}

Where the target has not been yet, h_i stands in for the feature of the next position, without `fc`.
Source: https://arxiv.org/abs/2503.01840 and https://github.com/SafeAILab/EAGLE.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from workers.architecture import Architecture
from workers.batch import Batch
from workers.eagle3.head_checkpoint import HeadCheckpoint
from workers.eagle3.head_config import HeadConfig
from workers.kv_cache import KVCache
from workers.linear import Gated, Linear
from workers.llama import RotaryTable, UnweightedNorm, rotate_


class Eagle3Head:
    """Weights on a device, and the pass over them. Letters in names: N rows, H hidden size, D head size."""

    def __init__(
        self,
        config: HeadConfig,
        target: Architecture,
        checkpoint: HeadCheckpoint,
        *,
        embedding: Tensor,
        max_positions: int,
    ) -> None:
        """`embedding` [vocab, H]: the target's, used unless the head brings its own.

        Raises:
            ConfigError: a tensor is missing or does not fit.
        """
        hidden, heads = target.hidden_size, config.num_heads * config.head_dim
        keys = config.num_kv_heads * config.head_dim
        own = "embed_tokens.weight"
        self.config = config
        self.embedding = checkpoint.tensor(own, *embedding.shape) if own in checkpoint else embedding
        self._eps = config.rms_norm_eps
        self._unit_norm = UnweightedNorm(hidden, self._eps, like=embedding)
        self._hidden_norm = checkpoint.tensor("midlayer.hidden_norm.weight", hidden)
        self._last_norm = checkpoint.tensor("norm.weight", hidden)

        def layer(name: str, *shape: int) -> Tensor:
            return checkpoint.tensor(f"midlayer.{name}.weight", *shape)

        self._fc = Linear(checkpoint.tensor("fc.weight", hidden, 3 * hidden))
        sizes = {"q": heads, "k": keys, "v": keys}
        qkv = torch.cat([layer(f"self_attn.{part}_proj", size, 2 * hidden) for part, size in sizes.items()])
        halves = zip(qkv.chunk(2, dim=1), (layer("input_layernorm", hidden), self._hidden_norm), strict=True)
        self._qkv = Linear(torch.cat([self._unit_norm.folded_into(half, scale) for half, scale in halves], dim=1))
        self._output = Linear(layer("self_attn.o_proj", hidden, heads))
        post = layer("post_attention_layernorm", hidden)
        gate, up = (
            Linear(self._unit_norm.folded_into(layer(f"mlp.{part}_proj", config.intermediate_size, hidden), post))
            for part in ("gate", "up")
        )
        self._gated = Gated(gate, up)
        self._down = Linear(layer("mlp.down_proj", hidden, config.intermediate_size))
        self._lm_head = Linear(checkpoint.tensor("lm_head.weight", config.draft_vocab_size, hidden))
        self.target_ids = checkpoint.target_ids(config.draft_vocab_size, target.vocab_size)
        self._rotary = RotaryTable(config.inverse_frequencies, 1.0, max_positions, like=embedding)

    @property
    def sharing(self) -> int:
        """Query heads per key head."""
        return self.config.num_heads // self.config.num_kv_heads

    def fuse(self, taps: Tensor) -> Tensor:
        """[N, 3H] hidden states of the target -> [N, H] features"""
        return self._fc(taps)

    def forward(self, batch: Batch, features: Tensor, cache: KVCache, layer: int) -> Tensor:
        """`batch`: its tokens are those *after* the positions of the features [N, H]; `layer`: the cache's that is the
        head's -> h [N, H], before the last norm."""
        heads, kv_heads = self.config.num_heads, self.config.num_kv_heads
        tokens = self._unit_norm(F.embedding(batch.token_ids, self.embedding))
        joined = torch.cat([tokens, self._unit_norm(features)], dim=1)
        qkv_NHD = self._qkv(joined).view(len(features), heads + 2 * kv_heads, self.config.head_dim)
        rotate_(qkv_NHD[:, :-kv_heads], self._rotary.at(batch.positions))
        cache.write(layer, cache.cells(batch.slots, batch.places, kv_heads), qkv_NHD[:, heads:])
        attended = batch.attention.attend(qkv_NHD[:, :heads], *cache.layer(layer))
        hidden = self._output.added_to(self._residual(features), attended)
        return self._down.added_to(hidden, self._gated(self._unit_norm(hidden)))

    def logits(self, hidden: Tensor) -> Tensor:
        """h [R, H] -> [R, draft vocab]"""
        return self._lm_head(F.rms_norm(hidden, self._last_norm.shape, self._last_norm, self._eps))

    def _residual(self, features: Tensor) -> Tensor:
        if not self.config.norm_before_residual:
            return features
        return F.rms_norm(features, self._hidden_norm.shape, self._hidden_norm, self._eps)
