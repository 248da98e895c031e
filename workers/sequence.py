"""A request on its way through the engine: its tokens, how far they are computed, and what it has cost."""

from __future__ import annotations

from collections.abc import Sequence as Tokens
from dataclasses import dataclass, field

import torch
from torch import Tensor

from workers.contract import FinishReason, Request, SpeculationStats
from workers.detokenizer import StopFinder
from workers.draft_length.stratum import Stratum


@dataclass(slots=True, eq=False)
class Sequence:
    """State of one sample.

    While decoding, `num_computed == len(tokens) - 1`: the last token has been chosen, but its keys and values are
    written by the next forward pass.
    """

    request: Request
    key: tuple[int, int]
    """Its noise."""
    drafter: str
    stratum: Stratum
    """Whose drafts it shares its draft length with."""
    min_draft: int
    max_draft: int
    """Bounds of K; 0 is plain decoding."""
    max_nodes: int
    """Drafts per round at most: K, or more in a tree."""
    spare: int
    """Places of the cache beyond its last token, for the branches of a tree."""
    end_ids: frozenset[int]
    """Tokens that end it."""
    stop_finder: StopFinder | None
    follower: str | None
    """Its drafter, if that has to see all of it."""
    arrived_ns: int
    tokens: list[int]
    num_computed: int = 0
    """Tokens whose keys and values are in the slot."""
    num_followed: int = 0
    """Positions for which the drafter's keys and values are in the slot too."""
    slot: int = -1
    history: Tensor | None = None
    """`tokens` again, on the device and with room to grow; kept only under a repetition penalty."""
    prefill_ns: int | None = None
    """Clock at the first prefill work."""
    first_token_ns: int | None = None
    engine_ns: int = 0
    num_truncated: int = 0
    finish_reason: FinishReason | None = None
    text: str = ""
    """Set when it has ended."""
    text_repaired: bool = False
    stats: SpeculationStats = field(default_factory=SpeculationStats)
    next_draft: int = 0
    """K of the next round."""
    num_refused: int = 0
    """Rounds on end whose drafts were all refused."""
    fallback_left: int = 0
    """Rounds of plain decoding still to come for that reason."""

    @property
    def id(self) -> str:
        return self.request.request_id

    @property
    def num_prompt(self) -> int:
        return len(self.request.prompt_token_ids)

    @property
    def num_output(self) -> int:
        return len(self.tokens) - self.num_prompt

    @property
    def num_left(self) -> int:
        """Output tokens that it may still have."""
        return self.request.sampling.max_tokens - self.num_output

    @property
    def seen(self) -> Tensor | None:
        """Tokens that a repetition penalty applies to [len(tokens)]; None without one."""
        return None if self.history is None else self.history[: len(self.tokens)]

    @property
    def max_length(self) -> int:
        """Positions of the cache that it may come to need."""
        return self.num_prompt + self.request.sampling.max_tokens + self.spare

    @property
    def is_rejection_sampled(self) -> bool:
        """A greedy request is not: for it that rule and match are the same."""
        return self.request.acceptance == "rejection" and not self.request.sampling.is_greedy

    @property
    def draft_len(self) -> int:
        """Of the next round at most."""
        return 0 if self.fallback_left else self.next_draft

    def note_round(self, num_drafts: int, num_accepted: int) -> None:
        """Keep count of refusals, and fall back to plain decoding by the task's rule."""
        fallback = self.request.draft.fallback
        if fallback is None:
            return
        if self.fallback_left:
            self.fallback_left -= 1
            self.stats.fallback_rounds += 1
        elif num_drafts:
            self.num_refused = 0 if num_accepted else self.num_refused + 1
            if self.num_refused == fallback.after:
                self.num_refused, self.fallback_left = 0, fallback.for_rounds

    @property
    def is_prefilling(self) -> bool:
        return self.num_computed < self.num_prompt

    @property
    def output(self) -> list[int]:
        return self.tokens[self.num_prompt :]

    def extend(self, emitted: Tokens[int]) -> int:
        """Append tokens up to the one that ends the sample; the others count as truncated. Returns how many were
        kept."""
        for kept, token in enumerate(emitted, start=1):
            self.tokens.append(token)
            self.finish_reason = self._end_at(token)
            if self.finish_reason is not None:
                self.num_truncated = len(emitted) - kept
                return kept
        if self.history is not None:
            self.history[len(self.tokens) - len(emitted) : len(self.tokens)] = torch.tensor(emitted)
        return len(emitted)

    def _end_at(self, token: int) -> FinishReason | None:
        if token in self.end_ids or (self.stop_finder is not None and self.stop_finder.push(token)):
            return "stop"
        return "length" if self.num_left == 0 else None
