"""What a run is at this moment, from its objects alone: no cluster and no database is asked.

    planned                  a plan, nobody drove it yet
    running                  the lease is held and beats
    interrupted              the driver stopped, or its heart did: `draftfleet resume`
    cancelled                somebody called `draftfleet stop`
    completed                every sample is ok
    completed_with_errors    all done, some failed, not more than limits.max_error_rate
    failed                   more failed than that, or too many engines died; some shards may be missing

`interrupted` is inferred: nobody can write that it was killed.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Literal

from configs.errors import UsageError
from pipeline.layout import CURRENT, DATA_DIR, MANIFEST, data_key, shard_number
from pipeline.lease import LeaseView, read_lease
from pipeline.plan import Plan, PlannedShard, load_plan
from pipeline.store.base import NotFound, Store

State = Literal["planned", "running", "interrupted", "cancelled", "completed", "completed_with_errors", "failed"]


@dataclass(frozen=True, slots=True)
class RunView:
    """One look at a run."""

    store: Store
    plan: Plan
    done: frozenset[int]
    """Committed shards."""
    lease: LeaseView | None
    manifest: dict[str, Any] | None

    @property
    def is_complete(self) -> bool:
        """Nothing is missing, whatever the state."""
        return self.manifest is not None

    @property
    def state(self) -> State:
        if self.manifest is not None:
            state: State = self.manifest["state"]
            return state
        if self.lease is None:
            return "planned"
        if self.lease.state == "running":
            return "interrupted" if self.lease.expired else "running"
        ended: State = self.lease.state  # type: ignore[assignment]  # what the driver released it with
        return ended

    @property
    def pending(self) -> list[PlannedShard]:
        """Shards to do, in the plan's order."""
        return [shard for shard in self.plan.shards if shard.shard not in self.done]

    @property
    def samples_done(self) -> int:
        return sum(shard.num_samples for shard in self.plan.shards if shard.shard in self.done)

    @property
    def data_keys(self) -> list[str]:
        return [data_key(shard.task, shard.shard) for shard in self.plan.shards if shard.shard in self.done]


def look(store: Store) -> RunView | None:
    """The run in this folder, or None if none was planned here."""
    plan = load_plan(store)
    if plan is None:
        return None
    return RunView(store, plan, committed_shards(store), read_lease(store), read_manifest(store))


def open_run(store: Store) -> RunView:
    """The run in this folder.

    Raises:
        UsageError: there is none.
    """
    view = look(store)
    if view is None:
        raise UsageError(f"no run in {store.url} ({CURRENT} is missing); `draftfleet runs` lists what there is")
    return view


def committed_shards(store: Store) -> frozenset[int]:
    """One LIST of `data/`: the only truth about what is done."""
    numbers = (shard_number(stat.key) for stat in store.list(DATA_DIR))
    return frozenset(number for number in numbers if number is not None)


def read_manifest(store: Store) -> dict[str, Any] | None:
    try:
        manifest: dict[str, Any] = json.loads(store.get(MANIFEST))
    except NotFound:
        return None
    return manifest
