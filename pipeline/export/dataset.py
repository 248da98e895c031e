"""The dataset of a run in other formats: what is committed at this moment, in flat memory, the same bytes each time.

    openai-jsonl   the output lines of an OpenAI batch                openai_lines
    jsonl, csv     the rows as they are                               plain_lines
    sft-jsonl      conversations with the answer, for training        training_lines

A run that is still going on gives what is committed so far.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Literal

import pyarrow as pa
import pyarrow.parquet as pq

from configs.errors import UsageError
from pipeline.committed_shard import read_rejected, read_shards, shard_keys
from pipeline.export.files import write_lines
from pipeline.export.line import Line, LineFormat
from pipeline.export.openai_lines import OpenAILines
from pipeline.export.order import in_source_order
from pipeline.export.plain_lines import CsvLines, JsonLines
from pipeline.export.training_lines import TrainingLines
from pipeline.layout import CURRENT
from pipeline.plan import Plan, load_plan
from pipeline.ranged_file import read_ranges
from pipeline.schema import output_schema
from pipeline.store.base import Store

ExportFormat = Literal["openai-jsonl", "jsonl", "csv", "sft-jsonl"]
ExportOrder = Literal["shard", "source"]


def export(
    store: Store,
    to: ExportFormat,
    out: Path,
    *,
    split_by_task: bool = False,
    include_errors: bool = False,
    order: ExportOrder = "shard",
) -> list[Path]:
    """Write what a run has done so far; returns the files.

    Args:
        store: the run's folder.
        out: a file; with `split_by_task` a folder, which gets `<task>.jsonl` or `.csv`. Replaced when complete.
        include_errors: also the rows that failed, and those that the plan rejected.
        order: `shard` is the order that rows were generated in, the longest of a task first; `source` is the input's,
            and takes temporary disk space.

    Raises:
        UsageError: no run here, nothing done yet, or the run did not keep what the format needs.
        StorageError: the store, or the disk, fails.
    """
    plan = load_plan(store)
    if plan is None:
        raise UsageError(f"no run in {store.url} ({CURRENT} is missing); `draftfleet runs` lists what there is")
    keys = shard_keys(store)
    if not keys and not include_errors:
        raise UsageError(f"no row of {store.url} is done yet; `draftfleet status` says how far it is")
    kept = read_ranges(store, keys[0], pq.read_schema) if keys else output_schema(plan.carried)
    _refuse_impossible(to, kept, include_errors, order)
    form = _format(to, plan, kept, include_errors)
    lines = _lines(store, form, include_errors)
    if order == "source":
        lines = in_source_order(lines, [str(source["path"]) for source in plan.sources])
    return write_lines(lines, out, form.header, form.suffix, split_by_task)


def _format(to: ExportFormat, plan: Plan, kept: pa.Schema, include_errors: bool) -> LineFormat:
    match to:
        case "openai-jsonl":
            return OpenAILines(plan.run, kept)
        case "jsonl":
            return JsonLines(plan.json_columns)
        case "csv":
            return CsvLines(kept.names, include_errors)
        case "sft-jsonl":
            return TrainingLines(plan, kept)


def _refuse_impossible(to: ExportFormat, kept: pa.Schema, include_errors: bool, order: ExportOrder) -> None:
    if to == "sft-jsonl" and include_errors:
        raise UsageError("sft-jsonl holds training examples, and a failed row is none; leave the errors out")
    missing = [name for name in ("source_file", "source_line") if name not in kept.names]
    if order == "source" and missing:
        raise UsageError(f"source order needs the column `{missing[0]}`, which sink.columns of this run left out")


def _lines(store: Store, form: LineFormat, include_errors: bool) -> Iterator[Line]:
    shards = chain.from_iterable(form.shard(shard) for shard in read_shards(store, include_errors))
    if not include_errors:
        return shards
    return chain(shards, chain.from_iterable(form.rejected(rows) for rows in read_rejected(store)))
