"""Which draft lengths commit the most tokens per second.

    goodput = Σ over sequences of (1 + S_1 + … + S_K) / T(round)

Draft slots are admitted one depth of one group at a time, by marginal tokens per marginal second, until every group is
at its longest; the best round on that road is taken. For one group that is an exact search over K. K = 0 is a choice
like any other. Prefill in the same round is left out: it has to be done whatever is drafted.
Sources: goodput, https://arxiv.org/abs/2406.14066; slots of several sequences, https://arxiv.org/abs/2502.15197.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from workers.draft_length.cost import Cost, RoundShape, add_drafts
from workers.draft_length.hazards import Outlook


@dataclass(frozen=True, slots=True)
class Group:
    """Sequences of a round with the same outlook."""

    num_seqs: int
    drafter: str
    outlook: Outlook
    shortest: int
    longest: int
    """K is chosen between these; a fixed one where they are equal."""


@dataclass(frozen=True, slots=True)
class Common:
    """What is the same whatever is drafted."""

    kv_tokens: int
    num_plain: int = 0
    """Sequences that never draft."""


@dataclass(frozen=True, slots=True)
class Choice:
    """Draft lengths by group, and what they promise."""

    lengths: tuple[int, ...]
    tokens: float
    seconds: float

    @property
    def goodput(self) -> float:
        """Tokens per second."""
        return self.tokens / self.seconds


def best_lengths(groups: Sequence[Group], common: Common, cost: Cost) -> Choice:
    """The draft length of each group with which the round has the highest goodput; the shorter of equal ones.

    A round is never taken to be cheaper than one with less in it.
    """
    here = best = choice_of([group.shortest for group in groups], groups, common, cost)
    while open_groups := [i for i, group in enumerate(groups) if here.lengths[i] < group.longest]:
        steps = [_longer(here, i, groups, common, cost) for i in open_groups]
        here = max(steps, key=lambda step: _marginal(here, step))
        if here.goodput > best.goodput:
            best = here
    return best


def choice_of(lengths: Sequence[int], groups: Sequence[Group], common: Common, cost: Cost) -> Choice:
    """What these lengths promise."""
    num_seqs = common.num_plain + sum(group.num_seqs for group in groups)
    tokens = float(num_seqs)
    drafted: dict[str, list[float]] = {}
    for length, group in zip(lengths, groups, strict=True):
        if length == 0:
            continue
        tokens += group.num_seqs * sum(group.outlook.survival[:length])
        add_drafts(drafted, group.drafter, [group.num_seqs * share for share in group.outlook.offered[:length]])
    seconds = cost(RoundShape(num_seqs, common.kv_tokens, 0, drafted))
    return Choice(tuple(lengths), tokens, seconds)


def _longer(here: Choice, group: int, groups: Sequence[Group], common: Common, cost: Cost) -> Choice:
    """With one more draft for each sequence of a group."""
    lengths = [length + (i == group) for i, length in enumerate(here.lengths)]
    step = choice_of(lengths, groups, common, cost)
    return Choice(step.lengths, step.tokens, max(step.seconds, here.seconds))


def _marginal(here: Choice, step: Choice) -> float:
    return (step.tokens - here.tokens) / max(step.seconds - here.seconds, 1e-12)
