"""Every key of a job is in one fingerprint or in none, and moves that one only."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from configs.fingerprint import (
    EXECUTION_KEYS,
    NEITHER_KEYS,
    SEMANTIC_KEYS,
    diff,
    execution_fingerprint,
    fingerprint_hash,
    semantic_fingerprint,
)
from configs.job import Job
from configs.keys import Key, all_keys, dotted

FILES = [{"path": "/a.jsonl", "size": 10, "etag": "e1"}]
BASE: dict[str, Any] = {"workload": "w", "source": {"path": "/a.jsonl"}, "tasks": {"code": {}}}

OTHER_VALUES: dict[str, Any] = {
    "workload": "other",
    "source.path": "/elsewhere.jsonl",
    "model.path": "other-model",
    "cluster.address": "auto",
    "draft.drafter": "none",
    "draft.policy.drafter": "none",
    "draft.policy.drafters": ["ngram"],
    "draft.policy.k": 5,
    "draft.policy.max_k": 4,
    "tasks.*.draft.k": 5,
    "tasks.*.draft.drafters": ["ngram"],
    "tasks.*.draft.max_k": 4,
    "draft.capture_layers": [1, 2, 3],
    "draft.ngram_min": 1,
    "tasks.*.draft.drafter": "none",
}
"""Values unlike the default, where the key's type alone does not tell one."""

FIXED_ONLY = {"k", "tree"}
"""Keys of a draft policy that go with `policy: fixed`."""


def semantic(job: Job, **changed: Any) -> dict[str, str]:
    facts = {"sources": FILES, "weights_sha256": "w", "tokenizer_sha256": "t", "template_sha256": "c", **changed}
    return semantic_fingerprint(job, **facts)


def execution(job: Job) -> dict[str, str]:
    return execution_fingerprint(job, {"torch": "2.13.0"}, {"device": "cpu"})


def values() -> list[Key]:
    return [key for key in all_keys().values() if key.section is None]


def other_value(key: Key) -> Any:
    """A valid value that differs from the default."""
    if dotted(key.path) in OTHER_VALUES:
        return OTHER_VALUES[dotted(key.path)]
    default = key.field.get_default(call_default_factory=True)
    if key.type.startswith("list of"):
        return [7] if "integer" in key.type else ["row_id"]
    if key.named:
        return {"x": "y"}
    if isinstance(default, bool):
        return not default
    if " or " in key.type:
        return next(choice for choice in key.type.split(" or ") if choice != default)
    if "integer" in key.type:
        return 64 if default is None else default + 1
    if "number" in key.type:
        return 0.5
    return "other"


def before_and_after(key: Key) -> tuple[Job, Job]:
    """Jobs that differ in this key alone."""
    data = {**BASE, "source": dict(BASE["source"]), "tasks": {"code": {}}}
    *above, last = ["code" if part == "*" else part for part in key.path]
    inner = data
    for depth, part in enumerate(above, 1):
        inner = inner.setdefault(part, {})
        if key.path[depth] in FIXED_ONLY:
            inner["policy"] = "fixed"
    before = Job.model_validate(data)
    inner[last] = other_value(key)
    return before, Job.model_validate(data)


def lists(key: Key, prefixes: tuple[tuple[str, ...], ...]) -> bool:
    return any(key.path[: len(prefix)] == prefix for prefix in prefixes)


@pytest.mark.parametrize("key", values(), ids=lambda key: dotted(key.path))
def test_every_key_moves_its_own_fingerprint_only(key):
    places = [lists(key, SEMANTIC_KEYS), lists(key, EXECUTION_KEYS), lists(key, NEITHER_KEYS)]
    assert sum(places) == 1, f"{dotted(key.path)} belongs in exactly one of the three lists"
    if key.type == "torch":
        return  # the only choice so far
    base, other = before_and_after(key)
    assert other != base
    moves = [semantic(base) != semantic(other), execution(base) != execution(other)]
    assert moves == places[:2]


@pytest.mark.parametrize(
    "fact",
    [
        {"weights_sha256": "x"},
        {"tokenizer_sha256": "x"},
        {"template_sha256": "x"},
        {"sources": [{**FILES[0], "size": 11}]},
        {"sources": [{**FILES[0], "etag": "e2"}]},
        {"sources": [{**FILES[0], "path": "/b.jsonl"}]},
        {"sources": [*FILES, {"path": "/b.jsonl", "size": 1, "etag": "e"}]},
    ],
)
def test_every_given_fact_is_semantic(fact):
    job = Job.model_validate(BASE)
    assert semantic(job) != semantic(job, **fact)


def test_defaults_written_out_are_the_same_fingerprint():
    short = Job.model_validate(BASE)
    data = short.model_dump(mode="json")
    data["tasks"]["default"] = data["tasks"]["code"]
    written = Job.model_validate(data)
    assert semantic(short) == semantic(written)
    assert execution(short) == execution(written)


def test_a_difference_is_told_as_old_and_new():
    old = Job.model_validate({**BASE, "tasks": {"code": {"sampling": {"temperature": 0}}}})
    new = Job.model_validate({**BASE, "tasks": {"code": {"sampling": {"temperature": 0.7}}, "chat": {}}})
    lines = diff(semantic(old), semantic(new))
    assert "tasks.code.sampling.temperature: 0.0 -> 0.7" in lines
    assert 'tasks.chat.too_long: (none) -> "fail_row"' in lines
    assert diff(semantic(old), semantic(old)) == []


def test_a_changed_file_is_named():
    job = Job.model_validate(BASE)
    assert diff(semantic(job), semantic(job, sources=[{**FILES[0], "size": 11}])) == [
        'source.files[/a.jsonl]: {"etag": "e1", "size": 10} -> {"etag": "e1", "size": 11}'
    ]


def test_long_values_are_cut_around_the_difference():
    head, tail = "a" * 500, "z" * 500
    (line,) = diff({"k": head + "old" + tail}, {"k": head + "new" + tail})
    assert "old" in line
    assert "new" in line
    assert len(line) < 150


fingerprints = st.dictionaries(st.text(max_size=8), st.text(max_size=8), max_size=6)


@settings(deadline=None)
@given(one=fingerprints, two=fingerprints)
def test_hash_is_equal_exactly_for_equal_fingerprints(one, two):
    assert (fingerprint_hash(one) == fingerprint_hash(two)) == (one == two)
    assert fingerprint_hash(one) == fingerprint_hash(dict(reversed(one.items())))
    assert (diff(one, two) == []) == (one == two)
