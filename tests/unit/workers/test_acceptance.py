"""A lossless rule leaves the target's law as it is: exactly, in fractions, over every outcome of every draw."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workers import acceptance
from workers.acceptance import ROOT, Law, Tree, Verdict, lossy_threshold, match_tree, rejection_sample, residual

Exact = dict[int, Fraction]
Tokens = tuple[int, ...]
Target = Callable[[Tokens], Exact]
Drafter = Callable[[Tokens, Tokens], Exact]
"""The law of a draft, from the branch before it and the siblings before it."""

# --- Enumeration of every outcome


class Scripted:
    """Answers as scripted, then with the first that is possible, and remembers what else could have been answered."""

    def __init__(self, script: list[int]) -> None:
        self.answers: list[int] = []
        self.probability = Fraction(1)
        self.open: list[list[int]] = []
        self._script = script

    def accept(self, probability: Fraction, /) -> bool:
        assert probability < 1
        return self._answer({0: 1 - probability, 1: probability}) == 1

    def choose(self, weights: Law[Fraction], /) -> int:
        return self._answer(weights)

    def _answer(self, weights: Law[Fraction]) -> int:
        if len(self.answers) < len(self._script):
            answer = self._script[len(self.answers)]
        else:
            assert min(weights.values()) >= 0
            answer, *others = (answer for answer, weight in weights.items() if weight)
            self.open += [[*self.answers, other] for other in others]
        self.answers.append(answer)
        self.probability *= weights[answer] / sum(weights.values())
        return answer


def law_of(play: Callable[[Scripted], Tokens]) -> dict[Tokens, Fraction]:
    """The law of what `play` returns, over all that it can draw."""
    law: dict[Tokens, Fraction] = {}
    scripts: list[list[int]] = [[]]
    while scripts:
        draws = Scripted(scripts.pop())
        outcome = play(draws)
        law[outcome] = law.get(outcome, Fraction(0)) + draws.probability
        scripts += draws.open
    assert sum(law.values()) == 1
    return law


# --- Targets, drafters and rules


def table(seed: int, vocab: Sequence[int], *, zeros: float = 0.0) -> Target:
    """An arbitrary law for each prefix, with some tokens that it never draws."""

    @functools.cache
    def law(prefix: Tokens) -> Exact:
        rng = random.Random(f"{seed} {prefix}")
        weights = [0 if rng.random() < zeros else rng.randint(1, 5) for _ in vocab]
        weights[rng.randrange(len(weights))] += 1
        return {token: Fraction(weight, sum(weights)) for token, weight in zip(vocab, weights, strict=True)}

    return law


def independent(*laws: Target) -> Drafter:
    """Siblings drawn whatever the others are, each from the next of `laws`."""
    return lambda branch, siblings: laws[len(siblings) % len(laws)](branch)


def without_replacement(law: Target) -> Drafter:
    @functools.cache
    def left(branch: Tokens, siblings: Tokens) -> Exact:
        shares = {token: share for token, share in law(branch).items() if token not in siblings}
        return {token: share / sum(shares.values()) for token, share in shares.items()}

    return left


def most_probable(law: Target) -> Drafter:
    """Certain tokens: the top k of `law`."""

    @functools.cache
    def point(branch: Tokens, siblings: Tokens) -> Exact:
        shares = law(branch)
        return {sorted(shares, key=lambda token: (-shares[token], token))[len(siblings)]: Fraction(1)}

    return point


@dataclass(frozen=True)
class Draft:
    """A tree, the laws that its tokens were drawn from, and the target's rows."""

    tree: Tree
    proposals: list[Exact]
    rows: list[Exact]


def drawn(target: Target, drafter: Drafter, parents: Tokens, draws: Scripted) -> Draft:
    branches: list[Tokens] = []
    tokens: list[int] = []
    proposals: list[Exact] = []
    for node, parent in enumerate(parents):
        branch = () if parent == ROOT else branches[parent]
        siblings = tuple(tokens[other] for other in range(node) if parents[other] == parent)
        proposals.append(drafter(branch, siblings))
        tokens.append(draws.choose(proposals[-1]))
        branches.append((*branch, tokens[-1]))
    return Draft(Tree(tuple(tokens), parents), proposals, [target(branch) for branch in [(), *branches]])


