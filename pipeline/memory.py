"""A run's memory of drafting: what it starts from, and what it leaves to others.

    _policy/start.json       once per run, when its first engines start: the policy store's fold, and the runs in it
    _policy/<attempt>.json   for each attempt: that, and what the run's own shards and engines taught before

So a resume goes on with what the run knew, whatever other runs have added to the store meanwhile.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable
from typing import Any

from configs.job import Job
from pipeline.footer import ShardFooter, read_footers
from pipeline.layout import POLICY_START, policy_key
from pipeline.policy import Policy, policy_of
from pipeline.policy_store import PolicyStore, lesson_of
from pipeline.pulse import engine_snapshots
from pipeline.run_state import RunView
from pipeline.store.base import AlreadyExists, NotFound
from pipeline.store.open import open_store


def policy_store(job: Job) -> PolicyStore:
    """The job's own, or the one that all runs below its `sink.path` share."""
    return PolicyStore(open_store(job.draft.policy_store or f"{job.sink.path.rstrip('/')}/_policy", job.storage))


def recall(job: Job, view: RunView, committed: Iterable[ShardFooter], attempt: int) -> str:
    """Write what is known of drafting before this attempt -> the key, for its engines. `committed`: the run's shards.

    Raises:
        ConfigError: the policy store holds what is no policy, or another target's.
    """
    start = Policy.from_json(json.loads(_start(job, view)))
    key = policy_key(attempt)
    view.store.put(key, json.dumps((start + taught(view, committed)).to_json()).encode())
    return key


def _start(job: Job, view: RunView) -> bytes:
    """What the run's first engines knew; from the policy store if there were none."""
    try:
        return view.store.get(POLICY_START)
    except NotFound:
        policy, runs = policy_store(job).policy(target_of(view))
        with contextlib.suppress(AlreadyExists):
            view.store.put_if_absent(POLICY_START, json.dumps({"runs": runs, **policy.to_json()}).encode())
        return view.store.get(POLICY_START)


def remember(job: Job, view: RunView) -> None:
    """Leave what a finished run taught to those that come."""
    footers = read_footers(view.store, view.data_keys)
    policy_store(job).put(lesson_of(view.plan.run, view.store.url, target_of(view), taught(view, footers)))


def taught(view: RunView, footers: Iterable[ShardFooter]) -> Policy:
    """By the run itself so far: its committed shards, and its engines."""
    drafting = ({"strata": footer.drafting} for footer in footers)
    return policy_of(drafting, engine_snapshots(view.store))


def target_of(view: RunView) -> str:
    """The hash of the target's weights."""
    found: Any = json.loads(view.plan.fingerprint["model.weights_sha256"])
    return str(found)
