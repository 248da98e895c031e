"""The record of a shard's starts: who was given it, put before anything of it runs, so that a death can be told."""

from __future__ import annotations

import json

from pipeline.layout import attempt_key, attempts_dir
from pipeline.quarantine import Start
from pipeline.store.base import AlreadyExists, Store


def read_starts(store: Store, shard: int) -> list[Start]:
    """The starts of a shard so far, in order. One LIST, and a GET for each; most shards have none."""
    prefix = attempts_dir(shard)
    numbers = sorted(int(stat.key.removeprefix(prefix).removesuffix(".json")) for stat in store.list(prefix))
    return [Start.from_json(json.loads(store.get(attempt_key(shard, number)))) for number in numbers]


def announce(store: Store, shard: int, start: Start) -> int:
    """Put a start on record, and say which start of the shard it is, from 1. Nearly always the first try is the one."""
    number = 1
    while True:
        try:
            store.put_if_absent(attempt_key(shard, number), json.dumps(start.to_json()).encode())
            return number
        except AlreadyExists:
            number += 1
