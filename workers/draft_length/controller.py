"""The draft-length controller: for each round, how many tokens to draft for the sequences of each stratum.

    plan(standings)  ->  lengths by stratum          before a round
    record(outcome)                                  after it

Tokens are expected by the hazards of each stratum (`hazards`), seconds by the cost of rounds (`cost_fit`); the lengths
are those with the highest goodput (`goodput`), K = 0 among them. Only the next deeper position is looked at with
optimism: a round at K teaches everything about shorter drafts and nothing about longer ones. A length that is no better
than the present one by a margin is not worth a change. Where K is 0, one draft for a few sequences is tried now and
then, more rarely each time, so that a change is seen. A stratum that stops behaving as predicted is learned anew.

Nothing here knows the time, a tensor or a cluster: rounds are told with what they took.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace

from workers.contract import MAX_DRAFT_LEN, Phase
from workers.draft_length.cost import RoundShape
from workers.draft_length.cost_fit import CostFit
from workers.draft_length.drift import PageHinkley
from workers.draft_length.evidence import Evidence
from workers.draft_length.experience import Experience
from workers.draft_length.goodput import Choice, Common, Group, best_lengths, choice_of
from workers.draft_length.hazards import MIN_STRENGTH, Outlook, Prior, hazard_of, pooled_prior
from workers.draft_length.plain_blocks import PlainBlocks
from workers.draft_length.round_sums import RoundSums
from workers.draft_length.stratum import Stratum

MARGIN = 0.01
"""By which another choice must promise more tokens per second."""
DWELL = 8
"""Rounds that a choice is kept for while the load is the same."""
FORGET = 0.999
"""What each draft leaves of those before it at its position: about the last thousand count."""
PROBE_AFTER, PROBE_AFTER_MOST = 64, 512
"""Rounds at K = 0 between two probes; doubled by each that changes nothing."""
PROBE_SEQS = 4
PROBE_AGAIN = 2
"""Rounds until the next probe after one that went far better than expected."""
_SURPRISE = 0.25
_PREDICTABLE = 50
"""First drafts after which a stratum has a behaviour to depart from."""
SEED_LENGTHS = (0, 1, 2, 4) * 3
"""Of the first rounds on an unknown machine: the cost of a round is seen from different sides."""
_ENOUGH_ROUNDS = 50
_POOL_EVERY = 32
"""Rounds from one shared prior to the next."""
_NEWS = 1.5
"""Times as many first drafts as were known when the lengths were chosen."""
_EXPLORED = 200
"""First drafts after which a drafter is known for a stratum."""
_EXPLORE_SEQS = 16
"""Sequences after which it is known in any case."""
_EXPLORE_EVERY = 64
"""Sequences, of which one goes to another drafter than the best."""


@dataclass(frozen=True, slots=True)
class Standing:
    """Sequences of a stratum in the round that begins. K is chosen from `shortest` to `longest`; it is fixed, and no
    business of the stratum's own length, if they are equal."""

    stratum: Stratum
    num_seqs: int
    shortest: int = 0
    longest: int = MAX_DRAFT_LEN

    @property
    def is_fixed(self) -> bool:
        return self.shortest == self.longest

    def bounded(self, length: int) -> int:
        return min(max(length, self.shortest), self.longest)


@dataclass(frozen=True, slots=True)
class RoundPlan:
    """Draft lengths of a round, by standing."""

    lengths: tuple[int, ...] = ()
    probed: tuple[int, ...] = ()
    """How many sequences of a standing at K = 0 draft one token all the same; empty if nobody does."""
    phase: Phase = "drafting"


@dataclass(frozen=True, slots=True)
class Tally:
    """Equal rounds of sequences: asked for K drafts, offered, accepted."""

    stratum: Stratum
    asked: int
    offered: int
    accepted: int
    times: int = 1


