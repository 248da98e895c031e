"""From a request to a sequence: what can never be served is refused here, with the row named."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from configs.errors import RowError
from configs.job import Drafter as Drafting
from workers import noise
from workers.contract import Request
from workers.detokenizer import Detokenizer, StopFinder
from workers.draft_length.stratum import Stratum, band_of
from workers.drafter import Drafter
from workers.sequence import Sequence


@dataclass(frozen=True, slots=True)
class Admission:
    """What the model and the engine allow."""

    vocab_size: int
    max_length: int
    """Prompt + output tokens of one request at most."""
    eos_ids: frozenset[int]
    cache_length: int
    """Places of a slot at most."""
    drafters: Mapping[str, Drafter]
    default_drafter: Drafting
    detokenizer: Detokenizer
    device: torch.device

    def candidates(self, request: Request) -> tuple[str, ...]:
        """Drafters that the request may have, the preferred one first."""
        return tuple(name for name in request.draft.candidates(self.default_drafter) if name in self.drafters)

    def admit(self, request: Request, arrived_ns: int, drafter: str) -> Sequence:
        """A sequence that waits for its first step; `drafter`: one of its candidates, or `none`.

        Raises:
            RowError: the request can never be served.
        """
        self._check(request)
        sampling = request.sampling
        min_draft, max_draft = (0, 0) if drafter == "none" else request.draft.bounds
        max_nodes = max_draft if max_draft == 0 else self._max_nodes(request, drafter)
        sequence = Sequence(
            request=request,
            key=noise.sequence_key(request.seed, request.row_id, request.sample_index),
            drafter=drafter,
            stratum=Stratum(request.task, band_of(sampling), drafter, request.acceptance),
            min_draft=min_draft,
            max_draft=max_draft,
            next_draft=min_draft,
            max_nodes=max_nodes,
            spare=max(
                0, min(max_nodes - max_draft, self.cache_length - len(request.prompt_token_ids) - sampling.max_tokens)
            ),
            follower=drafter if max_draft > 0 and self.drafters[drafter].follows else None,
            end_ids=frozenset(sampling.stop_token_ids) | (frozenset() if sampling.ignore_eos else self.eos_ids),
            stop_finder=StopFinder(self.detokenizer, sampling.stop) if sampling.stop else None,
            arrived_ns=arrived_ns,
            tokens=list(request.prompt_token_ids),
        )
        if sampling.repetition_penalty != 1.0:
            sequence.history = torch.zeros(sequence.max_length, dtype=torch.int64, device=self.device)
            sequence.history[: sequence.num_prompt] = torch.tensor(sequence.tokens)
        return sequence

    def _check(self, request: Request) -> None:
        prompt, max_tokens = request.prompt_token_ids, request.sampling.max_tokens
        row = f"row {request.row_id!r}"
        if not prompt:
            raise row_error("empty_prompt", f"{row} has no prompt tokens; give it a prompt")
        if min(prompt) < 0 or max(prompt) >= self.vocab_size:
            message = f"{row} has a token outside 0..{self.vocab_size - 1}; tokenize it with this model's own tokenizer"
            raise row_error("token_out_of_range", message)
        if len(prompt) + max_tokens > self.max_length:
            raise row_error(
                "context_length_exceeded",
                f"{row} asks for {len(prompt)} prompt + {max_tokens} output tokens, and model.max_model_len and "
                f"engine.kv_cache_tokens allow {self.max_length} together; shorten the prompt or lower max_tokens",
            )

    def _max_nodes(self, request: Request, drafter: str) -> int:
        """Drafts per round at most."""
        tree = request.draft.tree
        return request.draft.bounds[1] if tree is None or not self.drafters[drafter].draws_trees else tree.max_nodes


def row_error(code: str, message: str, *, retryable: bool = False) -> RowError:
    """A row's end inside the engine."""
    return RowError(code, message, stage="engine", retryable=retryable)
