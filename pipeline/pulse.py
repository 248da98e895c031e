"""What the engines are doing now, from their ledger snapshots: no other channel, so any machine can look."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pipeline.layout import LEDGER_DIR
from pipeline.store.base import NotFound, Store

SILENT_S = 30.0
"""An engine that was silent for so long while another spoke is gone: three heartbeats of one whose store is S3."""


@dataclass(frozen=True, slots=True)
class Pulse:
    """Counters of all engines of an attempt since their start; two of them give a rate."""

    engines: int = 0
    """Lives of engines, the ended ones included."""
    up: int = 0
    """Of these, how many got past loading and warm-up."""
    heard: int = 0
    """Of these, how many were heard within SILENT_S of the last one that was."""
    output_tokens: int = 0
    draft_tokens: int = 0
    accepted_tokens: int = 0
    sequence_rounds: int = 0
    updated: float = 0.0

    @property
    def draft_acceptance_rate(self) -> float | None:
        return self.accepted_tokens / self.draft_tokens if self.draft_tokens else None

    @property
    def mean_draft_len(self) -> float | None:
        """K in use: drafts per sequence and round."""
        return self.draft_tokens / self.sequence_rounds if self.sequence_rounds else None


def fold(snapshots: Iterable[Mapping[str, Any]]) -> Pulse:
    """Sum the snapshots of an attempt's engines."""
    snapshots = list(snapshots)
    last = max((snapshot["updated"] for snapshot in snapshots), default=0.0)
    pulse = Pulse(updated=last)
    for snapshot in snapshots:
        work, seconds = snapshot["work"], snapshot["seconds_ns"]
        pulse = Pulse(
            engines=pulse.engines + 1,
            up=pulse.up + (snapshot["lifetime_ns"] > seconds["load"] + seconds["warm_up"]),
            heard=pulse.heard + (snapshot["updated"] >= last - SILENT_S and "died_of" not in snapshot),
            output_tokens=pulse.output_tokens + work["output_tokens"],
            draft_tokens=pulse.draft_tokens + work["draft_tokens"],
            accepted_tokens=pulse.accepted_tokens + work["accepted_tokens"],
            sequence_rounds=pulse.sequence_rounds + work["sequence_rounds"],
            updated=last,
        )
    return pulse


def engine_snapshots(store: Store, attempt: int | None = None) -> list[dict[str, Any]]:
    """The ledger snapshots of the run's engines, of one attempt or of all."""
    prefix = f"{LEDGER_DIR}a{attempt}-" if attempt is not None else f"{LEDGER_DIR}a"
    found = []
    for stat in store.list(prefix):
        try:
            found.append(json.loads(store.get(stat.key)))
        except NotFound:
            continue
    return found


def read_pulse(store: Store, attempt: int) -> Pulse:
    return fold(engine_snapshots(store, attempt))
