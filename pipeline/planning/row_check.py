"""One input row, checked: its id, task, sampling and conversation, or the error that it becomes.

Codes are stable words: missing_id, bad_id, bad_task, unknown_task, missing_prompt, empty_prompt, bad_prompt,
prompt_and_messages, bad_messages, bad_role, bad_content, unsupported_key, bad_sampling, template_error.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from configs.errors import RowError
from configs.job import Job, Sampling, Task
from configs.nearest import did_you_mean
from pipeline.excerpt import excerpt
from pipeline.planning.prompt import Conversation, Message, Templates, row_error
from pipeline.source.column_map import ColumnMap
from pipeline.source.jsonl import parse_value

OVERRIDES = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "max_tokens", "stop", "seed", "n")
ROLES = ("system", "user", "assistant")
UNSUPPORTED_MESSAGE_KEYS = ("tool_calls", "function_call", "tool_call_id", "audio")
INT32_MAX = 2**31 - 1
MAX_CACHED = 4096


@dataclass(frozen=True, slots=True)
class CheckedRow:
    """A row that can be rendered. `position` is its place in its chunk."""

    position: int
    ordinal: int
    line: int
    id: str
    task: str
    sampling: Sampling
    conversation: Conversation


@dataclass(frozen=True, slots=True)
class RejectedRow:
    """A row that became an error. `position` is its place among the chunk's readable rows, None if it is none."""

    position: int | None
    ordinal: int
    line: int
    code: str
    message: str
    id: str | None = None
    task: str | None = None
    raw: str | None = None


class RowCheck:
    """Checks rows of one job. `check` is pure but for a cache of samplings already validated."""

    def __init__(self, job: Job, templates: Templates, columns: ColumnMap) -> None:
        self._tasks: dict[str, Task] = {"default": Task(), **job.tasks}
        self._templates = templates
        self._columns = columns
        self._samplings: dict[tuple[object, ...], Sampling] = {}

    def check(self, row: Mapping[str, Any], position: int, ordinal: int, line: int) -> CheckedRow | RejectedRow:
        """`row` is under its new names."""
        row_id: str | None = None
        task: str | None = None
        try:
            row_id = self._given_id(row)
            task = self._task(row)
            sampling = self._sampling(task, row)
            context = self._columns.with_old_names(row)
            conversation = self._conversation(task, context)
            row_id = row_id or self._content_id(task, context, ordinal)
        except RowError as error:
            return RejectedRow(position, ordinal, line, error.code, error.message, row_id, task)
        return CheckedRow(position, ordinal, line, row_id, task, sampling, conversation)

    def _given_id(self, row: Mapping[str, Any]) -> str | None:
        name = self._columns.part("id")
        if name not in row and self._columns.id is None:
            return None
        value = row.get(name)
        if value is None or value == "":
            raise row_error("missing_id", f"column `{name}` is empty; give the row an id")
        if isinstance(value, str):
            return value
        if isinstance(value, int) and not isinstance(value, bool):
            return str(value)
        raise row_error("bad_id", f"column `{name}` is {_kind(value)}; an id is text or a whole number")

    def _content_id(self, task: str, row: Mapping[str, Any], ordinal: int) -> str:
        parts = {self._columns.part("prompt"), self._columns.part("messages")}
        names = self._templates.columns(task) if self._templates.has_prompt(task) else parts
        content = json.dumps({name: row.get(name) for name in sorted(names)}, default=str, ensure_ascii=False)
        return f"{hashlib.blake2b(content.encode(), digest_size=8).hexdigest()}-{ordinal}"

    def _task(self, row: Mapping[str, Any]) -> str:
        name = self._columns.part("task")
        value = row.get(name)
        if value is None or value == "":
            return "default"
        if not isinstance(value, str):
            raise row_error("bad_task", f"column `{name}` is {_kind(value)}; a task is a name under tasks")
        if value not in self._tasks:
            if self._columns.foreign_tasks:
                return "default"
            raise row_error("unknown_task", f"no task {excerpt(value)} in the job{did_you_mean(value, self._tasks)}")
        return value

    def _sampling(self, task: str, row: Mapping[str, Any]) -> Sampling:
        given = {name: row[name] for name in OVERRIDES if name in row} if self._columns.overrides else {}
        given = {name: value for name, value in given.items() if value is not None and value != ""}
        if not given:
            return self._tasks[task].sampling
        key = (task, *((name, type(value), str(value)) for name, value in given.items()))
        if key not in self._samplings:
            if len(self._samplings) >= MAX_CACHED:
                self._samplings.clear()
            self._samplings[key] = overridden(self._tasks[task].sampling, given)
        return self._samplings[key]

    def _conversation(self, task: str, row: Mapping[str, Any]) -> Conversation:
        messages = self._messages(task, row)
        system = self._templates.system(task, row)
        if isinstance(messages, str) and system is None:
            return messages
        if isinstance(messages, str):
            messages = [{"role": "user", "content": messages}]
        if system is None or any(message["role"] == "system" for message in messages):
            return messages
        return [{"role": "system", "content": system}, *messages]

    def _messages(self, task: str, row: Mapping[str, Any]) -> Conversation:
        if self._templates.has_prompt(task):
            return _not_empty(self._templates.prompt(task, row), f"tasks.{task}.template gives an empty prompt")
        prompt, messages = row.get(self._columns.part("prompt")), row.get(self._columns.part("messages"))
        if self._columns.prompt:
            messages = None
        elif self._columns.messages:
            prompt = None
        if prompt is not None and messages is not None:
            raise row_error(
                "prompt_and_messages", "the row has both; set source.columns.prompt or source.columns.messages"
            )
        if messages is not None:
            return check_messages(messages)
        if prompt is None:
            raise row_error("missing_prompt", self._missing(task, row))
        name = self._columns.part("prompt")
        if not isinstance(prompt, str):
            hint = f"; if these are messages, set source.columns.messages: {name}" if isinstance(prompt, list) else ""
            raise row_error("bad_prompt", f"column `{name}` is {_kind(prompt)}; a prompt is text{hint}")
        return _not_empty(prompt, f"column `{name}` is empty")

    def _missing(self, task: str, row: Mapping[str, Any]) -> str:
        wanted = self._columns.prompt or self._columns.messages
        empty = next((name for name in ((wanted,) if wanted else ("prompt", "messages")) if name in row), None)
        if empty is not None:
            return f"column `{empty}` is null and tasks.{task} has no template"
        parts = f"column `{wanted}`" if wanted else "column `prompt` or `messages`"
        return f"the row has no {parts} and tasks.{task} has no template; its columns: {', '.join(row) or 'none'}"


