"""The footer of a committed shard: everything that the report and a later run need, in the object that commits it.

It is the file-level Parquet metadata under `draftfleet.shard`, as JSON, so a ranged read of the footer is enough.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, fields
from typing import Any

import pyarrow.parquet as pq

from pipeline.ranged_file import read_ranges
from pipeline.store.base import Store
from pipeline.usage import Usage

FOOTER_KEY = "draftfleet.shard"


@dataclass(frozen=True, slots=True)
class ShardFooter:
    """What a shard says of itself. Times are seconds since the epoch, by the engine's clock."""

    run: str
    attempt: int
    incarnation: str
    shard: int
    task: str
    lane: str
    plan: str
    semantic_fingerprint: str
    """Hash; the values stand in plan.json."""
    execution: dict[str, str]
    """`configs.fingerprint.execution_fingerprint`: engine, host, batch, workers, draft policy, versions."""
    model: str
    weights_sha256: str
    draft: str
    git_commit: str
    seed: int
    num_rows: int
    """Input rows of the shard, ok or not."""
    usage: Usage
    started: float
    finished: float
    errors_key: str | None = None
    """Where its error rows are; None if there are none."""
    shard_attempt: int = 1
    """How often an engine has started on this shard."""
    drafting: tuple[dict[str, Any], ...] = ()
    """What its ok samples taught: strata as in `Policy.to_json`."""
    recheck: dict[str, Any] | None = None
    """`Recheck.to_json`; None if the job asked for none."""

    def to_bytes(self) -> bytes:
        return json.dumps({**asdict(self), "usage": self.usage.to_json()}, sort_keys=True).encode()

    @classmethod
    def from_bytes(cls, raw: bytes) -> ShardFooter:
        """Inverse of `to_bytes`; what another version wrote beside is passed over."""
        data = json.loads(raw)
        known: dict[str, Any] = {each.name: data[each.name] for each in fields(cls) if each.name in data}
        known |= {"usage": Usage.from_json(data["usage"]), "drafting": tuple(known.get("drafting", ()))}
        return cls(**known)


def read_footer(store: Store, key: str) -> ShardFooter:
    """The footer of one data object, by ranged reads of its end.

    Raises:
        NotFound: no such object.
        ValueError: a Parquet file that no engine of ours committed.
    """
    metadata = read_ranges(store, key, pq.read_metadata).metadata or {}
    raw = metadata.get(FOOTER_KEY.encode())
    if raw is None:
        raise ValueError(f"{store.url}/{key} has no {FOOTER_KEY} footer: it was not committed by Draftfleet")
    return ShardFooter.from_bytes(raw)


def read_footers(store: Store, keys: Iterable[str], threads: int = 16) -> Iterator[ShardFooter]:
    """The footers of many objects, in order of `keys`; parallel because each is one or two small requests."""
    with ThreadPoolExecutor(threads) as pool:
        yield from pool.map(lambda key: read_footer(store, key), keys)
