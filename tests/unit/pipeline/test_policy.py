"""What runs teach about drafting adds up, in any order and grouping, and is kept once per run."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import reduce
from operator import add
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from configs.errors import ConfigError
from pipeline.policy import Policy, policy_of
from pipeline.policy_store import DECAY, Lesson, PolicyStore
from pipeline.store.local import LocalStore
from workers.contract import MAX_DRAFT_LEN, EngineInfo
from workers.draft_length.evidence import Evidence
from workers.draft_length.round_sums import RoundSums
from workers.draft_length.stratum import Stratum

TARGET, OTHER_TARGET = "a" * 64, "b" * 64
HEAD, OTHER_HEAD = "head", "another head"

COUNTS = st.lists(st.integers(0, 1000), min_size=MAX_DRAFT_LEN, max_size=MAX_DRAFT_LEN)
KNOWN = st.tuples(
    st.builds(
        Stratum,
        st.sampled_from(["code", "chat"]),
        st.sampled_from(["greedy", "hot"]),
        st.sampled_from(["eagle3", "ngram"]),
    ),
    st.sampled_from([HEAD, OTHER_HEAD]),
)


@st.composite
def policies(draw: st.DrawFn) -> Policy:
    """Whole numbers, as they are counted, so that sums are exact."""
    counted = draw(st.dictionaries(KNOWN, COUNTS, max_size=4))
    evidence = {known: Evidence(*([float(n) for n in counts] for _ in range(4))) for known, counts in counted.items()}
    rounds = {}
    for machine, size in draw(st.dictionaries(st.sampled_from(["cpu", "gpu"]), st.integers(1, 3))).items():
        sums = RoundSums.zero([f"feature {i}" for i in range(size)])
        sums.add(np.ones(size), 0.5)
        rounds[machine] = sums
    return Policy(evidence, rounds)


def told(policy: Policy) -> dict[str, object]:
    """To compare by, whatever the order of features."""
    data = policy.to_json()
    for sums in data["rounds"].values():
        order = sorted(range(len(sums["names"])), key=sums["names"].__getitem__)
        sums["xx"] = [[sums["xx"][i][j] for j in order] for i in order]
        sums["xy"] = [sums["xy"][i] for i in order]
        sums["names"].sort()
    return data


@given(policies(), policies(), policies())
def test_increments_add_in_any_order_and_grouping(one: Policy, two: Policy, three: Policy) -> None:
    assert told(one + two) == told(two + one)
    assert told((one + two) + three) == told(one + (two + three))
    assert told(one + Policy()) == told(one)


@given(policies())
def test_json_gives_it_back(policy: Policy) -> None:
    assert told(Policy.from_json(json.loads(json.dumps(policy.to_json())))) == told(policy)


@given(st.lists(policies(), min_size=1, max_size=5), st.randoms())
def test_a_run_is_the_sum_of_its_shards_and_engines(increments: list[Policy], draws: object) -> None:
    footers = [{"strata": each.to_json()["strata"]} for each in increments]
    snapshots = [
        {"machine": machine, "round_sums": sums.to_json()}
        for each in increments
        for machine, sums in each.rounds.items()
    ]
    draws.shuffle(footers)  # type: ignore[attr-defined]
    draws.shuffle(snapshots)  # type: ignore[attr-defined]
    assert told(policy_of(footers, snapshots)) == told(reduce(add, increments))


def test_an_engine_that_saw_no_round_teaches_nothing() -> None:
    assert (
        policy_of(
            [],
            [
                {"part": "load", "round_sums": RoundSums().to_json()},
                {"machine": "m", "round_sums": RoundSums().to_json()},
            ],
        ).evidence
        == {}
    )


def engine(drafter_sha: str, machine_dtype: str = "bfloat16") -> EngineInfo:
    return EngineInfo(
        "torch", "1", "cpu", machine_dtype, "m", TARGET, "eagle3", 1, 4, drafters={"eagle3": drafter_sha, "ngram": "n"}
    )


def learned(tried: float = 5000.0) -> Policy:
    stratum = Stratum("code", "greedy", "eagle3")
    sums = RoundSums.zero(["fixed"])
    for _ in range(1000):
        sums.add(np.ones(1), 0.01)
    counts = [tried] * MAX_DRAFT_LEN
    return Policy(
        {(stratum, HEAD): Evidence(counts, counts, counts, [0.7 * tried] * MAX_DRAFT_LEN)}, {engine(HEAD).machine: sums}
    )


def test_an_engine_starts_from_what_its_own_head_taught() -> None:
    mine = learned().for_engine(engine(HEAD), 200, 300)
    (evidence,) = mine.evidence.values()
    assert evidence.tried[0] == pytest.approx(200)
    assert evidence.accepted[0] == pytest.approx(140)
    assert mine.rounds.weight == pytest.approx(300)


def test_a_changed_head_starts_from_nothing() -> None:
    assert learned().for_engine(engine(OTHER_HEAD), 200, 300).evidence == {}


def test_rounds_of_another_machine_are_left_out() -> None:
    assert learned().for_engine(engine(HEAD, "float32"), 200, 300).rounds.weight == 0


def lesson(run: str, finished: float, policy: Policy, folder: str = "/out", target: str = TARGET) -> Lesson:
    return Lesson(run, f"{folder}/{run}", target, finished, policy)


def tried_of(policy: Policy) -> float:
    return sum(each.tried[0] for each in policy.evidence.values())


def test_newer_runs_count_more_and_none_twice(tmp_path: Path) -> None:
    store = PolicyStore(LocalStore(tmp_path))
    store.put(lesson("demo-1", 100.0, learned(1000.0)))
    store.put(lesson("demo-2", 200.0, learned(1000.0)))
    store.put(lesson("demo-2", 200.0, learned(1000.0)))  # finalized again
    policy, runs = store.policy(TARGET)
    assert runs == ["demo-2", "demo-1"]
    assert tried_of(policy) == pytest.approx(1000 + DECAY * 1000)


def test_runs_of_one_name_in_two_folders_are_two(tmp_path: Path) -> None:
    store = PolicyStore(LocalStore(tmp_path))
    store.put(lesson("demo-1", 100.0, learned(), folder="/here"))
    store.put(lesson("demo-1", 101.0, learned(), folder="/there"))
    assert len(store.lessons(TARGET)) == 2


def test_another_target_has_another_memory(tmp_path: Path) -> None:
    store = PolicyStore(LocalStore(tmp_path))
    store.put(lesson("demo-1", 100.0, learned()))
    assert store.policy(OTHER_TARGET) == (Policy(), [])


def test_a_foreign_policy_is_refused_by_name(tmp_path: Path) -> None:
    store = PolicyStore(LocalStore(tmp_path))
    foreign = lesson("demo-1", 100.0, learned(), target=OTHER_TARGET)
    LocalStore(tmp_path).put(lesson("demo-1", 100.0, learned()).key, foreign.to_bytes())
    with pytest.raises(ConfigError, match=r"demo-1-\w+\.json was learned with another target .* draft.policy_store"):
        store.policy(TARGET)


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b'{"version": 99}'])
def test_what_is_no_policy_is_refused_by_name(tmp_path: Path, body: bytes) -> None:
    store = PolicyStore(LocalStore(tmp_path))
    store.put(lesson("demo-1", 100.0, learned()))
    LocalStore(tmp_path).put(f"{TARGET[:16]}/other.json", body)
    with pytest.raises(ConfigError, match=r"other\.json is no drafting policy"):
        store.policy(TARGET)


def test_what_a_lesson_holds_is_read_back(tmp_path: Path) -> None:
    store, mine = PolicyStore(LocalStore(tmp_path)), lesson("demo-1", 100.0, learned())
    store.put(mine)
    (found,) = store.lessons(TARGET)
    assert replace(found, policy=Policy()) == replace(mine, policy=Policy())
    assert told(found.policy) == told(mine.policy)
