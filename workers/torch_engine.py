"""The torch engine: continuous batching with speculation, on CPU and CUDA by the same code.

    add(request) -> waiting -> step(): schedule -> draft -> forward -> choose -> commit -> events

One step is one forward pass of the target over every sequence that takes part: 1 + K rows of each that decodes, a chunk
of each prompt. It is synchronous and knows no threads; `engine_loop.EngineLoop` runs it behind the Engine contract.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from collections.abc import Sequence as Items

import torch
from torch import Tensor

from configs.errors import RowError
from workers.admission import Admission, row_error
from workers.batch import Segment, build_batch
from workers.commit import NS_PER_S, Commit, Output, failed, round_of, split_time
from workers.contract import Request, Round
from workers.detokenizer import cut_before
from workers.drafter import Ask, Drafter, Seen
from workers.llama import Llama
from workers.sampling import NOT_FINITE, Row, choose
from workers.scheduler import Decode, Limits, Prefill, Schedule, Scheduler
from workers.sequence import Sequence
from workers.slots import SlotTable
from workers.verify import match


class TorchEngine:
    """Target, drafters and cache; advances all its sequences one step at a time."""

    def __init__(
        self,
        model: Llama,
        slots: SlotTable,
        admission: Admission,
        drafters: Items[Drafter],
        limits: Limits,
        *,
        clock_ns: Callable[[], int] = time.perf_counter_ns,
    ) -> None:
        self._model = model
        self._slots = slots
        self._admission = admission
        self._drafters = {drafter.name: drafter for drafter in drafters}
        self._scheduler = Scheduler(limits, slots)
        self._sequences: dict[str, Sequence] = {}
        self._rounds: list[Round] = []
        self._clock_ns = clock_ns

    @property
    def max_length(self) -> int:
        """Prompt + output tokens of one request at most."""
        return self._admission.max_length

    @property
    def has_work(self) -> bool:
        return bool(self._sequences)

    def add(self, request: Request, arrived_ns: int | None = None) -> None:
        """Queue a request. `arrived_ns`: when it was asked for, by the engine's clock; default now.

        Raises:
            RowError: it can never be served.
        """
        if request.request_id in self._sequences:
            raise row_error(
                "duplicate_request", f"request {request.request_id!r} is running; give every sample its own id"
            )
        sequence = self._admission.admit(request, self._clock_ns() if arrived_ns is None else arrived_ns)
        self._sequences[sequence.id] = sequence
        self._scheduler.waiting.append(sequence)

    def abort(self, request_id: str) -> list[Output]:
        """End a request as RowError `aborted`; nothing if it is not here."""
        sequence = self._sequences.get(request_id)
        if sequence is None:
            return []
        self._remove(sequence)
        error = row_error("aborted", f"request {request_id!r} was aborted", retryable=True)
        return [failed(sequence, error)]

    @torch.inference_mode()
    def step(self) -> list[Output]:
        """One forward pass, and what came of it."""
        started_ns = self._clock_ns()
        expired = self._expire(started_ns)
        schedule = self._scheduler.schedule()
        if schedule.is_empty:
            return expired
        drafts, draft_ns = self._draft(schedule.decodes)
        logits, taps, first_rows = self._forward(schedule, drafts)
        tokens = choose(logits, _logit_rows(schedule, drafts))
        commits = self._commit(schedule, drafts, tokens)
        if taps is not None:
            draft_ns += self._observe(commits, first_rows, taps)
        now_ns = self._clock_ns()
        split_time(commits, now_ns - started_ns)
        self._rounds.append(round_of(commits, now_ns - started_ns, draft_ns))
        return expired + [output for commit in commits for output in commit.outputs(now_ns)]

    def drain_rounds(self) -> list[Round]:
        """Steps since the last call."""
        rounds, self._rounds = self._rounds, []
        return rounds

    def _expire(self, now_ns: int) -> list[Output]:
        """End the sequences whose deadline has passed."""
        outputs: list[Output] = []
        for sequence in list(self._scheduler.running):
            deadline_s = sequence.request.deadline_s
            since_ns = now_ns if sequence.prefill_ns is None else sequence.prefill_ns
            if deadline_s is not None and now_ns - since_ns > deadline_s * NS_PER_S:
                self._remove(sequence)
                outputs.append(failed(sequence, _timeout(sequence)))
        return outputs

    def _draft(self, decodes: Items[Decode]) -> tuple[list[list[int]], int]:
        """A draft per decoding sequence, empty where none is wanted or found, and the time that took."""
        started_ns = self._clock_ns()
        drafts: list[list[int]] = [[] for _ in decodes]
        for name, drafter in self._drafters.items():
            wanted = [i for i, d in enumerate(decodes) if d.max_draft > 0 and d.sequence.drafter == name]
            if wanted:
                proposed = drafter.propose([Ask(decodes[i].sequence, decodes[i].max_draft) for i in wanted])
                for i, draft in zip(wanted, proposed, strict=True):
                    drafts[i] = draft
        return drafts, self._clock_ns() - started_ns

    def _forward(self, schedule: Schedule, drafts: Items[Items[int]]) -> tuple[Tensor, Tensor | None, list[int]]:
        """Logits [R, V]: 1 + K rows of each decoding sequence, then one of each prompt that ends here. With them what
        was captured for a draft head [N, 3H], and the first row of each sequence in it."""
        now_ns = self._clock_ns()
        for prefill in schedule.prefills:
            if prefill.sequence.prefill_ns is None:
                prefill.sequence.prefill_ns = now_ns
        decodes = zip(schedule.decodes, drafts, strict=True)
        segments = [_decode_segment(decode.sequence, draft) for decode, draft in decodes]
        segments += [_prefill_segment(prefill) for prefill in schedule.prefills]
        batch = build_batch(segments, sharing=self._model.sharing, dtype=self._model.dtype, device=self._model.device)
        hidden, taps = self._model.forward(batch, self._slots.cache)
        return self._model.logits(hidden[batch.logit_rows]), taps, batch.first_rows

    def _observe(self, commits: Items[Commit], first_rows: Items[int], taps: Tensor) -> int:
        """Show the draft head the rows that stay, and return the time that took."""
        started_ns = self._clock_ns()
        seen = [
            Seen(
                commit.sequence,
                commit.sequence.num_computed - commit.num_stay,
                row,
                commit.num_stay,
                not commit.is_round,
            )
            for commit, row in zip(commits, first_rows, strict=True)
            if commit.sequence.id in self._sequences and commit.sequence.wants_features
        ]
        if seen:
            self._drafters["eagle3"].observe(seen, taps)
        return self._clock_ns() - started_ns

    def _commit(self, schedule: Schedule, drafts: Items[list[int]], tokens: list[int]) -> list[Commit]:
        """Verify the drafts, append what the target chose, end what is complete."""
        remaining = iter(tokens)
        commits = []
        for decode, draft in zip(schedule.decodes, drafts, strict=True):
            targets = [next(remaining) for _ in range(len(draft) + 1)]
            commits.append(self._commit_round(decode.sequence, draft, targets))
        for prefill in schedule.prefills:
            emitted = [next(remaining)] if prefill.is_last else []
            prefill.sequence.num_computed += prefill.num_tokens
            commit = Commit(prefill.sequence, prefill.num_tokens, is_round=False)
            self._append(commit, emitted)
            commits.append(commit)
        return commits

    def _commit_round(self, sequence: Sequence, draft: list[int], targets: list[int]) -> Commit:
        accepted, emitted = match(draft, targets)
        sequence.stats.record(len(draft), accepted)
        sequence.num_computed += 1 + accepted
        commit = Commit(sequence, 1 + len(draft), is_round=True, num_drafts=len(draft), num_accepted=accepted)
        self._append(commit, emitted)
        return commit

    def _append(self, commit: Commit, emitted: list[int]) -> None:
        """Give the sequence its new tokens; if that ends it, free its slot and decode its text."""
        sequence = commit.sequence
        if NOT_FINITE in emitted:
            message = f"row {sequence.request.row_id!r} led to logits that are not finite numbers; use dtype float32"
            commit.error = row_error("non_finite_logits", message)
            self._remove(sequence, poisoned=True)
            return
        commit.num_kept = sequence.extend(emitted)
        if commit.num_kept and sequence.first_token_ns is None:
            sequence.first_token_ns = self._clock_ns()
        if sequence.finish_reason is not None:
            self._remove(sequence)
            self._set_text(sequence)

    def _set_text(self, sequence: Sequence) -> None:
        """The token that ended it leaves no text, even if it has some."""
        output = sequence.output
        written = output[:-1] if output[-1] in sequence.end_ids else output
        detokenizer = self._admission.detokenizer
        sequence.text = cut_before(detokenizer.decode(written), sequence.request.sampling.stop)
        sequence.text_repaired = detokenizer.is_repaired(written, sequence.text)

    def _remove(self, sequence: Sequence, *, poisoned: bool = False) -> None:
        """Forget a sequence: it has ended, one way or another."""
        del self._sequences[sequence.id]
        self._scheduler.remove(sequence)
        if sequence.slot >= 0:
            self._slots.release(sequence, poisoned=poisoned)
        for drafter in self._drafters.values():
            drafter.forget(sequence.id)


def _timeout(sequence: Sequence) -> RowError:
    row, deadline_s = sequence.request.row_id, sequence.request.deadline_s
    message = f"row {row!r} took longer than {deadline_s:g} s, with {sequence.num_output} output tokens by then; "
    return row_error("timeout", message + "raise the task's deadline_s or lower max_tokens")


def _decode_segment(sequence: Sequence, draft: Items[int]) -> Segment:
    return Segment(sequence.slot, sequence.num_computed, [sequence.tokens[-1], *draft], 1 + len(draft))


def _prefill_segment(prefill: Prefill) -> Segment:
    start = prefill.sequence.num_computed
    tokens = prefill.sequence.tokens[start : start + prefill.num_tokens]
    return Segment(prefill.sequence.slot, start, tokens, int(prefill.is_last))


def _logit_rows(schedule: Schedule, drafts: Items[Items[int]]) -> list[Row]:
    """How to choose at each row of the logits, in their order."""
    rows = []
    for decode, draft in zip(schedule.decodes, drafts, strict=True):
        rows += [_logit_row(decode.sequence, draft[:depth]) for depth in range(len(draft) + 1)]
    return rows + [_logit_row(prefill.sequence, ()) for prefill in schedule.prefills if prefill.is_last]


def _logit_row(sequence: Sequence, branch: Items[int]) -> Row:
    position = sequence.num_output + len(branch)
    return Row(sequence.request.sampling, sequence.key, position, sequence.seen, branch)
