"""Writing a plan into a run's folder: everything it refers to first, then plan.json, then CURRENT, once and for all."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from configs.errors import RunConflict
from configs.fingerprint import diff
from pipeline.layout import CURRENT, plan_json, plan_part, plan_rejected
from pipeline.plan import Plan, load_plan
from pipeline.planning.keys import KeyTable
from pipeline.planning.rejected import write_rejected
from pipeline.planning.write import WriteSpec, part_path
from pipeline.store.base import AlreadyExists, Store


def commit_plan(
    out: Store, plan: Plan, write: WriteSpec, parts: Iterable[int], bad_chunks: Iterable[int], keys: KeyTable
) -> Plan:
    """Put the plan into `out`, each part as soon as it lies on disk. Returns the run's plan, which is another one of
    the same job if another planner was first.

    Objects are created if absent: what another planner put under the same hash has the same rows.

    Raises:
        RunConflict: the planner that was first planned another job.
    """
    plan = replace(plan, run=out.url.rstrip("/").rpartition("/")[2])
    for number in parts:
        _put_file(out, plan_part(plan.plan_hash, number), part_path(write.spill_dir, number))
    rejected = write.spill_dir / "rejected.parquet"
    write_rejected(write, rejected, bad_chunks, keys.duplicates())
    _put_file(out, plan_rejected(plan.plan_hash), rejected)
    _put(out, plan_json(plan.plan_hash), plan.to_json().encode())
    try:
        out.put_if_absent(CURRENT, json.dumps({"plan": plan.plan_hash}).encode())
    except AlreadyExists:
        adopted = load_plan(out)
        assert adopted is not None
        refuse_other_job(out, adopted, plan.fingerprint)
        return adopted
    return plan


def refuse_other_job(out: Store, planned: Plan, fingerprint: Mapping[str, str]) -> None:
    """A run holds the output of one job: whoever finds another's plan there must not go on with it.

    Raises:
        RunConflict: naming each difference, old -> new.
    """
    if changes := diff(planned.fingerprint, fingerprint):
        listed = "\n".join(f"  {line}" for line in changes)
        raise RunConflict(
            f"{out.url} has been planned with another job:\n{listed}\nplan this one as a run of its own: --new-run"
        )


def _put_file(out: Store, key: str, path: Path) -> None:
    _put(out, key, path.read_bytes())
    path.unlink()


def _put(out: Store, key: str, data: bytes) -> None:
    with suppress(AlreadyExists):
        out.put_if_absent(key, data)
