from __future__ import annotations

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from workers import attention
from workers.attention import AttentionPlan, Branches, Span, group_spans

KINDS = ("decode", "prefill", "tree")
SPANS = st.lists(st.tuples(st.integers(0, 40), st.integers(1, 30), st.sampled_from(KINDS)), min_size=1, max_size=9)


def seen_by(span: Span, row: int) -> list[int]:
    """The places that a row sees."""
    if span.branches is None:
        return list(range(span.start + row + 1))
    root, bits = span.branches.root, span.branches.sees[row]
    return [place for place in range(span.context) if place < root or bits >> (place - root) & 1]


def random_branches(start: int, rows: int, rng: random.Random) -> Branches:
    """Of rows that are the last of a tree, whose first nodes lie before `start`."""
    root = start - rng.randint(0, min(start, 8))
    return Branches(root, tuple(rng.getrandbits(at - root) | 1 << (at - root) for at in range(start, start + rows)))


def one_by_one(spans: list[Span], queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """Softmax attention of every row by itself, from the definition."""
    sharing, outputs, row = queries.shape[1] // keys.shape[1], [], 0
    for span in spans:
        for place in range(span.num_rows):
            seen = seen_by(span, place)
            k, v = (t[span.slot, :, seen].repeat_interleave(sharing, dim=0) for t in (keys, values))
            scores = (k @ queries[row][..., None])[..., 0] / queries.shape[2] ** 0.5
            outputs.append((scores.softmax(-1)[:, None] @ v).flatten())
            row += 1
    return torch.stack(outputs)


@settings(max_examples=60, deadline=None)
@given(SPANS, st.sampled_from([1, 3]), st.sampled_from([0, 80, 10**9]), st.integers(0, 1000))
def test_grouping_and_padding_change_nothing(
    drawn: list[tuple[int, int, str]], sharing: int, call_cost: int, seed: int
) -> None:
    torch.manual_seed(seed)
    rng = random.Random(seed)
    slots = sorted(rng.sample(range(12), len(drawn)))
    spans = [
        Span(
            slot,
            start,
            1 if kind == "decode" else rows,
            random_branches(start, rows, rng) if kind == "tree" else None,
        )
        for slot, (start, rows, kind) in zip(slots, drawn, strict=True)
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
