"""From a drafter's logits to the next token of each chain."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from workers.acceptance import Law
from workers.dense_law import DenseLaw
from workers.drafter import Chance
from workers.keyed_draws import drawn
from workers.sampling import Row, probabilities

Chosen = tuple[int, Law[float] | None]
"""A token, and the law that it was drawn from; None: it is certain."""


def choose_drafts(
    logits_RD: Tensor, chances: Sequence[Chance | None], depth: int, *, target_ids_D: Tensor, vocab_size: int
) -> list[Chosen]:
    """The likeliest token of each row, or a drawn one. `depth`: drafts before it; `target_ids`: what the columns stand
    for among the target's `vocab_size` tokens."""
    likeliest = target_ids_D[logits_RD.argmax(1)].tolist()
    return [
        (token, None) if chance is None else _drawn(logits, chance, depth, target_ids_D, vocab_size)
        for token, chance, logits in zip(likeliest, chances, logits_RD, strict=True)
    ]


def _drawn(logits_D: Tensor, chance: Chance, depth: int, target_ids_D: Tensor, vocab_size: int) -> Chosen:
    shares_V = torch.zeros(vocab_size, dtype=torch.float32, device=logits_D.device)
    row = Row(chance.sampling, chance.key, chance.position + depth, seen=None, branch=())
    shares_V[target_ids_D] = probabilities(logits_D[None].float(), [row])[0]
    return drawn(shares_V, chance.key, "draft", chance.position + depth), DenseLaw(shares_V)
