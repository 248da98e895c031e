from __future__ import annotations

from fractions import Fraction
from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from workers.verify import match

TOKENS = st.lists(st.integers(0, 3), max_size=8)


@given(TOKENS, st.data())
def test_the_accepted_run_is_the_longest_that_matches(draft: list[int], data: st.DataObject) -> None:
    targets = data.draw(st.lists(st.integers(0, 3), min_size=len(draft) + 1, max_size=len(draft) + 1))
    accepted, emitted = match(draft, targets)
    assert emitted == targets[: accepted + 1]
    assert emitted[:-1] == draft[:accepted]
    assert accepted == len(draft) or draft[accepted] != targets[accepted]


def test_sample_and_match_keeps_the_law_of_the_target() -> None:
    """Every outcome of the target's draws, enumerated: whatever the drafter proposes, the output's law is the target's
    own. A rule that accepts above a threshold fails this."""
    vocab = range(3)
    law = {(): (Fraction(1, 2), Fraction(1, 3), Fraction(1, 6))}
    law |= {(a,): (Fraction(1 + a, 6), Fraction(2, 6), Fraction(3 - a, 6)) for a in vocab}
    law |= {(a, b): (Fraction(1, 4), Fraction(1 + b, 8), Fraction(5 - b, 8)) for a, b in product(vocab, vocab)}
    for draft in product(vocab, repeat=2):
        first_tokens: dict[tuple[int, ...], Fraction] = {}
        for targets in product(vocab, repeat=3):
            probability = Fraction(1)
            for depth, token in enumerate(targets):
                probability *= law[draft[:depth]][token]
            _, emitted = match(draft, targets)
            first_tokens[tuple(emitted)] = first_tokens.get(tuple(emitted), Fraction(0)) + probability
        for emitted, probability in first_tokens.items():
            expected = Fraction(1)
            for depth, token in enumerate(emitted):
                expected *= law[tuple(emitted[:depth])][token]
            assert probability == expected