Rule = Callable[[Draft, Scripted], Verdict]


def by_match(draft: Draft, draws: Scripted) -> Verdict:
    return match_tree(draft.tree, [draws.choose(row) for row in draft.rows])


def by_rejection(draft: Draft, draws: Scripted) -> Verdict:
    return rejection_sample(draft.tree, draft.proposals, draft.rows, draws)


def by_threshold(threshold: Fraction) -> Rule:
    def rule(draft: Draft, draws: Scripted) -> Verdict:
        parents, tokens = draft.tree.parents, draft.tree.tokens
        probabilities = [draft.rows[parent + 1].get(token, 0) for parent, token in zip(parents, tokens, strict=True)]
        targets = [draws.choose(row) for row in draft.rows]
        return lossy_threshold(draft.tree, [Fraction(share) for share in probabilities], targets, threshold)

    return rule


def first_round(rule: Rule, target: Target, drafter: Drafter, parents: Tokens) -> dict[Tokens, Fraction]:
    """The law of the tokens that a round yields."""

    def play(draws: Scripted) -> Tokens:
        return rule(drawn(target, drafter, parents, draws), draws).tokens

    return law_of(play)


def completed(law: dict[Tokens, Fraction], target: Target, length: int) -> dict[Tokens, Fraction]:
    """`law` when the target itself goes on to `length` tokens; outcomes without probability left out."""
    whole: dict[Tokens, Fraction] = {}
    open_ = list(law.items())
    while open_:
        tokens, probability = open_.pop()
        if len(tokens) == length:
            whole[tokens] = whole.get(tokens, Fraction(0)) + probability
        else:
            open_ += [((*tokens, token), probability * share) for token, share in target(tokens).items() if share]
    return whole


def depths(parents: Tokens) -> list[int]:
    """Of each node; the first drafts are at depth one."""
    found: list[int] = []
    for parent in parents:
        found.append(1 if parent == ROOT else found[parent] + 1)
    return found


def depth(parents: Tokens) -> int:
    return max(depths(parents), default=0)


def is_lossless(rule: Rule, target: Target, drafter: Drafter, parents: Tokens) -> bool:
    law, length = first_round(rule, target, drafter, parents), depth(parents) + 1
    return completed(law, target, length) == completed({(): Fraction(1)}, target, length)


# --- Cases

CHAINS: dict[str, Tokens] = {f"chain of {n}": tuple(range(ROOT, n - 1)) for n in (1, 2, 3)}
TREES: dict[str, Tokens] = {
    "pair": (ROOT, ROOT),
    "three": (ROOT, ROOT, ROOT),
    "pair, then pair": (ROOT, ROOT, 0, 0),
    "two branches": (ROOT, ROOT, 0, 1),
    "two branches, one deep": (ROOT, ROOT, 1, 0, 2),
}
BUSHES: dict[str, Tokens] = {
    "two by two by two": (ROOT, ROOT, 0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5),
    "wide and ragged": (ROOT, ROOT, ROOT, 0, 0, 2, 3, 3, 5),
}
"""For certain drafts only: drawn ones would be too many to enumerate."""


def draftable(target: Target, vocab: int, seed: int) -> dict[str, Drafter]:
    """Every kind of drafter for a chain."""
    other = table(seed + 1, range(vocab))
    return {
        "sampled": independent(other),
        "the target itself": independent(target),
        "often certain": independent(table(seed + 2, range(vocab), zeros=0.7)),
        "draft vocabulary": independent(table(seed + 3, range(vocab - 1))),
        "tokens the target lacks": independent(lambda branch: {vocab: Fraction(1, 3), vocab + 1: Fraction(2, 3)}),
        "certain": most_probable(other),
        "certain, the target's best": most_probable(target),
    }


def siblings(target: Target, vocab: int, seed: int) -> dict[str, Drafter]:
    """Every kind of drafter for a tree."""
    other, third = table(seed + 1, range(vocab)), table(seed + 4, range(1, vocab), zeros=0.3)
    return {
        "drawn twice": independent(other),
        "drawn twice from the target": independent(target),
        "from two drafters": independent(other, third),
        "without replacement": without_replacement(other),
        "one certain, one drawn": lambda branch, before: (independent(third) if before else most_probable(other))(
            branch, before
        ),
        "top k": most_probable(other),
        "the target's top k": most_probable(target),
    }


