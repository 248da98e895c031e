"""A look at a user's file: which column is the id, the prompt, the task, and what would clash.

    look(job, base_dir)           the first rows, as the job's source gives them
    guess(sample)                 which column plays which part
    misfits(job, base_dir)        rows among the first that a job written so would reject

Only the first rows are read, so a guess is a proposal: `draftfleet plan` checks every row.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from configs.errors import RowError, SourceError
from configs.job import Columns, Job, Sampling, Task
from pipeline.planning.carried import REFUSED_NAMES, free_name
from pipeline.planning.chunk_rows import JsonFormat, JsonRows, ReadRow, TableRows
from pipeline.planning.prompt import Templates
from pipeline.planning.row_check import OVERRIDES, RejectedRow, RowCheck, check_messages, overridden
from pipeline.source.chunk import Chunk, LineChunk, is_blank
from pipeline.source.column_map import ColumnMap
from pipeline.source.jsonl import parse_object
from pipeline.source.opening import OpenSource, open_source

LOOKED_AT = 1000
"""Rows."""

ID_NAMES = ("id", "custom_id", "uuid", "guid", "key", "row_id")
MESSAGES_NAMES = ("messages", "conversation", "conversations", "chat", "turns")
PROMPT_NAMES = (
    "prompt",
    "instruction",
    "question",
    "query",
    "input",
    "text",
    "content",
    "body",
    "document",
    "article",
    "message",
)
_INSTRUCTION_AND_INPUT = "{{ instruction }}{% if input is defined and input %}\n\n{{ input }}{% endif %}"
"""Rows in the manner of Alpaca, whose input may be empty."""
MAX_LABELS = 20
_LABEL = re.compile(r"[a-z][a-z0-9_-]{0,62}")

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Sample:
    """The first rows of a source. `columns` are in order of appearance."""

    source: OpenSource
    rows: Sequence[Row]
    columns: Sequence[str]
    model: str | None = None
    """The model that the first line of an OpenAI batch names."""


@dataclass(frozen=True)
class Guess:
    """Which column plays which part; None where none does."""

    id: str | None = None
    task: str | None = None
    labels: tuple[str, ...] = ()
    """Of the task column, in order of first appearance."""
    prompt: str | None = None
    messages: str | None = None
    template: str | None = None
    """Where one column is not the whole prompt."""
    overrides: tuple[str, ...] = ()
    """Columns that set their row's sampling."""
    rename: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    """What a person should know of the choices made."""
    label_columns: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Other columns whose few values could serve as tasks."""


def look(job: Job, base_dir: Path) -> Sample:
    """The first rows of the job's source.

    Raises:
        SourceError: nothing there, unreadable, or no row at all.
    """
    source = open_source(_first_rows_of(job), base_dir)
    model = _batch_model(source)
    chunks = [_read(chunk, source, model or job.model.known_as) for chunk in source.chunks()]
    rows = [row.values for chunk in chunks for row in chunk.readable]
    if not rows:
        rejected = [row for chunk in chunks for row in chunk.rejected]
        why = f"line {rejected[0].line}: {rejected[0].message}" if rejected else "there is no row in it"
        raise SourceError(f"{source.files[0].path} cannot be used as {source.format}: {why}")
    columns = dict.fromkeys(name for chunk in chunks for name in chunk.column_names)
    return Sample(source, rows, list(columns), model)


def misfits(job: Job, base_dir: Path) -> list[tuple[str, RejectedRow]]:
    """File and reason of each of the first rows that `draftfleet plan` would reject (token limits aside)."""
    source = open_source(_first_rows_of(job), base_dir)
    check = RowCheck(job, Templates({"default": Task(), **job.tasks}), source.columns)
    return [
        (source.files[chunk.file].path, row)
        for chunk in source.chunks()
        for row in _rejected(_read(chunk, source, job.model.known_as), check)
    ]


def guess(sample: Sample) -> Guess:
    """Which column plays which part. The lines of an OpenAI batch say it themselves."""
    if sample.source.format == "openai_batch":
        return Guess()
    rows, columns = sample.rows, sample.columns
    id_column, id_notes = _id(rows, columns)
    task, labels, task_notes = _task(rows, columns)
    rest = [name for name in columns if name not in (id_column, task)]
    prompt = _prompt(rows, rest)
    overrides, unusable = _overrides(rows, columns)
    misnamed = [name for name in ("id", "task") if name in columns and name not in (id_column, task)] + unusable
    free = [name for name in rest if name not in (prompt.prompt, prompt.messages, *overrides)]
    return Guess(
        id=id_column,
        task=task,
        labels=labels,
        prompt=prompt.prompt,
        messages=prompt.messages,
        template=prompt.template,
        overrides=tuple(overrides),
        rename=_renames(columns, id_column, task, misnamed),
        notes=(*id_notes, *task_notes, *prompt.notes, *_override_notes(overrides, unusable)),
        label_columns={} if task else _label_columns(rows, free),
    )


def _first_rows_of(job: Job) -> Job:
    return job.model_copy(update={"source": job.source.model_copy(update={"limit": LOOKED_AT})})


def _batch_model(source: OpenSource) -> str | None:
    """What the first line of an OpenAI batch calls its model."""
    if source.format != "openai_batch":
        return None
    lines = (line for chunk in source.chunks() if isinstance(chunk, LineChunk) for line in chunk.data.splitlines())
    body = parse_object(next(line for line in lines if not is_blank(line))).get("body")
    return str(body["model"]) if isinstance(body, dict) and body.get("model") else None


def _read(chunk: Chunk, source: OpenSource, model: str) -> JsonRows | TableRows:
    if isinstance(chunk, LineChunk):
        return JsonRows(chunk, JsonFormat(source.columns, model if source.format == "openai_batch" else None))
    with pa.ipc.open_stream(chunk.ipc) as stream:
        names = frozenset(source.columns.new_names(stream.schema.names))
    return TableRows(chunk, source.columns, names)


def _rejected(chunk: JsonRows | TableRows, check: RowCheck) -> Iterator[RejectedRow]:
    yield from chunk.rejected
    for row in chunk.readable:
        checked = _check(check, row)
        if isinstance(checked, RejectedRow):
            yield checked


def _check(check: RowCheck, row: ReadRow) -> object:
    return check.check(row.values, row.position, row.ordinal, row.line)


def _id(rows: Sequence[Row], columns: Sequence[str]) -> tuple[str | None, list[str]]:
    """The column that identifies a row, by name and by being unique."""
    by_name = [name for wanted in ID_NAMES for name in columns if name.lower() == wanted]
    by_ending = [name for name in columns if re.search(r"(_id|Id|ID)$", name)]
    notes: list[str] = []
    for name in dict.fromkeys([*by_name, *by_ending]):
        flaw = _id_flaw(rows, name)
        if flaw is None:
            return name, notes
        notes.append(f"column {name} is not used as the id: {flaw}")
    unique = next((name for name in columns if _id_flaw(rows, name) is None and len(str(rows[0][name])) <= 40), None)
    return None, notes + ([f"column {unique} is unique: it could be source.columns.id"] if unique else [])


def _id_flaw(rows: Sequence[Row], name: str) -> str | None:
    seen: set[str] = set()
    for number, row in enumerate(rows, 1):
        value = row.get(name)
        if isinstance(value, bool) or not isinstance(value, str | int) or value == "":
            return f"it is {value!r} in row {number}"
        if str(value) in seen:
            return f"{value!r} stands in it twice"
        seen.add(str(value))
    return None


def _task(rows: Sequence[Row], columns: Sequence[str]) -> tuple[str | None, tuple[str, ...], list[str]]:
    """The column `task`, if its values can be labels."""
    if "task" not in columns:
        return None, (), []
    labels = _labels(rows, "task")
    if labels is None:
        return None, (), ["column task holds no labels (few, lower case, [a-z][a-z0-9_-]*): it is carried as it is"]
    if len(rows) < LOOKED_AT:
        return "task", labels, []
    return "task", labels, [f"tasks that appear after the first {LOOKED_AT:,} rows are not known: `plan` names them"]


def _labels(rows: Sequence[Row], name: str) -> tuple[str, ...] | None:
    values = dict.fromkeys(row[name] for row in rows if _hashable(row.get(name)) and row.get(name) not in (None, ""))
    fit = all(isinstance(value, str) and _LABEL.fullmatch(value) for value in values)
    there = all(_hashable(row.get(name)) for row in rows)
    return tuple(values) if values and fit and there and len(values) <= MAX_LABELS else None


def _hashable(value: Any) -> bool:
    return not isinstance(value, list | dict)


def _label_columns(rows: Sequence[Row], columns: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Columns with few values that repeat, each fit for a label."""
    found = {}
    for name in columns:
        labels = _labels(rows, name)
        if labels and 2 <= len(labels) <= len(rows) / 3:
            found[name] = labels
    return found


