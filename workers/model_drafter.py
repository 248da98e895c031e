"""Drafting with a separate, smaller model that has the target's tokenizer: chains.

Its keys and values lie in layers of the target's cache, in the same slot and at the same places as the target's own, so
they move and are shared with their sequence, and a rejected draft is overwritten in both by the next round.
Source: https://arxiv.org/abs/2211.17192.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from workers.batch import Segment, build_batch
from workers.catching_up import exceed_a_pass, passes
from workers.chains import grow_chains
from workers.drafter import Ask, Draft, Drafted
from workers.kv_cache import KVCache
from workers.llama import Llama


class ModelDrafter:
    """A model and its layers of the cache."""

    name = "model"
    follows = True
    draws_trees = False

    def __init__(self, model: Llama, cache: KVCache, first_layer: int, vocab_size: int) -> None:
        """`first_layer`: of the cache's that are this model's; `vocab_size`: the target's, at most this model's."""
        self._model = model
        self._cache = cache
        self._first_layer = first_layer
        self._target_ids = torch.arange(vocab_size, device=model.device)

    def catch_up(self, sequences: Sequence[Drafted]) -> None:
        """All but the last token, which starts the next draft."""
        for parts in passes(sequences, lambda each: _num_waiting(each) - 1):
            self._read(parts, num_logits=0)

    def propose(self, asks: Sequence[Ask]) -> list[Draft]:
        places = sorted(range(len(asks)), key=lambda place: asks[place].sequence.slot)
        sorted_asks = [asks[place] for place in places]
        sequences = [ask.sequence for ask in sorted_asks]
        if exceed_a_pass(sequences, _num_waiting):
            self.catch_up(sequences)
        logits = self._read([(sequence, _num_waiting(sequence)) for sequence in sequences], num_logits=1)

        def go_on(_: list[int], chains: list[tuple[Drafted, list[int]]]) -> Tensor:
            return self._forward([_last_segment(sequence, chain) for sequence, chain in chains])

        ids = self._target_ids
        drafts = grow_chains(sorted_asks, logits, go_on, target_ids_D=ids, vocab_size=len(ids))
        by_place = dict(zip(places, drafts, strict=True))
        return [by_place[place] for place in range(len(asks))]

    def forget(self, sequence_id: str) -> None:
        """All it keeps lies in the cache."""

    def _read(self, parts: Sequence[tuple[Drafted, int]], *, num_logits: int) -> Tensor:
        """Go over so many of each sequence's waiting tokens -> logits after the last [sequences, V]"""
        segments = []
        for sequence, count in parts:
            start = sequence.num_followed
            segments.append(Segment(sequence.slot, start, sequence.tokens[start : start + count], num_logits))
            sequence.num_followed += count
        return self._forward(segments)

    def _forward(self, segments: Sequence[Segment]) -> Tensor:
        """Segments in slot order -> logits of the rows that are wanted, over the target's tokens [R, V]"""
        model = self._model
        batch = build_batch(segments, sharing=model.sharing, dtype=model.dtype, device=model.device)
        hidden, _ = model.forward(batch, self._cache, first_layer=self._first_layer)
        return model.logits(hidden[batch.logit_rows])[:, : len(self._target_ids)]


def _num_waiting(sequence: Drafted) -> int:
    """Tokens that this model has not seen."""
    return len(sequence.tokens) - sequence.num_followed


def _last_segment(sequence: Drafted, chain: Sequence[int]) -> Segment:
    return Segment(sequence.slot, len(sequence.tokens) + len(chain) - 1, chain[-1:], 1)
