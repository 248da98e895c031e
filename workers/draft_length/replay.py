"""A trace under another draft-length policy, batch or cost: what was seen is looked up, what was not is drawn.

Requests run again in their order, each with its own history. Where a sequence stands at a token of it, a draft of K is
answered by the traced round over that token: so many more of its drafts were accepted, then one was refused. Where the
trace cannot know, because the round drafted less or not at all, acceptance is drawn from the hazards of its stratum
over the whole trace. Deterministic by seed; the history of a trace with long drafts is looked up most.
"""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from workers.contract import MAX_DRAFT_LEN
from workers.draft_length.controller import DraftLengthController, RoundPlan, Standing, Tally
from workers.draft_length.cost import Cost, RoundShape, add_drafts
from workers.draft_length.evidence import Evidence
from workers.draft_length.hazards import IGNORANCE, hazard_of, pooled_prior
from workers.draft_length.stratum import Stratum


@dataclass(frozen=True, slots=True)
class TracedRound:
    """Of one sequence."""

    asked: int
    offered: int
    accepted: int


@dataclass(slots=True)
class History:
    """One request as it was traced."""

    stratum: Stratum
    context_tokens: int
    """In the cache when it began to decode, about."""
    rounds: list[TracedRound] = field(default_factory=list)

    @property
    def num_tokens(self) -> int:
        """That its rounds committed."""
        return sum(1 + each.accepted for each in self.rounds)


class LengthChoice(Protocol):
    """Draft lengths for a round, however they come about."""

    def plan(self, standings: Sequence[Standing], kv_tokens: int) -> RoundPlan: ...

    def record(self, shape: RoundShape, seconds: float, tallies: Sequence[Tally]) -> None:
        """What came of it."""
        ...


class FixedLengths:
    """By stratum; also the oracle, whose lengths were found by trying."""

    def __init__(self, by_stratum: Mapping[Stratum, int], default: int = 0) -> None:
        self._by_stratum = by_stratum
        self._default = default

    def plan(self, standings: Sequence[Standing], kv_tokens: int) -> RoundPlan:
        lengths = (self._by_stratum.get(each.stratum, self._default) for each in standings)
        return RoundPlan(tuple(each.bounded(k) for each, k in zip(standings, lengths, strict=True)))

    def record(self, shape: RoundShape, seconds: float, tallies: Sequence[Tally]) -> None:
        """Nothing to learn."""


class AutoLengths:
    """The controller, from nothing."""

    def __init__(self, drafters: Sequence[str], seed: int) -> None:
        self._controller = DraftLengthController(drafters, plain_share=0.0, seed=seed)

    def plan(self, standings: Sequence[Standing], kv_tokens: int) -> RoundPlan:
        return self._controller.plan(standings, kv_tokens=kv_tokens)

    def record(self, shape: RoundShape, seconds: float, tallies: Sequence[Tally]) -> None:
        self._controller.record(shape, round(seconds * 1e9), tallies)


@dataclass(slots=True)
class Served:
    """Of one task."""

    tokens: int = 0
    seconds: float = 0.0
    """Its sequences' share of each round."""
    drafts: int = 0
    accepted: int = 0
    rounds: int = 0
    """Of sequences."""

    @property
    def goodput(self) -> float:
        """Tokens per second of an engine that does nothing else."""
        return self.tokens / self.seconds if self.seconds else 0.0


