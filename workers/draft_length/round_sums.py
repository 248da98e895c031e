"""Rounds as sums for least squares: all that a fit needs of any number of them. They add: those of its engines are
a fleet's."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray


def _nothing(*shape: int) -> NDArray[np.float64]:
    return np.zeros(shape)


@dataclass(slots=True, eq=False)
class RoundSums:
    """Of rounds with features x and seconds t: Σ (x/t)(x/t)' and Σ x/t, so that errors count relative to t."""

    names: tuple[str, ...] = ()
    xx: NDArray[np.float64] = field(default_factory=lambda: _nothing(0, 0))
    xy: NDArray[np.float64] = field(default_factory=lambda: _nothing(0))
    weight: float = 0.0
    """Rounds."""

    @classmethod
    def zero(cls, names: Iterable[str]) -> RoundSums:
        return cls().over(names)

    def over(self, names: Iterable[str]) -> RoundSums:
        """The same in other features: those it does not know are zero. A copy."""
        names = tuple(names)
        known = [(new, self.names.index(name)) for new, name in enumerate(names) if name in self.names]
        found = RoundSums(names, _nothing(len(names), len(names)), _nothing(len(names)), self.weight)
        if known:
            new, old = np.array(known).T
            found.xx[np.ix_(new, new)] = self.xx[np.ix_(old, old)]
            found.xy[new] = self.xy[old]
        return found

    def add(self, features: NDArray[np.float64], seconds: float) -> None:
        """Count a round."""
        relative = features / seconds
        self.xx += np.outer(relative, relative)
        self.xy += relative
        self.weight += 1.0

    def discount(self, factor: float) -> None:
        """All rounds so far count that much less."""
        self.xx *= factor
        self.xy *= factor
        self.weight *= factor

    def __add__(self, other: RoundSums) -> RoundSums:
        names = (*self.names, *(name for name in other.names if name not in self.names))
        found, more = self.over(names), other.over(names)
        return RoundSums(names, found.xx + more.xx, found.xy + more.xy, found.weight + more.weight)

    def scaled(self, factor: float) -> RoundSums:
        return RoundSums(self.names, self.xx * factor, self.xy * factor, self.weight * factor)

    def to_json(self) -> dict[str, Any]:
        return {"names": list(self.names), "xx": self.xx.tolist(), "xy": self.xy.tolist(), "weight": self.weight}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> RoundSums:
        """Raises ValueError or KeyError for anything else than `to_json` gives."""
        names = tuple(data["names"])
        if not names:
            return cls()
        xx, xy = np.array(data["xx"], dtype=float), np.array(data["xy"], dtype=float)
        if xx.shape != (len(names), len(names)) or xy.shape != (len(names),):
            raise ValueError(f"sums over {len(names)} features have shapes {xx.shape} and {xy.shape}")
        return cls(names, xx, xy, float(data["weight"]))
