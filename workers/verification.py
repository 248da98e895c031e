"""What the target makes of the drafts of a pass: its logits in, the tokens of each sequence's round out.

Most samples are verified by match: a token is chosen at every row and decides alone. Rejection sampling looks at whole
laws, the threshold at single probabilities. Greedy requests match under rejection sampling, too: it is the same there.
"""

from __future__ import annotations

from collections.abc import Sequence as Items
from dataclasses import dataclass
from itertools import accumulate

from torch import Tensor

from workers.acceptance import Tree, Verdict, lossy_threshold, match_tree, rejection_sample
from workers.dense_law import DenseLaw
from workers.drafter import NOTHING, Draft
from workers.keyed_draws import KeyedDraws
from workers.sampling import NOT_FINITE, Row, choose, probabilities
from workers.sequence import Sequence


@dataclass(frozen=True, slots=True)
class Claim:
    """The rows of a sequence in the logits: after its last token, then after each node of its draft."""

    sequence: Sequence
    draft: Draft = NOTHING

    @property
    def tree(self) -> Tree:
        return self.draft.tree

    @property
    def num_rows(self) -> int:
        return 1 + len(self.tree.tokens)

    @property
    def wants_laws(self) -> bool:
        """Whether the rows' laws decide, and not only the target's own tokens."""
        has_rule = self.sequence.is_rejection_sampled or self.sequence.request.acceptance == "threshold"
        return has_rule and self.num_rows > 1

    def rows(self) -> list[Row]:
        """How to choose at each."""
        return [self._row(()), *(self._row(branch) for branch in self.tree.branches)]

    def _row(self, branch: Items[int]) -> Row:
        sequence = self.sequence
        return Row(sequence.request.sampling, sequence.key, sequence.num_output + len(branch), sequence.seen, branch)


def verify(logits: Tensor, claims: Items[Claim]) -> list[Verdict]:
    """The rounds of sequences whose rows follow each other in `logits` [R, V], which may be changed. A token NOT_FINITE
    stands where the logits are not."""
    if not claims:
        return []
    rows = [row for claim in claims for row in claim.rows()]
    ends = accumulate(claim.num_rows for claim in claims)
    places = [slice(end - claim.num_rows, end) for claim, end in zip(claims, ends, strict=True)]
    laws = [
        probabilities(logits[place].clone(), rows[place]) if claim.wants_laws else None
        for claim, place in zip(claims, places, strict=True)
    ]
    tokens = choose(logits, rows)
    return [_verdict(claim, tokens[place], law) for claim, place, law in zip(claims, places, laws, strict=True)]


def _verdict(claim: Claim, targets: list[int], laws: Tensor | None) -> Verdict:
    """`targets`: the target's own token at each row; `laws` [rows, V]."""
    if laws is None or NOT_FINITE in targets:
        return match_tree(claim.tree, targets)
    if claim.sequence.is_rejection_sampled:
        draws = KeyedDraws(claim.sequence.key, claim.sequence.num_output)
        return rejection_sample(claim.tree, claim.draft.certain_or_laws, [DenseLaw(law) for law in laws], draws)
    shares = [
        float(laws[parent + 1, token]) for token, parent in zip(claim.tree.tokens, claim.tree.parents, strict=True)
    ]
    return lossy_threshold(claim.tree, shares, targets, claim.sequence.request.acceptance_threshold)
