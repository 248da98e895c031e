"""Growing chains of drafts, whatever the drafter: a token at a time, each chain as long as it was asked for."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from workers.acceptance import Law, Tree
from workers.dense_law import DenseLaw
from workers.drafter import Ask, Chance, Draft, Drafted
from workers.keyed_draws import drawn
from workers.sampling import Row, probabilities

Chosen = tuple[int, Law[float] | None]
"""A token, and the law that it was drawn from; None: it is certain."""
GoOn = Callable[[list[int], list[tuple[Drafted, list[int]]]], Tensor]
"""(rows, chains) -> logits after each chain [R, D]. `rows`: where these chains' logits stood the last time."""


def grow_chains(
    asks: Sequence[Ask], logits_RD: Tensor, go_on: GoOn, *, target_ids_D: Tensor, vocab_size: int
) -> list[Draft]:
    """A chain per ask. `logits`: of the first draft of each; `target_ids`: what their columns stand for among the
    target's `vocab_size` tokens."""
    chains: list[list[int]] = [[] for _ in asks]
    laws: list[list[Law[float]]] = [[] for _ in asks]
    growing = list(range(len(asks)))
    for depth in range(max(ask.max_draft for ask in asks)):
        if depth:
            rows = [row for row, i in enumerate(growing) if asks[i].max_draft > depth]
            growing = [growing[row] for row in rows]
            logits_RD = go_on(rows, [(asks[i].sequence, chains[i]) for i in growing])
        chosen = _chosen(logits_RD, [asks[i].chance for i in growing], depth, target_ids_D, vocab_size)
        for i, (token, law) in zip(growing, chosen, strict=True):
            chains[i].append(token)
            laws[i] += [] if law is None else [law]
    return [Draft(Tree.chain(chain), law or None) for chain, law in zip(chains, laws, strict=True)]


def _chosen(
    logits_RD: Tensor, chances: Sequence[Chance | None], depth: int, target_ids_D: Tensor, vocab_size: int
) -> list[Chosen]:
    """The likeliest token of each row, or a drawn one."""
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
