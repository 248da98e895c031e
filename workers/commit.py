"""What one step did for each of its sequences, and how that is told: as events to the caller, as a Round to the
ledger."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Items
from dataclasses import dataclass

from configs.errors import RowError
from workers.apportion import apportion
from workers.contract import Event, Finished, Progress, Round, Started
from workers.pace import Pace
from workers.phases import Phase
from workers.sequence import Sequence

Output = tuple[str, Event | RowError]
"""(request id, what happened); a Finished or a RowError is the last of its request."""

NS_PER_S = 1_000_000_000


@dataclass(slots=True)
class Commit:
    """One sequence's part of a step."""

    sequence: Sequence
    num_rows: int
    is_round: bool
    """A verify step, not prefill."""
    num_drafts: int = 0
    path: tuple[int, ...] = ()
    """Drafts accepted, by their place in the draft."""
    num_kept: int = 0
    """Output tokens gained."""
    error: RowError | None = None

    @property
    def num_accepted(self) -> int:
        return len(self.path)

    def outputs(self, now_ns: int) -> list[Output]:
        """Its events, in order."""
        if self.error is not None:
            return [failed(self.sequence, self.error)]
        events: list[Event] = []
        if self.num_kept and self.num_kept == self.sequence.num_output:
            events.append(Started(*_waits(self.sequence)))
        if self.num_kept:
            events.append(Progress(self.num_kept))
        if self.sequence.finish_reason is not None:
            events.append(_finished(self.sequence, now_ns))
        return [(self.sequence.id, event) for event in events]


def split_time(commits: Items[Commit], busy_ns: int) -> None:
    """Charge a step's time to its sequences by the rows that each brought."""
    for commit, share in zip(commits, apportion(busy_ns, [commit.num_rows for commit in commits]), strict=True):
        commit.sequence.engine_ns += share


def round_of(commits: Items[Commit], busy_ns: int, phases: Mapping[Phase, int], pace: Pace) -> Round:
    """The step as a whole."""
    num_verify = sum(commit.num_rows for commit in commits if commit.is_round)
    return Round(
        busy_ns=busy_ns,
        num_seqs=len(commits),
        num_prefill_tokens=sum(commit.num_rows for commit in commits) - num_verify,
        num_verify_tokens=num_verify,
        num_draft_tokens=sum(commit.num_drafts for commit in commits),
        num_accepted_tokens=sum(commit.num_accepted for commit in commits),
        num_output_tokens=sum(commit.num_kept for commit in commits),
        draft_ns=phases["draft"],
        verify_ns=phases["verify"],
        sample_ns=phases["sample"],
        kv_tokens=sum(commit.sequence.num_computed for commit in commits if commit.is_round),
        num_decoding=sum(commit.is_round for commit in commits),
        drafted=pace.drafted,
        phase=pace.phase,
        is_usual=pace.is_usual,
        sequences=pace.sequences,
    )


def failed(sequence: Sequence, error: RowError) -> Output:
    """The end of a sequence that cost something all the same."""
    error.engine_ns = sequence.engine_ns
    return sequence.id, error


def _finished(sequence: Sequence, now_ns: int) -> Finished:
    assert sequence.finish_reason is not None
    queue_s, ttft_s = _waits(sequence)
    return Finished(
        text=sequence.text,
        token_ids=tuple(sequence.output),
        finish_reason=sequence.finish_reason,
        truncated_tokens=sequence.num_truncated,
        queue_s=queue_s,
        ttft_s=ttft_s,
        total_s=(now_ns - sequence.arrived_ns) / NS_PER_S,
        engine_ns=sequence.engine_ns,
        speculation=sequence.stats,
        drafter=sequence.drafter,
        acceptance=sequence.request.acceptance,
        text_repaired=sequence.text_repaired,
    )


def _waits(sequence: Sequence) -> tuple[float, float]:
    """Seconds until the first prefill work, and until the first token."""
    assert sequence.prefill_ns is not None
    assert sequence.first_token_ns is not None
    queue_ns, ttft_ns = sequence.prefill_ns - sequence.arrived_ns, sequence.first_token_ns - sequence.arrived_ns
    return queue_ns / NS_PER_S, ttft_ns / NS_PER_S
