"""The n-gram drafter, also called prompt lookup: what followed the last tokens the last time they occurred?

It needs no weights and pays where output repeats input: extraction, summaries, edits of code.
Source of the idea: https://github.com/apoorvumang/prompt-lookup-decoding
"""

from __future__ import annotations

from collections.abc import Sequence

from workers.acceptance import Tree
from workers.drafter import NOTHING, Ask, Draft, Drafted


class NgramDrafter:
    """Looks up the longest suffix, of `longest` down to `shortest` tokens, in the sequence itself."""

    name = "ngram"
    follows = False
    draws_trees = False

    def __init__(self, *, shortest: int, longest: int) -> None:
        self._sizes = range(longest, shortest - 1, -1)
        self._indices: dict[str, SuffixIndex] = {}

    def catch_up(self, sequences: Sequence[Drafted]) -> None:
        """Nobody copies its index."""

    def propose(self, asks: Sequence[Ask]) -> list[Draft]:
        return [self._propose(ask.sequence.id, ask.sequence.tokens, ask.max_draft) for ask in asks]

    def _propose(self, sequence_id: str, tokens: Sequence[int], max_draft: int) -> Draft:
        index = self._indices.setdefault(sequence_id, SuffixIndex(self._sizes))
        index.extend(tokens)
        start = index.after_last_suffix(tokens)
        return NOTHING if start is None else Draft(Tree.chain(continuation(tokens, start, max_draft)))

    def forget(self, sequence_id: str) -> None:
        self._indices.pop(sequence_id, None)


class SuffixIndex:
    """Where each n-gram was last followed by something. Grows with the sequence, each token once."""

    def __init__(self, sizes: Sequence[int]) -> None:
        """`sizes`: lengths of n-grams, in the order in which they are preferred."""
        self._after: dict[tuple[int, ...], int] = {}
        self._sizes = sizes
        self._indexed = 0

    def extend(self, tokens: Sequence[int]) -> None:
        """Take in the tokens that came since the last call. The n-grams at the very end are left for the next call:
        what follows them is not known yet."""
        for end in range(max(self._indexed, 1), len(tokens)):
            for size in self._sizes:
                if size <= end:
                    self._after[tuple(tokens[end - size : end])] = end
        self._indexed = len(tokens)

    def after_last_suffix(self, tokens: Sequence[int]) -> int | None:
        """Position after the most recent earlier occurrence of the longest known suffix."""
        for size in self._sizes:
            if size <= len(tokens) and (at := self._after.get(tuple(tokens[-size:]))) is not None:
                return at
        return None


def continuation(tokens: Sequence[int], start: int, length: int) -> list[int]:
    """`length` tokens from `start` on; where they run past the end, the draft itself goes on, so that a text in a loop
    is drafted in full."""
    draft = list(tokens[start : start + length])
    while len(draft) < length:
        draft.append(draft[len(draft) - (len(tokens) - start)])
    return draft
