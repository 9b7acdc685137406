"""Whose turn it is among rows that wait for their calls: by their order, and of a key one at a time.

Comes in: rows, with their keys where there are some. Goes out: the next row to call for.
"""

from __future__ import annotations

from collections import deque
from heapq import heappop, heappush
from typing import Generic, TypeVar

from weir.state.declared.cursor import Key

T = TypeVar("T")

NO_KEY: Key = object()
"""Of rows that wait for nobody."""


class CallTurns(Generic[T]):
    """Rows that have not been called for yet. `left` says that a row is through, so that the next of its key may go.

    >>> turns = CallTurns[str]()
    >>> for row, key in [("a1", "a"), ("a2", "a"), ("b1", "b")]:
    ...     turns.add(row, key)
    >>> turns.take(), turns.take(), bool(turns)
    ('a1', 'b1', False)
    >>> turns.left("a")
    >>> turns.take(), len(turns)
    ('a2', 0)
    """

    def __init__(self) -> None:
        self._count = 0
        self._number = 0
        # The earliest first: rows that come later must not take all the room before it.
        self._ready: list[tuple[int, T]] = []
        self._behind: dict[Key, deque[tuple[int, T]]] = {}
        """By key, of those of which one is under way, or ready: the others."""

    def __len__(self) -> int:
        return self._count

    def __bool__(self) -> bool:
        """Whether one may go now."""
        return bool(self._ready)

    def add(self, row: T, key: Key = NO_KEY) -> None:
        numbered = (self._number, row)
        self._number += 1
        self._count += 1
        if key is NO_KEY:
            heappush(self._ready, numbered)
        elif key in self._behind:
            self._behind[key].append(numbered)
        else:
            self._behind[key] = deque()
            heappush(self._ready, numbered)

    def take(self) -> T:
        """The earliest that may go."""
        self._count -= 1
        return heappop(self._ready)[1]

    def left(self, key: Key) -> None:
        """The row of this key that was taken is through."""
        if key is NO_KEY:
            return
        if behind := self._behind[key]:
            heappush(self._ready, behind.popleft())
        else:
            del self._behind[key]
