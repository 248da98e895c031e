"""The progress line: redrawn in place on a terminal, one line now and then in a log."""

from __future__ import annotations

import shutil
import sys
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TextIO

from pipeline.commit import Receipt
from pipeline.forecast import Forecast
from pipeline.pulse import Pulse
from pipeline.usage import Usage

LOG_PERIOD_S = 30.0


@dataclass(frozen=True, slots=True)
class Reading:
    """Everything the line shows, at one moment."""

    done: int
    total: int
    errors: dict[str, int]
    output_tokens: int
    tokens_per_s_now: float | None
    tokens_per_s: float | None
    eta_s: float | None
    draft_acceptance_rate: float | None
    mean_draft_len: float | None
    engines: int
    """That came up so far."""

    def text(self) -> str:
        """`31/50 samples · 12 errors (timeout 12) · 214 tok/s now, 201 overall · ETA 0:23 · accepted 41 % · K 2.1`"""
        parts = [f"{self.done:,}/{self.total:,} samples"]
        if self.errors:
            worst = sorted(self.errors.items(), key=lambda item: (-item[1], item[0]))
            named = ", ".join(f"{code} {count:,}" for code, count in worst[:3]) + (", …" if len(worst) > 3 else "")
            parts.append(f"{sum(self.errors.values()):,} errors ({named})")
        if self.engines == 0:
            parts.append("starting engines")
        elif self.tokens_per_s is not None:
            now = f"{self.tokens_per_s_now:,.0f} tok/s now, " if self.tokens_per_s_now is not None else ""
            parts.append(f"{now}{self.tokens_per_s:,.0f} overall")
        if self.eta_s is not None:
            parts.append(f"ETA {duration(self.eta_s)}")
        if self.draft_acceptance_rate is not None:
            parts.append(f"accepted {self.draft_acceptance_rate:.0%}")
        if self.mean_draft_len is not None:
            parts.append(f"K {self.mean_draft_len:.1f}")
        return " · ".join(parts)


def duration(seconds: float) -> str:
    """`0:23`, `1:02:03`."""
    minutes, second = divmod(round(max(0.0, seconds)), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02d}:{second:02d}" if hours else f"{minute}:{second:02d}"


@dataclass
class Progress:
    """Counts receipts and pulses, and draws the line. One thread at a time."""

    total: int
    forecast: Forecast
    before: Usage = field(default_factory=Usage)
    """What earlier attempts committed."""
    stream: TextIO = field(default_factory=lambda: sys.stderr)
    clock: Callable[[], float] = time.monotonic
    window_s: float = 4.0
    """What the rate `now` is taken over: two heartbeats of an engine at least, since each engine has its own."""

    def __post_init__(self) -> None:
        self._usage = self.before
        self._started: float | None = None
        self._lately: deque[Pulse] = deque()
        self._pulse = Pulse()
        self._drawn_at = -LOG_PERIOD_S
        self._drawn = ""

    def receipt(self, receipt: Receipt) -> None:
        self._usage = self._usage + receipt.usage
        self.forecast.committed(receipt.shard, receipt.usage.output_tokens)

    def pulse(self, pulse: Pulse) -> None:
        """Take in the engines' counters, keeping those of the last `window_s` and the one before them."""
        if pulse.up and self._started is None:
            self._started = self.clock()
        if pulse.up and (not self._lately or pulse.updated > self._lately[-1].updated):
            self._lately.append(pulse)
        while len(self._lately) > 1 and pulse.updated - self._lately[1].updated >= self.window_s:
            self._lately.popleft()
        self._pulse = pulse

    def _tokens_per_s_now(self) -> float | None:
        if not self._lately:
            return None
        first, last = self._lately[0], self._lately[-1]
        elapsed = last.updated - first.updated
        return max(0.0, (last.output_tokens - first.output_tokens) / elapsed) if elapsed >= self.window_s else None

    def reading(self) -> Reading:
        produced = self._pulse.output_tokens
        elapsed = self.clock() - self._started if self._started is not None else 0.0
        overall = produced / elapsed if elapsed > 0 and produced else None
        in_flight = max(0, produced - (self._usage.output_tokens - self.before.output_tokens))
        left = max(0.0, self.forecast.remaining_tokens() - in_flight)
        return Reading(
            done=self._usage.samples,
            total=self.total,
            errors=self._usage.errors,
            output_tokens=self._usage.output_tokens,
            tokens_per_s_now=self._tokens_per_s_now(),
            tokens_per_s=overall,
            eta_s=left / overall if overall else None,
            draft_acceptance_rate=self._pulse.draft_acceptance_rate,
            mean_draft_len=self._pulse.mean_draft_len,
            engines=self._pulse.up,
        )

    def draw(self, final: bool = False) -> None:
        """Redraw on a terminal; in a log, only every LOG_PERIOD_S, when something changed, and at the end."""
        text = self.reading().text()
        if self.stream.isatty():
            width = shutil.get_terminal_size().columns - 1
            self.stream.write("\r\x1b[K" + (text if len(text) <= width else text[: width - 1] + "…"))
            self.stream.write("\n" if final else "")
            self.stream.flush()
        elif final or (self.clock() - self._drawn_at >= LOG_PERIOD_S and text != self._drawn):
            self.stream.write(text + "\n")
            self.stream.flush()
            self._drawn_at, self._drawn = self.clock(), text