def overridden(base: Sampling, given: Mapping[str, Any]) -> Sampling:
    """The task's sampling with a row's own values.

    Raises:
        RowError: `bad_sampling`, naming the column.
    """
    values = dict(given)
    for name, value in values.items():
        if isinstance(value, bool):
            raise row_error("bad_sampling", f"column `{name}`: {value} is no number")
    if isinstance(values.get("stop"), str):
        values["stop"] = (values["stop"],)
    try:
        sampling = Sampling.model_validate({**base.model_dump(), **values})
    except ValidationError as error:
        first = error.errors()[0]
        column = first["loc"][0] if first["loc"] else "sampling"
        raise row_error(
            "bad_sampling", f"column `{column}`: {first['msg']} (it is {excerpt(first['input'])})"
        ) from None
    for name in ("top_k", "max_tokens"):
        if getattr(sampling, name) > INT32_MAX:
            raise row_error("bad_sampling", f"column `{name}`: {excerpt(getattr(sampling, name))} is over {INT32_MAX}")
    return sampling


def check_messages(value: Any) -> list[Message]:
    """Chat messages with string contents; a JSON text of them (from CSV) is read.

    Raises:
        RowError: `bad_messages`, `bad_role`, `bad_content`, `unsupported_key` or `empty_prompt`.
    """
    if isinstance(value, str):
        try:
            value = parse_value(value, "the text")
        except RowError as error:
            raise row_error("bad_messages", f"messages is text that cannot be read: {error.message}") from None
    if not isinstance(value, list) or not value:
        raise row_error("bad_messages", f"messages is {_kind(value)}; it must be a list of {{role, content}}")
    messages = [_check_message(message, number) for number, message in enumerate(value)]
    if messages[-1]["role"] != "user":
        raise row_error(
            "bad_messages", f"the last message is from the {messages[-1]['role']}; the model answers a user"
        )
    _not_empty(messages[-1]["content"], "the last message is empty")
    return messages


def _check_message(message: Any, number: int) -> Message:
    if not isinstance(message, dict):
        raise row_error("bad_messages", f"messages[{number}] is {_kind(message)}; it must be {{role, content}}")
    # Columnar files give every message every key that any of them has; null is absent.
    known = {key: value for key, value in message.items() if value is not None}
    role = known.get("role")
    if role not in ROLES:
        raise row_error("bad_role", f"messages[{number}].role is {excerpt(role)}; it must be one of {', '.join(ROLES)}")
    for key in UNSUPPORTED_MESSAGE_KEYS:
        if known.get(key):
            raise row_error("unsupported_key", f"messages[{number}].{key} is not supported")
    return {**known, "content": _content(known.get("content"), number)}


def _content(value: Any, number: int) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, list) and value and all(isinstance(part, dict) for part in value):
        return "".join(_text_part(part, number) for part in value)
    raise row_error("bad_content", f"messages[{number}].content is {_kind(value)}; it must be text")


def _text_part(part: dict[str, Any], number: int) -> str:
    if part.get("type") == "text" and isinstance(part.get("text"), str):
        return str(part["text"])
    raise row_error(
        "bad_content", f"messages[{number}].content has a part of type {excerpt(part.get('type'))}; only text works"
    )


def _not_empty(text: str, message: str) -> str:
    if not text.strip():
        raise row_error("empty_prompt", message)
    return text


def _kind(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, list):
        return "a list" if value else "an empty list"
    names = {bool: "true or false", int: "a whole number", float: "a number", str: "text", dict: "an object"}
    return names.get(type(value), f"a {type(value).__name__}")