@dataclass(frozen=True)
class Case:
    rule: Rule
    target: Target
    drafter: Drafter
    parents: Tokens


def cases() -> Iterator[object]:
    """Those whose outcomes can all be played in a moment, and whose vocabularies have as many tokens as siblings."""
    rules: dict[str, Rule] = {"match": by_match, "rejection": by_rejection}
    for vocab in (2, 3, 4, 5):
        for kind, zeros in (("full", 0.0), ("sparse", 0.5)):
            target = table(10 * vocab, range(vocab), zeros=zeros)
            for shape, parents in (CHAINS | TREES | BUSHES).items():
                makers = draftable if shape in CHAINS else siblings
                for drafter_name, drafter in makers(target, vocab, 10 * vocab).items():
                    width = max(parents.count(parent) for parent in parents)
                    certain = drafter_name in ("top k", "the target's top k")
                    for rule_name, rule in rules.items():
                        draws = len(parents) * (not certain) + (len(parents) + 1) * (rule is by_match)
                        if width <= vocab and vocab**draws <= 1_100 and (certain or shape not in BUSHES):
                            name = f"{rule_name}, {shape}, {drafter_name}, {vocab} tokens, {kind} target"
                            yield pytest.param(Case(rule, target, drafter, parents), id=name)


@pytest.mark.parametrize("case", list(cases()))
def test_the_output_has_the_law_of_the_target(case: Case) -> None:
    """Whatever the drafter, the shape of the draft and the holes in the laws."""
    assert is_lossless(case.rule, case.target, case.drafter, case.parents)


@pytest.mark.parametrize("rule", [by_match, by_rejection])
def test_a_round_without_drafts_is_one_draw_of_the_target(rule: Rule) -> None:
    target = table(1, range(4))
    law = first_round(rule, target, most_probable(target), ())
    assert law == {(token,): share for token, share in target(()).items()}


def laws(vocab: int) -> st.SearchStrategy[Exact]:
    weights = st.lists(st.integers(0, 4), min_size=vocab, max_size=vocab).filter(any)
    return weights.map(lambda ws: {token: Fraction(weight, sum(ws)) for token, weight in enumerate(ws)})


@settings(max_examples=40)
@given(
    st.data(),
    st.integers(2, 3),
    st.sampled_from(
        [
            (by_match, CHAINS["chain of 2"]),
            (by_match, TREES["pair"]),
            (by_rejection, CHAINS["chain of 2"]),
            (by_rejection, TREES["pair, then pair"]),
        ]
    ),
)
def test_no_law_of_target_or_drafter_makes_a_difference(
    data: st.DataObject, vocab: int, rule_and_parents: tuple[Rule, Tokens]
) -> None:
    """Laws found by hypothesis, a new one after each prefix, keep the target's law."""
    rule, parents = rule_and_parents
    target = functools.cache(lambda prefix: data.draw(laws(vocab), label=f"target after {prefix}"))
    proposal = functools.cache(lambda branch: data.draw(laws(vocab), label=f"drafter after {branch}"))
    assert is_lossless(rule, target, independent(proposal), parents)


# --- How much is kept


def chance_that_something_is_kept(rule: Rule, target: Target, drafter: Drafter, parents: Tokens) -> Fraction:
    paths = law_of(lambda draws: rule(drawn(target, drafter, parents, draws), draws).path)
    return 1 - paths.get((), Fraction(0))


@pytest.mark.parametrize("seed", range(5))
def test_a_drawn_draft_is_kept_as_often_as_the_laws_overlap(seed: int) -> None:
    """Rejection sampling keeps it with probability Σ min(p, q), sample and match with Σ p·q."""
    target, proposal = table(seed, range(5), zeros=0.3), table(seed + 50, range(4), zeros=0.3)
    p, q = target(()), proposal(())
    for rule, expected in (
        (by_rejection, sum(min(p[token], q[token]) for token in q)),
        (by_match, sum(p[token] * q[token] for token in q)),
    ):
        for parents in CHAINS["chain of 1"], CHAINS["chain of 2"]:
            assert chance_that_something_is_kept(rule, target, independent(proposal), parents) == expected


