"""From a row to prompt token ids: the task's Jinja templates, the model's chat template, its tokenizer.

    columns + task  --Templates-->  messages (or plain text)  --ChatTokenizer-->  text  -->  token ids

Templates run in Jinja's sandbox; a column that the row lacks, or a null that would be printed as `None`, fails the row.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2
import jinja2.meta
from jinja2.sandbox import ImmutableSandboxedEnvironment

from configs.errors import ConfigError, RowError
from configs.job import Task
from configs.nearest import did_you_mean

Message = dict[str, Any]
Conversation = list[Message] | str
"""Chat messages, or plain text for a model without a chat template."""

OUR_TEMPLATE_ARGUMENTS = frozenset(
    [
        "conversation",
        "tools",
        "documents",
        "chat_template",
        "add_generation_prompt",
        "continue_final_message",
        "tokenize",
        "padding",
        "truncation",
        "max_length",
        "return_tensors",
        "return_dict",
        "return_assistant_tokens_mask",
        "tokenizer_kwargs",
        "messages",
    ]
)


def row_error(code: str, message: str) -> RowError:
    """An error of the planning stage."""
    return RowError(code, message, stage="plan")


@dataclass(frozen=True)
class _Compiled:
    template: jinja2.Template
    columns: frozenset[str]


class Templates:
    """The tasks' own templates, compiled once.

    Raises:
        ConfigError: a template is not Jinja.
    """

    def __init__(self, tasks: Mapping[str, Task]) -> None:
        self._environment = ImmutableSandboxedEnvironment(undefined=jinja2.StrictUndefined, finalize=_refuse_null)
        self._prompts = {name: self._compile(task.template, f"tasks.{name}.template") for name, task in tasks.items()}
        self._systems = {name: self._compile(task.system, f"tasks.{name}.system") for name, task in tasks.items()}

    def _compile(self, source: str | None, key: str) -> _Compiled | None:
        if source is None:
            return None
        try:
            names = jinja2.meta.find_undeclared_variables(self._environment.parse(source))
            return _Compiled(self._environment.from_string(source), frozenset(names - set(self._environment.globals)))
        except jinja2.TemplateSyntaxError as error:
            raise ConfigError(f"{key}, line {error.lineno}: {error.message}") from None

    def has_prompt(self, task: str) -> bool:
        return self._prompts[task] is not None

    def columns(self, task: str) -> frozenset[str]:
        """The input columns that the task's templates name."""
        parts = (self._prompts[task], self._systems[task])
        return frozenset[str]().union(*(part.columns for part in parts if part))

    def prompt(self, task: str, row: Mapping[str, Any]) -> str:
        """The user's text of a task that has a template.

        Raises:
            RowError: `template_error`.
        """
        compiled = self._prompts[task]
        assert compiled is not None
        return _render(compiled, row, f"tasks.{task}.template")

    def system(self, task: str, row: Mapping[str, Any]) -> str | None:
        """The task's system prompt, if it has one.

        Raises:
            RowError: `template_error`.
        """
        compiled = self._systems[task]
        return None if compiled is None else _render(compiled, row, f"tasks.{task}.system")


class _NullPrinted(Exception):
    """A template printed a null."""


def _refuse_null(value: Any) -> Any:
    if value is None:
        raise _NullPrinted
    return value


def _render(compiled: _Compiled, row: Mapping[str, Any], key: str) -> str:
    context = {name: row[name] for name in compiled.columns if name in row}
    try:
        return compiled.template.render(context)
    except _NullPrinted:
        empty = sorted(name for name, value in context.items() if value is None)
        blame = f"null here: {', '.join(empty)}" if empty else "a value inside a column is null"
        raise row_error(
            "template_error", f"{key} would print a null as text ({blame}); test it with `is none`"
        ) from None
    except jinja2.UndefinedError as error:
        missing = sorted(compiled.columns - context.keys())
        hint = did_you_mean(missing[0], row) if missing else ""
        raise row_error("template_error", f"{key}: {error.message}{hint}") from None
    except Exception as error:  # a template may call anything on any value: what it raises is the row's error
        raise row_error("template_error", f"{key}: {type(error).__name__}: {error}") from None


@dataclass(frozen=True, slots=True)
class Prompt:
    """One row's prompt, ready for the engine."""

    text: str
    token_ids: list[int]
    was_cut: bool = False


@dataclass(frozen=True, slots=True)
class Asked:
    """One row on its way to a prompt. `limit` is the number of prompt tokens that leave room for its output."""

    task: str
    conversation: Conversation
    limit: int


