"""A drafter that is behind goes over what it missed, in passes of bounded size, and drafts as if it had never been."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from drafted import Plain, drafts_of
from hypothesis import given
from hypothesis import strategies as st
from tiny_head import save_tiny_head
from tiny_llama import make_core, make_request, random_prompt, save_tiny_llama
from transformers import LlamaConfig

from configs.job import Draft
from workers import catching_up
from workers.catching_up import MOST_ROWS, passes


@given(st.lists(st.integers(0, 3 * MOST_ROWS), max_size=6), st.randoms())
def test_passes_go_over_everything_once_and_none_is_too_long(lengths: list[int], draws: random.Random) -> None:
    slots = draws.sample(range(len(lengths)), len(lengths))
    sequences = [Plain(str(i), range(n), slot=slot) for i, (n, slot) in enumerate(zip(lengths, slots, strict=True))]
    for parts in passes(sequences, lambda each: len(each.tokens) - each.num_followed):
        assert 0 < sum(count for _, count in parts) <= MOST_ROWS
        assert all(count > 0 for _, count in parts)
        assert [each.slot for each, _ in parts] == sorted(each.slot for each, _ in parts)
        for sequence, count in parts:
            sequence.num_followed += count
    assert [each.num_followed for each in sequences] == lengths


@pytest.mark.parametrize("drafter", ["eagle3", "model"])
def test_short_passes_draft_what_long_ones_do(drafter: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = save_tiny_llama(tmp_path / "target", num_hidden_layers=6)
    head = save_tiny_head(tmp_path / "head", LlamaConfig.from_pretrained(target))
    small = save_tiny_llama(tmp_path / "small", seed=3)
    rng = random.Random(0)
    requests = [make_request(f"row{i}", random_prompt(rng, 20, 60), k=3, drafter=drafter) for i in range(5)]
    draft = Draft.model_validate({"drafter": drafter, "path": str(head), "model": str(small)})
    found = []
    for most in (MOST_ROWS, 7):
        monkeypatch.setattr(catching_up, "MOST_ROWS", most)
        found.append([(tokens, each) for tokens, _, each in drafts_of(make_core(target, draft=draft), requests)])
    assert found[0] == found[1]
    assert len(found[0]) > 20