class DraftLengthController:
    """One engine's controller."""

    def __init__(
        self, drafters: Sequence[str], start: Experience | None = None, *, plain_share: float = 0.02, seed: int = 0
    ) -> None:
        """`start`: what is known from earlier work, as strong as it is to count. `plain_share`: of rounds that
        are decoded without drafts, to measure what drafting saves."""
        start = start or Experience()
        self._strata = {stratum: _State(evidence) for stratum, evidence in start.evidence.items()}
        self._cost = CostFit(drafters, start.rounds)
        self._blocks = PlainBlocks(plain_share, seed)
        self._seeds = deque(() if start.rounds.weight >= _ENOUGH_ROUNDS else SEED_LENGTHS)
        self._is_seeding = False
        self._priors: dict[str, Prior] = {}
        self.num_rounds = 0
        self._planned_at = -DWELL
        self._planned_for: object = None
        self._plan = RoundPlan()
        self._is_usual = True
        self._explored: dict[Stratum, int] = {}
        """Sequences that a drafter got only because little was known of it."""
        self._admitted: dict[tuple[str, str, str], int] = {}
        self.num_switches = 0

    def plan(self, standings: Sequence[Standing], *, kv_tokens: int, num_plain: int = 0) -> RoundPlan:
        """Draft lengths for the round that begins. `num_plain`: sequences that never draft."""
        self._is_usual = True
        if not any(each.longest for each in standings):
            return RoundPlan((0,) * len(standings))
        phase = self._blocks.next_round()
        if phase == "plain":
            return RoundPlan((0,) * len(standings), phase=phase)
        self._is_usual = phase == "drafting"
        if not self._cost.is_known:
            return RoundPlan(tuple(each.bounded(self._state(each.stratum).length) for each in standings), phase=phase)
        if self._seeds and not all(each.is_fixed for each in standings):
            self._is_seeding, wanted = True, self._seeds[0]
            return RoundPlan(tuple(each.bounded(wanted) for each in standings), phase=phase)
        load = [(each.stratum, _octave(each.num_seqs), each.shortest, each.longest) for each in standings]
        is_old = self.num_rounds - self._planned_at >= DWELL
        has_news = any(self._state(each.stratum).has_learned for each in standings if not each.is_fixed)
        if is_old or has_news or load != self._planned_for:
            self._choose(standings, Common(kv_tokens, num_plain))
            self._planned_for, self._planned_at = load, self.num_rounds
        return replace(self._with_probes(standings), phase=phase)

    def record(self, shape: RoundShape, ns: int, tallies: Sequence[Tally], *, is_usual: bool = True) -> None:
        """What came of the round that was planned last: what was in it, what it took, and what each draft met.
        `is_usual`: it took what such rounds take; not if a drafter went over a text that it had not followed."""
        self.num_rounds += 1
        if self._is_usual and is_usual:
            self._cost.observe(shape, ns / 1e9)
        if self._is_seeding:
            self._seeds.rotate(-1)
            if self._is_usual and is_usual and not shape.prefill_tokens:
                self._seeds.pop()  # one whose round told nothing of the cost comes again
            self._is_seeding = False
        if self.num_rounds % _POOL_EVERY == 0:
            self._priors.clear()
        for stratum in dict.fromkeys(tally.stratum for tally in tallies):
            self._learn(stratum, [tally for tally in tallies if tally.stratum == stratum])

    def choose_drafter(self, stratum: Stratum, candidates: Sequence[str], num_seqs: int, longest: int) -> str:
        """Of the drafters that a new sequence may have, the one with the highest goodput in a batch of its like.
        One that is hardly known gets every other sequence until it is known, and one sequence in 64 later."""
        mine = {name: Stratum(stratum.task, stratum.band, name, stratum.acceptance) for name in candidates}
        key = (stratum.task, stratum.band, stratum.acceptance)
        turn = self._admitted[key] = self._admitted.get(key, -1) + 1
        unknown = [name for name in candidates if self._is_unknown(mine[name])]
        if len(candidates) > 1 and unknown and turn % 2 == 0:
            chosen = unknown[turn // 2 % len(unknown)]
            self._explored[mine[chosen]] = self._explored.get(mine[chosen], 0) + 1
            return chosen
        if not self._cost.is_known:
            return candidates[0]
        best = max(candidates, key=lambda name: self._promise(mine[name], num_seqs, longest))
        others = [name for name in candidates if name != best]
        return others[turn // _EXPLORE_EVERY % len(others)] if others and turn % _EXPLORE_EVERY == 0 else best

    def _is_unknown(self, stratum: Stratum) -> bool:
        """Few of its drafts were seen, and not because it was given enough sequences and hardly drafted for them."""
        few = self._state(stratum).evidence.asked[0] < _EXPLORED
        return few and self._explored.get(stratum, 0) < _EXPLORE_SEQS

    def outlook(self, stratum: Stratum) -> Outlook:
        """What is expected of a stratum now, without optimism."""
        state = self._state(stratum)
        return Outlook.of(state.evidence, self._prior(stratum, state))

    def _learn(self, stratum: Stratum, tallies: Sequence[Tally]) -> None:
        """What the drafts of a stratum met in a round."""
        state = self._state(stratum)
        tried = sum(tally.times for tally in tallies if tally.offered)
        accepted = sum(tally.times for tally in tallies if tally.accepted)
        if tried and state.drifts(self._prior(stratum, state), tried, accepted):
            state.begin_anew()
            self._planned_for = None
        for tally in tallies:
            state.evidence.note(tally.asked, tally.offered, tally.accepted, tally.times, FORGET)

    def length_of(self, stratum: Stratum) -> int:
        """The draft length in use."""
        return self._strata[stratum].length if stratum in self._strata else 0

    @property
    def lengths(self) -> dict[Stratum, int]:
        """In use, by stratum."""
        return {stratum: state.length for stratum, state in self._strata.items()}

    def evidence(self, stratum: Stratum) -> Evidence:
        """What is known of it, what was learned earlier included and what is old discounted."""
        return self._state(stratum).evidence

    @property
    def rounds(self) -> RoundSums:
        """What the cost of rounds is known from."""
        return self._cost.sums

    def _promise(self, stratum: Stratum, num_seqs: int, longest: int) -> float:
        group = Group(num_seqs, stratum.drafter, self.outlook(stratum), 0, longest)
        return best_lengths([group], Common(0), self._cost).goodput

    def _choose(self, standings: Sequence[Standing], common: Common) -> None:
        """Decide anew, and change only what is worth it."""
        groups = [self._group(each) for each in standings]
        kept = [each.bounded(self._state(each.stratum).length) for each in standings]
        present = choice_of(kept, groups, common, self._cost)
        best = best_lengths(groups, common, self._cost)
        chosen: Choice = best if best.goodput > (1 + MARGIN) * present.goodput else present
        for each, length in zip(standings, chosen.lengths, strict=True):
            if not each.is_fixed:
                state = self._state(each.stratum)
                self.num_switches += state.length != length
                state.set_length(length)
        self._plan = RoundPlan(chosen.lengths)

    def _group(self, standing: Standing) -> Group:
        state = self._state(standing.stratum)
        outlook = Outlook.of(state.evidence, self._prior(standing.stratum, state), hope_at=state.length)
        return Group(standing.num_seqs, standing.stratum.drafter, outlook, standing.shortest, standing.longest)

    def _with_probes(self, standings: Sequence[Standing]) -> RoundPlan:
        probed = tuple(
            min(PROBE_SEQS, each.num_seqs)
            if length == 0 < each.longest and self._state(each.stratum).probe_is_due()
            else 0
            for each, length in zip(standings, self._plan.lengths, strict=True)
        )
        if not any(probed):
            return self._plan
        self._is_usual = False
        self._planned_for = None
        return RoundPlan(self._plan.lengths, probed)

    def _state(self, stratum: Stratum) -> _State:
        return self._strata.setdefault(stratum, _State())

    def _prior(self, stratum: Stratum, state: _State) -> Prior:
        """What the other strata of its drafter have seen."""
        drafter = stratum.drafter
        if drafter not in self._priors:
            self._priors[drafter] = pooled_prior(
                other.evidence for key, other in self._strata.items() if key.drafter == drafter
            )
        prior = self._priors[drafter]
        return prior.limited(MIN_STRENGTH) if state.has_drifted else prior


class _State:
    """What the controller keeps of a stratum."""

    def __init__(self, evidence: Evidence | None = None) -> None:
        self.evidence = (evidence or Evidence()).scaled(1.0)
        self.length = 0
        self.has_drifted = False
        self._tried_then = 1.0
        self._test = PageHinkley()
        self._off_for = 0
        self._probe_after = PROBE_AFTER

    @property
    def has_learned(self) -> bool:
        """So much since its length was set that the choice may be another; soon only at the start."""
        return self.evidence.tried[0] > _NEWS * self._tried_then

    def set_length(self, length: int) -> None:
        self._tried_then = max(1.0, self.evidence.tried[0])
        if length and not self.length:
            self._off_for, self._probe_after = 0, PROBE_AFTER
        self.length = length

    def probe_is_due(self) -> bool:
        """Asked once per round at K = 0."""
        self._off_for += 1
        if self._off_for < self._probe_after:
            return False
        self._off_for, self._probe_after = 0, min(2 * self._probe_after, PROBE_AFTER_MOST)
        return True

    def drifts(self, prior: Prior, tried: int, accepted: int) -> bool:
        """Whether first drafts do not behave as predicted any more, once there were enough to predict from."""
        if self.evidence.tried[0] < _PREDICTABLE:
            return False
        hazard = hazard_of(self.evidence, prior, 0)
        if self.length == 0 and accepted > tried * (hazard + _SURPRISE):
            self._off_for = self._probe_after - PROBE_AGAIN
        return self._test.observe(hazard, tried, accepted)

    def begin_anew(self) -> None:
        self.evidence, self.has_drifted = Evidence(), True


def _octave(num_seqs: int) -> int:
    """Half octaves, within which a load counts as the same."""
    return round(2 * math.log2(num_seqs))
