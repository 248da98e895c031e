"""What was produced and what it took, as counters that add: a sample, a shard and a run are told by the same object."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from workers.contract import Finished, SpeculationStats


@dataclass(frozen=True, slots=True)
class Usage:
    """Counters over samples. Token counts are of ok samples; `engine_ns_*` split the engine's busy time over them."""

    samples_ok: int = 0
    samples_error: int = 0
    errors: dict[str, int] = field(default_factory=dict)
    """Error code -> samples."""
    prompt_tokens: int = 0
    """Billed once per row, on sample 0."""
    output_tokens: int = 0
    truncated_tokens: int = 0
    """Accepted beyond the end of a sample and dropped."""
    samples_length: int = 0
    """Ended by max_tokens, not by the model."""
    samples_empty: int = 0
    samples_lossy: int = 0
    """Kept drafts by a rule that changes the output's law."""
    engine_ns_ok: int = 0
    engine_ns_error: int = 0
    speculation: SpeculationStats = field(default_factory=SpeculationStats)

    @property
    def samples(self) -> int:
        return self.samples_ok + self.samples_error

    def __add__(self, other: Usage) -> Usage:
        codes = {*self.errors, *other.errors}
        return Usage(
            samples_ok=self.samples_ok + other.samples_ok,
            samples_error=self.samples_error + other.samples_error,
            errors={code: self.errors.get(code, 0) + other.errors.get(code, 0) for code in sorted(codes)},
            prompt_tokens=self.prompt_tokens + other.prompt_tokens,
            output_tokens=self.output_tokens + other.output_tokens,
            truncated_tokens=self.truncated_tokens + other.truncated_tokens,
            samples_length=self.samples_length + other.samples_length,
            samples_empty=self.samples_empty + other.samples_empty,
            samples_lossy=self.samples_lossy + other.samples_lossy,
            engine_ns_ok=self.engine_ns_ok + other.engine_ns_ok,
            engine_ns_error=self.engine_ns_error + other.engine_ns_error,
            speculation=self.speculation + other.speculation,
        )

    @classmethod
    def of_sample(cls, finished: Finished, prompt_tokens: int) -> Usage:
        return cls(
            samples_ok=1,
            prompt_tokens=prompt_tokens,
            output_tokens=len(finished.token_ids),
            truncated_tokens=finished.truncated_tokens,
            samples_length=finished.finish_reason == "length",
            samples_empty=not finished.text.strip(),
            samples_lossy=finished.is_lossy,
            engine_ns_ok=finished.engine_ns,
            speculation=finished.speculation,
        )

    @classmethod
    def of_error(cls, code: str, engine_ns: int = 0, samples: int = 1) -> Usage:
        return cls(samples_error=samples, errors={code: samples}, engine_ns_error=engine_ns)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Usage:
        """Inverse of `to_json`; a counter that an older version did not write is 0."""
        return cls(**{**data, "speculation": SpeculationStats(**data.get("speculation", {}))})
