"""The engine under the controller: K moves, and the text does not."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_head import save_tiny_head
from tiny_llama import make_core, make_request, random_prompt, run, save_tiny_llama
from transformers import LlamaConfig

from configs.job import Draft
from workers.contract import Finished, Request, Round
from workers.draft_length.controller import DraftLengthController, RoundPlan, Standing
from workers.draft_length.evidence import Evidence
from workers.torch_engine import TorchEngine

LAYERS = 6


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_llama(tmp_path_factory.mktemp("target"), num_hidden_layers=LAYERS)


@pytest.fixture(scope="module")
def head(tmp_path_factory: pytest.TempPathFactory, target: Path) -> Path:
    return save_tiny_head(tmp_path_factory.mktemp("head"), LlamaConfig.from_pretrained(target))


def make(target: Path, head: Path, *, measure_share: float = 0.0, **engine: object) -> TorchEngine:
    draft = Draft(drafter="eagle3", path=str(head), ngram_min=1)
    return make_core(target, draft=draft, measure_share=measure_share, **engine)


def requests(count: int, seed: int = 0, policy: dict[str, Any] | None = None, **sampling: object) -> list[Request]:
    rng = random.Random(seed)
    chosen = {"policy": "auto", "k": None, "drafter": None, "drafters": ["eagle3", "ngram"], **(policy or {})}
    return [make_request(f"row{i}", random_prompt(rng), seed=seed, policy=chosen, **sampling) for i in range(count)]


def plain(count: int, seed: int = 0, **sampling: object) -> list[Request]:
    rng = random.Random(seed)
    return [make_request(f"row{i}", random_prompt(rng), seed=seed, **sampling) for i in range(count)]


def tokens(ends: dict[str, Finished]) -> dict[str, tuple[int, ...]]:
    return {name: end.token_ids for name, end in ends.items()}


class Whimsical(DraftLengthController):
    """Any lengths, probes and blocks, as drawn: whatever a controller may decide, it must not show."""

    def __init__(self, seed: int) -> None:
        super().__init__(["eagle3", "ngram"], plain_share=0.0)
        self._draws = random.Random(seed)

    def plan(self, standings: Sequence[Standing], *, kv_tokens: int, num_plain: int = 0) -> RoundPlan:
        super().plan(standings, kv_tokens=kv_tokens, num_plain=num_plain)
        lengths = tuple(self._draws.choice([0, 0, 0, 1, 3, each.longest]) for each in standings)
        some = (self._draws.randint(0, each.num_seqs) for each in standings)
        return RoundPlan(lengths, tuple(0 if k else probed for k, probed in zip(lengths, some, strict=True)))


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10**6), count=st.integers(1, 10), temperature=st.sampled_from([0.0, 0.8]))
def test_no_decision_of_a_controller_changes_the_text(
    target: Path, head: Path, seed: int, count: int, temperature: float
) -> None:
    """Pauses of any length among them, after which a head has to catch up, and prompts shared while nobody drafted."""
    core = make(target, head, max_num_seqs=4)
    core.pacing._controller = Whimsical(seed)
    shared = requests(count, seed, temperature=temperature)
    twins = [
        make_request(
            "twin",
            shared[0].prompt_token_ids,
            sample=i,
            seed=seed,
            temperature=temperature,
            policy={"policy": "auto", "k": None, "drafter": "eagle3"},
        )
        for i in range(3)
    ]
    drafted = run(core, shared + twins)
    wanted = run(
        core,
        plain(count, seed, temperature=temperature)
        + [
            make_request("twin", shared[0].prompt_token_ids, sample=i, seed=seed, temperature=temperature)
            for i in range(3)
        ],
    )
    assert tokens(drafted) == tokens(wanted)


def test_after_a_pause_drafts_are_what_they_would_have_been(target: Path, head: Path) -> None:
    """A head that was not asked for some rounds proposes as if it had been asked in each."""
    always, paused = make(target, head), make(target, head)
    paused.pacing._controller = Whimsical(3)
    fixed = {"policy": "fixed", "k": 3, "drafters": None, "drafter": "eagle3"}
    ends = [
        run(core, requests(6, 5, policy, ignore_eos=True))
        for core, policy in ((always, fixed), (paused, {"drafters": ["eagle3"]}))
    ]
    rates = [
        sum(end.speculation.accepted_by_pos[0] for end in each.values())
        / sum(end.speculation.tried_by_pos[0] for end in each.values())
        for each in ends
    ]
    assert tokens(ends[0]) == tokens(ends[1])
    assert rates[1] == pytest.approx(rates[0], abs=0.2)


def test_auto_drafts_where_it_pays_and_tells_of_it(target: Path, head: Path) -> None:
    core = make(target, head, max_num_seqs=4)
    ends = run(core, requests(30, 1, ignore_eos=True, max_tokens=40))
    assert tokens(ends) == tokens(run(core, plain(30, 1, ignore_eos=True, max_tokens=40)))
    evidence = sum((Evidence.of_stats(end.speculation) for end in ends.values()), Evidence())
    assert sum(evidence.asked) > 0
    assert {end.drafter for end in ends.values()} == {"eagle3", "ngram"}  # both were tried


def test_the_rounds_tell_what_was_drafted(target: Path, head: Path) -> None:
    core = make(target, head, max_num_seqs=4, trace_rounds=True)
    ends = run(core, requests(12, 2, ignore_eos=True))
    rounds = core.drain_rounds()
    assert sum(done.num_draft_tokens for done in rounds) == sum(
        sum(by_depth) for done in rounds for by_depth in done.drafted.values()
    )
    assert sum(done.num_draft_tokens for done in rounds) == sum(e.speculation.num_draft_tokens for e in ends.values())
    for name, end in ends.items():
        mine = [each for done in rounds for each in done.sequences if each.request_id == name]
        assert len(mine) == end.speculation.num_rounds
        assert sum(each.accepted for each in mine) == end.speculation.num_accepted_draft_tokens
        assert [sum(each.asked > depth for each in mine) for depth in range(8)] == end.speculation.asked_by_pos
    assert all(len(done.sequences) == done.num_decoding for done in rounds)


def test_untraced_rounds_name_nobody(target: Path, head: Path) -> None:
    core = make(target, head)
    run(core, requests(2, 2))
    assert not any(done.sequences for done in core.drain_rounds())


def test_in_a_plain_block_nobody_drafts(target: Path, head: Path) -> None:
    core = make(target, head, measure_share=0.5, max_num_seqs=4, trace_rounds=True)
    fixed = {"policy": "fixed", "k": 3, "drafters": None, "drafter": "eagle3"}
    ends = run(core, requests(60, 4, fixed, ignore_eos=True))
    rounds = [done for done in core.drain_rounds() if done.num_decoding]
    assert tokens(ends) == tokens(run(core, plain(60, 4, ignore_eos=True)))
    by_phase: dict[str, list[Round]] = {}
    for done in rounds:
        by_phase.setdefault(done.phase, []).append(done)
    assert len(by_phase["plain"]) >= 32
    assert not any(done.num_draft_tokens for done in by_phase["plain"])
    last = {each.request_id: done for done in rounds for each in done.sequences}
    """Of each request: where a single token is left there is none to draft."""
    not_last = [each for done in by_phase["drafting"] for each in done.sequences if last[each.request_id] is not done]
    assert not_last
    assert all(each.asked for each in not_last)


def test_a_length_is_within_the_tasks_bounds(target: Path, head: Path) -> None:
    core = make(target, head)
    ends = run(core, requests(20, 6, {"max_k": 2}, ignore_eos=True))
    assert not any(sum(end.speculation.draft_len_histogram[3:]) for end in ends.values())


def test_a_lone_candidate_needs_no_choice(target: Path, head: Path) -> None:
    core = make(target, head)
    ends = run(core, requests(6, 7, {"drafters": ["ngram"]}))
    assert {end.drafter for end in ends.values()} == {"ngram"}
