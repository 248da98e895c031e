"""Sequences as a drafter sees them without an engine, and what it drafts in one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tiny_llama import run

from workers.contract import Request
from workers.drafter import Ask, Draft
from workers.torch_engine import TorchEngine


@dataclass
class Plain:
    id: str
    tokens: Sequence[int]
    slot: int = 0
    num_followed: int = 0


def ask(sequence_id: str, tokens: Sequence[int], max_draft: int) -> Ask:
    return Ask(Plain(sequence_id, tokens), max_draft)


def drafts_of(core: TorchEngine, requests: Sequence[Request]) -> list[tuple[list[int], Ask, Draft]]:
    """Every draft of a run with the tokens that it follows; one drafter makes them all."""
    (name,) = {str(request.draft.drafter) for request in requests}
    found: list[tuple[list[int], Ask, Draft]] = []
    drafter = core._drafters[name]
    propose = drafter.propose

    def watched(asks: Sequence[Ask]) -> list[Draft]:
        before = [list(ask.sequence.tokens) for ask in asks]
        drafts = propose(asks)
        found.extend(zip(before, asks, drafts, strict=True))
        return drafts

    drafter.propose = watched  # type: ignore[method-assign]
    try:
        run(core, requests)
    finally:
        drafter.propose = propose  # type: ignore[method-assign]
    return found