@pytest.mark.parametrize("rule", [by_match, by_rejection])
@pytest.mark.parametrize("width", [1, 2, 3])
def test_certain_drafts_are_kept_as_often_as_the_target_draws_one(rule: Rule, width: int) -> None:
    """The two rules keep one of the siblings equally often: with the sum of p over them."""
    target, proposal = table(3, range(4)), table(4, range(4))
    best = sorted(range(4), key=lambda token: (-proposal(())[token], token))[:width]
    kept = chance_that_something_is_kept(rule, target, most_probable(proposal), (ROOT,) * width)
    assert kept == sum(target(())[token] for token in best)


def test_drafts_drawn_from_the_target_are_all_kept() -> None:
    target = table(5, range(3), zeros=0.3)
    paths = law_of(lambda draws: by_rejection(drawn(target, independent(target), (-1, 0, 1), draws), draws).path)
    assert paths == {(0, 1, 2): 1}


# --- Planted bugs


def rejecting(
    kept: Callable[[int, Exact, Exact, Scripted], bool] = acceptance._is_kept,
    rest: Callable[[Exact, Exact], Law[Fraction]] = residual,
) -> Rule:
    """The rule with one of its two pieces exchanged."""

    def rule(draft: Draft, draws: Scripted) -> Verdict:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(acceptance, "_is_kept", kept)
            patch.setattr(acceptance, "residual", rest)
            return by_rejection(draft, draws)

    return rule


def upside_down(token: int, p: Exact, q: Exact, draws: Scripted) -> bool:
    """Accepts with min(1, q / p)."""
    share = p.get(token, Fraction(0))
    return q[token] >= share or draws.accept(q[token] / share)


def of_p_alone(token: int, p: Exact, q: Exact, draws: Scripted) -> bool:
    """Accepts with p, as if the draft had been certain."""
    return p.get(token, 0) == 1 or draws.accept(p.get(token, Fraction(0)))


def all_of_p(p: Exact, q: Exact) -> Exact:
    """The rejected draft is not struck out."""
    return p


def either_way(p: Exact, q: Exact) -> Exact:
    """norm(|p - q|)"""
    return {token: abs(p.get(token, Fraction(0)) - q.get(token, Fraction(0))) for token in {**p, **q}}


def not_normalised(p: Exact, q: Exact) -> Exact:
    """Right for the draw that ends a round, wrong for the sibling that comes next."""
    return {token: share - q.get(token, 0) for token, share in p.items() if share > q.get(token, 0)} or p


def a_row_early(rule: Rule) -> Rule:
    """After the last drafts, the target's law of the token before."""

    def wrong(draft: Draft, draws: Scripted) -> Verdict:
        parents = draft.tree.parents
        rows = [draft.rows[node + 1 if node in parents else parents[node] + 1] for node in range(len(parents))]
        return rule(Draft(draft.tree, draft.proposals, [draft.rows[0], *rows]), draws)

    return wrong


def improbable_dropped(draft: Draft, draws: Scripted) -> Verdict:
    """Looks at the drafts that it drew, and gives up from the first that its own law thinks little of."""
    shares = [q[token] for q, token in zip(draft.proposals, draft.tree.tokens, strict=True)]
    n = next((node for node, share in enumerate(shares) if share < Fraction(1, 3)), len(shares))
    return by_rejection(Draft(Tree.chain(draft.tree.tokens[:n]), draft.proposals[:n], draft.rows[: n + 1]), draws)


def best_first(draft: Draft, draws: Scripted) -> Verdict:
    """Siblings in the order of their probability, once they are drawn."""
    q = draft.proposals[0]
    order = sorted(range(len(draft.tree.tokens)), key=lambda node: -q[draft.tree.tokens[node]])
    tree = Tree(tuple(draft.tree.tokens[node] for node in order), draft.tree.parents)
    return by_rejection(Draft(tree, draft.proposals, [draft.rows[0], *(draft.rows[n + 1] for n in order)]), draws)


