"""One engine in a plain process: no Ray, no commit. What the pipeline is measured against.

    python bare_engine.py RUN_FOLDER SHARDS IN_FLIGHT

Reads the given shards (numbers with commas) of a run's plan, makes all requests, loads the same engine as an engine
actor does, and hands it so many shards at a time. Prints one line of JSON; times are seconds since the epoch.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Sequence

from configs.job import Job, Storage
from pipeline.plan import load_plan, read_planned
from pipeline.shard_work import requests
from pipeline.store.open import open_store
from workers.contract import Engine, Finished, Request
from workers.factory import create_engine


async def generate(engine: Engine, request: Request) -> int:
    """Output tokens of one sample."""
    tokens = 0
    async for event in engine.generate(request):
        if isinstance(event, Finished):
            tokens = len(event.token_ids)
    return tokens


async def work(engine: Engine, shards: Sequence[Sequence[Request]], in_flight: int) -> int:
    """Generate all shards, so many at a time. Returns the output tokens."""
    free = asyncio.Semaphore(in_flight)

    async def one(shard: Sequence[Request]) -> int:
        async with free:
            return sum(await asyncio.gather(*(generate(engine, request) for request in shard)))

    return sum(await asyncio.gather(*(one(shard) for shard in shards)))


async def timed(engine: Engine, shards: Sequence[Sequence[Request]], in_flight: int) -> dict[str, float]:
    """Work through the shards, and say how long it took."""
    started = time.time()
    tokens = await work(engine, shards, in_flight)
    finished = time.time()
    busy_s = sum(done.busy_ns for done in engine.drain_rounds()) / 1e9
    await engine.close()
    return {"started": started, "finished": finished, "tokens": tokens, "busy_s": busy_s}


def main(run_folder: str, numbers: Sequence[int], in_flight: int) -> None:
    store = open_store(run_folder, Storage())
    plan = load_plan(store)
    assert plan is not None, f"{run_folder} holds no plan"
    job = Job.model_validate(plan.job)
    engine = create_engine(
        job.model, job.draft, job.engine, longest_request_tokens=plan.longest_request_tokens, threads=1
    )
    tables = [read_planned(store, plan.plan_hash, plan.shard(number)) for number in numbers]
    shards = [[request for _, request in requests(job, table)] for table in tables]
    print(json.dumps(asyncio.run(timed(engine, shards, in_flight))))


if __name__ == "__main__":
    main(sys.argv[1], [int(number) for number in sys.argv[2].split(",")], int(sys.argv[3]))
