"""A draft tree while it grows: at each depth the likeliest paths are followed, at the end the likeliest nodes stay.

A path's probability, by the drafter, falls along it, so the likeliest nodes hang together and form a tree.
Source: EAGLE-2 (https://arxiv.org/abs/2406.16858); the branch that ends below a probability is our addition.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from configs.job import DraftTree
from workers.acceptance import ROOT, Tree


@dataclass(frozen=True, slots=True)
class Node:
    """A draft, and where it stands."""

    token: int
    parent: int
    log_probability: float
    """Of the path to it."""


@dataclass(frozen=True, slots=True)
class Followed:
    """A node that the drafter goes on from, once it has been over it."""

    node: int
    row: int
    """Of the parent among those followed before."""
    sees: int
    """Bit j: the j-th node followed is on its path, or itself."""


@dataclass(slots=True)
class GrowingTree:
    """One sequence's."""

    shape: DraftTree
    max_nodes: int
    """At most; also what may be followed, which takes places in the drafter's cache."""
    nodes: list[Node] = field(default_factory=list)
    front: list[Followed] = field(default_factory=list)
    """To go on from, in the order in which they were followed."""
    num_followed: int = 0

    def grow(self, tokens: Sequence[Sequence[int]], log_probabilities: Sequence[Sequence[float]]) -> None:
        """Add the drafts behind each node of the front, at first behind the root, and settle the next front.

        `tokens`, `log_probabilities`: per node of the front its likeliest drafts, the likeliest first; those beyond the
        shape's top k are left out.
        """
        least = math.log(self.shape.min_path_probability) if self.shape.min_path_probability else -math.inf
        front = self.front or [Followed(ROOT, 0, 0)]
        added: list[tuple[int, int]] = []
        for row, followed in enumerate(front):
            before = 0.0 if followed.node == ROOT else self.nodes[followed.node].log_probability
            for token, log_probability in list(zip(tokens[row], log_probabilities[row], strict=True))[
                : self.shape.top_k
            ]:
                if before + log_probability >= least:
                    added.append((len(self.nodes), row))
                    self.nodes.append(Node(token, followed.node, before + log_probability))
        added.sort(key=lambda each: -self.nodes[each[0]].log_probability)
        room = min(self.shape.top_k, self.max_nodes - self.num_followed)
        self.front = [
            Followed(node, row, front[row].sees | 1 << (self.num_followed + rank))
            for rank, (node, row) in enumerate(added[: max(room, 0)])
        ]
        self.num_followed += len(self.front)

    def pruned(self) -> Tree:
        """The likeliest nodes, in order of probability among siblings."""
        # A parent is at least as likely as its children and was added before them, so it sorts before them.
        likeliest = sorted(range(len(self.nodes)), key=lambda node: (-self.nodes[node].log_probability, node))
        kept = likeliest[: self.max_nodes]
        places = {ROOT: ROOT} | {node: place for place, node in enumerate(kept)}
        return Tree(
            tuple(self.nodes[node].token for node in kept), tuple(places[self.nodes[node].parent] for node in kept)
        )
