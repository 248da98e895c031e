"""The plan as a Ray Data source: one read task and one block per shard, in the plan's order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import pyarrow as pa
from ray.data import Datasource, ReadTask
from ray.data.block import BlockMetadata

from configs.job import Storage
from pipeline.plan import Plan, PlannedShard, read_shard
from pipeline.store.open import open_store


class ShardSource(Datasource):  # type: ignore[misc]  # Ray ships no types
    """Reads the given shards of a run's plan."""

    def __init__(self, run_url: str, storage: Storage, plan: Plan, shards: Sequence[PlannedShard]) -> None:
        super().__init__()
        self._run_url = run_url
        self._storage = storage
        self._plan_hash = plan.plan_hash
        self._shards = shards

    def get_name(self) -> str:
        return "Shards"

    def estimate_inmemory_data_size(self) -> int | None:
        return None

    def get_read_tasks(self, parallelism: int, *_: object, **__: object) -> list[ReadTask]:
        return [ReadTask(self._reader(shard), _metadata(shard)) for shard in self._shards]

    def _reader(self, shard: PlannedShard) -> Callable[[], Iterable[pa.Table]]:
        # The closure travels once per shard: it holds two short strings and the shard, not the plan.
        run_url, storage, plan_hash = self._run_url, self._storage, self._plan_hash

        def read() -> Iterable[pa.Table]:
            yield read_shard(open_store(run_url, storage), plan_hash, shard)

        return read


def _metadata(shard: PlannedShard) -> BlockMetadata:
    size = 4 * shard.prompt_tokens + 1024 * shard.num_rows
    return BlockMetadata(num_rows=shard.num_rows, size_bytes=size, input_files=None, exec_stats=None)
