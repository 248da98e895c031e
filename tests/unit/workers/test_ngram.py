from __future__ import annotations

from drafted import ask
from hypothesis import given
from hypothesis import strategies as st

from workers.acceptance import Tree
from workers.drafter import Draft
from workers.ngram import NgramDrafter, continuation

TOKENS = st.lists(st.integers(0, 3), min_size=1, max_size=60)


def proposal(tokens: list[int], k: int, shortest: int, longest: int) -> list[int]:
    """The rule, by search: the longest suffix that occurred before, at its most recent place."""
    for size in range(longest, shortest - 1, -1):
        for end in range(len(tokens) - 1, size - 1, -1):
            if len(tokens) >= size and tokens[end - size : end] == tokens[-size:]:
                return continuation(tokens, end, k)
    return []


@given(TOKENS, TOKENS, st.integers(1, 8), st.integers(1, 3), st.integers(0, 3))
def test_it_finds_what_a_search_would(prompt: list[int], output: list[int], k: int, shortest: int, more: int) -> None:
    drafter = NgramDrafter(shortest=shortest, longest=shortest + more)
    tokens = list(prompt)
    for token in output:
        drafted = drafter.propose([ask("row", tokens, k)])[0]
        assert drafted == Draft(Tree.chain(proposal(tokens, k, shortest, shortest + more)))
        tokens.append(token)


@given(TOKENS, TOKENS)
def test_sequences_are_kept_apart_and_forgotten(left: list[int], right: list[int]) -> None:
    drafter = NgramDrafter(shortest=1, longest=3)
    contexts = [ask("left", left, 4), ask("right", right, 4)]
    together = drafter.propose(contexts)
    assert together == [NgramDrafter(shortest=1, longest=3).propose([context])[0] for context in contexts]
    drafter.forget("left")
    drafter.forget("left")
    assert drafter.propose([ask("left", right, 4)]) == [together[1]]


def test_a_loop_is_drafted_past_its_end() -> None:
    drafter = NgramDrafter(shortest=2, longest=3)
    assert drafter.propose([ask("row", [9, 1, 2, 1, 2], 6)]) == [Draft(Tree.chain([1, 2, 1, 2, 1, 2]))]
