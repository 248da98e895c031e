"""How a batch was judged, step by step."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True)
class Judgement:
    """Sums over a batch, by step: the draft position."""

    loss: Tensor
    """Scalar."""
    hits: Tensor
    """[steps] how often the likeliest token was the target's."""
    counted: Tensor
    """[steps] of how many, tokens that cannot be proposed included."""
