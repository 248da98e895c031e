"""What an engine is: the one contract that every engine keeps.

    engine = SomeEngine(...)                 loads, warms up
    async for event in engine.generate(request): ...
        Started      the first token exists (queue and first-token times)
        Progress     tokens committed since the last event, for the progress line
        Finished     the whole completion with its usage and statistics; always last
    engine.abort(request_id)                 generate() ends with RowError `aborted`
    engine.drain_rounds()                    rounds since the last call: where busy time went
    await engine.close()

`generate` waits while the engine's window is full, so a caller may start as many as it likes. A row that cannot be
served raises RowError from its own `generate`; a broken engine raises EngineError from all of them, and from every
later call. One request is one sample: a row with n = 4 is four requests that share `row_id`, whose prefill the engine
may share.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

from configs.job import Acceptance, DraftPolicy, Sampling

Phase = Literal["drafting", "plain", "catching_up"]
MAX_DRAFT_LEN = 8

FinishReason = Literal["stop", "length"]


@dataclass(frozen=True, slots=True)
class Request:
    """One sample to generate."""

    request_id: str
    """Unique within the engine: `<row id>#<sample index>`."""
    row_id: str
    """Input row; with `seed`, `sample_index` and the position it keys the noise (design: Noise)."""
    sample_index: int
    task: str
    prompt_token_ids: tuple[int, ...]
    sampling: Sampling
    """`sampling.n` is ignored: the caller makes one request per sample."""
    seed: int
    """The row's own seed, else the job's."""
    draft: DraftPolicy
    acceptance: Acceptance = "match"
    acceptance_threshold: float = 0.0
    """Used by the lossy rule `threshold` alone."""
    deadline_s: float | None = None
    """Seconds from the first prefill token until the row ends as RowError `timeout`."""


@dataclass(slots=True)
class SpeculationStats:
    """Speculation counters of a sample, a shard or a run; they add. Names follow vLLM's per-request statistics.

    A round is one verify step of a sequence after its prefill, K = 0 included. Lists are indexed by count
    (`acceptance_histogram[j]`: rounds that accepted exactly j), by K (`draft_len_histogram[k]`: rounds that tried k
    drafts in a row) or by 0-based draft position (`asked_by_pos`, `tried_by_pos`, `accepted_by_pos`, length
    MAX_DRAFT_LEN). Of a tree, `num_draft_tokens` counts all nodes, and K is its longest branch.
    """

    num_spec_steps: int = 0
    """Rounds with at least one draft token."""
    num_draft_tokens: int = 0
    num_accepted_draft_tokens: int = 0
    acceptance_histogram: list[int] = field(default_factory=lambda: [0] * (MAX_DRAFT_LEN + 1))
    draft_len_histogram: list[int] = field(default_factory=lambda: [0] * (MAX_DRAFT_LEN + 1))
    tried_by_pos: list[int] = field(default_factory=lambda: [0] * MAX_DRAFT_LEN)
    accepted_by_pos: list[int] = field(default_factory=lambda: [0] * MAX_DRAFT_LEN)
    fallback_rounds: int = 0
    """Rounds without drafts because those before were refused."""
    asked_by_pos: list[int] = field(default_factory=lambda: [0] * MAX_DRAFT_LEN)
    """Rounds in which the drafter was asked for a draft there; it may have had none."""

    def record(self, num_draft: int, num_accepted: int, asked: int | None = None) -> None:
        """Count one round that verified a chain of `num_draft` drafts and accepted the first `num_accepted`. `asked`:
        drafts that were asked for, if that is more."""
        num_tried = min(num_accepted + 1, num_draft)
        self.record_tree(num_draft, num_draft, num_accepted, num_tried, num_draft if asked is None else asked)

    def record_tree(self, num_nodes: int, depth: int, num_accepted: int, num_tried: int, asked: int) -> None:
        """Count one round. `depth`: of the longest branch; `num_tried`: positions at which there was a draft behind an
        accepted one, as a hazard requires: those accepted, and one more unless the accepted branch was at its end."""
        assert 0 <= num_accepted <= num_tried <= depth <= asked <= MAX_DRAFT_LEN
        for position in range(asked):
            self.asked_by_pos[position] += 1
        self.num_spec_steps += num_nodes > 0
        self.num_draft_tokens += num_nodes
        self.num_accepted_draft_tokens += num_accepted
        self.acceptance_histogram[num_accepted] += 1
        self.draft_len_histogram[depth] += 1
        for position in range(num_tried):
            self.tried_by_pos[position] += 1
            self.accepted_by_pos[position] += position < num_accepted

    def __add__(self, other: SpeculationStats) -> SpeculationStats:
        return SpeculationStats(
            self.num_spec_steps + other.num_spec_steps,
            self.num_draft_tokens + other.num_draft_tokens,
            self.num_accepted_draft_tokens + other.num_accepted_draft_tokens,
            _add(self.acceptance_histogram, other.acceptance_histogram),
            _add(self.draft_len_histogram, other.draft_len_histogram),
            _add(self.tried_by_pos, other.tried_by_pos),
            _add(self.accepted_by_pos, other.accepted_by_pos),
            self.fallback_rounds + other.fallback_rounds,
            _add(self.asked_by_pos, other.asked_by_pos),
        )

    @property
    def num_rounds(self) -> int:
        return sum(self.draft_len_histogram)

    @property
    def draft_acceptance_rate(self) -> float | None:
        """Accepted / proposed; None if nothing was proposed."""
        return self.num_accepted_draft_tokens / self.num_draft_tokens if self.num_draft_tokens else None

    @property
    def mean_acceptance_length(self) -> float | None:
        """1 + accepted drafts per speculative round (the bonus token counts); None without one."""
        return 1 + self.num_accepted_draft_tokens / self.num_spec_steps if self.num_spec_steps else None


def _add(left: list[int], right: list[int]) -> list[int]:
    return [a + b for a, b in zip(left, right, strict=True)]


@dataclass(frozen=True, slots=True)
class Started:
    """The prefill is done and the first token exists."""

    queue_s: float
    """From `generate` to the first prefill work."""
    ttft_s: float
    """From `generate` to the first token."""


@dataclass(frozen=True, slots=True)
class Progress:
    """Tokens committed since the previous event."""

    num_tokens: int


@dataclass(frozen=True, slots=True)
class Finished:
    """A whole sample. Identity: without preemption
    `len(token_ids) + truncated_tokens == 1 + sum over rounds of (1 + accepted)`; the 1 is the prefill's token."""

    text: str
    """Decoded without special tokens, cut before a stop string."""
    token_ids: tuple[int, ...]
    """Output tokens, the ending EOS or stop token included."""
    finish_reason: FinishReason
    truncated_tokens: int
    """Accepted in the last round but beyond the end: stop string, EOS or max_tokens inside an accepted run."""
    queue_s: float
    ttft_s: float
    total_s: float
    engine_ns: int
    """This sample's share of the engine's busy nanoseconds, split per round by processed tokens."""
    speculation: SpeculationStats
    drafter: str
    """`ngram`, `none`, …: what proposed this sample's tokens."""
    acceptance: Acceptance = "match"
    """The rule that kept or refused them."""
    text_repaired: bool = False
    """The tokens did not decode to valid UTF-8; the text holds U+FFFD."""

    @property
    def is_lossy(self) -> bool:
        """Its law may not be the target's."""
        return self.acceptance == "threshold" and self.speculation.num_draft_tokens > 0


