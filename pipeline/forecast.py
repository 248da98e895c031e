"""How many output tokens are still to come: by what a task's samples used so far, else by a guess from max_tokens."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from pipeline.plan import PlannedShard

PRIOR_FRACTION = 0.7
"""Share of max_tokens that a sample is taken to use before any of its task has ended."""
PRIOR_SAMPLES = 8
"""Samples that the guess weighs as much as."""


class Forecast:
    """Predicted output tokens of the shards that are not committed."""

    def __init__(self, shards: Iterable[PlannedShard]) -> None:
        self._pending = {shard.shard: shard for shard in shards}
        self._samples: defaultdict[str, int] = defaultdict(int)
        self._tokens: defaultdict[str, int] = defaultdict(int)
        self._planned: defaultdict[str, int] = defaultdict(int)

    def committed(self, number: int, output_tokens: int) -> None:
        """A shard is done and produced so many tokens. A shard that is not pending is ignored."""
        shard = self._pending.pop(number, None)
        if shard is not None:
            self._samples[shard.task] += shard.num_samples
            self._tokens[shard.task] += output_tokens
            self._planned[shard.task] += shard.max_output_tokens

    def remaining_tokens(self) -> float:
        return sum(self._fraction(shard.task) * shard.max_output_tokens for shard in self._pending.values())

    def _fraction(self, task: str) -> float:
        """Tokens used per token allowed, shrunk towards the guess while few samples are known."""
        samples = self._samples[task]
        if samples == 0:
            return PRIOR_FRACTION
        prior = PRIOR_SAMPLES * self._planned[task] / samples
        return (self._tokens[task] + PRIOR_FRACTION * prior) / (self._planned[task] + prior)