class ChatTokenizer:
    """A model's chat template and tokenizer. Token ids equal `apply_chat_template(tokenize=True)` of transformers.

    Args:
        folder: a checkpoint folder with its tokenizer files.
        chat_template: Jinja text that replaces the model's own template.

    Raises:
        ConfigError: no tokenizer there, or a task asks for what the model's template cannot give.
    """

    def __init__(self, folder: Path, tasks: Mapping[str, Task], chat_template: str | None = None) -> None:
        self._tokenizer = load_tokenizer(folder)
        self.chat_template: str | None = chat_template
        if chat_template is None and self._tokenizer.chat_template:
            self.chat_template = self._tokenizer.get_chat_template()
        self._tasks = tasks
        for name, task in tasks.items():
            self._check_task(name, task)

    def _check_task(self, name: str, task: Task) -> None:
        ours = OUR_TEMPLATE_ARGUMENTS & task.chat_template_kwargs.keys()
        if ours:
            raise ConfigError(f"tasks.{name}.chat_template_kwargs: `{min(ours)}` is set by Draftfleet; remove it")
        if self.chat_template is None:
            for key in ("system", "chat_template_kwargs"):
                if getattr(task, key):
                    raise ConfigError(
                        f"tasks.{name}.{key}: the model has no chat template to put it in; write it into "
                        f"tasks.{name}.template or set model.chat_template"
                    )

    def prompts(self, asked: Sequence[Asked]) -> list[Prompt | RowError]:
        """Render and tokenize rows together; each gives its prompt or its own error."""
        texts = self._texts(asked)
        ids = iter(self.encode([text for text in texts if isinstance(text, str)]))
        return [
            text if isinstance(text, RowError) else self._fitted(each, text, next(ids))
            for each, text in zip(asked, texts, strict=True)
        ]

    def _fitted(self, asked: Asked, text: str, token_ids: list[int]) -> Prompt | RowError:
        if not token_ids:
            return row_error("empty_prompt", "the prompt has no tokens in this model's vocabulary")
        if len(token_ids) <= asked.limit:
            return Prompt(text, token_ids)
        try:
            return self._shortened(asked, len(token_ids))
        except RowError as error:
            return error

    def _shortened(self, asked: Asked, num_tokens: int) -> Prompt:
        too_long = self._tasks[asked.task].too_long
        if too_long == "fail_row" or asked.limit < 1:
            raise context_length_exceeded(asked, num_tokens, "shorten it, or set too_long: cut_start or cut_end")
        # Imported late: only the rows that are too long need it.
        from pipeline.planning.prompt_cut import cut_to_fit

        return cut_to_fit(self, asked, num_tokens, from_start=too_long == "cut_start")

    def text(self, task: str, conversation: Conversation) -> str:
        """The prompt's text.

        Raises:
            RowError: `chat_template_error`, or `no_chat_template` if only a chat template could join the messages.
        """
        rendered = self._texts([Asked(task, conversation, 0)])[0]
        if isinstance(rendered, RowError):
            raise rendered
        return rendered

    def _texts(self, asked: Sequence[Asked]) -> list[str | RowError]:
        if self.chat_template is None:
            return [_plain(each.conversation) for each in asked]
        texts: list[str | RowError | None] = [None] * len(asked)
        for task in dict.fromkeys(each.task for each in asked):
            members = [position for position, each in enumerate(asked) if each.task == task]
            rendered = self._render(task, [_messages(asked[position].conversation) for position in members])
            for position, text in zip(members, rendered, strict=True):
                texts[position] = text
        return [text for text in texts if text is not None]

    def _render(self, task: str, conversations: list[list[Message]]) -> list[str | RowError]:
        try:
            return list(self._apply(task, conversations))
        except Exception as error:  # a chat template raises what it likes about a conversation that it does not take
            if len(conversations) == 1:
                return [row_error("chat_template_error", f"the model's chat template refuses the messages: {error}")]
            return [text for each in conversations for text in self._render(task, [each])]

    def _apply(self, task: str, conversations: list[list[Message]]) -> Iterable[str]:
        rendered: list[str] = self._tokenizer.apply_chat_template(
            conversations,
            chat_template=self.chat_template,
            add_generation_prompt=True,
            tokenize=False,
            **self._tasks[task].chat_template_kwargs,
        )
        return rendered

    def encode(self, texts: list[str]) -> list[list[int]]:
        """Token ids of whole prompts. A chat template writes the special tokens itself; plain text gets the model's."""
        if not texts:
            return []
        ids: list[list[int]] = self._tokenizer(
            texts, add_special_tokens=self.chat_template is None, return_attention_mask=False, verbose=False
        )["input_ids"]
        return ids

    def offsets(self, text: str) -> list[tuple[int, int]]:
        """Where each token of a part of a prompt begins and ends, in characters.

        Raises:
            RowError: `context_length_exceeded`; the model's tokenizer does not tell.
        """
        if not self._tokenizer.is_fast:
            raise row_error("context_length_exceeded", "too long, and this model's tokenizer cannot tell where to cut")
        found: list[tuple[int, int]] = self._tokenizer(
            text, add_special_tokens=False, return_offsets_mapping=True, return_attention_mask=False, verbose=False
        )["offset_mapping"]
        return found


def context_length_exceeded(asked: Asked, num_tokens: int, next_step: str) -> RowError:
    if asked.limit < 1:
        return row_error(
            "context_length_exceeded", "max_tokens leaves no room for a prompt in the model's context; lower it"
        )
    return row_error(
        "context_length_exceeded",
        f"the prompt has {num_tokens} tokens and {asked.limit} fit beside max_tokens; {next_step}",
    )


def _messages(conversation: Conversation) -> list[Message]:
    return [{"role": "user", "content": conversation}] if isinstance(conversation, str) else conversation


def _plain(conversation: Conversation) -> str | RowError:
    if isinstance(conversation, str):
        return conversation
    if len(conversation) == 1 and conversation[0]["role"] == "user":
        return str(conversation[0]["content"])
    return row_error(
        "no_chat_template", "the model has no chat template to join messages with; set model.chat_template"
    )


def load_tokenizer(folder: Path) -> Any:
    """The tokenizer of a checkpoint folder, without any network.

    Raises:
        ConfigError: there is none, or transformers cannot read it.
    """
    # A tokenizer that has used its threads warns at every later fork; planning has a process per core instead.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
    except (OSError, ValueError, KeyError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ConfigError(f"model.path: no usable tokenizer in {folder}: {reason}") from None
