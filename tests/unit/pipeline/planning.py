"""Planning in tests: a job over given rows, planned into a store in memory."""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from configs.job import Job
from pipeline.layout import plan_rejected
from pipeline.plan import Plan, make_plan, read_planned
from pipeline.store.base import AlreadyExists, NotFound, Stat


@dataclass
class MemoryStore:
    """A folder of objects in a dictionary; enough of a store to plan into and read from."""

    url: str = "/runs/w-1"
    objects: dict[str, bytes] = field(default_factory=dict)
    reads: list[tuple[str, int]] = field(default_factory=list)
    """(key, bytes) of every read."""

    def put_if_absent(self, key: str, data: bytes) -> Stat:
        if key in self.objects:
            raise AlreadyExists(key)
        self.objects[key] = data
        return self.head(key)

    def get(self, key: str) -> bytes:
        return self.get_range(key, 0, self.head(key).size)

    def get_range(self, key: str, start: int, length: int, etag: str | None = None) -> bytes:
        data = self.objects[key][start : start + length]
        self.reads.append((key, len(data)))
        return data

    def head(self, key: str) -> Stat:
        if key not in self.objects:
            raise NotFound(key)
        return Stat(key, len(self.objects[key]), "etag", 0.0)

    def list(self, prefix: str) -> Iterator[Stat]:
        return (self.head(key) for key in sorted(self.objects) if key.startswith(prefix))


def write_jsonl(path: Path, rows: Iterable[Mapping[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return path


def job_over(path: Path | str | Sequence[str], **sections: Any) -> Job:
    """A job over one source; `source` adds to the source section."""
    source = {"path": str(path) if isinstance(path, Path) else path, **sections.pop("source", {})}
    return Job.model_validate({"workload": "w", "source": source, **sections})


@dataclass(frozen=True)
class Planned:
    """A plan with what it wrote."""

    plan: Plan
    store: MemoryStore

    @property
    def rows(self) -> list[dict[str, Any]]:
        """Every planned row, in the plan's order."""
        return self.table.to_pylist()

    @property
    def table(self) -> pa.Table:
        return pa.concat_tables(self.shard(number) for number in range(len(self.plan.shards)))

    def shard(self, number: int) -> pa.Table:
        return read_planned(self.store, self.plan.plan_hash, self.plan.shard(number))

    def by_id(self) -> dict[str, dict[str, Any]]:
        return {row["_id"]: row for row in self.rows}

    @property
    def rejected(self) -> list[dict[str, Any]]:
        return self.rejected_table.to_pylist()

    @property
    def rejected_table(self) -> pa.Table:
        return pq.read_table(io.BytesIO(self.store.objects[plan_rejected(self.plan.plan_hash)]))

    @property
    def errors(self) -> list[tuple[int, str]]:
        """(line, code) of every rejected row, in input order."""
        return sorted((row["source_line"], row["error"]["code"]) for row in self.rejected)


def planned(job: Job, model: Path, *, base_dir: Path = Path("/"), **options: Any) -> Planned:
    store = MemoryStore()
    return Planned(make_plan(job, base_dir, model, store, **options), store)
