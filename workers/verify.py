"""Verification: how much of a draft the target keeps. Pure functions; whatever is random has been drawn before.

Sample and match: at each row the target's own token is drawn (greedy: its argmax), from the distribution given the
draft up to that row. A draft token is kept as long as it equals the target's. The output is then the target's own
sample path, token for token, at any temperature and for any drafter; the drafter only decides how many tokens one pass
yields. For a drafter that proposes one certain token, the acceptance probability p(token) is that of rejection sampling
(https://arxiv.org/abs/2211.17192).
"""

from __future__ import annotations

from collections.abc import Sequence


def match(draft: Sequence[int], targets: Sequence[int]) -> tuple[int, list[int]]:
    """How many drafts are accepted, and the tokens this round yields: those, and the target's next.

    `targets` are the target's tokens after the last committed token and after each draft: one more than `draft`.
    """
    assert len(targets) == len(draft) + 1
    accepted = 0
    while accepted < len(draft) and draft[accepted] == targets[accepted]:
        accepted += 1
    return accepted, list(targets[: accepted + 1])
