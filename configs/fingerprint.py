"""What identifies a run's output, and what merely produced it.

    semantic     everything that can change a row's text or the dataset's schema: weights, tokenizer, chat template,
                 every task's prompt and sampling, seed, columns, verification rule, dtype, the input files. A
                 difference refuses a resume and is told as old -> new.
    execution    how the work was done: engine and its versions, host, batch, workers, shard size, draft policy. It is
                 recorded with every shard and may change on a resume.

Both are flat mappings, dotted key -> JSON text, so that a difference can be named. Who pays (`workload`, `team`, ...),
where the run lies (`sink.path`) and how the store is reached (`storage`) belong to neither.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import takewhile
from typing import Any

from configs.document import KeyPath
from configs.job import Job, Task
from configs.keys import dotted, find, starred

SEMANTIC_KEYS: tuple[KeyPath, ...] = (
    ("seed",),
    ("source", "format"),
    ("source", "columns"),
    ("source", "rename"),
    ("source", "limit"),
    ("tasks", "*", "template"),
    ("tasks", "*", "system"),
    ("tasks", "*", "sampling"),
    ("tasks", "*", "too_long"),
    ("tasks", "*", "chat_template_kwargs"),
    ("tasks", "*", "acceptance"),
    ("tasks", "*", "acceptance_threshold"),
    ("model", "dtype"),
    ("model", "kv_cache_dtype"),
    ("model", "max_model_len"),
    ("sink", "columns"),
    ("sink", "token_ids"),
)

EXECUTION_KEYS: tuple[KeyPath, ...] = (
    ("tasks", "*", "draft"),
    ("tasks", "*", "deadline_s"),
    ("model", "path"),
    ("draft",),
    ("engine",),
    ("cluster",),
    ("shard",),
    ("limits",),
    ("sink", "compression"),
)

NEITHER_KEYS: tuple[KeyPath, ...] = (
    ("workload",),
    ("team",),
    ("cost_center",),
    ("labels",),
    ("source", "path"),  # the files that it led to are in the semantic one, with their sizes and etags
    ("model", "chat_template"),  # its content's hash is
    ("model", "served_name"),  # decides which rows are taken, not what they become
    ("sink", "path"),
    ("storage",),
)


def semantic_fingerprint(
    job: Job,
    *,
    sources: Sequence[Mapping[str, object]],
    weights_sha256: str,
    tokenizer_sha256: str,
    template_sha256: str,
) -> dict[str, str]:
    """Dotted key -> JSON text of everything that can change a row's text.

    `sources` has `path`, `size` (bytes) and `etag` of each input file; the hashes are hex digests of the weights, the
    tokenizer and the chat template in use.
    """
    facts: dict[str, object] = {
        "model.weights_sha256": weights_sha256,
        "model.tokenizer_sha256": tokenizer_sha256,
        "model.chat_template_sha256": template_sha256,
    }
    for source in sources:
        facts[f"source.files[{source['path']}]"] = {"size": source["size"], "etag": source["etag"]}
    return _texts(facts) | _texts(_chosen(job, SEMANTIC_KEYS))


def execution_fingerprint(job: Job, versions: Mapping[str, object], host: Mapping[str, object]) -> dict[str, str]:
    """Dotted key -> JSON text of how the work is done. `versions`: engine and libraries; `host`: device, GPU, cores."""
    facts: dict[str, object] = {f"versions.{name}": value for name, value in versions.items()}
    facts |= {f"host.{name}": value for name, value in host.items()}
    return _texts(facts) | _texts(_chosen(job, EXECUTION_KEYS))


def fingerprint_hash(fingerprint: Mapping[str, str]) -> str:
    """SHA-256, in hex, of the fingerprint whatever the order of its keys."""
    return hashlib.sha256(json.dumps(dict(sorted(fingerprint.items()))).encode()).hexdigest()


def diff(old: Mapping[str, str], new: Mapping[str, str]) -> list[str]:
    """One line per difference, by key: `tasks.code.sampling.temperature: 0.0 -> 0.7`."""
    return [
        f"{key}: {before} -> {after}"
        for key in sorted({*old, *new})
        if old.get(key) != new.get(key)
        for before, after in [_excerpts(old.get(key), new.get(key))]
    ]


def _chosen(job: Job, wanted: Sequence[KeyPath]) -> dict[str, object]:
    """The job's values below the wanted keys. `default` is written out, since it exists without being declared."""
    whole = job.model_copy(update={"tasks": {"default": Task(), **job.tasks}})
    return {
        dotted(path): value
        for path, value in _leaves(whole.model_dump(mode="json"), ())
        if any(starred(path)[: len(key)] == key for key in wanted)
    }


def _leaves(data: Mapping[str, Any], path: KeyPath) -> Iterator[tuple[KeyPath, Any]]:
    """Values by path. A mapping whose names the user chose, like `rename`, is one value."""
    for name, value in data.items():
        here = (*path, name)
        key = find(here)
        if isinstance(value, dict) and (key is None or key.section is not None):
            yield from _leaves(value, here)
        else:
            yield here, value


def _texts(values: Mapping[str, object]) -> dict[str, str]:
    return {key: json.dumps(value, sort_keys=True, ensure_ascii=False) for key, value in values.items()}


def _excerpts(old: str | None, new: str | None, width: int = 60) -> tuple[str, str]:
    """Both sides, cut to the part around their first difference if they are long."""
    before, after = old or "(none)", new or "(none)"
    if max(len(before), len(after)) <= width:
        return before, after
    same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(before, after, strict=False)))
    start = max(0, same - width // 3)
    return _cut(before, start, width), _cut(after, start, width)


def _cut(text: str, start: int, width: int) -> str:
    return ("..." if start else "") + text[start : start + width] + ("..." if start + width < len(text) else "")