class Replay:
    """Traced requests, ready to run again and again."""

    def __init__(self, histories: Sequence[History], cost: Cost, *, batch: int, seed: int = 0) -> None:
        """`batch`: sequences that run at once."""
        self._histories = histories
        self._starts = [_starts(history) for history in histories]
        self._cost = cost
        self._batch = batch
        self._seed = seed
        self._hazards = _hazards(histories)

    def run(self, choice: LengthChoice) -> dict[str, Served]:
        """Every request to its end; by task."""
        draws = random.Random(self._seed)
        waiting = list(range(len(self._histories)))[::-1]
        running: dict[int, int] = {}
        served: dict[str, Served] = {}
        while waiting or running:
            while waiting and len(running) < self._batch:
                running[waiting.pop()] = 0
            self._round(choice, running, served, draws)
        return served

    def _round(
        self, choice: LengthChoice, running: dict[int, int], served: dict[str, Served], draws: random.Random
    ) -> None:
        """One round of the running requests (number -> tokens so far)."""
        members: dict[Stratum, list[int]] = {}
        for number in running:
            members.setdefault(self._histories[number].stratum, []).append(number)
        kv_tokens = sum(self._histories[number].context_tokens + done for number, done in running.items())
        plan = choice.plan([_standing(stratum, len(those)) for stratum, those in members.items()], kv_tokens)
        lengths = _lengths(list(members.values()), plan)
        kept = {number: self._answer(number, running[number], k, draws) for number, k in lengths.items()}
        shape = RoundShape(len(running), kv_tokens, 0, self._drafted(lengths, kept))
        seconds = self._cost(shape)
        choice.record(
            shape,
            seconds,
            [Tally(self._histories[number].stratum, k, *kept[number]) for number, k in lengths.items() if k],
        )
        for number, (offered, accepted) in kept.items():
            history = self._histories[number]
            tokens = min(1 + accepted, history.num_tokens - running[number])
            one = served.setdefault(history.stratum.task, Served())
            one.tokens, one.seconds = one.tokens + tokens, one.seconds + seconds / len(kept)
            one.drafts, one.accepted, one.rounds = one.drafts + offered, one.accepted + accepted, one.rounds + 1
            running[number] += tokens
            if running[number] >= history.num_tokens:
                del running[number]

    def _answer(self, number: int, done: int, k: int, draws: random.Random) -> tuple[int, int]:
        """(offered, accepted) of a draft of k tokens after so many."""
        history, starts = self._histories[number], self._starts[number]
        at = bisect_right(starts, done) - 1
        traced, into = history.rounds[at], done - starts[at]
        known = max(0, traced.accepted - into)
        """Tokens that the traced round went on to accept from here."""
        if traced.asked and traced.offered == 0:
            return 0, 0  # the drafter had found nothing
        if known >= k:
            return k, k
        if traced.asked and traced.accepted < traced.offered:
            return k, known
        accepted = known
        while accepted < k and draws.random() < self._hazards[history.stratum][accepted]:
            accepted += 1
        return k, accepted

    def _drafted(self, lengths: Mapping[int, int], kept: Mapping[int, tuple[int, int]]) -> dict[str, list[float]]:
        found: dict[str, list[float]] = {}
        for number in lengths:
            offered, _ = kept[number]
            add_drafts(found, self._histories[number].stratum.drafter, [1.0] * offered)
        return found


def _standing(stratum: Stratum, num_seqs: int) -> Standing:
    """Nothing is known of drafts for a sequence that had no drafter."""
    return Standing(stratum, num_seqs, 0, 0 if stratum.drafter == "none" else MAX_DRAFT_LEN)


def _lengths(members: Sequence[Sequence[int]], plan: RoundPlan) -> dict[int, int]:
    """Request -> K."""
    found = {number: k for those, k in zip(members, plan.lengths, strict=True) for number in those}
    for those, num_seqs in zip(members, plan.probed, strict=False):
        found |= dict.fromkeys(those[:num_seqs], 1)
    return found


def _starts(history: History) -> list[int]:
    """Tokens before each round."""
    found, done = list[int](), 0
    for each in history.rounds:
        found.append(done)
        done += 1 + each.accepted
    return found


def _hazards(histories: Sequence[History]) -> dict[Stratum, list[float]]:
    """Of each stratum over the whole trace. Deeper than it ever drafted they are as where it was deepest; of one that
    never drafted, as of the others with its drafter."""
    evidence: dict[Stratum, Evidence] = {}
    for history in histories:
        mine = evidence.setdefault(history.stratum, Evidence())
        for each in history.rounds:
            mine.note(each.asked, each.offered, each.accepted)
    found = {}
    for stratum, mine in evidence.items():
        alike = [other for key, other in evidence.items() if key.drafter == stratum.drafter]
        prior = pooled_prior(alike) if any(each.tried[0] for each in alike) else IGNORANCE
        deepest = max((position for position in range(MAX_DRAFT_LEN) if mine.tried[position]), default=MAX_DRAFT_LEN)
        found[stratum] = [hazard_of(mine, prior, min(position, deepest)) for position in range(MAX_DRAFT_LEN)]
    return found
