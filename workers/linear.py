"""Matrix products with fixed weights.

On a CPU in bf16, oneDNN wants a weight in blocks and would re-block it at every call; it is blocked once here (up to 2x
at few rows, measured on AMX), and oneDNN adds a residual or applies a gate before it rounds its sums, which saves
passes over memory. torch keeps these operators private, so their absence must only cost speed.
"""

from __future__ import annotations

from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor

_ROWS_PACKED_FOR = 64
"""oneDNN picks one block layout for any batch from about 16 to 256 rows; it serves fewer rows equally well."""


class Linear:
    """y = x Wᵀ + b"""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        """`weight` [out, in], `bias` [out]."""
        self._packed = can_pack(weight)
        self._weight = pack(weight) if self._packed else weight
        self._bias = bias

    def __call__(self, x_NI: Tensor) -> Tensor:
        """[N, in] -> [N, out]"""
        if self._packed:
            return _packed_product(x_NI, self._weight, self._bias)
        return F.linear(x_NI, self._weight, self._bias)

    def added_to(self, residual_NO: Tensor, x_NI: Tensor) -> Tensor:
        """residual + y"""
        if self._packed:
            return _packed_product_with(residual_NO, x_NI, self._weight, self._bias, "add")
        return residual_NO + F.linear(x_NI, self._weight, self._bias)

    def silu(self, x_NI: Tensor) -> Tensor:
        """silu(y) = y / (1 + exp(-y))"""
        if self._packed:
            return _packed_product(x_NI, self._weight, self._bias, then="swish")
        return F.silu(F.linear(x_NI, self._weight, self._bias))

    def times(self, factor_NO: Tensor, x_NI: Tensor) -> Tensor:
        """factor * y"""
        if self._packed:
            return _packed_product_with(factor_NO, x_NI, self._weight, self._bias, "mul")
        return factor_NO * F.linear(x_NI, self._weight, self._bias)


class Gated:
    """y = silu(gate(x)) * up(x), the gated half of a feed-forward network (https://arxiv.org/abs/2002.05202)."""

    def __init__(self, gate: Linear, up: Linear) -> None:
        self._gate, self._up = gate, up

    def __call__(self, x_NI: Tensor) -> Tensor:
        """[N, in] -> [N, out]"""
        return self._up.times(self._gate.silu(x_NI), x_NI)


def can_pack(weight: Tensor) -> bool:
    """Whether oneDNN takes this weight in blocks here."""
    return (
        weight.device.type == "cpu"
        and weight.dtype == torch.bfloat16
        and bool(torch.backends.mkldnn.is_available())
        and hasattr(torch.ops.mkldnn, "_linear_pointwise")
        and hasattr(torch.ops.mkldnn, "_reorder_linear_weight")
        and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    )


def pack(weight: Tensor) -> Tensor:
    """The weight in oneDNN's blocks; only the two products below can read it."""
    return cast(Tensor, torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), _ROWS_PACKED_FOR))


def _packed_product(x_NI: Tensor, weight: Tensor, bias: Tensor | None, then: str = "none") -> Tensor:
    """x Wᵀ + b, or a function of it."""
    return cast(Tensor, torch.ops.mkldnn._linear_pointwise.default(x_NI, weight, bias, then, [], ""))


def _packed_product_with(other_NO: Tensor, x_NI: Tensor, weight: Tensor, bias: Tensor | None, how: str) -> Tensor:
    """x Wᵀ + b, added to `other` or multiplied with it."""
    return cast(Tensor, torch.ops.mkldnn._linear_pointwise.binary(x_NI, other_NO, weight, bias, how))
