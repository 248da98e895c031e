"""Rows as lines of an OpenAI batch output file: one per input row, its samples as choices.

    {"id", "custom_id", "response": {"status_code": 200, "request_id", "body": <chat completion>}, "error": null}
    {"id", "custom_id", "response": null, "error": {"code", "message"}}

A row with ok samples has a response; `choices[].index` is the sample's, so a sample that failed is a gap. A row
without any is an error line, if errors are asked for. `custom_id` is the row's id. Ids and times come from the run, so
exporting twice gives the same bytes. Shape: the OpenAI API reference, Batch and chat completion objects.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from itertools import groupby
from typing import Any

import pyarrow as pa

from configs.errors import UsageError
from pipeline.committed_shard import CommittedShard
from pipeline.export.json_line import json_line
from pipeline.export.line import Line, line_of
from pipeline.footer import ShardFooter
from pipeline.schema import sample_of

READ = (
    *("row_id", "text", "reasoning", "finish_reason"),
    *("prompt_tokens", "output_tokens", "source_file", "source_line"),
)

Row = Mapping[str, Any]


class OpenAILines:
    """See the module's docstring.

    Raises:
        UsageError: the run did not keep `text`.
    """

    suffix = ".jsonl"
    header = None

    def __init__(self, run: str, kept: pa.Schema) -> None:
        if "text" not in kept.names:
            raise UsageError("openai-jsonl needs the column `text`, which sink.columns of this run left out")
        self._run = run
        self._columns = [name for name in READ if name in kept.names]

    def shard(self, shard: CommittedShard) -> Iterator[Line]:
        answered: set[str] = set()
        rows = shard.ok.select(self._columns).to_pylist()
        for row_id, samples in groupby(rows, key=lambda row: sample_of(row["row_id"])[0]):
            answered.add(row_id)
            yield self._response(row_id, list(samples), shard.footer)
        for row in [] if shard.errors is None else shard.errors.to_pylist():
            if row["id"] not in answered:
                answered.add(row["id"])
                yield self._error(row, shard.footer.task)

    def rejected(self, rows: pa.Table) -> Iterator[Line]:
        for row in rows.to_pylist():
            yield self._error(row, row["task"])

    def _response(self, row_id: str, samples: list[Row], footer: ShardFooter) -> Line:
        body = {
            "id": f"chatcmpl-{self._hash('completion', row_id)}",
            "object": "chat.completion",
            "created": int(footer.finished),
            "model": footer.model,
            "choices": [_choice(sample) for sample in samples],
            "usage": _usage(samples),
            "system_fingerprint": f"fp_{footer.semantic_fingerprint[:10]}",
        }
        response = {"status_code": 200, "request_id": self._hash("request", row_id), "body": body}
        return line_of(self._text(row_id, row_id, response, None), samples[0], footer.task)

    def _error(self, row: Row, task: str | None) -> Line:
        where = f"{row['source_file']}:{row['source_line']}"
        error = {"code": row["error"]["code"], "message": f"{where}: {row['error']['message']}"}
        return line_of(self._text(row["id"], row["id"] or where, None, error), row, task)

    def _text(self, custom_id: str | None, unique: str, response: object, error: object) -> str:
        request_id = f"batch_req_{self._hash('line', unique)}"
        return json_line({"id": request_id, "custom_id": custom_id, "response": response, "error": error})

    def _hash(self, kind: str, unique: str) -> str:
        return hashlib.blake2b("\0".join((self._run, kind, unique)).encode(), digest_size=16).hexdigest()


def _choice(sample: Row) -> dict[str, Any]:
    message = {"role": "assistant", "content": sample["text"]}
    if sample.get("reasoning") is not None:
        message["reasoning_content"] = sample["reasoning"]
    return {
        "index": sample_of(sample["row_id"])[1],
        "message": message,
        "logprobs": None,
        "finish_reason": sample.get("finish_reason"),
    }


def _usage(samples: list[Row]) -> dict[str, int] | None:
    """Tokens of the row; None if the run did not keep them or the sample that carries the prompt's failed."""
    first = samples[0]
    if "output_tokens" not in first or first.get("prompt_tokens") is None or sample_of(first["row_id"])[1]:
        return None
    prompt, completion = int(first["prompt_tokens"]), sum(int(sample["output_tokens"]) for sample in samples)
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
