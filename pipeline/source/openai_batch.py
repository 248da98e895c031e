"""OpenAI batch lines as rows: `custom_id`, `method`, `url`, `body`.

    custom_id -> id     body.messages / body.prompt     body.metadata, body.user -> carried
    body.max_tokens, max_completion_tokens, temperature, top_p, seed, n, stop -> sampling of the row

A body key that we do not serve is an error of its line, unless its value asks for nothing (null, false, an empty list,
the API's own default): nothing that the author asked for is dropped in silence.
"""

from __future__ import annotations

from typing import Any

from configs.errors import RowError
from pipeline.excerpt import excerpt

SAMPLING_KEYS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "seed", "n", "stop")
CARRIED_KEYS = ("metadata", "user")
URLS = {"/v1/chat/completions": "messages", "/v1/completions": "prompt"}
KNOWN_KEYS = frozenset(
    {"model", "messages", "prompt", "max_tokens", "max_completion_tokens", *SAMPLING_KEYS, *CARRIED_KEYS}
)
NOT_CARRIED = frozenset({"max_tokens", *SAMPLING_KEYS})
"""Sampling is the request's, not the author's data."""
LINE_KEYS = frozenset({"custom_id", "method", "url", "body"})
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "response_format": ({"type": "text"},),
    "tool_choice": ("none", "auto"),
    "best_of": (1,),
    "parallel_tool_calls": (True,),
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
}


def is_batch_line(line: dict[str, Any]) -> bool:
    return "custom_id" in line and "body" in line


def batch_row(line: dict[str, Any], model: str) -> dict[str, Any]:
    """The line as a row of columns `id`, `messages` or `prompt`, sampling, `metadata`, `user`.

    Raises:
        RowError: `missing_key`, `unsupported_key`, `unsupported_url`, `wrong_model` or `bad_body`.
    """
    body = _envelope(line)
    _refuse_unsupported(body)
    _check_model(body.get("model"), model)
    wanted = URLS[line["url"]]
    row: dict[str, Any] = {"id": line["custom_id"]}
    row |= {key: body[key] for key in (wanted, *SAMPLING_KEYS, *CARRIED_KEYS) if body.get(key) is not None}
    limit = _max_tokens(body)
    return row if limit is None else {**row, "max_tokens": limit}


def _envelope(line: dict[str, Any]) -> dict[str, Any]:
    for key in ("custom_id", "method", "url", "body"):
        if line.get(key) in (None, ""):
            raise _error("missing_key", f"the line has no `{key}`")
    unknown = [key for key in line if key not in LINE_KEYS]
    if unknown:
        raise _error("unsupported_key", f"`{unknown[0]}` is no key of a batch line")
    asked = f"{line['method']} {line['url']}"
    if line["method"] != "POST" or line["url"] not in list(URLS):  # the url may be anything, hashable or not
        raise _error("unsupported_url", f"{excerpt(asked)} is not served; POST to {' or '.join(URLS)}")
    if not isinstance(line["body"], dict):
        raise _error("bad_body", "`body` is not an object")
    other = {"messages": "prompt", "prompt": "messages"}[URLS[line["url"]]]
    if line["body"].get(other) is not None:
        raise _error("unsupported_key", f"body.{other} is no key of {line['url']}")
    return dict(line["body"])


def _refuse_unsupported(body: dict[str, Any]) -> None:
    for key, value in body.items():
        asks_nothing = value is None or value is False or value == [] or value == {} or value in NEUTRAL.get(key, ())
        if key not in KNOWN_KEYS and not asks_nothing:
            raise _error("unsupported_key", f"body.{key} is not supported; remove it from the line")


def _check_model(named: Any, model: str) -> None:
    if named is not None and named not in (model, model.rstrip("/").rpartition("/")[2]):
        raise _error(
            "wrong_model",
            f"body.model is {excerpt(named)}, the job runs {model!r}; if that is the one, set model.served_name to it",
        )


def _max_tokens(body: dict[str, Any]) -> Any:
    """`max_completion_tokens` is the newer name; both must agree if both are there."""
    old, new = body.get("max_tokens"), body.get("max_completion_tokens")
    if old is not None and new is not None and old != new:
        limits = f"body.max_tokens is {excerpt(old)} and body.max_completion_tokens is {excerpt(new)}"
        raise _error("unsupported_key", f"{limits}; keep one")
    return old if new is None else new


def _error(code: str, message: str) -> RowError:
    return RowError(code, message, stage="plan")
