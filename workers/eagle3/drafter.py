"""Drafting with an EAGLE-3 head: a chain or a tree per sequence, all sequences in one pass per step.

The head pairs the feature of position i with the token at i + 1, so its keys and values run one token ahead of the
target's. They live in a layer of the target's cache, in the same slot and at the position of the feature:

    position              0 … t-1                     t …
    target's layers       committed                   the last token and drafts, overwritten if rejected
    taps                  of committed tokens         of drafts, overwritten if rejected
    head's layer          pairs of true features      pairs of drafts, overwritten by true ones at the next draft

What the head reads of the target stays in the cache, so a head that has not drafted for a while, or never yet, catches
up in one pass.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from workers.attention import Branches
from workers.batch import Batch, Segment, build_batch
from workers.catching_up import exceed_a_pass, passes
from workers.chains import grow_chains
from workers.drafter import NOTHING, Ask, Draft, Drafted
from workers.eagle3.growing_tree import GrowingTree
from workers.eagle3.head import Eagle3Head
from workers.kv_cache import KVCache


class Eagle3Drafter:
    """A head and its layer of the cache."""

    name = "eagle3"
    follows = True
    draws_trees = True

    def __init__(self, head: Eagle3Head, cache: KVCache, layer: int) -> None:
        """`layer`: the cache's that is the head's."""
        self._head = head
        self._cache = cache
        self._layer = layer

    def catch_up(self, sequences: Sequence[Drafted]) -> None:
        """Work through all pairs but the last, which starts the next draft."""
        for parts in passes(sequences, lambda each: _num_waiting(each) - 1):
            self._read(parts, num_logits=0)

    def propose(self, asks: Sequence[Ask]) -> list[Draft]:
        drafts = [NOTHING for _ in asks]
        places = sorted(range(len(asks)), key=lambda place: asks[place].sequence.slot)
        sequences = [asks[place].sequence for place in places]
        if exceed_a_pass(sequences, _num_waiting):
            self.catch_up(sequences)
        hidden = self._read([(sequence, _num_waiting(sequence)) for sequence in sequences], num_logits=1)
        for draft, wanted in (
            (self._chains, [i for i, place in enumerate(places) if asks[place].tree is None]),
            (self._trees, [i for i, place in enumerate(places) if asks[place].tree is not None]),
        ):
            if wanted:
                those = hidden if len(wanted) == len(places) else hidden[wanted]
                for i, made in zip(wanted, draft([asks[places[i]] for i in wanted], those), strict=True):
                    drafts[places[i]] = made
        return drafts

    def _chains(self, asks: Sequence[Ask], hidden: Tensor) -> list[Draft]:
        """`asks` in slot order; `hidden` [asks, H] of the last pair of each."""

        def go_on(rows: list[int], chains: list[tuple[Drafted, list[int]]]) -> Tensor:
            nonlocal hidden
            features = hidden if len(rows) == len(hidden) else hidden[rows]
            hidden = self._forward([_last_segment(sequence, chain) for sequence, chain in chains], features)
            return self._head.logits(hidden)

        ids, vocab_size = self._head.target_ids, len(self._head.embedding)
        return grow_chains(asks, self._head.logits(hidden), go_on, target_ids_D=ids, vocab_size=vocab_size)

    def _trees(self, asks: Sequence[Ask], hidden: Tensor) -> list[Draft]:
        """`asks` in slot order; `hidden` [asks, H] of the last pair of each."""
        trees = [GrowingTree(ask.tree, ask.max_nodes) for ask in asks if ask.tree is not None]
        fronts = [1] * len(trees)
        growing = list(range(len(trees)))
        depth = 0
        while growing:
            depth += 1
            top = self._head.logits(hidden).float().log_softmax(1).topk(max(trees[i].shape.top_k for i in growing))
            tokens = self._head.target_ids[top.indices].split(fronts)
            values = top.values.split(fronts)
            first_rows = [sum(fronts[:at]) for at in range(len(fronts))]
            for at, i in enumerate(growing):
                trees[i].grow(tokens[at].tolist(), values[at].tolist())
            going_on = [at for at, i in enumerate(growing) if asks[i].max_draft > depth and trees[i].front]
            rows = [first_rows[at] + each.row for at in going_on for each in trees[growing[at]].front]
            growing = [growing[at] for at in going_on]
            fronts = [len(trees[i].front) for i in growing]
            if growing:
                hidden = self._forward([_front_segment(asks[i].sequence, trees[i]) for i in growing], hidden[rows])
        return [Draft(tree.pruned()) for tree in trees]

    def forget(self, sequence_id: str) -> None:
        """All it keeps lies in the cache."""

    def _read(self, parts: Sequence[tuple[Drafted, int]], *, num_logits: int) -> Tensor:
        """Pair so many of each sequence's waiting features with the tokens after them; sequences in slot order -> h of
        the last pairs."""
        segments = []
        for sequence, count in parts:
            start = sequence.num_followed
            segments.append(Segment(sequence.slot, start, sequence.tokens[start + 1 : start + 1 + count], num_logits))
            sequence.num_followed += count
        batch = self._batch(segments)
        return self._pass(batch, self._head.fuse(self._cache.taps(batch.slots, batch.places)))

    def _forward(self, segments: Sequence[Segment], features: Tensor) -> Tensor:
        """Segments and features in slot order -> h of the rows whose logits are wanted."""
        return self._pass(self._batch(segments), features)

    def _pass(self, batch: Batch, features: Tensor) -> Tensor:
        return self._head.forward(batch, features, self._cache, self._layer)[batch.logit_rows]

    def _batch(self, segments: Sequence[Segment]) -> Batch:
        like = self._head.embedding
        return build_batch(segments, sharing=self._head.sharing, dtype=like.dtype, device=like.device)


def _num_waiting(sequence: Drafted) -> int:
    """Pairs of committed tokens that the head has not seen; one at least, since every round commits a token."""
    return len(sequence.tokens) - 1 - sequence.num_followed


def _last_segment(sequence: Drafted, chain: Sequence[int]) -> Segment:
    return Segment(sequence.slot, sequence.num_followed + len(chain) - 1, chain[-1:], 1)


def _front_segment(sequence: Drafted, tree: GrowingTree) -> Segment:
    first = tree.num_followed - len(tree.front)
    branches = Branches(sequence.num_followed, tuple(each.sees for each in tree.front))
    tokens = [tree.nodes[each.node].token for each in tree.front]
    return Segment(sequence.slot, sequence.num_followed + first, tokens, len(tokens), branches)
