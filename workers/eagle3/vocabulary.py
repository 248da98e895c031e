"""Which tokens a head can propose.

A head spends half of its time on its vocabulary, and few tokens are most of the text, so it gets the most frequent ones
of the target's answers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class DraftVocabulary:
    """Tokens of the target, in ascending order; a draft id is a place among them."""

    target_ids: Tensor
    """[draft vocab] int64"""
    vocab_size: int
    """The target's."""

    @classmethod
    def most_frequent(cls, answers: Iterable[Sequence[int]], size: int, vocab_size: int) -> DraftVocabulary:
        """The `size` commonest tokens of the answers; what they leave open goes to the lowest ids."""
        counts: Counter[int] = Counter()
        for answer in answers:
            counts.update(answer)
        ranked = sorted(range(vocab_size), key=lambda token: (-counts[token], token))
        return cls(torch.tensor(sorted(ranked[:size])), vocab_size)

    def to(self, device: torch.device) -> DraftVocabulary:
        """The same on another device."""
        return DraftVocabulary(self.target_ids.to(device), self.vocab_size)

    @property
    def d2t(self) -> Tensor:
        """[draft vocab] target id - draft id, as heads are published."""
        return self.target_ids - torch.arange(len(self.target_ids))

    @property
    def t2d(self) -> Tensor:
        """[vocab] whether a token can be proposed."""
        return torch.zeros(self.vocab_size, dtype=torch.bool).index_fill_(0, self.target_ids, True)

    def places(self, token_ids: Tensor) -> Tensor:
        """Draft ids of the target's tokens, any shape; -1 where there is none."""
        at = torch.searchsorted(self.target_ids, token_ids).clamp(max=len(self.target_ids) - 1)
        return torch.where(self.target_ids[at] == token_ids, at, -1)

    def coverage(self, answers: Iterable[Sequence[int]]) -> float:
        """Share of the answers' tokens that can be proposed at all."""
        known, total, proposable = 0, 0, self.t2d
        for answer in answers:
            known += int(proposable[torch.tensor(answer, dtype=torch.int64)].sum())
            total += len(answer)
        return known / total if total else 1.0
