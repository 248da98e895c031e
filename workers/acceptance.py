"""Which drafts are kept: the rules of verification for chains and trees, as pure functions with injected draws.

    match_tree        lossless  the target's own tokens, drawn beforehand, decide; for any drafter
    rejection_sample  lossless  for drafts that come with the law they were drawn from; keeps the most when drafts are
                                sampled, and as much as `match_tree` when they are certain
    lossy_threshold   LOSSY     what the target finds probable enough is kept; the output has another law

Lossless: if the rows are the target's laws given each branch, the tokens of the rounds put together have the target's
own law, exactly. Greedy decoding is the case in which every row has one token.

Numbers are floats, or fractions with which the laws can be enumerated. Nothing here normalises `rows` or `proposals`.
Letters in shapes: N nodes of the draft tree.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import singledispatch
from typing import Protocol, TypeAlias, TypeVar

Number = TypeVar("Number", float, Fraction)
Asked = TypeVar("Asked", float, Fraction, contravariant=True)

Law: TypeAlias = Mapping[int, Number]
"""Probability by token; they sum to one. A token that is missing has none, so a draft vocabulary, the survivors of
top-k and top-p, and a certain token ({token: 1}) need nothing special."""

ROOT = -1
"""Stands for the last committed token, as the parent of the first drafts."""


class Draws(Protocol[Asked]):
    """The randomness of one round, asked in an order that the answers so far decide.

    Every answer must be independent of the others and of the drafter's own draws. A round commits at least one token,
    so (sample, position of the round's first token, how many draws came before) names a draw for good.
    """

    def accept(self, probability: Asked, /) -> bool:
        """True with this probability, which lies in [0, 1): a uniform of [0, 1) is below it."""
        ...

    def choose(self, weights: Law[Asked], /) -> int:
        """A token in proportion to its weight. Some weight is positive."""
        ...


@dataclass(frozen=True, slots=True)
class Tree:
    """Drafts to verify in one pass. Siblings are tried in the order of the nodes; since children come after their
    parents, the rules below need to go over the nodes only once."""

    tokens: tuple[int, ...]
    """Of each node [N]."""
    parents: tuple[int, ...]
    """The node before each node, ROOT for the first drafts [N]. Parents come before their children."""

    def __post_init__(self) -> None:
        assert len(self.tokens) == len(self.parents)
        assert all(ROOT <= parent < node for node, parent in enumerate(self.parents))

    @classmethod
    def chain(cls, tokens: Sequence[int]) -> Tree:
        """Each draft follows the one before."""
        return cls(tuple(tokens), tuple(range(ROOT, len(tokens) - 1)))

    @property
    def is_chain(self) -> bool:
        return all(parent == node - 1 for node, parent in enumerate(self.parents))

    @property
    def branches(self) -> list[tuple[int, ...]]:
        """The tokens from the root to each node, its own included [N]."""
        found: list[tuple[int, ...]] = []
        for token, parent in zip(self.tokens, self.parents, strict=True):
            found.append((token,) if parent == ROOT else (*found[parent], token))
        return found

    @property
    def depths(self) -> list[int]:
        """Of each node; 1 is the first draft [N]."""
        found: list[int] = []
        for parent in self.parents:
            found.append(1 if parent == ROOT else found[parent] + 1)
        return found

    @property
    def depth(self) -> int:
        """Of the longest branch."""
        return max(self.depths, default=0)

    def is_leaf(self, node: int) -> bool:
        return node not in self.parents


@dataclass(frozen=True, slots=True)
class Verdict:
    """What one round yields."""

    path: tuple[int, ...]
    """Accepted nodes, from the root on."""
    tokens: tuple[int, ...]
    """Those nodes' tokens, and one more of the target's."""


def match_tree(tree: Tree, targets: Sequence[int]) -> Verdict:
    """Lossless: sample and match, or greedy. The branch is kept as long as it is the target's own.

    `targets` [N + 1]: the target's token after the last committed one, and after each node (`targets[node + 1]`), drawn
    from the law given the branch up to there; greedy: its argmax. Nothing else is random, and drafts may depend on
    anything, even on the noise that `targets` were drawn with: the tokens are the target's own sample path.
    For a draft that is certain, the acceptance probability p(token) is that of rejection sampling.
    """
    assert len(targets) == len(tree.tokens) + 1
    path: list[int] = []
    end = ROOT
    for node, parent in enumerate(tree.parents):
        if parent == end and tree.tokens[node] == targets[end + 1]:
            path.append(end := node)
    return _ended(tree, path, targets[end + 1])


def rejection_sample(
    tree: Tree, proposals: Sequence[Law[Number]], rows: Sequence[Law[Number]], draws: Draws[Number]
) -> Verdict:
    """Lossless: accept a draft x with probability min(1, p(x) / q(x)); at a rejection go on with norm((p - q)+) in
    place of p, to the next sibling or, after the last, to the draw that ends the round.

    `proposals` [N]: q, the law that each node's token was drawn from, given the branch before it and the siblings
    before it. `rows` [N + 1]: p, the target's law after the last committed token, and after each node
    (`rows[node + 1]`). Random: a coin per draft tried, and the token that ends the round.

    One rule, of which the known ones are cases:
    - a chain: speculative sampling (https://arxiv.org/abs/2211.17192, https://arxiv.org/abs/2302.01318);
    - siblings drawn independently, from one q or several: SpecInfer (https://arxiv.org/abs/2305.09781);
    - siblings drawn without replacement, where q leaves out the siblings before and is normalised again
      (https://arxiv.org/abs/2402.14160);
    - certain tokens, q = {x: 1}, such as the k most probable: x is accepted with probability p(x) over what the
      siblings before it left, else struck out of p, as in EAGLE (https://arxiv.org/abs/2401.15077).

    It is lossless only if q is what it says. A drawn token must stay, however improbable; so must one that was drawn
    twice, as two siblings; and siblings must stay in an order that was settled before they were drawn.
    """
    assert len(proposals) == len(tree.tokens) == len(rows) - 1
    path: list[int] = []
    end, law = ROOT, rows[0]
    for node, parent in enumerate(tree.parents):
        if parent != end:
            continue
        if _is_kept(tree.tokens[node], law, proposals[node], draws):
            path.append(end := node)
            law = rows[node + 1]
        else:
            law = residual(law, proposals[node])
    return _ended(tree, path, draws.choose(law))


@singledispatch
def residual(p: Law[Number], q: Law[Number]) -> Law[Number]:
    """norm((p - q)+): the law of the token when a draft from `q` was rejected. `dense_law` has one for tensors."""
    left = {token: share - q[token] if token in q else share for token, share in p.items() if share > q.get(token, 0)}
    if not left:
        # Then p = q but for rounding, and only rounding can have rejected the draft.
        return p
    total = sum(left.values())
    return {token: share / total for token, share in left.items()}


def lossy_threshold(tree: Tree, probabilities: Sequence[Number], targets: Sequence[int], threshold: Number) -> Verdict:
    """LOSSY: accept the first child whose probability is at least `threshold`, where there is none end with the
    target's own token.

    Accepted tokens come more often than the target would draw them: the output's law is not the target's, it depends
    on the drafter, and no sampling parameter makes up for it. Of the same family as Medusa's typical acceptance
    (https://arxiv.org/abs/2401.10774), whose threshold falls with the entropy. Whatever the drafter, nothing is lost
    only if no draft can reach the threshold, as when it is above one, or if the target is certain of all that do.

    `probabilities` [N]: the target's, of each node's token given the branch before it. `targets` [N + 1]: as for
    `match_tree`.
    """
    assert len(probabilities) == len(tree.tokens) == len(targets) - 1
    path: list[int] = []
    end = ROOT
    for node, parent in enumerate(tree.parents):
        if parent == end and probabilities[node] >= threshold:
            path.append(end := node)
    return _ended(tree, path, targets[end + 1])


def _is_kept(token: int, p: Law[Number], q: Law[Number], draws: Draws[Number]) -> bool:
    assert q.get(token, 0) > 0
    share = p.get(token)
    return share is not None and (share >= q[token] or draws.accept(share / q[token]))


def _ended(tree: Tree, path: Sequence[int], last: int) -> Verdict:
    return Verdict(tuple(path), (*(tree.tokens[node] for node in path), last))