def twins_merged(draft: Draft, draws: Scripted) -> Verdict:
    """Siblings with the same token become one."""
    first, *others = draft.tree.tokens
    n = 1 if others == [first] else len(draft.proposals)
    tree = Tree(draft.tree.tokens[:n], draft.tree.parents[:n])
    return by_rejection(Draft(tree, draft.proposals[:n], draft.rows[: n + 1]), draws)


def siblings_unaware(draft: Draft, draws: Scripted) -> Verdict:
    """Takes siblings that were drawn without replacement for independent ones."""
    return by_rejection(Draft(draft.tree, [draft.proposals[0]] * len(draft.proposals), draft.rows), draws)


def any_parent(draft: Draft, draws: Scripted) -> Verdict:
    """A child may be anyone's of the right depth."""
    targets = [draws.choose(row) for row in draft.rows]
    path, end = list[int](), ROOT
    for node, level in enumerate(depths(draft.tree.parents)):
        if level == len(path) + 1 and draft.tree.tokens[node] == targets[end + 1]:
            path.append(end := node)
    return Verdict(tuple(path), (*(draft.tree.tokens[node] for node in path), targets[end + 1]))


def drawn_again(draft: Draft, draws: Scripted) -> Verdict:
    """The token that ends the round is not the one that differed from the draft."""
    verdict = by_match(draft, draws)
    row = draft.rows[verdict.path[-1] + 1 if verdict.path else 0]
    return Verdict(verdict.path, (*verdict.tokens[:-1], draws.choose(row)))


# Bugs among drawn siblings hide where (p - q)+ has a single token, or is in proportion to q: not so here.
TARGET, OTHER = table(78, range(4)), table(79, range(4))
ONE, TWO, PAIR = CHAINS["chain of 1"], CHAINS["chain of 2"], TREES["pair"]
SAMPLED, CERTAIN, DISTINCT = independent(OTHER), most_probable(OTHER), without_replacement(OTHER)


@pytest.mark.parametrize(
    ("mutant", "original", "drafter", "parents"),
    [
        pytest.param(rejecting(kept=upside_down), by_rejection, SAMPLED, ONE, id="chain: q over p"),
        pytest.param(rejecting(kept=of_p_alone), by_rejection, SAMPLED, ONE, id="chain: drawn draft taken for certain"),
        pytest.param(rejecting(rest=all_of_p), by_rejection, SAMPLED, ONE, id="chain: residual is p"),
        pytest.param(rejecting(rest=either_way), by_rejection, SAMPLED, ONE, id="chain: residual is |p - q|"),
        pytest.param(a_row_early(by_rejection), by_rejection, SAMPLED, TWO, id="chain: bonus from the row before"),
        pytest.param(improbable_dropped, by_rejection, SAMPLED, TWO, id="chain: improbable drafts dropped"),
        pytest.param(rejecting(rest=all_of_p), by_rejection, CERTAIN, ONE, id="certain: not struck out"),
        pytest.param(rejecting(rest=all_of_p), by_rejection, CERTAIN, PAIR, id="top k: sibling not struck out"),
        pytest.param(rejecting(rest=not_normalised), by_rejection, CERTAIN, PAIR, id="top k: not normalised"),
        pytest.param(a_row_early(by_rejection), by_rejection, CERTAIN, PAIR, id="top k: bonus from the row before"),
        pytest.param(rejecting(rest=all_of_p), by_rejection, SAMPLED, PAIR, id="siblings: residual is p"),
        pytest.param(rejecting(rest=not_normalised), by_rejection, SAMPLED, PAIR, id="siblings: not normalised"),
        pytest.param(best_first, by_rejection, SAMPLED, PAIR, id="siblings: sorted when drawn"),
        pytest.param(twins_merged, by_rejection, SAMPLED, PAIR, id="siblings: twins merged"),
        pytest.param(siblings_unaware, by_rejection, DISTINCT, PAIR, id="distinct siblings: q of the first for all"),
        pytest.param(a_row_early(by_match), by_match, CERTAIN, TWO, id="match, chain: bonus from the row before"),
        pytest.param(drawn_again, by_match, CERTAIN, ONE, id="match, chain: drawn again"),
        pytest.param(any_parent, by_match, CERTAIN, TREES["two branches"], id="match, tree: any parent"),
        pytest.param(drawn_again, by_match, CERTAIN, PAIR, id="match, tree: drawn again"),
    ],
)
def test_a_planted_bug_is_found(mutant: Rule, original: Rule, drafter: Drafter, parents: Tokens) -> None:
    """The bug alone makes the law another one."""
    assert is_lossless(original, TARGET, drafter, parents)
    assert not is_lossless(mutant, TARGET, drafter, parents)