Event = Started | Progress | Finished


@dataclass(frozen=True, slots=True)
class SequenceRound:
    """One sequence's part of a round."""

    request_id: str
    task: str
    band: str
    drafter: str
    acceptance: Acceptance
    asked: int
    """K."""
    offered: int
    """Drafts that there were."""
    accepted: int


@dataclass(frozen=True, slots=True)
class Round:
    """One engine step: what it processed and how long it took."""

    busy_ns: int
    num_seqs: int
    num_prefill_tokens: int
    num_verify_tokens: int
    """Rows of the verify forward: one per decoding sequence, plus its drafts."""
    num_draft_tokens: int
    num_accepted_tokens: int
    num_output_tokens: int
    draft_ns: int = 0
    """Part of busy_ns spent proposing."""
    verify_ns: int = 0
    """Part spent in the target's pass."""
    sample_ns: int = 0
    """Part spent choosing tokens and verifying drafts. The rest of busy_ns is the host's."""
    kv_tokens: int = 0
    """Tokens in the KV cache of the sequences that decoded."""
    num_decoding: int = 0
    """Of the sequences, those that decoded: one round of each."""
    drafted: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Drafter -> drafts verified, by depth."""
    phase: Phase = "drafting"
    """`plain`: nobody drafted, so that it can be compared; `catching_up`: the round after such a block."""
    is_usual: bool = True
    """No drafter had to go over a text that it had not followed."""
    sequences: tuple[SequenceRound, ...] = ()
    """What each sequence that decoded did; only if rounds are traced."""


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a build can do, asked once; nothing is guessed from version numbers elsewhere."""

    samples: bool
    """Temperature > 0 is honoured with speculation on."""
    keyed_noise: bool
    """The text depends on (seed, id, sample, position) only, up to floating point."""
    per_sequence_k: bool
    histogram: bool
    """Acceptance per round is known."""
    n: bool
    penalties: bool
    grammar: bool
    max_model_len: int
    """Prompt + output tokens of one sequence at most."""


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """What ran, for the footers: lineage and the execution fingerprint."""

    name: str
    version: str
    device: str
    dtype: str
    model: str
    weights_sha256: str
    draft: str
    threads: int
    max_num_seqs: int
    device_name: str = ""
    """The GPU's or CPU's model."""
    drafters: dict[str, str] = field(default_factory=dict)
    """Drafter -> hash of what it drafts with."""
    versions: dict[str, str] = field(default_factory=dict)

    @property
    def machine(self) -> str:
        """A hash of all that decides what a round takes."""
        told = (self.name, self.version, self.device, self.device_name, self.dtype, self.threads, self.weights_sha256)
        parts = [*map(str, told), *sorted(self.drafters.items()), *sorted(self.versions.items())]
        return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


class Engine(Protocol):
    """See the module's docstring. All methods are called from one event loop."""

    def capabilities(self) -> Capabilities: ...

    def info(self) -> EngineInfo: ...

    def generate(self, request: Request) -> AsyncIterator[Event]: ...

    def abort(self, request_id: str) -> None: ...

    def drain_rounds(self) -> list[Round]: ...

    async def close(self) -> None: ...
