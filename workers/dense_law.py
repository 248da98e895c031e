"""A law over a whole vocabulary, as a tensor that the rules of `acceptance` can work with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from workers.acceptance import Law, residual


class DenseLaw(Mapping[int, float]):
    """Probability by token. A token without probability is missing, as `acceptance.Law` has it."""

    def __init__(self, shares_V: Tensor) -> None:
        self.shares = shares_V

    def __getitem__(self, token: int) -> float:
        share = float(self.shares[token])
        if share > 0.0:
            return share
        raise KeyError(token)

    def __iter__(self) -> Iterator[int]:
        return iter(self.shares.nonzero()[:, 0].tolist())

    def __len__(self) -> int:
        return int(self.shares.count_nonzero())


@residual.register
def _residual(  # type: ignore[misc]  # mypy does not see that the general rule's numbers may be floats
    p: DenseLaw, q: Law[float]
) -> DenseLaw:
    if isinstance(q, DenseLaw):
        left = (p.shares - q.shares).clamp_(min=0.0)
    else:
        left = p.shares.clone()
        left[list(q)] = (left[list(q)] - torch.tensor(list(q.values())).to(left)).clamp_(min=0.0)
    total = left.sum()
    return DenseLaw(left / total) if total > 0 else p
