"""A shard's samples as the Arrow tables that are committed: ok rows and error rows, in the run's fixed schemas."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa

from configs.errors import RowError
from pipeline.schema import PLAN_FIELDS, error_schema, output_schema
from pipeline.shard_work import Sample
from workers.contract import Finished


def carried_of(plan_rows: pa.Schema) -> pa.Schema:
    """The user's own columns of a plan table."""
    planned = {field.name for field in PLAN_FIELDS}
    return pa.schema([field for field in plan_rows if field.name not in planned])


def output_table(
    rows: pa.Table, samples: Sequence[Sample], columns: tuple[str, ...] | None, token_ids: bool
) -> pa.Table:
    """Ok samples, one row each, in the given order."""
    ok = [(sample, sample.result) for sample in samples if isinstance(sample.result, Finished)]
    taken = rows.take(pa.array([sample.row for sample, _ in ok], pa.int64()))
    schema = output_schema(carried_of(rows.schema), columns, token_ids)

    def ours(value: Callable[[Sample, Finished], Any]) -> list[Any]:
        return [value(sample, result) for sample, result in ok]

    values: dict[str, Callable[[], Any]] = {
        "row_id": lambda: ours(lambda sample, _: sample.request.request_id),
        "id": lambda: taken.column("_id"),
        "sample_index": lambda: ours(lambda sample, _: sample.request.sample_index),
        "task": lambda: taken.column("_task"),
        "text": lambda: ours(lambda _, result: result.text),
        # No engine of this build separates reasoning from the answer: unknown is null.
        "reasoning": lambda: pa.nulls(len(ok), pa.string()),
        "token_ids": lambda: ours(lambda _, result: list(result.token_ids)),
        "finish_reason": lambda: ours(lambda _, result: result.finish_reason),
        "prompt_tokens": lambda: ours(
            lambda sample, _: len(sample.request.prompt_token_ids) if sample.request.sample_index == 0 else 0
        ),
        "output_tokens": lambda: ours(lambda _, result: len(result.token_ids)),
        "truncated_tokens": lambda: ours(lambda _, result: result.truncated_tokens),
        "queue_s": lambda: ours(lambda _, result: result.queue_s),
        "ttft_s": lambda: ours(lambda _, result: result.ttft_s),
        "total_s": lambda: ours(lambda _, result: result.total_s),
        "engine_ns": lambda: ours(lambda _, result: result.engine_ns),
        "text_repaired": lambda: ours(lambda _, result: result.text_repaired),
        "empty_output": lambda: ours(lambda _, result: not result.text.strip()),
        "lossy": lambda: ours(lambda _, result: result.is_lossy),
        "speculation": lambda: ours(lambda _, result: _speculation(result)),
        "source_file": lambda: taken.column("_source_file"),
        "source_line": lambda: taken.column("_source_line"),
    }
    return _table(schema, values, taken)


def error_table(rows: pa.Table, samples: Sequence[Sample], attempt: int) -> pa.Table:
    """Failed samples, one row each, with the columns that they carried."""
    failed = [(sample, sample.result) for sample in samples if isinstance(sample.result, RowError)]
    taken = rows.take(pa.array([sample.row for sample, _ in failed], pa.int64()))
    values: dict[str, Callable[[], Any]] = {
        "row_id": lambda: [sample.request.request_id for sample, _ in failed],
        "id": lambda: taken.column("_id"),
        "sample_index": lambda: [sample.request.sample_index for sample, _ in failed],
        "task": lambda: taken.column("_task"),
        "error": lambda: [error_struct(error, attempt) for _, error in failed],
        "source_file": lambda: taken.column("_source_file"),
        "source_line": lambda: taken.column("_source_line"),
        "engine_ns": lambda: [error.engine_ns for _, error in failed],
        "raw": lambda: pa.nulls(len(failed), pa.string()),
    }
    return _table(error_schema(carried_of(rows.schema)), values, taken)


def error_struct(error: RowError, attempt: int) -> dict[str, Any]:
    return {
        "stage": error.stage,
        "code": error.code,
        "message": error.message,
        "retryable": error.retryable,
        "attempt": attempt,
    }


def _table(schema: pa.Schema, values: dict[str, Callable[[], Any]], carried: pa.Table) -> pa.Table:
    return pa.table([_column(field, values, carried) for field in schema], schema=schema)


def _column(field: pa.Field, values: dict[str, Callable[[], Any]], carried: pa.Table) -> pa.ChunkedArray | pa.Array:
    made = values[field.name]() if field.name in values else carried.column(field.name)
    return made if isinstance(made, pa.Array | pa.ChunkedArray) else pa.array(made, field.type)


def _speculation(result: Finished) -> dict[str, Any]:
    stats = result.speculation
    return {
        "num_spec_steps": stats.num_spec_steps,
        "num_draft_tokens": stats.num_draft_tokens,
        "num_accepted_draft_tokens": stats.num_accepted_draft_tokens,
        "draft_acceptance_rate": stats.draft_acceptance_rate,
        "mean_acceptance_length": stats.mean_acceptance_length,
        "acceptance_histogram": stats.acceptance_histogram,
        "draft_len_histogram": stats.draft_len_histogram,
        "tried_by_pos": stats.tried_by_pos,
        "accepted_by_pos": stats.accepted_by_pos,
        "fallback_rounds": stats.fallback_rounds,
        "drafter": result.drafter,
        "acceptance": result.acceptance,
    }
