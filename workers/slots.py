"""Who sits in which slot of the KV cache, and what a slot still holds from its last guest.

A request whose prompt begins like a sequence that is or was in a slot starts from a copy of that prefix. So the n
samples of a row are prefilled once, and rows that share a system prompt compute it once.
"""

from __future__ import annotations

from collections.abc import Sequence as Tokens
from dataclasses import dataclass

from workers.kv_cache import KVCache, fitting_shape
from workers.sequence import Sequence

_WORTH_SHARING = 8
"""Fewer common tokens are computed again: the copy touches every layer."""


@dataclass(frozen=True, slots=True)
class Held:
    """What a slot holds."""

    tokens: Tokens[int]
    """Those whose keys and values it has."""
    follower: str | None
    """The drafter that followed them, and how far."""
    num_followed: int

    def followed_by(self, follower: str | None, shared: int) -> int:
        """Positions of a shared prefix that a drafter need not go over again. A head's pairs run one token ahead, so
        that of the last shared token may be another's."""
        return max(0, min(shared - 1, self.num_followed)) if follower == self.follower else 0


_NOTHING = Held((), None, 0)


class SlotTable:
    """Slots of a cache under a budget in tokens."""

    def __init__(self, cache: KVCache, *, max_slots: int, capacity_tokens: int) -> None:
        self.cache = cache
        self._max_slots = max_slots
        self._capacity_tokens = capacity_tokens
        self._seated: dict[int, Sequence] = {}
        self._left: dict[int, Held] = {}
        """What free slots still hold."""

    @property
    def longest_request(self) -> int:
        """Prompt + output tokens that fit if the request is alone."""
        return self._capacity_tokens

    def seat(self, sequence: Sequence) -> bool:
        """Give the sequence a slot for its whole possible length, filled with the longest prefix at hand; False if
        there is no room beside those seated."""
        needs = [seated.max_length for seated in self._seated.values()] + [sequence.max_length]
        present = (self.cache.num_slots, self.cache.length)
        shape = fitting_shape(needs, present, max_slots=self._max_slots, capacity_tokens=self._capacity_tokens)
        if shape is None:
            return False
        if shape != present:
            self._reshape(*shape)
        self._place(sequence)
        return True

    def release(self, sequence: Sequence, *, poisoned: bool = False) -> None:
        """Free the slot. `poisoned`: it holds numbers that are not finite, which even masked attention would spread."""
        del self._seated[sequence.slot]
        if poisoned:
            self.cache.clear(sequence.slot)
        else:
            self._left[sequence.slot] = _held_by(sequence)

    def awaits_prefix(self, sequence: Sequence) -> bool:
        """Whether a seated sequence is just computing a prefix that this one could copy if it waited."""
        prompt = sequence.tokens[:-1]
        coming = max((common_prefix(prompt, s.tokens) for s in self._seated.values() if s.is_prefilling), default=0)
        _, _, at_hand = self._longest_prefix(prompt)
        return coming >= _WORTH_SHARING and coming >= at_hand + _WORTH_SHARING

    def _reshape(self, num_slots: int, length: int) -> None:
        """Seated sequences move down to the first slots; what free slots held is given up."""
        moves = {old: new for new, old in enumerate(sorted(self._seated))}
        self.cache.reshape(num_slots, length, moves)
        self._seated = {moves[old]: sequence for old, sequence in self._seated.items()}
        self._left.clear()
        for slot, sequence in self._seated.items():
            sequence.slot = slot

    def _place(self, sequence: Sequence) -> None:
        free = [slot for slot in range(self.cache.num_slots) if slot not in self._seated]
        source, held, shared = self._longest_prefix(sequence.tokens[:-1])
        followed = held.followed_by(sequence.follower, shared)
        if source in free:
            slot = source
        else:
            slot = min(free, key=lambda slot: (len(self._left[slot].tokens) if slot in self._left else 0, slot))
            if shared:
                self.cache.copy_prefix(source, slot, shared)
        self._left.pop(slot, None)
        self._seated[slot] = sequence
        sequence.slot, sequence.num_computed = slot, shared
        sequence.num_followed = followed

    def _longest_prefix(self, prompt: Tokens[int]) -> tuple[int, Held, int]:
        """(slot, what it holds, tokens) of the longest computed prefix that is worth sharing; no slot and no tokens if
        there is none. The prompt's last token is never shared: its logits are needed."""
        held = self._left | {slot: _held_by(sequence) for slot, sequence in self._seated.items()}
        shared = ((common_prefix(prompt, each.tokens), slot) for slot, each in held.items())
        best, slot = max(shared, default=(0, -1))
        return (slot, held[slot], best) if best >= _WORTH_SHARING else (-1, _NOTHING, 0)


def _held_by(sequence: Sequence) -> Held:
    return Held(sequence.tokens[: sequence.num_computed], sequence.follower, sequence.num_followed)


def common_prefix(left: Tokens[int], right: Tokens[int]) -> int:
    """Length of the longest common prefix."""
    same, unknown = 0, min(len(left), len(right))
    while same < unknown:
        middle = (same + unknown + 1) // 2
        if left[same:middle] == right[same:middle]:
            same = middle
        else:
            unknown = middle - 1
    return same
