"""The river in one place: shards -> engine actors (which commit) -> receipts.

read_datasource(ShardSource)      one block per shard, longest work first within each task
  .map_batches(EngineActor)       async, several shards in flight per engine
  .iter_batches()                 receipts, as shards are committed
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Sequence

import ray
from ray.data import ActorPoolStrategy, DataContext

from pipeline.actor import Assignment, EngineActor
from pipeline.commit import Receipt
from pipeline.fleet import Fleet
from pipeline.plan import Plan, PlannedShard
from pipeline.shard_source import ShardSource
from pipeline.usage import Usage


def receipts(plan: Plan, shards: Sequence[PlannedShard], assignment: Assignment, fleet: Fleet) -> Iterator[Receipt]:
    """Run the shards on the connected Ray cluster; yields in order of completion."""
    _set_context()
    dataset = ray.data.read_datasource(
        ShardSource(assignment.run_url, assignment.storage, plan, shards),
        override_num_blocks=len(shards),
        # A reader process costs 130 MB and a second to start, and a shard takes seconds to generate: a few suffice.
        concurrency=max(1, min(fleet.workers, 8)),
        num_cpus=fleet.reader_cpus,
    ).map_batches(
        EngineActor,
        fn_constructor_args=(assignment,),
        batch_size=None,
        batch_format="pyarrow",
        zero_copy_batch=True,
        num_cpus=fleet.num_cpus,
        num_gpus=fleet.num_gpus or None,
        compute=ActorPoolStrategy(
            size=min(fleet.workers, len(shards)),
            max_concurrent_calls_per_actor=fleet.shards_in_flight,
            # One more than it works on, so that the next shard is already there when one ends.
            max_tasks_in_flight_per_actor=fleet.shards_in_flight + 1,
        ),
    )
    for batch in dataset.iter_batches(batch_size=None, batch_format="pyarrow", prefetch_batches=0):
        for row in batch.to_pylist():
            usage = Usage.from_json(json.loads(row["usage"]))
            yield Receipt(shard=row["shard"], status=row["status"], usage=usage, rows=row["rows"])


def _set_context() -> None:
    context = DataContext.get_current()
    # A long generation, or a wait for capacity, is not a hang; the default gives up after 30 minutes.
    context.execution_no_progress_timeout_s = -1
    # One failed model load (a crowded GPU, say) must not fail the job; Ray's default allows none.
    context.max_consecutive_actor_init_deaths = 3
    context.wait_for_min_actors_s = -1
    # Shards end when they end; keeping order would hold back receipts behind a slow shard.
    context.execution_options.preserve_order = False
    # Our own progress line speaks of samples and tokens.
    context.enable_progress_bars = False
    logging.getLogger("ray.data").setLevel(logging.CRITICAL)  # the driver tells what went wrong
