"""The Arrow schemas of a run, declared once. Every shard of a run has the same schema; readers accept older versions.

Plan rows, output rows and error rows all carry the user's own columns ("carried"), whose types are found while planning
and fixed for the whole run. Unknown is null, never 0.
"""

from __future__ import annotations

import pyarrow as pa

from workers.contract import MAX_DRAFT_LEN

SCHEMA_VERSION = 1

SAMPLING = pa.struct(
    [
        ("temperature", pa.float64()),
        ("top_p", pa.float64()),
        ("top_k", pa.int32()),
        ("min_p", pa.float64()),
        ("repetition_penalty", pa.float64()),
        ("max_tokens", pa.int32()),
        ("stop", pa.list_(pa.string())),
        ("stop_token_ids", pa.list_(pa.int32())),
        ("ignore_eos", pa.bool_()),
        ("n", pa.int32()),
        ("seed", pa.int64()),
    ]
)
"""A row's sampling with every default and override applied; `seed` null means the job's."""

PLAN_FIELDS: list[pa.Field] = [
    pa.field("_shard", pa.int32(), nullable=False),
    pa.field("_ordinal", pa.int64(), nullable=False),
    pa.field("_id", pa.string(), nullable=False),
    pa.field("_task", pa.string(), nullable=False),
    pa.field("_source_file", pa.string(), nullable=False),
    pa.field("_source_line", pa.int64(), nullable=False),
    pa.field("_sampling", SAMPLING, nullable=False),
    pa.field("_prompt_token_ids", pa.list_(pa.int32()), nullable=False),
]
"""Plan rows; the underscore keeps them apart from the carried columns that follow."""

SPECULATION = pa.struct(
    [
        ("num_spec_steps", pa.int64()),
        ("num_draft_tokens", pa.int64()),
        ("num_accepted_draft_tokens", pa.int64()),
        ("draft_acceptance_rate", pa.float64()),
        ("mean_acceptance_length", pa.float64()),
        ("acceptance_histogram", pa.list_(pa.int64())),
        ("draft_len_histogram", pa.list_(pa.int64())),
        ("tried_by_pos", pa.list_(pa.int64(), MAX_DRAFT_LEN)),
        ("accepted_by_pos", pa.list_(pa.int64(), MAX_DRAFT_LEN)),
        ("fallback_rounds", pa.int64()),
        ("drafter", pa.string()),
        ("acceptance", pa.string()),
    ]
)

OUTPUT_FIELDS: list[pa.Field] = [
    pa.field("row_id", pa.string(), nullable=False),
    pa.field("id", pa.string(), nullable=False),
    pa.field("sample_index", pa.int32(), nullable=False),
    pa.field("task", pa.string(), nullable=False),
    pa.field("text", pa.string(), nullable=False),
    pa.field("reasoning", pa.string()),
    pa.field("token_ids", pa.list_(pa.int32())),
    pa.field("finish_reason", pa.string(), nullable=False),
    pa.field("prompt_tokens", pa.int32()),
    pa.field("output_tokens", pa.int32(), nullable=False),
    pa.field("truncated_tokens", pa.int32(), nullable=False),
    pa.field("queue_s", pa.float64()),
    pa.field("ttft_s", pa.float64()),
    pa.field("total_s", pa.float64()),
    pa.field("engine_ns", pa.int64()),
    pa.field("text_repaired", pa.bool_(), nullable=False),
    pa.field("empty_output", pa.bool_(), nullable=False),
    pa.field("lossy", pa.bool_(), nullable=False),
    pa.field("speculation", SPECULATION),
    pa.field("source_file", pa.string(), nullable=False),
    pa.field("source_line", pa.int64(), nullable=False),
]
"""`prompt_tokens` is billed once per row: set on sample 0, 0 on the others."""

ERROR = pa.struct(
    [
        ("stage", pa.string()),
        ("code", pa.string()),
        ("message", pa.string()),
        ("retryable", pa.bool_()),
        ("attempt", pa.int32()),
    ]
)

ERROR_FIELDS: list[pa.Field] = [
    pa.field("row_id", pa.string()),
    pa.field("id", pa.string()),
    pa.field("sample_index", pa.int32()),
    pa.field("task", pa.string()),
    pa.field("error", ERROR, nullable=False),
    pa.field("source_file", pa.string(), nullable=False),
    pa.field("source_line", pa.int64(), nullable=False),
    pa.field("engine_ns", pa.int64()),
    pa.field("raw", pa.string()),
]
"""`raw` is the input line of a row that could not be parsed; the carried columns follow, null where unknown."""

OUTPUT_NAMES = frozenset(field.name for field in OUTPUT_FIELDS)
RESERVED_NAMES = OUTPUT_NAMES | {field.name for field in ERROR_FIELDS}
"""A carried column may not bear these, nor start with an underscore that a plan column uses."""


def sample_of(row_id: str) -> tuple[str, int]:
    """The id of the input row, which may hold `#` itself, and the sample's index: `row_id` is `<id>#<index>`."""
    row, _, index = row_id.rpartition("#")
    return row, int(index)


def plan_schema(carried: pa.Schema) -> pa.Schema:
    return pa.schema([*PLAN_FIELDS, *carried])


def output_schema(carried: pa.Schema, columns: tuple[str, ...] | None = None, token_ids: bool = False) -> pa.Schema:
    """The dataset's schema. `columns` (job: `sink.columns`) keeps those only, in our order; `row_id` always stays.

    Raises:
        KeyError: a name in `columns` that is neither an output nor a carried column.
    """
    fields = [field for field in OUTPUT_FIELDS if token_ids or field.name != "token_ids"] + list(carried)
    if columns is not None:
        by_name = {field.name: field for field in [*OUTPUT_FIELDS, *carried]}
        wanted = {"row_id", *columns}
        for name in columns:
            by_name[name]
        fields = [field for name, field in by_name.items() if name in wanted]
    return pa.schema(fields, metadata={b"draftfleet.schema_version": str(SCHEMA_VERSION).encode()})


def error_schema(carried: pa.Schema) -> pa.Schema:
    taken = {field.name for field in ERROR_FIELDS}
    return pa.schema(
        [*ERROR_FIELDS, *(field.with_nullable(True) for field in carried if field.name not in taken)],
        metadata={b"draftfleet.schema_version": str(SCHEMA_VERSION).encode()},
    )
