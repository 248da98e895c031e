"""The plan of a run: what was asked, and every shard with its place. Made once, then only read.

    make_plan            check every row, cut shards, write them              heavy: tokenizer, sort
    current_fingerprint  what the job would produce now, to compare with a plan
    load_plan            the plan that a run's folder holds
    read_planned         the rows of one shard, by ranged reads

Written in this order: parts and rejected rows, plan.json, then `_plan/CURRENT`, which makes it the run's plan. CURRENT
is created if absent, so the first of two planners wins; the second adopts its plan, if it is one of the same job.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from configs.errors import StorageError
from configs.fingerprint import fingerprint_hash
from configs.job import Job
from pipeline.layout import CURRENT, plan_json, plan_part
from pipeline.planning.carried import schema_from_text, schema_text
from pipeline.ranged_file import RangedFile
from pipeline.store.base import NotFound, Store

PLAN_VERSION = 1


@dataclass(frozen=True, slots=True)
class PlannedShard:
    """One shard: rows of one task and one lane, one row group of one part."""

    shard: int
    task: str
    lane: str
    part: int
    row_group: int
    num_rows: int
    num_samples: int
    prompt_tokens: int
    """Of all rows; the samples of a row share its prompt."""
    max_output_tokens: int
    """The most that all samples together may generate."""
    work_tokens: int
    """Estimated work, in output tokens of engine time."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One rejected row."""

    file: str
    line: int
    """1-based; of a columnar file, the row."""
    code: str
    message: str


@dataclass(frozen=True, slots=True)
class GroupCount:
    """What a task has in one lane."""

    task: str
    lane: str
    num_rows: int
    num_samples: int
    prompt_tokens: int
    max_output_tokens: int
    num_shards: int


@dataclass(frozen=True)
class Plan:
    """See the module's docstring. `run` is the name of the run's folder, empty in a dry run."""

    plan_hash: str
    run: str
    job: dict[str, Any]
    """The resolved job, as JSON; `source.limit` included."""
    fingerprint: dict[str, str]
    """The semantic fingerprint: dotted key -> JSON text."""
    sources: list[dict[str, Any]]
    """`path`, `size` (bytes) and `etag` of every input file."""
    shards: tuple[PlannedShard, ...]
    """By task, lane, then longest rows first."""
    carried: pa.Schema
    json_columns: list[str]
    """Carried columns that hold JSON text because their values fit no column type."""
    counts: tuple[GroupCount, ...]
    rejected: dict[str, int]
    """Error code -> rows."""
    problems: tuple[Problem, ...]
    """The first few of each code, in input order; all are in the rejected table."""
    num_cut: dict[str, int]
    """Task -> rows whose prompt was cut to fit (`too_long`)."""
    token_histogram: dict[int, int]
    """Upper end (a power of two, inclusive) of prompt tokens -> rows."""
    first_prompts: dict[str, str]
    """Task -> the first row's prompt as the model sees it."""
    defaults: dict[str, dict[str, Any]]
    """Task -> what applies to rows that say nothing: sampling, draft, too_long, deadline_s."""
    warnings: tuple[str, ...]
    longest_request_tokens: int
    """Prompt and output tokens of the longest request; 0 without rows."""
    max_model_len: int

    @property
    def num_rows(self) -> int:
        """Good rows."""
        return sum(shard.num_rows for shard in self.shards)

    @property
    def num_samples(self) -> int:
        return sum(shard.num_samples for shard in self.shards)

    @property
    def num_rejected(self) -> int:
        return sum(self.rejected.values())

    @cached_property
    def fingerprint_hash(self) -> str:
        return fingerprint_hash(self.fingerprint)

    def shard(self, number: int) -> PlannedShard:
        """Shards are numbered from 0 in the plan's order."""
        return self.shards[number]

    def to_json(self) -> str:
        """The plan as a JSON object; the shards as one list per field, since there may be very many."""
        data = {each.name: getattr(self, each.name) for each in fields(self)}
        data["version"] = PLAN_VERSION
        data["shards"] = _columns(self.shards, PlannedShard)
        data["carried"] = {
            "types": {each.name: str(each.type) for each in self.carried},
            "arrow": schema_text(self.carried),
        }
        data["counts"] = [asdict(each) for each in self.counts]
        data["problems"] = [asdict(each) for each in self.problems]
        return json.dumps(data, ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str | bytes) -> Plan:
        """
        Raises:
            StorageError: the plan was written by a newer version.
        """
        data = json.loads(text)
        version = data.pop("version", 0)
        if version > PLAN_VERSION:
            raise StorageError(
                f"the run's plan has version {version}, this Draftfleet reads up to {PLAN_VERSION}; upgrade it"
            )
        data["shards"] = tuple(PlannedShard(*row) for row in zip(*data["shards"].values(), strict=True))
        data["carried"] = schema_from_text(data["carried"]["arrow"])
        data["counts"] = tuple(GroupCount(**each) for each in data["counts"])
        data["problems"] = tuple(Problem(**each) for each in data["problems"])
        data["token_histogram"] = {int(upper): rows for upper, rows in data["token_histogram"].items()}
        data["warnings"] = tuple(data["warnings"])
        return cls(**{each.name: data[each.name] for each in fields(cls)})


