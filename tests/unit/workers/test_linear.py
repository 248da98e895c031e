"""Blocked weights give the products of plain ones."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from workers.linear import Gated, Linear, can_pack


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("rows", [1, 3, 16, 65])
@pytest.mark.parametrize("has_bias", [False, True])
def test_products_are_those_of_plain_weights(dtype: torch.dtype, rows: int, has_bias: bool) -> None:
    torch.manual_seed(0)
    weight, bias = (torch.randn(96, 64) / 8).to(dtype), torch.randn(96).to(dtype) if has_bias else None
    x, residual = torch.randn(rows, 64).to(dtype), torch.randn(rows, 96).to(dtype)
    exact = F.linear(x.double(), weight.double(), None if bias is None else bias.double())
    tolerance = 2e-2 if dtype == torch.bfloat16 else 1e-5
    linear = Linear(weight, bias)
    torch.testing.assert_close(linear(x).double(), exact, rtol=tolerance, atol=tolerance)
    added = linear.added_to(residual, x).double()
    torch.testing.assert_close(added, exact + residual.double(), rtol=tolerance, atol=tolerance)
    gated = Gated(linear, Linear(weight.flip(0), bias))(x).double()
    up = F.linear(x.double(), weight.flip(0).double(), None if bias is None else bias.double())
    torch.testing.assert_close(gated, F.silu(exact) * up, rtol=tolerance, atol=tolerance)


def test_only_bfloat16_on_a_cpu_is_blocked() -> None:
    assert not can_pack(torch.zeros(4, 4))
    assert not can_pack(torch.zeros(4, 4, dtype=torch.float64))
