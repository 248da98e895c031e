"""Cutting the ordered rows into shards, and the shards into parts. Pure: rows in, bounds out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from pipeline.plan import PlannedShard

MAX_SHARD_BYTES = 64 << 20
"""Its engine holds a shard's rows, and its output as one object, in memory."""
MAX_ROW_GROUPS = 64
"""Per part: the footer of a file with thousands of row groups is slow to parse."""
MAX_PART_BYTES = 128 << 20
"""A part is uploaded as one object from memory."""


@dataclass(frozen=True, slots=True)
class RowCost:
    """What the cut needs to know of a row."""

    task: str
    lane: str
    work: int
    prompt_tokens: int
    max_tokens: int
    """Per sample."""
    samples: int
    num_bytes: int


@dataclass(frozen=True, slots=True)
class ShardBounds:
    """How large a shard may get. A row larger than all of them has a shard of its own."""

    work: int
    """Work tokens at which a shard is full."""
    rows: int
    num_bytes: int = MAX_SHARD_BYTES


@dataclass(slots=True)
class _Open:
    """The shard that is being filled."""

    task: str = ""
    lane: str = ""
    rows: int = 0
    samples: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0
    work: int = 0
    num_bytes: int = 0

    def takes(self, row: RowCost, bounds: ShardBounds) -> bool:
        if self.rows == 0:
            return True
        return (
            (row.task, row.lane) == (self.task, self.lane)
            and self.work < bounds.work
            and self.rows < bounds.rows
            and self.num_bytes + row.num_bytes <= bounds.num_bytes
        )

    def add(self, row: RowCost) -> None:
        self.task, self.lane = row.task, row.lane
        self.rows += 1
        self.samples += row.samples
        self.prompt_tokens += row.prompt_tokens
        self.output_tokens += row.samples * row.max_tokens
        self.work += row.work
        self.num_bytes += row.num_bytes


@dataclass(slots=True)
class _Place:
    """Where the next shard goes."""

    shard: int = 0
    part: int = 0
    row_group: int = 0
    part_bytes: int = field(default=0)

    def take(self, done: _Open) -> PlannedShard:
        full = self.row_group == MAX_ROW_GROUPS or self.part_bytes + done.num_bytes > MAX_PART_BYTES
        if self.row_group and full:
            self.part, self.row_group, self.part_bytes = self.part + 1, 0, 0
        planned = PlannedShard(
            shard=self.shard,
            task=done.task,
            lane=done.lane,
            part=self.part,
            row_group=self.row_group,
            num_rows=done.rows,
            num_samples=done.samples,
            prompt_tokens=done.prompt_tokens,
            max_output_tokens=done.output_tokens,
            work_tokens=done.work,
        )
        self.shard, self.row_group, self.part_bytes = (
            self.shard + 1,
            self.row_group + 1,
            self.part_bytes + done.num_bytes,
        )
        return planned


def cut_shards(rows: Iterable[RowCost], bounds: ShardBounds) -> Iterator[PlannedShard]:
    """Shards over consecutive rows, each of one task and lane, full at `bounds`."""
    shard, place = _Open(), _Place()
    for row in rows:
        if not shard.takes(row, bounds):
            yield place.take(shard)
            shard = _Open()
        shard.add(row)
    if shard.rows:
        yield place.take(shard)
