"""The target as a teacher: its states over finished answers, in one pass per batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from workers.batch import Segment, build_batch
from workers.distillation.examples import Example, Lesson, batches
from workers.kv_cache import KVCache, LayerShape
from workers.llama import Llama


class Teacher:
    """A target, built to capture what a head reads, if the pupil is one."""

    def __init__(self, target: Llama) -> None:
        self.target = target

    @torch.no_grad()  # not inference mode: what comes out enters a training step
    def lessons(self, examples: Sequence[Example], max_tokens: int = 2048) -> Iterator[tuple[int, Lesson]]:
        """(place, lesson) of every example, in an order that wastes little padding."""
        for places in batches([len(example.token_ids) for example in examples], max_tokens):
            yield from zip(places, self._taught([examples[place] for place in places]), strict=True)

    def _taught(self, examples: Sequence[Example]) -> list[Lesson]:
        target, arch = self.target, self.target.arch
        longest = max(len(example.token_ids) for example in examples)
        cache = KVCache(
            [LayerShape(arch.num_kv_heads, arch.head_dim)] * arch.num_layers,
            dtype=target.dtype,
            device=target.device,
            num_slots=len(examples),
            length=longest,
        )
        segments = [Segment(slot, 0, example.token_ids, 0) for slot, example in enumerate(examples)]
        batch = build_batch(segments, sharing=target.sharing, dtype=target.dtype, device=target.device)
        last, taps = target.forward(batch, cache)
        taps = last.new_zeros(len(last), 0) if taps is None else taps
        choices = torch.cat([target.logits(rows).argmax(1) for rows in last.split(512)])
        sizes = [len(example.token_ids) for example in examples]
        parts = zip(*(rows.split(sizes) for rows in (batch.token_ids, taps, last, choices)), strict=True)
        return [
            Lesson(token_ids.clone(), example.num_prompt, tap.clone(), state.clone(), choice.clone())
            for example, (token_ids, tap, state, choice) in zip(examples, parts, strict=True)
        ]
