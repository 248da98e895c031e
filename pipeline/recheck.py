"""Whether drafts changed anything: a share of the samples is generated again without drafts, twice.

The noise is keyed by sample and position, so in exact arithmetic all three are the same, token for token. In bf16 a
pass over several tokens rounds differently from one over a single token, and so does another batch: the second plain
rerun shows how much of a difference is that. Only samples under the rule `match` are looked at; the other rules promise
a law, not a text.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from configs.errors import RowError
from configs.job import DraftPolicy
from workers.contract import Engine, Finished, Request

PLAIN = DraftPolicy(policy="off")


@dataclass(frozen=True, slots=True)
class Recheck:
    """Counters over rechecked samples; they add."""

    samples: int = 0
    same: int = 0
    """With drafts and without."""
    plain_same: int = 0
    """Without drafts, twice."""
    first_differences: tuple[int, ...] = ()
    """Of each sample that differs: output tokens before."""
    plain_first_differences: tuple[int, ...] = ()
    failed: int = 0
    """Reruns that ended as an error; their samples are not counted."""
    engine_ns: int = 0

    def __add__(self, other: Recheck) -> Recheck:
        return Recheck(*(a + b for a, b in zip(_values(self), _values(other), strict=True)))

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Recheck:
        lists = {name: tuple(data[name]) for name in ("first_differences", "plain_first_differences")}
        return cls(**{**data, **lists})

    def __str__(self) -> str:
        told = f"{self.same:,} of {self.samples:,} samples are the same without drafts"
        if self.first_differences:
            told += f" (the others from token {min(self.first_differences):,} on at the earliest)"
        told += f"; without drafts twice, {self.plain_same:,} are the same"
        if self.plain_first_differences:
            told += f" (from token {min(self.plain_first_differences):,} on)"
        return told + (f"; {self.failed:,} reruns failed" if self.failed else "")


def is_chosen(request: Request, fraction: float) -> bool:
    """A fixed share of all samples, by their names: the same ones in every run."""
    digest = hashlib.sha256(f"recheck {request.seed} {request.request_id}".encode()).digest()
    return int.from_bytes(digest[:8], "big") < fraction * 2**64


async def recheck(engine: Engine, done: Iterable[tuple[Request, Finished]], fraction: float) -> Recheck:
    """Generate the chosen ones among these samples again.

    Raises:
        EngineError: the engine is broken.
    """
    chosen = [
        (request, finished)
        for request, finished in done
        if request.acceptance == "match" and finished.speculation.num_draft_tokens and is_chosen(request, fraction)
    ]
    once = await _again(engine, [request for request, _ in chosen], "plain")
    twice = await _again(engine, [request for request, _ in chosen], "plain-again")
    found = Recheck()
    for (_, finished), first, second in zip(chosen, once, twice, strict=True):
        found += _compared(finished, first, second)
    return found


def sum_of(*found: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Of shards' footers; None if none was rechecked."""
    there = [Recheck.from_json(each) for each in found if each is not None]
    return sum(there, Recheck()).to_json() if there else None


async def _again(engine: Engine, requests: Sequence[Request], name: str) -> list[Finished | RowError]:
    async def one(request: Request) -> Finished | RowError:
        try:
            async for event in engine.generate(request):
                if isinstance(event, Finished):
                    return event
        except RowError as error:
            return error
        raise AssertionError(f"{request.request_id} ended without Finished")

    renamed = (replace(each, request_id=f"{each.request_id} {name}", draft=PLAIN) for each in requests)
    return list(await asyncio.gather(*(one(request) for request in renamed)))


def _compared(drafted: Finished, once: Finished | RowError, twice: Finished | RowError) -> Recheck:
    spent = once.engine_ns + twice.engine_ns
    if isinstance(once, RowError) or isinstance(twice, RowError):
        return Recheck(failed=1, engine_ns=spent)
    at, plain_at = _first_difference(drafted, once), _first_difference(once, twice)
    return Recheck(
        samples=1,
        same=at is None,
        plain_same=plain_at is None,
        first_differences=() if at is None else (at,),
        plain_first_differences=() if plain_at is None else (plain_at,),
        engine_ns=spent,
    )


def _first_difference(one: Finished, other: Finished) -> int | None:
    if one.token_ids == other.token_ids:
        return None
    pairs = zip(one.token_ids, other.token_ids, strict=False)
    shorter = min(len(one.token_ids), len(other.token_ids))
    return next((at for at, (left, right) in enumerate(pairs) if left != right), shorter)


def _values(found: Recheck) -> tuple[Any, ...]:
    return (
        found.samples,
        found.same,
        found.plain_same,
        found.first_differences,
        found.plain_first_differences,
        found.failed,
        found.engine_ns,
    )
