"""Prompts: templates over columns, then exactly what `apply_chat_template` gives, cut only where that is allowed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_chat_model import save_small_chat_model

from configs.errors import ConfigError, RowError
from configs.job import Task
from pipeline.planning.prompt import Asked, ChatTokenizer, Prompt, Templates, load_tokenizer
from pipeline.planning.prompt_cut import shortened

TEXT = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=40)
CONVERSATION = st.lists(
    st.fixed_dictionaries({"role": st.sampled_from(["user", "assistant"]), "content": TEXT}), min_size=1, max_size=3
)


@pytest.fixture(scope="module")
def tokenizer(chat_model: Path) -> ChatTokenizer:
    tasks = {
        "default": Task(),
        "loud": Task(chat_template_kwargs={"shout": True}),
        "start": Task(too_long="cut_start"),
        "end": Task(too_long="cut_end"),
    }
    return ChatTokenizer(chat_model, tasks)


def only(results: list[Prompt | RowError]) -> Prompt:
    (result,) = results
    assert isinstance(result, Prompt), result
    return result


@settings(deadline=None, max_examples=50)
@given(st.lists(st.tuples(CONVERSATION, st.sampled_from(["default", "loud"])), min_size=1, max_size=4))
def test_ids_equal_apply_chat_template_token_for_token(chat_model: Path, asked: list[tuple[Any, str]]) -> None:
    tasks = {"default": Task(), "loud": Task(chat_template_kwargs={"shout": True})}
    ours = ChatTokenizer(chat_model, tasks).prompts([Asked(task, messages, 10_000) for messages, task in asked])
    reference = load_tokenizer(chat_model)
    for (messages, task), prompt in zip(asked, ours, strict=True):
        assert isinstance(prompt, Prompt)
        kwargs = {"shout": True} if task == "loud" else {}
        wanted = reference.apply_chat_template(messages, add_generation_prompt=True, tokenize=True, **kwargs)
        assert prompt.token_ids == list(wanted["input_ids"])


def test_plain_text_is_a_user_message(tokenizer: ChatTokenizer) -> None:
    prompt = only(tokenizer.prompts([Asked("default", "Hello", 100)]))
    assert prompt.text.endswith("<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n")
    assert prompt.text.startswith("<|im_start|>system\nYou help.")


def test_what_the_chat_template_refuses_is_the_rows_error_alone(tokenizer: ChatTokenizer) -> None:
    good, bad, other = tokenizer.prompts([Asked("default", text, 100) for text in ("one", "forbidden", "two")])
    assert isinstance(good, Prompt)
    assert isinstance(other, Prompt)
    assert isinstance(bad, RowError)
    assert bad.code == "chat_template_error"
    assert "not that word" in bad.message


def test_the_jobs_chat_template_replaces_the_models(chat_model: Path) -> None:
    tokenizer = ChatTokenizer(chat_model, {"default": Task()}, "[{{ messages[0]['content'] }}]")
    assert only(tokenizer.prompts([Asked("default", "Hi", 100)])).text == "[Hi]"


def test_without_a_chat_template_the_text_is_the_prompt(tmp_path: Path) -> None:
    tokenizer = ChatTokenizer(save_small_chat_model(tmp_path, chat_template=None), {"default": Task()})
    messages = [{"role": "user", "content": "Hi"}]
    plain, one, several = tokenizer.prompts([Asked("default", each, 100) for each in ("Hi", messages, messages * 2)])
    assert plain == one
    assert isinstance(plain, Prompt)
    assert plain.text == "Hi"
    assert plain.token_ids == load_tokenizer(tmp_path)("Hi")["input_ids"]
    assert load_tokenizer(tmp_path).decode(plain.token_ids) == "<|endoftext|>Hi"
    assert isinstance(several, RowError)
    assert several.code == "no_chat_template"


def test_a_system_prompt_needs_a_chat_template(tmp_path: Path) -> None:
    folder = save_small_chat_model(tmp_path, chat_template=None)
    with pytest.raises(ConfigError, match=r"tasks\.x\.system: the model has no chat template"):
        ChatTokenizer(folder, {"x": Task(system="Be brief.")})


def test_variables_that_are_ours_cannot_be_set(chat_model: Path) -> None:
    with pytest.raises(ConfigError, match=r"tasks\.x\.chat_template_kwargs: `add_generation_prompt`"):
        ChatTokenizer(chat_model, {"x": Task(chat_template_kwargs={"add_generation_prompt": False})})


def test_a_folder_without_a_tokenizer_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"model\.path: no usable tokenizer in"):
        ChatTokenizer(tmp_path, {})


LONG = "one two three, four. " * 60


@settings(deadline=None, max_examples=40)
@given(TEXT.map(lambda text: (text + " ") * 20), st.integers(60, 200), st.sampled_from(["start", "end"]))
def test_a_cut_prompt_fits_and_loses_only_the_end_asked_for(chat_model: Path, long: str, limit: int, task: str) -> None:
    tasks = {"start": Task(too_long="cut_start"), "end": Task(too_long="cut_end")}
    tokenizer = ChatTokenizer(chat_model, tasks)
    messages = [{"role": "system", "content": "Rules."}, {"role": "user", "content": long}]
    whole = tokenizer.text(task, messages)
    (result,) = tokenizer.prompts([Asked(task, messages, limit)])
    assert isinstance(result, Prompt)
    assert len(result.token_ids) <= limit
    if not result.was_cut:
        assert result.text == whole
        return
    before, after = "<|im_start|>system\nRules.<|im_end|>\n<|im_start|>user\n", "<|im_end|>\n<|im_start|>assistant\n"
    assert result.text.startswith(before)
    assert result.text.endswith(after)
    kept = result.text.removeprefix(before).removesuffix(after)
    assert kept
    assert long.strip().endswith(kept) if task == "start" else long.strip().startswith(kept)
    assert len(kept) < len(long)


def test_a_cut_takes_no_more_than_needed(tokenizer: ChatTokenizer) -> None:
    for task in ("start", "end"):
        result = only(tokenizer.prompts([Asked(task, LONG, 120)]))
        assert 110 < len(result.token_ids) <= 120


def test_only_the_longest_user_message_is_cut(tokenizer: ChatTokenizer) -> None:
    messages = [
        {"role": "user", "content": "Short question."},
        {"role": "assistant", "content": "An answer that stays as it is. " * 3},
        {"role": "user", "content": LONG},
    ]
    result = only(tokenizer.prompts([Asked("end", messages, 150)]))
    assert "Short question." in result.text
    assert "An answer that stays as it is. " * 2 in result.text


def test_what_cannot_be_cut_enough_fails(tokenizer: ChatTokenizer) -> None:
    messages = [{"role": "system", "content": LONG}, {"role": "user", "content": "Hi"}]
    (result,) = tokenizer.prompts([Asked("end", messages, 100)])
    assert isinstance(result, RowError)
    assert result.code == "context_length_exceeded"
    assert "cutting its longest user message is not enough" in result.message


def test_too_long_fails_by_default_with_the_numbers(tokenizer: ChatTokenizer) -> None:
    (result,) = tokenizer.prompts([Asked("default", LONG, 50)])
    assert isinstance(result, RowError)
    assert result.code == "context_length_exceeded"
    assert "50 fit beside max_tokens" in result.message
    (result,) = tokenizer.prompts([Asked("end", "Hi", 0)])
    assert isinstance(result, RowError)
    assert "max_tokens leaves no room" in result.message


@settings(deadline=None)
@given(TEXT, st.integers(1, 50), st.booleans())
def test_a_cut_never_splits_a_character(chat_model: Path, text: str, num_cut: int, from_start: bool) -> None:
    offsets = ChatTokenizer(chat_model, {}).offsets(text)
    kept = shortened(text, offsets, num_cut, from_start=from_start)
    assert text.endswith(kept) if from_start else text.startswith(kept)
    assert kept == "" if num_cut >= len(offsets) else len(kept) <= len(text)


def row_error_of(template: str, row: dict[str, Any]) -> str:
    with pytest.raises(RowError) as raised:
        Templates({"t": Task(template=template)}).prompt("t", row)
    assert raised.value.code == "template_error"
    return raised.value.message


def test_a_template_uses_any_column_and_only_those_it_names() -> None:
    templates = Templates({"t": Task(template="{{ a }}{% for x in b %}-{{ x.c }}{% endfor %}", system="S {{ d }}")})
    assert templates.columns("t") == {"a", "b", "d"}
    assert templates.prompt("t", {"a": 1, "b": [{"c": "x"}, {"c": "y"}], "z": None}) == "1-x-y"
    assert templates.system("t", {"d": "é"}) == "S é"


def test_a_missing_column_is_named_with_its_neighbour() -> None:
    assert row_error_of("{{ question }}", {"questoin": "?"}) == (
        "tasks.t.template: 'question' is undefined; did you mean questoin?"
    )


def test_a_null_is_not_printed_as_a_word() -> None:
    assert "would print a null as text (null here: a)" in row_error_of("{{ a }}", {"a": None})
    assert "a value inside a column is null" in row_error_of("{{ a.b }}", {"a": {"b": None}})
    assert Templates({"t": Task(template="{% if a is none %}-{% endif %}")}).prompt("t", {"a": None}) == "-"


@pytest.mark.parametrize(
    "template", ["{{ a / 0 }}", "{{ a.__class__.__mro__ }}", "{% for i in range(10**9) %}{% endfor %}"]
)
def test_what_a_template_does_wrong_is_the_rows_error(template: str) -> None:
    assert row_error_of(template, {"a": 1}).startswith("tasks.t.template: ")


def test_a_broken_template_is_the_jobs_error() -> None:
    with pytest.raises(ConfigError, match=r"tasks\.t\.system, line 2: "):
        Templates({"t": Task(system="fine\n{% if %}")})
