"""Drafting with an EAGLE-3 head: a chain per sequence, all sequences in one pass per step.

The head pairs the feature of position i with the token at i + 1, so its keys and values run one token ahead of the
target's. They live in a layer of the target's cache, in the same slot and at the position of the feature:

    position              0 … t-1                     t …
    target's layers       committed                   the last token and drafts, overwritten if rejected
    head's layer          pairs of true features      pairs of drafts, overwritten by true ones every round
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from workers.batch import Segment, build_batch
from workers.drafter import Ask, Drafted, Seen
from workers.eagle3.head import Eagle3Head
from workers.kv_cache import KVCache


class Eagle3Drafter:
    """A head, its layer of the cache, and features that wait for it."""

    name = "eagle3"

    def __init__(self, head: Eagle3Head, cache: KVCache, layer: int) -> None:
        """`layer`: the cache's that is the head's."""
        self._head = head
        self._cache = cache
        self._layer = layer
        self._waiting: dict[str, Tensor] = {}
        """Sequence -> features of its positions from `num_pairs` on [waiting, H]."""

    def observe(self, seen: Sequence[Seen], taps: Tensor) -> None:
        """Keep the features. Those of a prompt are worked through at once, so that other sequences can copy them with
        the prompt's keys and values; those of a round wait to be the start of the next draft."""
        rows = [row for each in seen for row in range(each.first_row, each.first_row + each.num_rows)]
        features = self._head.fuse(taps[rows] if len(rows) < len(taps) else taps)
        for each, new in zip(seen, features.split([each.num_rows for each in seen]), strict=True):
            waiting = self._waiting.get(each.sequence.id)
            self._waiting[each.sequence.id] = new if waiting is None else torch.cat([waiting, new])
            assert each.sequence.num_pairs + len(self._waiting[each.sequence.id]) == each.start + each.num_rows
        self._catch_up([each.sequence for each in seen if each.is_prefill])

    def propose(self, asks: Sequence[Ask]) -> list[list[int]]:
        drafts: list[list[int]] = [[] for _ in asks]
        places = sorted(range(len(asks)), key=lambda place: asks[place].sequence.slot)
        sequences = [asks[place].sequence for place in places]
        hidden = self._read(sequences, [len(self._waiting[sequence.id]) for sequence in sequences], num_logits=1)
        depth = 1
        while True:
            chosen = self._chosen(hidden)
            for place, token in zip(places, chosen, strict=True):
                drafts[place].append(token)
            going_on = [i for i, place in enumerate(places) if asks[place].max_draft > depth]
            if not going_on:
                return drafts
            if len(going_on) < len(places):
                hidden, places = hidden[going_on], [places[i] for i in going_on]
            segments = [
                Segment(asks[place].sequence.slot, asks[place].sequence.num_pairs + depth - 1, drafts[place][-1:], 1)
                for place in places
            ]
            hidden = self._forward(segments, hidden)
            depth += 1

    def forget(self, sequence_id: str) -> None:
        self._waiting.pop(sequence_id, None)

    def _catch_up(self, sequences: Sequence[Drafted]) -> None:
        """Work through all but the last waiting feature, which starts the next draft."""
        behind = sorted((s for s in sequences if len(self._waiting[s.id]) > 1), key=lambda s: s.slot)
        if behind:
            self._read(behind, [len(self._waiting[sequence.id]) - 1 for sequence in behind], num_logits=0)

    def _read(self, sequences: Sequence[Drafted], counts: Sequence[int], *, num_logits: int) -> Tensor:
        """Pair so many waiting features of each sequence with the tokens after them -> h of the last pairs."""
        segments, features = [], []
        for sequence, count in zip(sequences, counts, strict=True):
            start = sequence.num_pairs
            segments.append(Segment(sequence.slot, start, sequence.tokens[start + 1 : start + 1 + count], num_logits))
            features.append(self._waiting[sequence.id][:count])
            self._waiting[sequence.id] = self._waiting[sequence.id][count:]
            sequence.num_pairs += count
        return self._forward(segments, torch.cat(features))

    def _forward(self, segments: Sequence[Segment], features: Tensor) -> Tensor:
        """Segments and features in slot order -> h of the rows whose logits are wanted."""
        batch = build_batch(segments, sharing=self._head.sharing, dtype=features.dtype, device=features.device)
        return self._head.forward(batch, features, self._cache, self._layer)[batch.logit_rows]

    def _chosen(self, hidden: Tensor) -> list[int]:
        """The likeliest token of each row, as the target names it."""
        return self._head.target_ids[self._head.logits(hidden).argmax(1)].tolist()
