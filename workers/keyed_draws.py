"""The draws of rejection sampling, keyed like all noise: by sample and position, never by the batch.

Three streams that share nothing with each other nor with the noise of the target's own tokens: what a drafter draws its
tokens with, the coins that keep or reject them, and the token that ends a round.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from workers import noise
from workers.acceptance import Law
from workers.dense_law import DenseLaw


@dataclass(slots=True)
class KeyedDraws:
    """`acceptance.Draws` of the round whose first token has this position in the output."""

    key: tuple[int, int]
    """`noise.sequence_key` of the sample."""
    position: int
    num_coins: int = 0

    def accept(self, probability: float, /) -> bool:
        coin = noise.uniforms(
            noise.token_words(torch.tensor(self.num_coins)), row_words(self.key, "coin", self.position)
        )
        self.num_coins += 1
        return bool(coin < probability)

    def choose(self, weights: Law[float], /) -> int:
        assert isinstance(weights, DenseLaw), "the target's rows are dense, and so is what is left of them"
        return drawn(weights.shares, self.key, "end", self.position)


def drawn(shares_V: Tensor, key: tuple[int, int], use: str, position: int) -> int:
    """A token with these shares, from a stream of the sample's noise."""
    words = row_words(key, use, position).to(shares_V.device)
    variates = noise.gumbels(noise.token_words(torch.arange(len(shares_V), device=shares_V.device)), words)
    return int((shares_V.double().log() + variates).argmax())


def row_words(key: tuple[int, int], use: str, position: int) -> Tensor:
    """[2] int32 of a stream at a position."""
    keys = torch.tensor([noise.stream(key, use)], dtype=torch.int32)
    return noise.row_words(keys, torch.tensor([position], dtype=torch.int32))[0]
