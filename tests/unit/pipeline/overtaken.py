"""A store whose user is overtaken: somebody else acts between two of its calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pipeline.store.base import Store


class Overtaken:
    """`act` happens just before the n-th call of a method whose name begins with `method`."""

    def __init__(self, inner: Store, method: str, nth: int, act: Callable[[], object]) -> None:
        self._inner = inner
        self._method = method
        self._left = nth
        self._act = act

    def __getattr__(self, name: str) -> Any:
        if name.startswith(self._method):
            self._left -= 1
            if self._left == 0:
                self._act()
        return getattr(self._inner, name)
