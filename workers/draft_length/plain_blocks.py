"""Now and then a block of rounds in which nobody drafts, so that what drafting saves is measured while it is used.

Blocks begin at random, so they meet the run as it is: every task, batch and length in proportion. See `comparison` for
what is made of them.
"""

from __future__ import annotations

import random

from workers.contract import Phase

BLOCK_ROUNDS = 32


class PlainBlocks:
    """Says which rounds are plain."""

    def __init__(self, share: float, seed: int) -> None:
        """`share`: of all rounds, below 1; 0 for none at all."""
        self._chance = share / (BLOCK_ROUNDS * (1 - share))
        self._random = random.Random(seed)
        self._left = 0
        self._phase: Phase = "drafting"

    def next_round(self) -> Phase:
        """Of the round that begins. Asked once per round in which somebody could draft."""
        if self._left == 0 and self._random.random() < self._chance:
            self._left = BLOCK_ROUNDS
        if self._left:
            self._left -= 1
            self._phase = "plain"
        else:
            self._phase = "catching_up" if self._phase == "plain" else "drafting"
        return self._phase
