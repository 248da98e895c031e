"""Which input column plays which part, and under which name each is carried."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from configs.errors import ConfigError, SourceError
from configs.job import Columns


@dataclass(frozen=True)
class ColumnMap:
    """Which column plays which part, after `source.rename`. A part without a column of its own takes the one that bears
    its name, if the row has it."""

    id: str | None
    task: str | None
    prompt: str | None
    messages: str | None
    rename: Mapping[str, str]
    overrides: bool = True
    """Sampling columns apply. Not for an earlier run's rows: theirs were meant for that run."""
    foreign_tasks: bool = False
    """A task that the job lacks means `default` rather than an error."""

    @classmethod
    def of(cls, columns: Columns, rename: Mapping[str, str]) -> ColumnMap:
        """A job's `source.columns` and `source.rename`. Parts may be named by an old name or a new one.

        Raises:
            ConfigError: two columns renamed to one name.
        """
        names = list(rename.values())
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise ConfigError(f"source.rename gives the name `{twice}` twice")

        def new(name: str | None) -> str | None:
            return rename.get(name, name) if name else None

        return cls(new(columns.id), new(columns.task), new(columns.prompt), new(columns.messages), dict(rename))

    @cached_property
    def ours(self) -> frozenset[str]:
        """Columns that play our part of their name; they are not carried twice."""
        return frozenset(name for name in ("id", "task") if getattr(self, name) in (None, name))

    def part(self, name: str) -> str:
        return getattr(self, name) or name

    def renamed(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """The row under its new names.

        Raises:
            SourceError: a new name that the row already has.
        """
        if not self.rename:
            return dict(row)
        renamed = {self.rename.get(name, name): value for name, value in row.items()}
        if len(renamed) < len(row):
            self.new_names(list(row))
        return renamed

    def new_names(self, names: Sequence[str]) -> list[str]:
        """The columns' new names.

        Raises:
            SourceError: a new name that the input already has.
        """
        renamed = [self.rename.get(name, name) for name in names]
        for old, new in zip(names, renamed, strict=True):
            if renamed.count(new) > 1 and old != new:
                raise SourceError(
                    f"source.rename gives `{old}` the name `{new}`, which the input has already; choose another"
                )
        return renamed

    def with_old_names(self, row: Mapping[str, Any]) -> Mapping[str, Any]:
        """The row under its new names and, where they are free, its old ones too, so that templates may use either."""
        if not self.rename:
            return row
        return {**{old: row[new] for old, new in self.rename.items() if new in row}, **row}
