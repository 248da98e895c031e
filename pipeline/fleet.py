"""How many engines, and what each reserves: from the job and the machine, decided once by the driver."""

from __future__ import annotations

import math
from dataclasses import dataclass

from configs.errors import ConfigError
from configs.job import Job


@dataclass(frozen=True, slots=True)
class Fleet:
    """Engines and what Ray reserves for them."""

    workers: int
    num_cpus: float
    num_gpus: float
    threads: int
    shards_in_flight: int

    @property
    def logical_cpus(self) -> int:
        """CPUs that a local Ray must believe in, so that every engine can be placed.

        Ray starts a process for each beforehand, and Ray Data takes one for an actor of its own: with one CPU less, an
        engine came up three seconds after the other.
        """
        return math.ceil(self.workers * self.num_cpus) + 1


def plan_fleet(job: Job, *, cores: int, gpus: int, free_memory: int, engine_memory: int) -> Fleet:
    """The fleet for a job.

    Without a GPU the default is one engine per core with one torch thread each, as many as fit in three quarters of the
    free memory: on two cores that measured 1.2 to 1.6 times the throughput of one engine with two threads.

    Args:
        cores, gpus: what the cluster offers.
        free_memory: bytes available on the machine; 0 if unknown (a remote cluster).
        engine_memory: bytes that one engine needs, about.
    """
    on_gpu = job.engine.device != "cpu" and gpus > 0
    default = gpus if on_gpu else cores
    if not on_gpu and free_memory:
        default = min(default, int(0.75 * free_memory) // max(1, engine_memory))
    workers = job.cluster.workers or max(1, default)
    return Fleet(
        workers=workers,
        num_cpus=job.cluster.num_cpus or 1.0,
        num_gpus=job.cluster.num_gpus if job.cluster.num_gpus is not None else float(on_gpu),
        threads=job.engine.threads or 1,
        shards_in_flight=job.cluster.shards_in_flight,
    )


def refuse_small_cache(job: Job, longest_request_tokens: int) -> None:
    """An engine would refuse one by one the rows that its cache cannot hold.

    Raises:
        ConfigError: the job's cache is smaller than the longest request, prompt and output tokens.
    """
    capacity = job.engine.kv_cache_tokens
    if capacity is not None and capacity < longest_request_tokens:
        raise ConfigError(
            f"engine.kv_cache_tokens is {capacity}, and the longest row has {longest_request_tokens} prompt and output "
            "tokens; raise it, or lower max_tokens"
        )
