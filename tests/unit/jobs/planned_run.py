"""A run in a folder, planned without a tokenizer: what the verbs look at before any engine exists."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from configs.job import Job
from pipeline.layout import CURRENT, plan_json, plan_rejected
from pipeline.lease import LeaseOwner
from pipeline.plan import Plan, PlannedShard
from pipeline.store.base import Store

FAR_AWAY = LeaseOwner("far-host", 11, 1, 1_790_000_000.0, "another-machine")
"""A driver of which nobody here can tell whether it lives."""


def job_with(**sections: Any) -> Job:
    return Job.model_validate({"workload": "w", "source": {"path": "rows.jsonl"}, **sections})


def planned_shard(number: int, samples: int = 10) -> PlannedShard:
    return PlannedShard(
        shard=number,
        task="code",
        lane="greedy",
        part=0,
        row_group=number,
        num_rows=samples,
        num_samples=samples,
        prompt_tokens=100,
        max_output_tokens=100 * samples,
        work_tokens=100 * samples,
    )


EMPTY_PLAN = Plan(
    plan_hash="0123456789abcdef",
    run="w-1",
    job={},
    fingerprint={},
    sources=[],
    shards=(),
    carried=pa.schema([]),
    json_columns=[],
    counts=(),
    rejected={},
    problems=(),
    num_cut={},
    token_histogram={},
    first_prompts={},
    defaults={},
    warnings=(),
    longest_request_tokens=0,
    max_model_len=2048,
)


def plan_into(
    store: Store,
    job: Job,
    *,
    shards: int = 0,
    rejected: Mapping[str, int] | None = None,
    fingerprint: Mapping[str, str] | None = None,
    sources: Sequence[Mapping[str, object]] = (),
) -> Plan:
    """Make it the plan of the run in `store`."""
    plan = replace(
        EMPTY_PLAN,
        job=job.model_dump(mode="json"),
        shards=tuple(planned_shard(number) for number in range(shards)),
        rejected=dict(rejected or {}),
        fingerprint=dict(fingerprint or {}),
        sources=[dict(source) for source in sources],
    )
    store.put(plan_rejected(plan.plan_hash), b"the rejected rows")
    store.put(plan_json(plan.plan_hash), plan.to_json().encode())
    store.put(CURRENT, json.dumps({"plan": plan.plan_hash}).encode())
    return plan