def _prompt(rows: Sequence[Row], columns: Sequence[str]) -> Guess:
    """Messages, else the column that reads like a prompt, else the longest text."""
    messages = next((name for wanted in MESSAGES_NAMES for name in columns if name.lower() == wanted), None)
    if messages is not None and (found := _from_messages(rows, messages)) is not None:
        also = [f"column prompt is carried only, since {messages} is used"] if "prompt" in columns else []
        return Guess(messages=found.messages, template=found.template, notes=(*found.notes, *also))
    texts = [name for name in columns if _is_text(rows, name)]
    by_name = [name for wanted in PROMPT_NAMES for name in texts if name.lower() == wanted]
    if "instruction" in texts and "input" in columns:
        return Guess(template=_INSTRUCTION_AND_INPUT)
    if not texts and messages is not None:
        return Guess(messages=messages)  # most of it is faulty, which the rows' check tells better
    if not texts:
        raise SourceError(
            f"no column holds text; the columns are {', '.join(columns) or 'none'}; give the rows a column `prompt`"
        )
    return Guess(prompt=by_name[0] if by_name else max(texts, key=lambda name: _num_chars(rows, name)))


def _from_messages(rows: Sequence[Row], name: str) -> Guess | None:
    """Messages as they are if a user speaks last; the last user's text if the rows already hold an answer."""
    codes = Counter(_messages_flaw(row.get(name)) for row in rows)
    if codes[None] * 2 >= len(rows):
        return Guess(messages=name)
    if codes["answered"] * 2 < len(rows):
        return None
    last = f"{{{{ ({name} | selectattr('role', 'equalto', 'user') | list | last).content }}}}"
    return Guess(template=last, notes=(f"column {name} ends with an answer: the last user's message is the prompt",))


