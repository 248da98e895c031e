"""The torch engine: continuous batching with speculation, on CPU and CUDA by the same code.

    add(request) -> waiting -> step(): schedule -> draft -> forward -> verify -> commit -> events

One step is one forward pass of the target over every sequence that takes part: a row of each that decodes and one per
draft, a chunk of each prompt. It is synchronous and knows no threads; `engine_loop.EngineLoop` runs it behind the
Engine contract.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Items

import torch
from torch import Tensor

from configs.errors import RowError
from workers.acceptance import ROOT, Tree, Verdict
from workers.admission import Admission, row_error
from workers.attention import Branches
from workers.batch import Segment, build_batch
from workers.commit import NS_PER_S, Commit, Output, failed, round_of, split_time
from workers.contract import Request, Round
from workers.detokenizer import cut_before
from workers.drafter import NOTHING, Ask, Chance, Draft, Drafter
from workers.llama import Llama
from workers.pacing import Pacing
from workers.phases import Phases
from workers.sampling import NOT_FINITE
from workers.scheduler import Decode, Limits, Prefill, Schedule, Scheduler
from workers.sequence import Sequence
from workers.slots import SlotTable
from workers.verification import Claim, verify


class TorchEngine:
    """Target, drafters and cache; advances all its sequences one step at a time."""

    def __init__(
        self,
        model: Llama,
        slots: SlotTable,
        admission: Admission,
        drafters: Mapping[str, Drafter],
        limits: Limits,
        pacing: Pacing,
        *,
        clock_ns: Callable[[], int] = time.perf_counter_ns,
    ) -> None:
        self._model = model
        self._slots = slots
        self._admission = admission
        self._drafters = drafters
        self._scheduler = Scheduler(limits, slots)
        self.pacing = pacing
        """Another may take its place between requests."""
        self._sequences: dict[str, Sequence] = {}
        self._rounds: list[Round] = []
        self._clock_ns = clock_ns
        self._phases = Phases(clock_ns, model.device)

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
        drafter = self.pacing.drafter_for(request, self._admission.candidates(request), len(self._scheduler.running))
        sequence = self._admission.admit(request, self._clock_ns() if arrived_ns is None else arrived_ns, drafter)
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
        self.pacing.set_lengths(self._scheduler.running)
        schedule = self._scheduler.schedule()
        if schedule.is_empty:
            return expired
        with self._phases("draft"):
            drafts = self._draft(schedule.decodes)
        with self._phases("verify"):
            logits = self._forward(schedule, drafts)
        with self._phases("sample"):
            verdicts = verify(logits, _claims(schedule, drafts))
        commits = self._commit(schedule, drafts, verdicts)
        self._move_together(commits)
        with self._phases("draft"):
            self._catch_up(schedule.prefills)
        now_ns = self._clock_ns()
        split_time(commits, now_ns - started_ns)
        pace = self.pacing.pace(schedule.decodes, drafts, commits)
        done = round_of(commits, now_ns - started_ns, self._phases.drain(), pace)
        self.pacing.record(done, schedule.decodes, drafts, commits)
        self._rounds.append(done)
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

    def _draft(self, decodes: Items[Decode]) -> list[Draft]:
        """A draft per decoding sequence, empty where none is wanted or found."""
        drafts = [NOTHING for _ in decodes]
        for name, drafter in self._drafters.items():
            wanted = [i for i, d in enumerate(decodes) if d.max_draft > 0 and d.sequence.drafter == name]
            if wanted:
                proposed = drafter.propose([_ask(decodes[i]) for i in wanted])
                for i, draft in zip(wanted, proposed, strict=True):
                    drafts[i] = draft
        return drafts

    def _forward(self, schedule: Schedule, drafts: Items[Draft]) -> Tensor:
        """Logits [R, V]: those of each decoding sequence, then one of each prompt that ends here."""
        now_ns = self._clock_ns()
        for prefill in schedule.prefills:
            if prefill.sequence.prefill_ns is None:
                prefill.sequence.prefill_ns = now_ns
        decodes = zip(schedule.decodes, drafts, strict=True)
        segments = [_decode_segment(decode.sequence, draft) for decode, draft in decodes]
        segments += [_prefill_segment(prefill) for prefill in schedule.prefills]
        batch = build_batch(segments, sharing=self._model.sharing, dtype=self._model.dtype, device=self._model.device)
        hidden, taps = self._model.forward(batch, self._slots.cache)
        if taps is not None:
            self._slots.cache.write_taps(batch.slots, batch.places, taps)
        return self._model.logits(hidden[batch.logit_rows])

    def _catch_up(self, prefills: Items[Prefill]) -> None:
        """Let drafters read the prompts that are complete: those whose slots others are about to copy."""
        for name, drafter in self._drafters.items():
            ready = [
                prefill.sequence
                for prefill in prefills
                if prefill.sequence.follower == name
                and prefill.sequence.draft_len
                and not prefill.sequence.is_prefilling
                and prefill.sequence.id in self._sequences
            ]
            if ready:
                drafter.catch_up(ready)

    def _commit(self, schedule: Schedule, drafts: Items[Draft], verdicts: Items[Verdict]) -> list[Commit]:
        """Append what the target chose, end what is complete. `verdicts`: of `_claims`."""
        remaining = iter(verdicts)
        commits = []
        for decode, draft in zip(schedule.decodes, drafts, strict=True):
            commits.append(self._commit_round(decode, draft, next(remaining)))
        for prefill in schedule.prefills:
            emitted = next(remaining).tokens if prefill.is_last else ()
            prefill.sequence.num_computed += prefill.num_tokens
            commit = Commit(prefill.sequence, prefill.num_tokens, is_round=False)
            self._append(commit, emitted)
            commits.append(commit)
        return commits

    def _commit_round(self, decode: Decode, draft: Draft, verdict: Verdict) -> Commit:
        sequence, num_drafts = decode.sequence, len(draft.tree.tokens)
        _record(decode, draft, verdict)
        sequence.num_computed += 1 + len(verdict.path)
        commit = Commit(sequence, 1 + num_drafts, is_round=True, num_drafts=num_drafts, path=verdict.path)
        self._append(commit, verdict.tokens)
        return commit

    def _move_together(self, commits: Items[Commit]) -> None:
        """Put the keys and values of accepted branches where those of a chain would be."""
        slots, sources, targets = list[int](), list[int](), list[int]()
        for commit in commits:
            first = commit.sequence.num_computed - commit.num_accepted
            for place, node in enumerate(commit.path):
                if place != node:
                    slots.append(commit.sequence.slot)
                    sources.append(first + node)
                    targets.append(first + place)
        if slots:
            self._slots.cache.move(*torch.tensor([slots, sources, targets], device=self._model.device))

    def _append(self, commit: Commit, emitted: Items[int]) -> None:
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


def _claims(schedule: Schedule, drafts: Items[Draft]) -> list[Claim]:
    """Whose logits the pass yields, in their order."""
    decodes = [Claim(decode.sequence, draft) for decode, draft in zip(schedule.decodes, drafts, strict=True)]
    return decodes + [Claim(prefill.sequence) for prefill in schedule.prefills if prefill.is_last]


def _ask(decode: Decode) -> Ask:
    sequence = decode.sequence
    request = sequence.request
    chance = None
    if sequence.is_rejection_sampled:
        chance = Chance(request.sampling, sequence.key, sequence.num_output)
    return Ask(sequence, decode.max_draft, request.draft.tree, decode.max_nodes, chance)


def _record(decode: Decode, draft: Draft, verdict: Verdict) -> None:
    """Count the round."""
    tree, accepted, stats = draft.tree, len(verdict.path), decode.sequence.stats
    end = verdict.path[-1] if verdict.path else ROOT
    num_tried = accepted + (not tree.is_leaf(end))
    stats.record_tree(len(tree.tokens), tree.depth, accepted, num_tried, decode.max_draft)
    decode.sequence.note_round(len(tree.tokens), accepted)


def _decode_segment(sequence: Sequence, draft: Draft) -> Segment:
    tokens = [sequence.tokens[-1], *draft.tree.tokens]
    branches = None if draft.tree.is_chain else Branches(sequence.num_computed, _sees(draft.tree))
    return Segment(sequence.slot, sequence.num_computed, tokens, len(tokens), branches)


def _sees(tree: Tree) -> tuple[int, ...]:
    """Of the last token and of each node: bit 0 is the last token, bit 1 + j the j-th node."""
    found = [1]
    for node, parent in enumerate(tree.parents):
        found.append(found[parent + 1] | 2 << node)
    return tuple(found)


def _prefill_segment(prefill: Prefill) -> Segment:
    start = prefill.sequence.num_computed
    tokens = prefill.sequence.tokens[start : start + prefill.num_tokens]
    return Segment(prefill.sequence.slot, start, tokens, int(prefill.is_last))
