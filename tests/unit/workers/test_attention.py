from __future__ import annotations

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from workers import attention
from workers.attention import AttentionPlan, Span, group_spans

SPANS = st.lists(st.tuples(st.integers(0, 40), st.integers(1, 30), st.booleans()), min_size=1, max_size=9)


def one_by_one(spans: list[Span], queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """Softmax attention of every row by itself, from the definition."""
    sharing, outputs, row = queries.shape[1] // keys.shape[1], [], 0
    for span in spans:
        for position in range(span.start, span.start + span.num_rows):
            k, v = (t[span.slot, :, : position + 1].repeat_interleave(sharing, dim=0) for t in (keys, values))
            scores = (k @ queries[row][..., None])[..., 0] / queries.shape[2] ** 0.5
            outputs.append((scores.softmax(-1)[:, None] @ v).flatten())
            row += 1
    return torch.stack(outputs)


@settings(max_examples=60, deadline=None)
@given(SPANS, st.sampled_from([1, 3]), st.sampled_from([0, 80, 10**9]), st.integers(0, 1000))
def test_grouping_and_padding_change_nothing(
    drawn: list[tuple[int, int, bool]], sharing: int, call_cost: int, seed: int
) -> None:
    torch.manual_seed(seed)
    slots = sorted(random.Random(seed).sample(range(12), len(drawn)))
    spans = [
        Span(slot, start, 1 if is_decode else rows) for slot, (start, rows, is_decode) in zip(slots, drawn, strict=True)
    ]
    queries = torch.randn(sum(span.num_rows for span in spans), 2 * sharing, 8, dtype=torch.float64)
    keys, values = torch.randn(2, 12, 2, 80, 8, dtype=torch.float64)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(attention.CALL_COST, "cpu", call_cost)
        plan = AttentionPlan(spans, sharing=sharing, dtype=torch.float64, device=torch.device("cpu"))
    expected = one_by_one(spans, queries, keys, values)
    torch.testing.assert_close(plan.attend(queries, keys, values), expected, rtol=1e-10, atol=1e-10)


def test_equal_neighbours_go_together_and_unequal_ones_apart() -> None:
    short, other, long = Span(0, 100, 1), Span(1, 110, 1), Span(2, 2000, 1)
    assert group_spans([short, other, long], call_cost=80) == [[short, other], [long]]
    assert group_spans([short, other, long], call_cost=10**9) == [[short, other, long]]
    prompt = Span(1, 0, 200)
    assert group_spans([short, prompt], call_cost=80) == [[short], [prompt]]
