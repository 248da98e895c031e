"""What this machine, or the cluster, offers the fleet."""

from __future__ import annotations

import os
from collections.abc import Mapping

from configs.errors import ConfigError
from configs.job import Job
from pipeline.fleet import Fleet, plan_fleet
from pipeline.plan import Plan
from workers.memory import available_bytes
from workers.models import resolve, weight_files

RUNTIME_BYTES = 700 * 2**20
"""Python, torch and Ray of one engine process."""
BYTES_PER_VALUE = {"float8_e4m3": 1, "bfloat16": 2, "float32": 4, "float64": 8}


def fleet_for(job: Job, plan: Plan, cluster: Mapping[str, float] | None) -> Fleet:
    """The fleet on this machine (`cluster` None) or on a joined cluster with these resources."""
    if cluster is not None:
        cores, gpus = int(cluster.get("CPU", 1)), int(cluster.get("GPU", 0))
        return plan_fleet(job, cores=cores, gpus=gpus, free_memory=0, engine_memory=0)
    refuse_missing_gpu(job)
    return plan_fleet(
        job,
        cores=len(os.sched_getaffinity(0)),
        gpus=local_gpus(job),
        free_memory=available_bytes(),
        engine_memory=engine_memory(job, plan),
    )


def refuse_missing_gpu(job: Job) -> None:
    """A local Ray would wait for ever for a GPU that this machine lacks.

    Raises:
        ConfigError: the job is to run here, asks for CUDA or reserves GPUs, and there are none.
    """
    if job.cluster.address != "local":
        return
    asked = "engine.device is cuda" if job.engine.device == "cuda" else f"cluster.num_gpus is {job.cluster.num_gpus}"
    wants = job.engine.device == "cuda" or bool(job.cluster.num_gpus)
    if wants and local_gpus(job) == 0:
        raise ConfigError(
            f"{asked} and torch finds no CUDA device here; leave it out to run on the CPU, "
            "or set cluster.address to a cluster that has GPUs"
        )


def refuse_unfit_drafters(job: Job) -> None:
    """What can be told of a draft head or model without loading it is told before any row is read.

    Raises:
        ConfigError: draft.path holds no EAGLE-3 head for the model, or draft.model has another tokenizer.
    """
    if job.draft.path is None and job.draft.model is None:
        return
    from workers.architecture import read_architecture
    from workers.draft_model import draft_model_of
    from workers.eagle3.head_config import head_config_of

    folder = resolve(job.model.path)
    target = read_architecture(folder)
    head_config_of(job.draft, target)
    draft_model_of(job.draft, folder, target)


def local_gpus(job: Job) -> int:
    """CUDA devices here, as far as the job may use them."""
    if job.engine.device == "cpu":
        return 0
    import torch

    return int(torch.cuda.device_count())


def engine_memory(job: Job, plan: Plan) -> int:
    """Bytes of one engine, about: weights twice (while loading), the runtime, and KV slots of the longest request."""
    from workers.architecture import read_architecture

    folder = resolve(job.model.path)
    weights = sum(file.stat().st_size for file in weight_files(folder))
    slots = job.engine.kv_cache_tokens or job.engine.max_num_seqs * plan.longest_request_tokens
    dtype = job.model.dtype if job.model.kv_cache_dtype == "auto" else job.model.kv_cache_dtype
    kv_bytes = read_architecture(folder).kv_values_per_token * BYTES_PER_VALUE[dtype]
    return 2 * weights + RUNTIME_BYTES + slots * kv_bytes


def local_threads(job: Job) -> int:
    """Torch threads for a single engine in this process: all cores, since there is no second engine to use them."""
    return job.engine.threads or len(os.sched_getaffinity(0))
