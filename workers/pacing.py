"""Between the engine and the draft-length controller: which sequences ask for how long a draft, and what came of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence as Items

from workers.commit import Commit
from workers.contract import MAX_DRAFT_LEN, Request, Round, SequenceRound
from workers.draft_length.controller import DraftLengthController, RoundPlan, Standing, Tally
from workers.draft_length.cost import RoundShape
from workers.draft_length.stratum import Stratum, band_of
from workers.drafter import Draft
from workers.pace import Pace
from workers.scheduler import Decode
from workers.sequence import Sequence


class Pacing:
    """Sets the draft length of every sequence before a round, and tells the controller what came of it."""

    def __init__(self, controller: DraftLengthController, *, traces: bool = False) -> None:
        """`traces`: tell of every sequence in every round."""
        self._controller = controller
        self._traces = traces
        self._plan = RoundPlan()
        self._is_usual = True

    def drafter_for(self, request: Request, candidates: Items[str], num_seqs: int) -> str:
        """The drafter of a new sequence; `num_seqs` run at the moment."""
        if len(candidates) < 2:
            return candidates[0] if candidates else "none"
        stratum = Stratum(request.task, band_of(request.sampling), "", request.acceptance)
        return self._controller.choose_drafter(stratum, candidates, max(1, num_seqs), request.draft.bounds[1])

    def set_lengths(self, running: Items[Sequence]) -> None:
        """Before a round."""
        decoding = [sequence for sequence in running if not sequence.is_prefilling]
        drafting: dict[tuple[Stratum, int, int], list[Sequence]] = {}
        for sequence in decoding:
            if sequence.max_draft and not sequence.fallback_left:
                drafting.setdefault((sequence.stratum, sequence.min_draft, sequence.max_draft), []).append(sequence)
        drafting = dict(sorted(drafting.items()))  # a plan is kept while the same strata stand in the same order
        standings = [
            Standing(stratum, len(those), shortest, longest) for (stratum, shortest, longest), those in drafting.items()
        ]
        self._plan = self._controller.plan(
            standings,
            kv_tokens=sum(sequence.num_computed for sequence in decoding),
            num_plain=len(decoding) - sum(each.num_seqs for each in standings),
        )
        for those, length in zip(drafting.values(), self._plan.lengths, strict=True):
            for sequence in those:
                sequence.next_draft = length
        for those, num_seqs in zip(drafting.values(), self._plan.probed, strict=False):
            # The shortest have the least to catch up with.
            for sequence in sorted(those, key=lambda each: each.num_computed)[:num_seqs]:
                sequence.next_draft = 1
        for sequence in running:
            if sequence.is_prefilling:
                sequence.next_draft = self._length_in_use(sequence)
        self._is_usual = not any(_is_behind(sequence) for sequence in decoding if sequence.draft_len)

    def pace(self, decodes: Items[Decode], drafts: Items[Draft], commits: Items[Commit]) -> Pace:
        """Of the round under way; `commits` of its decodes come first."""
        traced = map(_traced, decodes, drafts, commits) if self._traces else ()
        return Pace(_by_depth(decodes, drafts), self._plan.phase, self._is_usual, tuple(traced))

    def record(self, done: Round, decodes: Items[Decode], drafts: Items[Draft], commits: Items[Commit]) -> None:
        """After a round; `commits` of its decodes come first."""
        tallies = Counter(
            (decode.sequence.stratum, decode.max_draft, len(draft.tree.tokens), commit.num_accepted)
            for decode, draft, commit in zip(decodes, drafts, commits[: len(decodes)], strict=True)
            if decode.max_draft and draft.tree.is_chain
        )
        shape = RoundShape(done.num_decoding, done.kv_tokens, done.num_prefill_tokens, done.drafted)
        counted = [Tally(*key, times) for key, times in tallies.items()]
        self._controller.record(shape, done.busy_ns, counted, is_usual=self._is_usual)

    def _length_in_use(self, sequence: Sequence) -> int:
        """Of a sequence whose prompt is under way, for its first round."""
        return min(max(self._controller.length_of(sequence.stratum), sequence.min_draft), sequence.max_draft)


def _by_depth(decodes: Items[Decode], drafts: Items[Draft]) -> dict[str, tuple[int, ...]]:
    found: dict[str, list[int]] = {}
    for decode, draft in zip(decodes, drafts, strict=True):
        if draft.tree.tokens:
            counts = found.setdefault(decode.sequence.drafter, [0] * MAX_DRAFT_LEN)
            for depth in draft.tree.depths:
                counts[depth - 1] += 1
    return {drafter: tuple(count for count in counts if count) for drafter, counts in found.items()}


def _traced(decode: Decode, draft: Draft, commit: Commit) -> SequenceRound:
    request, stratum = decode.sequence.request, decode.sequence.stratum
    return SequenceRound(
        request_id=request.request_id,
        task=stratum.task,
        band=stratum.band,
        drafter=stratum.drafter,
        acceptance=stratum.acceptance,
        asked=decode.max_draft,
        offered=draft.tree.depth,
        accepted=commit.num_accepted,
    )


def _is_behind(sequence: Sequence) -> bool:
    """More than a round's tokens have to be gone over before it can draft."""
    return sequence.follower is not None and len(sequence.tokens) - 1 - sequence.num_followed > MAX_DRAFT_LEN + 1
