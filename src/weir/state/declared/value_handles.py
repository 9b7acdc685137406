"""The handles of states with one value per key: value, row, reducing and aggregating.

Comes in: what functions store and ask for. Goes out: what the current key has. They work
on the cells of any backend, which puts it into `data`; the first classes are the hot path
of every row-wise job, so they look up and call as little as they can.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import pyarrow as pa

from weir.state.declared.cells import NOTHING
from weir.state.declared.cursor import Key, KeyCursor
from weir.state.declared.forms import Refusals, ValueForm
from weir.state.declared.kinds import AggregatingState, KeyedState, ReducingState, Ttl, ValueState
from weir.state.values.conversion import NotOfType, copier, exactness, integer_limits, normaliser, usual_type

ROW_SHAPES_MAX = 256
"""Combinations of types in a row that are remembered as plain."""


class CellData(Protocol):
    """What handles ask of a state's values by key, held by a backend. `data[key]` is `default` where there is none."""

    default: Any

    def __getitem__(self, key: Key, /) -> Any: ...

    def __setitem__(self, key: Key, value: Any, /) -> None: ...

    def own(self, key: Key) -> Any:
        """The list or dictionary at a key, to be changed in place from now on; None where there is none."""

    def forget(self, key: Key) -> None:
        """Make it as if the key had never had a value."""

    @property
    def note(self) -> Callable[[Any], None]:
        """To be called with what was changed: the key, or a key and a map key. Not for what `forget` does."""


class CellValue:
    """The handle of one value state."""

    __slots__ = ("_cursor", "_is_exact", "_normalise", "_refuse", "data")
    data: CellData

    def __init__(self, state: ValueState, cursor: KeyCursor) -> None:
        self._cursor = cursor
        self._is_exact = exactness(state.type)
        self._normalise = normaliser(state.type)
        self._refuse = Refusals(state, cursor)

    def get(self) -> Any:
        return self.data[self._cursor.key]

    def set(self, value: Any) -> None:
        if self._is_exact(value):
            key, data = self._cursor.key, self.data
            data[key] = value
            data.note(key)
        else:
            self._set_other(value)

    def clear(self) -> None:
        self.data.forget(self._cursor.key)

    @property
    def value(self) -> Any:
        return self.get()

    @value.setter
    def value(self, value: Any) -> None:
        self.set(value)

    def _set_other(self, value: Any) -> None:
        try:
            made = self._normalise(value)
        except NotOfType as problem:
            raise self._refuse(problem) from None
        key, data = self._cursor.key, self.data
        data[key] = made
        data.note(key)


class CellInteger(CellValue):
    """The same for integers, with the test in line: counters and sums are what most functions keep."""

    __slots__ = ("_high", "_low")

    def __init__(self, state: ValueState, cursor: KeyCursor) -> None:
        super().__init__(state, cursor)
        self._low, self._high = integer_limits(state.type)

    def set(self, value: Any) -> None:
        if type(value) is int and self._low <= value <= self._high:
            key, data = self._cursor.key, self.data
            data[key] = value
            data.note(key)
        else:
            self._set_other(value)


class CellNested(CellValue):
    """The same for values that could be changed in place: what goes out is a copy."""

    __slots__ = ("_copy",)

    def __init__(self, state: ValueState, cursor: KeyCursor) -> None:
        super().__init__(state, cursor)
        self._copy: Any = copier(state.type)

    def get(self) -> Any:
        return self._copy(self.data[self._cursor.key])

    def set(self, value: Any) -> None:
        self._set_other(value)


class CellRow:
    """The handle of a row state. Held are plain tuples: named ones would stay in sight of Python's cycle collector."""

    __slots__ = ("_copies", "_cursor", "_normalisers", "_plain", "_usual", "data")
    data: CellData

    def __init__(self, schema: pa.Schema, cursor: KeyCursor) -> None:
        self._cursor = cursor
        self._normalisers = [normaliser(field.type) for field in schema]
        self._copies = [(i, copy) for i, field in enumerate(schema) if (copy := copier(field.type)) is not None]
        self._usual = [{usual_type(field.type), type(None)} for field in schema]
        self._plain: set[tuple[type, ...]] = set()
        """Types of whole rows that need no normalising."""

    def get(self) -> Any:
        row = self.data[self._cursor.key]
        if row is None or not self._copies:
            return row
        values = list(row)
        for i, copy in self._copies:
            values[i] = copy(values[i])
        return tuple(values)

    def set(self, row: tuple[Any, ...]) -> None:
        kinds = tuple(map(type, row))
        key, data = self._cursor.key, self.data
        if kinds in self._plain:
            data[key] = row[:]
            data.note(key)
            return
        data[key] = tuple([n(value) for n, value in zip(self._normalisers, row)])
        data.note(key)
        if len(self._plain) < ROW_SHAPES_MAX and all(kind in usual for kind, usual in zip(kinds, self._usual)):
            self._plain.add(kinds)


