"""The key whose row is being processed, and the names of columns in the tables of states: what handles, cells and
backends share.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

VALUE_COLUMN = "value"
"""Last column of a state's table, but for TOUCHED_COLUMN; a key column of that name pushes it to `_value`."""

MAP_KEY_COLUMN = "map_key"
"""Before the value in a map state's table, which has one row per entry."""

TOUCHED_COLUMN = "__touched_ms"
"""Last column (int64) of a state with a time-to-live: when the value was last touched."""

Key: TypeAlias = Any
"""A key as a backend holds it: a scalar for one key column, a tuple for several."""


class KeyCursor:
    """The key whose row is being processed. The operator sets it once per row; all handles read it."""

    __slots__ = ("key", "shown")

    def __init__(self, shown: Callable[[Key], Any] = lambda key: key) -> None:
        self.key: Key = None
        self.shown = shown
        """Makes of a key what users know."""
