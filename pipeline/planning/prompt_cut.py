"""Shortening a prompt that does not fit: the longest user message loses its start or its end, the template nothing."""

from __future__ import annotations

from collections.abc import Sequence

from configs.errors import RowError
from pipeline.planning.prompt import Asked, ChatTokenizer, Conversation, Prompt, context_length_exceeded

MAX_TRIES = 12


def cut_to_fit(tokenizer: ChatTokenizer, asked: Asked, num_tokens: int, *, from_start: bool) -> Prompt:
    """Cut at token borders until the whole prompt has at most `asked.limit` tokens.

    Cutting changes how the rest tokenizes at its border, and a template may trim, so the result is tokenized anew and
    cut further while it is still too long: at most a few tokens are lost beyond what was needed.

    Raises:
        RowError: `context_length_exceeded`; the rest of the prompt alone does not fit.
    """
    place = _longest_user_message(asked.conversation)
    content = _content(asked.conversation, place)
    offsets = tokenizer.offsets(content)
    excess = num_tokens - asked.limit
    for _ in range(MAX_TRIES):
        kept = shortened(content, offsets, excess, from_start=from_start)
        if not kept.strip():
            break
        conversation = _replaced(asked.conversation, place, kept)
        text = tokenizer.text(asked.task, conversation)
        token_ids = tokenizer.encode([text])[0]
        if len(token_ids) <= asked.limit:
            return Prompt(text, token_ids, was_cut=True)
        excess += len(token_ids) - asked.limit
    raise _cannot(asked, num_tokens)


def shortened(content: str, offsets: Sequence[tuple[int, int]], num_cut: int, *, from_start: bool) -> str:
    """`content` without its first or last `num_cut` tokens (at least 1); more where a character spans tokens, so that
    none is split."""
    if num_cut >= len(offsets):
        return ""
    if from_start:
        first = next((i for i in range(num_cut, len(offsets)) if offsets[i][0] >= offsets[i - 1][1]), None)
        return "" if first is None else content[offsets[first][0] :]
    last = len(offsets) - num_cut - 1
    while last >= 0 and offsets[last][1] > offsets[last + 1][0]:
        last -= 1
    return content[: offsets[last][1]] if last >= 0 else ""


def _longest_user_message(conversation: Conversation) -> int:
    if isinstance(conversation, str):
        return 0
    places = [place for place, message in enumerate(conversation) if message["role"] == "user"]
    return max(places, key=lambda place: len(conversation[place]["content"]))


def _content(conversation: Conversation, place: int) -> str:
    return conversation if isinstance(conversation, str) else str(conversation[place]["content"])


def _replaced(conversation: Conversation, place: int, content: str) -> Conversation:
    if isinstance(conversation, str):
        return content
    changed = {**conversation[place], "content": content}
    return [*conversation[:place], changed, *conversation[place + 1 :]]


def _cannot(asked: Asked, num_tokens: int) -> RowError:
    return context_length_exceeded(asked, num_tokens, "cutting its longest user message is not enough")