def _messages_flaw(value: Any) -> str | None:
    try:
        check_messages(value)
    except RowError as error:
        last = value[-1] if isinstance(value, list) and value else None
        answered = isinstance(last, dict) and last.get("role") == "assistant"
        return "answered" if answered else error.code
    return None


def _is_text(rows: Sequence[Row], name: str) -> bool:
    filled = sum(isinstance(row.get(name), str) and bool(row[name].strip()) for row in rows)
    return filled * 2 >= len(rows)


def _num_chars(rows: Sequence[Row], name: str) -> int:
    return sum(len(row[name]) for row in rows if isinstance(row.get(name), str))


def _overrides(rows: Sequence[Row], columns: Sequence[str]) -> tuple[list[str], list[str]]:
    """Columns that set a row's sampling, and columns that only bear such a name."""
    named = [name for name in columns if name in OVERRIDES]
    usable = [name for name in named if all(_can_override(name, row.get(name)) for row in rows)]
    return usable, [name for name in named if name not in usable]


def _can_override(name: str, value: Any) -> bool:
    if value is None or value == "":
        return True
    try:
        overridden(Sampling(), {name: value})
    except RowError:
        return False
    return True


def _override_notes(usable: Sequence[str], unusable: Sequence[str]) -> list[str]:
    notes = [f"column {name} sets its row's sampling" for name in usable]
    return notes + [f"column {name} bears the name of a sampling key but does not hold one" for name in unusable]


def _renames(columns: Sequence[str], id_: str | None, task: str | None, misnamed: Sequence[str]) -> dict[str, str]:
    """New names for columns that the output needs the names of, or that would be taken for something they are not."""
    ours = ColumnMap.of(Columns(id=id_, task=task), {}).ours
    clashing = [name for name in columns if name in misnamed or (name in REFUSED_NAMES and name not in ours)]
    taken = {*columns, *REFUSED_NAMES}
    renames = {}
    for name in clashing:
        renames[name] = free_name(f"input_{name.lstrip('_')}", taken)
        taken.add(renames[name])
    return renames