def _columns(records: Sequence[Any], kind: type) -> dict[str, list[Any]]:
    return {each.name: [getattr(record, each.name) for record in records] for each in fields(kind)}


@dataclass(frozen=True, slots=True)
class PlanProgress:
    """How far planning is. Bytes are those of the input as read, so a compressed one counts more than its size."""

    stage: str
    """`rows`, `sort`, `write` or `done`."""
    num_rows: int
    """Rows checked so far."""
    num_rejected: int
    num_bytes: int
    total_bytes: int
    """Size of the input files."""
    parts_written: int = 0
    num_parts: int = 0


OnProgress = Callable[[PlanProgress], None]


def make_plan(
    job: Job,
    base_dir: Path,
    model_folder: Path,
    out: Store | None,
    on_progress: OnProgress | None = None,
    *,
    processes: int | None = None,
) -> Plan:
    """Check every row of the job's source and write the plan of a run into `out`, its folder; with None, write nothing.

    If `out` holds a plan of the same job already, that one is returned. The same rows and job give the same plan,
    whatever the number of processes (default: one per core). Relative paths of the source start at `base_dir`.

    Raises:
        SourceError: the input as a whole cannot be used.
        ConfigError: a template, or the model's folder, is wrong.
        StorageError: the store, or the disk for temporary files, fails.
        RunConflict: `out` holds the plan of another job.
    """
    # Planning needs a tokenizer and a sort, which those who only read a plan must not pay for.
    from pipeline.planning.planner import plan_job

    return plan_job(job, base_dir, model_folder, out, on_progress, processes)


def current_fingerprint(
    job: Job,
    base_dir: Path | None = None,
    model_folder: Path | None = None,
    sources: Sequence[Mapping[str, object]] | None = None,
) -> dict[str, str]:
    """The semantic fingerprint of the job as its files and model are now, without planning.

    `sources`: as in a Plan; the input files, if those of now do not matter.

    Raises:
        SourceError, ConfigError, StorageError: as `make_plan`.
    """
    from pipeline.planning.fingerprint import fingerprint_now

    return fingerprint_now(job, base_dir or Path.cwd(), model_folder, sources)


def load_plan(store: Store) -> Plan | None:
    """The plan of the run in this folder, or None if none was made."""
    try:
        current: Mapping[str, str] = json.loads(store.get(CURRENT))
    except NotFound:
        return None
    except ValueError:
        raise _damaged(store, CURRENT) from None
    key = plan_json(current["plan"])
    try:
        return Plan.from_json(store.get(key))
    except (ValueError, LookupError, TypeError, OSError) as error:
        raise _damaged(store, key) from error


def _damaged(store: Store, key: str) -> StorageError:
    return StorageError(
        f"{store.url}/{key} is damaged: it was cut off or edited; if nothing in this run is needed, delete its folder"
    )


def read_planned(store: Store, plan_hash: str, shard: PlannedShard) -> pa.Table:
    """The plan rows of a shard, in `pipeline.schema.plan_schema`. Fetches its row group and the part's footer only."""
    with RangedFile(store, plan_part(plan_hash, shard.part)) as file, pq.ParquetFile(file, pre_buffer=True) as parquet:
        return parquet.read_row_group(shard.row_group)