# --- The threshold


@pytest.mark.parametrize("parents", [*CHAINS.values(), *TREES.values()])
def test_the_threshold_is_lossy(parents: Tokens) -> None:
    target = table(7, range(3))
    drafter = most_probable(target)
    assert not is_lossless(by_threshold(Fraction(1, 3)), target, drafter, parents)
    assert is_lossless(by_rejection, target, drafter, parents)


def test_the_threshold_makes_a_probable_draft_certain() -> None:
    """From the threshold on, not only above it; below, the target's own token comes instead."""
    coin = {0: Fraction(2, 3), 1: Fraction(1, 3)}
    first, second = ((ROOT, token) for token in (0, 1))
    for (_, token), threshold, expected in (
        (first, Fraction(2, 3), {(0, 0): coin[0], (0, 1): coin[1]}),
        (second, Fraction(1, 3), {(1, 0): coin[0], (1, 1): coin[1]}),
        (second, Fraction(1, 2), {(0,): coin[0], (1,): coin[1]}),
    ):
        law = first_round(by_threshold(threshold), lambda _: coin, lambda *_: {token: Fraction(1)}, ONE)  # noqa: B023
        assert law == expected


def test_the_first_of_probable_siblings_is_taken() -> None:
    tree = Tree((5, 6, 7), (ROOT, ROOT, ROOT))
    assert lossy_threshold(tree, [0.1, 0.4, 0.5], [9, 9, 9, 9], 0.3) == Verdict((1,), (6, 9))


@pytest.mark.parametrize("parents", [*CHAINS.values(), PAIR, TREES["two branches"]])
def test_a_threshold_loses_nothing_where_it_accepts_nothing_or_the_target_is_certain(parents: Tokens) -> None:
    target, certain = table(8, range(2)), table(9, [4])
    above_one = by_threshold(Fraction(1001, 1000))
    assert is_lossless(above_one, target, independent(table(10, range(2))), parents)
    assert chance_that_something_is_kept(above_one, target, independent(target), parents) == 0
    for threshold in Fraction(1, 1000), Fraction(1):
        rule = by_threshold(threshold)
        assert is_lossless(rule, certain, independent(table(11, range(4, 6))), parents)
        assert chance_that_something_is_kept(rule, certain, independent(certain), parents) == 1


# --- Paths, numbers, contracts


@st.composite
def trees(draw: st.DrawFn) -> Tree:
    n = draw(st.integers(0, 8))
    return Tree(
        tuple(draw(st.integers(0, 2)) for _ in range(n)), tuple(draw(st.integers(ROOT, node - 1)) for node in range(n))
    )


def is_branch(tree: Tree, verdict: Verdict) -> bool:
    """The path goes from parent to child, and the tokens are those on it and one more."""
    before = [ROOT, *verdict.path][: len(verdict.path)]
    return [tree.parents[node] for node in verdict.path] == before and [
        tree.tokens[node] for node in verdict.path
    ] == list(verdict.tokens[:-1])


@given(trees(), st.data())
def test_matched_tokens_are_the_targets_own_to_the_first_that_no_child_has(tree: Tree, data: st.DataObject) -> None:
    """For any tree, even with twins; the drafts decide only how far it goes."""
    targets = [data.draw(st.integers(0, 2)) for _ in range(len(tree.tokens) + 1)]
    verdict = match_tree(tree, targets)
    assert is_branch(tree, verdict)
    assert verdict.tokens == tuple(targets[node + 1] for node in (ROOT, *verdict.path))
    end = (ROOT, *verdict.path)[-1]
    assert verdict.tokens[-1] not in [
        token for token, parent in zip(tree.tokens, tree.parents, strict=True) if parent == end
    ]


