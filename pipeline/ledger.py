"""Where each second of an engine's life went, in parts that exclude each other and add up to its lifetime.

    load            weights and tokenizer
    warm_up         first rounds before any row
    busy            rounds: the sum of the engine's own busy nanoseconds
    host            had rows, ran no round: scheduling, tokens to text, rows in and out
    waiting_input   had nothing to do
    waiting_storage had nothing to generate, was committing
    tail            waiting_input after the last shard
    teardown        from close on

The snapshot is overwritten at `_ledger/<incarnation>.json` every few seconds, so a killed engine loses at most one
heartbeat of its account. Nanoseconds, integers; the clock is injected.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from workers.contract import Round
from workers.draft_length.comparison import Comparer, Comparison
from workers.draft_length.cost import RoundShape, feature_names, features
from workers.draft_length.round_sums import RoundSums

Part = Literal["load", "warm_up", "serving", "waiting_input", "waiting_storage", "teardown"]
STARTING: tuple[Part, ...] = ("load", "warm_up")
"""The parts in which an engine is not up yet."""


@dataclass(slots=True)
class Seconds:
    """The exclusive parts, in nanoseconds."""

    load: int = 0
    warm_up: int = 0
    busy: int = 0
    host: int = 0
    waiting_input: int = 0
    waiting_storage: int = 0
    tail: int = 0
    teardown: int = 0

    @property
    def lifetime(self) -> int:
        return sum(asdict(self).values())


@dataclass(slots=True)
class Work:
    """What the engine processed so far, committed or not."""

    rounds: int = 0
    prefill_tokens: int = 0
    verify_tokens: int = 0
    draft_tokens: int = 0
    accepted_tokens: int = 0
    sequence_rounds: int = 0
    """Decoding sequences summed over rounds: draft_tokens / sequence_rounds is the mean draft length."""
    output_tokens: int = 0
    draft_ns: int = 0
    verify_ns: int = 0
    sample_ns: int = 0
    """Parts of the busy time; the rest of it is the host's part of a round."""
    shards_committed: int = 0
    committed_ns: int = 0
    """Busy time of rows that this engine committed; busy - committed is work that was, or will be, done again."""


class Ledger:
    """One engine's account. Thread-safe: the engine's loop, the commit threads and the heartbeat use it."""

    def __init__(self, identity: dict[str, Any], clock: Callable[[], int] = time.monotonic_ns) -> None:
        self._identity = identity
        self._clock = clock
        self._lock = threading.Lock()
        self._started_at = time.time()
        self._since = clock()
        self._part: Part = "load"
        self._spent: dict[str, int] = {}
        self._generating = 0
        self._committing = 0
        self._idle_since_commit = 0
        self._busy = 0
        self._round_sums = RoundSums()
        self._comparer = Comparer()
        self._comparisons: list[Comparison] = []
        self.work = Work()

    def runs_on(self, machine: str) -> None:
        """`EngineInfo.machine`, known once the engine is loaded."""
        self._identity["machine"] = machine

    @property
    def is_generating(self) -> bool:
        return self._generating > 0

    def enter(self, part: Part) -> None:
        """The engine's life goes on in another part."""
        with self._lock:
            self._switch(part)

    def shard_started(self) -> None:
        with self._lock:
            self._generating += 1
            self._settle()

    def shard_generated(self) -> None:
        """The shard's rows are done; its commit begins."""
        with self._lock:
            self._generating -= 1
            self._committing += 1
            self._settle()

    def shard_committed(self, committed_ns: int) -> None:
        """The shard's commit ended; `committed_ns`: busy time of its rows, 0 if another engine had committed it."""
        with self._lock:
            self._committing -= 1
            self.work.shards_committed += committed_ns > 0
            self.work.committed_ns += committed_ns
            self._settle()
            self._idle_since_commit = 0

    def rounds(self, rounds: Sequence[Round]) -> None:
        """The engine ran these rounds."""
        with self._lock:
            work = self.work
            work.rounds += len(rounds)
            for done in rounds:
                self._busy += done.busy_ns
                work.prefill_tokens += done.num_prefill_tokens
                work.verify_tokens += done.num_verify_tokens
                work.draft_tokens += done.num_draft_tokens
                work.accepted_tokens += done.num_accepted_tokens
                work.sequence_rounds += done.num_decoding
                work.output_tokens += done.num_output_tokens
                work.draft_ns += done.draft_ns
                work.verify_ns += done.verify_ns
                work.sample_ns += done.sample_ns
                self._learn(done)

    def _learn(self, done: Round) -> None:
        """What the round says of the cost of rounds, and of what drafting saves."""
        if done.num_decoding == 0:
            return
        self._comparer.observe(
            done.phase, done.num_decoding, done.num_output_tokens, done.busy_ns, has_prefill=done.num_prefill_tokens > 0
        )
        self._comparisons += self._comparer.drain()
        if done.is_usual and not done.num_prefill_tokens and done.busy_ns > 0:
            shape = RoundShape(done.num_decoding, done.kv_tokens, 0, done.drafted)
            names = feature_names(sorted(done.drafted))
            if not set(names) <= set(self._round_sums.names):
                self._round_sums = self._round_sums.over(dict.fromkeys((*self._round_sums.names, *names)))
            self._round_sums.add(features(shape, self._round_sums.names), done.busy_ns / 1e9)

    def seconds(self) -> Seconds:
        """The account up to now; closing it does not change it."""
        with self._lock:
            self._switch(self._part)
            spent = self._spent
            serving = spent.get("serving", 0)
            # Rounds are measured by the engine's thread and may be reported a moment after the part has changed.
            busy = min(self._busy, serving)
            waiting = spent.get("waiting_input", 0)
            tail = min(self._idle_since_commit, waiting)
            return Seconds(
                load=spent.get("load", 0),
                warm_up=spent.get("warm_up", 0),
                busy=busy,
                host=serving - busy,
                waiting_input=waiting - tail,
                waiting_storage=spent.get("waiting_storage", 0),
                tail=tail,
                teardown=spent.get("teardown", 0),
            )

    def snapshot(self) -> dict[str, Any]:
        """The JSON of `_ledger/<incarnation>.json`."""
        seconds = self.seconds()
        return {
            **self._identity,
            "started": self._started_at,
            "updated": time.time(),
            "part": self._part,
            "lifetime_ns": seconds.lifetime,
            "seconds_ns": asdict(seconds),
            "work": asdict(self.work),
            "round_sums": self._round_sums.to_json(),
            "comparisons": [each.to_json() for each in self._comparisons],
        }

    def _settle(self) -> None:
        if self._part in (*STARTING, "teardown"):
            return
        self._switch("serving" if self._generating else "waiting_storage" if self._committing else "waiting_input")

    def _switch(self, part: Part) -> None:
        now = self._clock()
        elapsed = now - self._since
        self._spent[self._part] = self._spent.get(self._part, 0) + elapsed
        if self._part == "waiting_input":
            self._idle_since_commit += elapsed
        elif self._part == "serving" and elapsed:
            self._idle_since_commit = 0
        self._part = part
        self._since = now
