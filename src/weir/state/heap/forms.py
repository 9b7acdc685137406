"""What the cells of a heap state hold, as columns of its table and back.

Comes in: what handles have put into cells: values, lists, dictionaries, each with or
without the moment of its last touch. Goes out: Python columns without what has expired;
and from the columns of a restored table, cells again. One class for each way to hold.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, TypeAlias

import pyarrow as pa

from weir.state.declared.cells import Cells
from weir.state.declared.container_handles import TimedList
from weir.state.declared.cursor import Key
from weir.state.declared.forms import key_form
from weir.state.declared.tables import Shape
from weir.state.declared.untracked import untrack
from weir.state.values.conversion import to_list

Decode: TypeAlias = Callable[[pa.Array], list[Any]]

CONTAINERS_AT_ONCE = 100
"""Lists or dictionaries that are counted at once, to cut pieces of about equal size."""


@dataclass(frozen=True)
class Expanded:
    """The rows of some keys."""

    columns: Sequence[Sequence[Any]]
    """What comes behind the key columns."""
    positions: list[int] | None = None
    """Which key each row belongs to; None: each has one row."""
    expired: Sequence[int] = ()
    """Keys at which something has expired."""


class HeldForm(ABC):
    """One way to hold what a key has."""

    keys_counted_at_once: int | None = None
    """Keys whose rows are counted at once; None: each has at most one."""
    entries = False
    """Whether each key has a row for each entry of a dictionary, rather than one."""
    expires = False

    @property
    def in_place(self) -> bool:
        """Whether handles change what is held, instead of putting something else in its place."""
        return self.keys_counted_at_once is not None

    def rows(self, held: Iterable[Any]) -> int:
        """How many rows these make."""
        return sum(map(len, held))

    @abstractmethod
    def expand(self, held: Sequence[Any], now_ms: int) -> Expanded: ...

    @abstractmethod
    def restore(self, cells: Cells, keys: Sequence[Key], columns: Sequence[pa.Array]) -> None: ...

    def unexpired(self, held: Any, now_ms: int) -> Any:
        """What is left at a key; None: nothing."""
        return held


def held_form(shape: Shape, decode: Decode = to_list) -> HeldForm:
    """How the cells of a state hold what its handles put there."""
    after_ms = 0 if shape.ttl is None else shape.ttl.after_ms
    if shape.form == "map":
        return _Maps(shape.key_type) if shape.ttl is None else _TimedMaps(shape.key_type, after_ms)
    if shape.form == "list":
        return _Lists() if shape.ttl is None else _TimedLists(after_ms)
    return _Values(decode) if shape.ttl is None else _TimedValues(decode, after_ms)


class _Values(HeldForm):
    def __init__(self, decode: Decode) -> None:
        self._decode = decode

    def rows(self, held: Iterable[Any]) -> int:
        return len(list(held))

    def expand(self, held: Sequence[Any], now_ms: int) -> Expanded:
        return Expanded([held])

    def restore(self, cells: Cells, keys: Sequence[Key], columns: Sequence[pa.Array]) -> None:
        cells.update(zip(keys, self._decode(columns[0])))


class _TimedValues(_Values):
    """Pairs of a value and its last touch."""

    expires = True

    def __init__(self, decode: Decode, after_ms: int) -> None:
        super().__init__(decode)
        self._after_ms = after_ms

    def expand(self, held: Sequence[Any], now_ms: int) -> Expanded:
        limit = now_ms - self._after_ms
        alive = [i for i, (_, touched_ms) in enumerate(held) if touched_ms > limit]
        columns = [[held[i][0] for i in alive], [held[i][1] for i in alive]]
        return Expanded(columns, *_left(alive, len(held)))

    def restore(self, cells: Cells, keys: Sequence[Key], columns: Sequence[pa.Array]) -> None:
        cells.update(zip(keys, zip(self._decode(columns[0]), to_list(columns[1]))))

    def unexpired(self, held: Any, now_ms: int) -> Any:
        return held if held[1] + self._after_ms > now_ms else None


def _left(alive: list[int], count: int) -> tuple[list[int] | None, Sequence[int]]:
    if len(alive) == count:
        return None, ()
    return alive, sorted(set(range(count)).difference(alive))


class _Lists(HeldForm):
    keys_counted_at_once = CONTAINERS_AT_ONCE

    def expand(self, held: Sequence[Any], now_ms: int) -> Expanded:
        return Expanded([held])

    def restore(self, cells: Cells, keys: Sequence[Key], columns: Sequence[pa.Array]) -> None:
        self._put(cells, keys, to_list(columns[0]))

    def _put(self, cells: Cells, keys: Sequence[Key], lists: list[Any]) -> None:
        for values in lists:
            untrack(values)
        cells.update(zip(keys, lists))


class _TimedLists(_Lists):
    expires = True

    def __init__(self, after_ms: int) -> None:
        self._after_ms = after_ms

    def expand(self, held: Sequence[Any], now_ms: int) -> Expanded:
        limit = now_ms - self._after_ms
        alive = [i for i, values in enumerate(held) if values.touched_ms > limit]
        columns: list[list[Any]] = [[held[i] for i in alive], [held[i].touched_ms for i in alive]]
        return Expanded(columns, *_left(alive, len(held)))

    def restore(self, cells: Cells, keys: Sequence[Key], columns: Sequence[pa.Array]) -> None:
        self._put(cells, keys, list(map(TimedList, to_list(columns[0]), to_list(columns[1]))))

    def unexpired(self, held: Any, now_ms: int) -> Any:
        return held if held.touched_ms + self._after_ms > now_ms else None


class _Maps(HeldForm):
    keys_counted_at_once = CONTAINERS_AT_ONCE
    entries = True

    def __init__(self, key_type: pa.DataType) -> None:
        # Only floats have values that are read back as others: NaN is one of many.
        self._key = key_form(key_type) if pa.types.is_floating(key_type) else None

    def expand(self, held: Sequence[Any], now_ms: int) -> Expanded:
        positions = [i for i, entries in enumerate(held) for _ in entries]
        keys = list(chain.from_iterable(held))
        return Expanded([keys, list(chain.from_iterable(entries.values() for entries in held))], positions)

    def restore(self, cells: Cells, keys: Sequence[Key], columns: Sequence[pa.Array]) -> None:
        self._restore(cells, keys, columns[0], to_list(columns[1]))

    def _restore(self, cells: Cells, keys: Sequence[Key], map_keys: pa.Array, held: Iterable[Any]) -> None:
        names: Iterable[Any] = to_list(map_keys)
        if self._key is not None:
            names = map(self._key, names)
        for key, name, value in zip(keys, names, held):
            entries = cells.get(key)
            if entries is None:
                cells[key] = {name: value}
            else:
                entries[name] = value


class _TimedMaps(_Maps):
    """Dictionaries of pairs."""

    expires = True

    def __init__(self, key_type: pa.DataType, after_ms: int) -> None:
        super().__init__(key_type)
        self._after_ms = after_ms

    def expand(self, held: Sequence[Any], now_ms: int) -> Expanded:
        limit = now_ms - self._after_ms
        rows = [
            (i, name, value, touched_ms)
            for i, entries in enumerate(held)
            for name, (value, touched_ms) in entries.items()
            if touched_ms > limit
        ]
        positions, names, values, touched = map(list, zip(*rows)) if rows else ([], [], [], [])
        expired = [i for i, entries in enumerate(held) if any(pair[1] <= limit for pair in entries.values())]
        return Expanded([names, values, touched], positions, expired)

    def restore(self, cells: Cells, keys: Sequence[Key], columns: Sequence[pa.Array]) -> None:
        self._restore(cells, keys, columns[0], zip(to_list(columns[1]), to_list(columns[2])))

    def unexpired(self, held: Any, now_ms: int) -> Any:
        limit = now_ms - self._after_ms
        kept = {name: pair for name, pair in held.items() if pair[1] > limit}
        return kept or None if len(kept) < len(held) else held
