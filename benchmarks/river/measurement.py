"""What is known of one side of a comparison that was run once: tokens, times of its engines, CPU of its processes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from river.cpu_account import STEPPING


@dataclass(frozen=True, slots=True)
class EngineSpan:
    """One engine while it generated. Times are seconds since the epoch."""

    started: float
    finished: float
    busy_s: float
    """In rounds, by the engine's own clock."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """One side, once."""

    tokens: int
    whole_s: float
    """From before its first process was created until its last had ended."""
    engines: tuple[EngineSpan, ...]
    cpu: dict[str, float]
    """CPU seconds per second of generating, by part."""
    other_cpu: float
    """The same of everything else on the machine."""
    cores: int

    @property
    def started(self) -> float:
        return min(engine.started for engine in self.engines)

    @property
    def finished(self) -> float:
        return max(engine.finished for engine in self.engines)

    @property
    def generating_s(self) -> float:
        return self.finished - self.started

    @property
    def tokens_per_s(self) -> float:
        return self.tokens / self.generating_s

    @property
    def tokens_per_s_whole(self) -> float:
        return self.tokens / self.whole_s

    @property
    def tokens_per_busy_s(self) -> float:
        return self.tokens / sum(engine.busy_s for engine in self.engines)

    @property
    def tokens_per_step_cpu_s(self) -> float:
        """Per CPU second of the threads that run the model."""
        return self.tokens_per_s / self.cpu[STEPPING]

    @property
    def undisturbed_tokens_per_s(self) -> float:
        """Tokens per second if it had the machine for itself and its engines never waited: they would have what its
        other threads and processes leave of the cores."""
        beside = sum(self.cpu.values()) - self.cpu[STEPPING]
        return self.tokens_per_step_cpu_s * (self.cores - beside)

    @property
    def busy_share(self) -> float:
        return self._share(engine.busy_s for engine in self.engines)

    @property
    def head_share(self) -> float:
        """Engines that had not begun yet."""
        return self._share(engine.started - self.started for engine in self.engines)

    @property
    def tail_share(self) -> float:
        """Engines that had nothing left to do."""
        return self._share(self.finished - engine.finished for engine in self.engines)

    @property
    def between_share(self) -> float:
        """Engines between their first shard and the end of their last, without a round."""
        return 1.0 - self.busy_share - self.head_share - self.tail_share

    def _share(self, seconds: Iterable[float]) -> float:
        return sum(seconds) / (len(self.engines) * self.generating_s)

    def to_json(self) -> dict[str, Any]:
        rates = ("tokens_per_s", "tokens_per_s_whole", "tokens_per_busy_s", "tokens_per_step_cpu_s")
        others = ("generating_s", "undisturbed_tokens_per_s")
        shares = ("busy_share", "head_share", "tail_share", "between_share")
        return {**asdict(self), **{name: getattr(self, name) for name in (*rates, *others, *shares)}}