@given(st.lists(st.integers(0, 2), max_size=6), st.data())
def test_a_chain_is_the_tree_with_one_child_each(draft: list[int], data: st.DataObject) -> None:
    """A chain is kept as long as it is the target's own."""
    targets = [data.draw(st.integers(0, 2)) for _ in range(len(draft) + 1)]
    verdict = match_tree(Tree.chain(draft), targets)
    accepted = len(verdict.path)
    assert verdict == Verdict(tuple(range(accepted)), tuple(targets[: accepted + 1]))
    assert draft[:accepted] == targets[:accepted]
    assert accepted == len(draft) or draft[accepted] != targets[accepted]


class Uniforms:
    """Draws from a stream of uniforms, for either kind of number."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)

    def accept(self, probability: Fraction | float, /) -> bool:
        return self._rng.random() < probability

    def choose(self, weights: Law[Fraction] | Law[float], /) -> int:
        left = self._rng.random() * float(sum(weights.values()))
        for token in sorted(weights):
            left -= float(weights[token])
            if left < 0:
                return token
        return max(weights)


def floats(laws: list[Exact]) -> list[dict[int, float]]:
    return [{token: float(share) for token, share in law.items()} for law in laws]


@pytest.mark.parametrize("parents", [*CHAINS.values(), *TREES.values(), *BUSHES.values()])
def test_floats_take_the_path_of_fractions(parents: Tokens) -> None:
    """Given the same uniforms, none of which falls between the two roundings."""
    target = table(12, range(6), zeros=0.2)
    seen = set()
    for seed in range(100):
        drafter = independent(table(13, range(5))) if seed % 2 else most_probable(table(14, range(6)))
        draft = drawn(target, drafter, parents, Uniforms(seed))  # type: ignore[arg-type]
        proposals, rows = floats(draft.proposals), floats(draft.rows)
        verdict = rejection_sample(draft.tree, draft.proposals, draft.rows, Uniforms(1000 + seed))
        assert rejection_sample(draft.tree, proposals, rows, Uniforms(1000 + seed)) == verdict
        assert is_branch(draft.tree, verdict)
        seen.add(len(verdict.path))
    assert seen == set(range(depth(parents) + 1))


def test_rounding_cannot_leave_a_round_without_a_token() -> None:
    """p = q but for the last bit, and the coin rejects all the same: what ends the round is drawn from p."""
    q = {0: 0.3, 1: 0.7}
    p = {0: 0.3, 1: 0.7 - 2**-53}

    class Unlucky:
        def accept(self, probability: float, /) -> bool:
            return False

        def choose(self, weights: Law[float], /) -> int:
            assert weights == p
            return 0

    assert rejection_sample(Tree.chain([1]), [q], [p, p], Unlucky()) == Verdict((), (0,))


def test_the_residual_is_what_p_has_over_q() -> None:
    half, quarter = Fraction(1, 2), Fraction(1, 4)
    assert residual({0: half, 1: quarter, 2: quarter}, {0: quarter, 1: half, 3: quarter}) == {0: half, 2: half}
    assert residual({0: half, 1: half}, {0: Fraction(1)}) == {1: 1}
    assert residual({0: half, 1: half}, {2: Fraction(1)}) == {0: half, 1: half}


def test_what_cannot_be_is_refused() -> None:
    """Parents after children, rows too few, a token that its law cannot have drawn."""
    one = {0: 1.0}
    for refused in (
        lambda: Tree((1, 2), (1, ROOT)),
        lambda: Tree((1,), (0,)),
        lambda: Tree((1, 2), (ROOT,)),
        lambda: match_tree(Tree.chain([0]), [0]),
        lambda: rejection_sample(Tree.chain([0]), [one], [one], Uniforms(0)),
        lambda: rejection_sample(Tree.chain([0]), [], [one, one], Uniforms(0)),
        lambda: rejection_sample(Tree.chain([1]), [one], [one, one], Uniforms(0)),
        lambda: lossy_threshold(Tree.chain([0]), [1.0], [0], 0.5),
    ):
        with pytest.raises(AssertionError):
            refused()
