"""The river in one place: shards -> engine actors (which read and commit them) -> receipts.

from_items(a block per shard)   its number: the engine's own process reads the rows from the plan
  .map_batches(EngineActor)     async, several shards in flight per engine
  .iter_batches()               receipts, as shards are committed
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Sequence

import ray
from ray.data import ActorPoolStrategy, DataContext
from ray.data._internal.execution import streaming_executor_state

from configs.errors import TooManyErrors
from pipeline.actor import Assignment, EngineActor
from pipeline.commit import Receipt
from pipeline.fleet import Fleet
from pipeline.plan import PlannedShard
from pipeline.usage import Usage


def receipts(shards: Sequence[PlannedShard], assignment: Assignment, fleet: Fleet) -> Iterator[Receipt]:
    """Run the shards on the connected Ray cluster; yields in order of completion.

    Raises:
        TooManyErrors: an engine gave up.
    """
    _set_context()
    numbers = [{"shard": shard.shard} for shard in in_order(shards)]
    dataset = ray.data.from_items(numbers, override_num_blocks=len(numbers)).map_batches(
        EngineActor,
        fn_constructor_args=(assignment,),
        batch_size=1,  # a block has one row; None would do the same, but not where GPUs are reserved
        batch_format="pyarrow",
        zero_copy_batch=True,
        num_cpus=fleet.num_cpus,
        num_gpus=fleet.num_gpus or None,
        compute=ActorPoolStrategy(
            size=min(fleet.workers, len(shards)),
            # One more than generate at once: it commits, or waits with its rows read for its turn.
            max_concurrent_calls_per_actor=fleet.shards_in_flight + 1,
            # None waits beyond that at a busy engine while another, at the end of the run, has nothing to do.
            max_tasks_in_flight_per_actor=fleet.shards_in_flight + 1,
        ),
    )
    for batch in dataset.iter_batches(batch_size=None, batch_format="pyarrow", prefetch_batches=0):
        for row in batch.to_pylist():
            if row["failure"] is not None:
                raise TooManyErrors(row["failure"])
            usage = Usage.from_json(json.loads(row["usage"]))
            yield Receipt(shard=row["shard"], status=row["status"], usage=usage, rows=row["rows"])


def in_order(shards: Sequence[PlannedShard]) -> list[PlannedShard]:
    """The plan's order, but shards of less than half the usual work last, so that engines run dry at about the same
    time."""
    half = max(shard.work_tokens for shard in shards) // 2
    return sorted(shards, key=lambda shard: min(shard.work_tokens, half), reverse=True)


def _set_context() -> None:
    context = DataContext.get_current()
    # A long generation, or a wait for capacity, is not a hang; the default gives up after 30 minutes.
    context.execution_no_progress_timeout_s = -1
    # One failed model load (a crowded GPU, say) must not fail the job; Ray's default allows none.
    context.max_consecutive_actor_init_deaths = 3
    context.wait_for_min_actors_s = -1
    # Shards end when they end; keeping order would hold back receipts behind a slow shard.
    context.execution_options.preserve_order = False
    # One operator shares nothing with another, its shards may take long, and nobody reads its memory statistics: what
    # Ray Data does about these ten times a second is time taken from the engines.
    context.op_resource_reservation_enabled = False
    context.issue_detectors_config.detectors = []
    context.memory_usage_poll_interval_s = None
    # Its loop wakes when a shard ends, and ten times a second without reason (2 ms each); Ray has no setting for this.
    streaming_executor_state.WAIT_FOR_TASK_COMPLETION_TIMEOUT_S = 1.0
    # Our own progress line speaks of samples and tokens.
    context.enable_progress_bars = False
    logging.getLogger("ray.data").setLevel(logging.CRITICAL)  # the driver tells what went wrong