# --- Any type, with or without a time-to-live -----------------------------------------------------------


class Holder:
    """The current key's value as it is held; NOTHING where there is none."""

    __slots__ = ("_cursor", "data")
    data: CellData

    def __init__(self, cursor: KeyCursor) -> None:
        self._cursor = cursor

    def read(self) -> Any:
        return self.data[self._cursor.key]

    def write(self, held: Any) -> None:
        key, data = self._cursor.key, self.data
        data[key] = held
        data.note(key)

    def clear(self) -> None:
        self.data.forget(self._cursor.key)


class TimedHolder(Holder):
    """The same with a time-to-live: held is a pair of the value and when it was touched."""

    __slots__ = ("_after_ms", "_now_ms", "_on_read")

    def __init__(self, cursor: KeyCursor, ttl: Ttl, now_ms: Callable[[], int]) -> None:
        super().__init__(cursor)
        self._after_ms = ttl.after_ms
        self._on_read = ttl.refresh == "read"
        self._now_ms = now_ms

    def read(self) -> Any:
        pair = self.data[self._cursor.key]
        if pair is NOTHING:
            return NOTHING
        now_ms = self._now_ms()
        if pair[1] + self._after_ms <= now_ms:
            self.clear()
            return NOTHING
        if self._on_read:
            self.write(pair[0])
        return pair[0]

    def write(self, held: Any) -> None:
        super().write((held, self._now_ms()))


def holder_of(state: KeyedState, cursor: KeyCursor, now_ms: Callable[[], int]) -> Holder:
    return Holder(cursor) if state.ttl is None else TimedHolder(cursor, state.ttl, now_ms)


class HeldValue:
    """The handle of a value state of any kind."""

    def __init__(self, state: ValueState, cursor: KeyCursor, holder: Holder) -> None:
        self._holder = holder
        self._form = ValueForm(state.type, state.pickled)
        self._default = self._form.encode(state.default)
        self._refuse = Refusals(state, cursor)

    def get(self) -> Any:
        held = self._holder.read()
        return self._form.decode(self._default if held is NOTHING else held)

    def set(self, value: Any) -> None:
        try:
            held = self._form.encode(value)
        except NotOfType as problem:
            raise self._refuse(problem) from None
        self._holder.write(held)

    def clear(self) -> None:
        self._holder.clear()

    @property
    def value(self) -> Any:
        return self.get()

    @value.setter
    def value(self, value: Any) -> None:
        self.set(value)


class HeldReducing:
    """The handle of a reducing state."""

    def __init__(self, state: ReducingState, cursor: KeyCursor, holder: Holder) -> None:
        self._holder = holder
        self._function = state.function
        self._form = ValueForm(state.type, state.pickled)
        self._default = self._form.encode(state.default)
        self._refuse = Refusals(state, cursor)

    def get(self) -> Any:
        held = self._holder.read()
        return self._form.decode(self._default if held is NOTHING else held)

    def add(self, value: Any) -> None:
        held = self._holder.read()
        made = value if held is NOTHING else self._function(self._form.decode(held), value)
        try:
            held = self._form.encode(made)
        except NotOfType as problem:
            raise self._refuse(problem, "became") from None
        self._holder.write(held)

    def clear(self) -> None:
        self._holder.clear()


class HeldAggregating:
    """The handle of an aggregating state."""

    def __init__(self, state: AggregatingState, cursor: KeyCursor, holder: Holder) -> None:
        self._holder = holder
        self._state = state
        self._form = ValueForm(state.type, state.pickled)
        self._refuse = Refusals(state, cursor)

    def get(self) -> Any:
        held = self._holder.read()
        if held is NOTHING:
            return self._state.default
        accumulator = self._form.decode(held)
        return accumulator if self._state.result is None else self._state.result(accumulator)

    def add(self, value: Any) -> None:
        held = self._holder.read()
        accumulator = self._state.create_accumulator() if held is NOTHING else self._form.decode(held)
        try:
            made = self._state.add_value(accumulator, value)
            if made is None:
                raise NotOfType(0, None, "add must return the accumulator")
            held = self._form.encode(made)
        except NotOfType as problem:
            raise self._refuse(problem, "its accumulator became") from None
        self._holder.write(held)

    def clear(self) -> None:
        self._holder.clear()
