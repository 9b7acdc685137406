"""Keyed state in Python dictionaries: the default backend.

Comes in: the current key, and values. Goes out: values, and tables for snapshots.
Freezing copies the dictionaries, which are shallow and hold only values that are
never changed in place; the tables are built from the copies in another thread.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from weir.errors import CheckpointError, PlanError, ProtocolViolation
from weir.schema import format_type
from weir.state.backend import KEY_GROUP_COLUMN, VALUE_COLUMN, Key, KeyCursor, MakeRow
from weir.state.descriptors import ValueState
from weir.state.frozen import FrozenState, FrozenTable, RestoredState
from weir.state.handles import RowHandle, ValueHandle
from weir.state.hashing import hash_keys, key_groups
from weir.state.key_codec import KeyCodec, stored_type
from weir.state.values import NotOfType, copier, exactness, integer_limits, normaliser, shown, to_list, usual_type

ROW_SHAPES_MAX = 256
"""Combinations of types in a row that are remembered as plain."""


class HeapValue:
    """The handle of one value state."""

    __slots__ = ("_cursor", "_data", "_default", "_descriptor", "_is_exact", "_normalise")

    def __init__(self, descriptor: ValueState, cursor: KeyCursor, data: dict[Key, Any]) -> None:
        self._descriptor = descriptor
        self._cursor = cursor
        self._data = data
        self._default = descriptor.default
        self._is_exact = exactness(descriptor.type)
        self._normalise = normaliser(descriptor.type)

    def get(self) -> Any:
        return self._data.get(self._cursor.key, self._default)

    def set(self, value: Any) -> None:
        if self._is_exact(value):
            self._data[self._cursor.key] = value
        else:
            self._set_other(value)

    def clear(self) -> None:
        self._data.pop(self._cursor.key, None)

    @property
    def value(self) -> Any:
        return self.get()

    @value.setter
    def value(self, value: Any) -> None:
        self.set(value)

    def _set_other(self, value: Any) -> None:
        try:
            self._data[self._cursor.key] = self._normalise(value)
        except NotOfType as problem:
            expected = format_type(self._descriptor.type)
            raise TypeError(
                f"state {self._descriptor.name!r} holds {expected}, but was set to {problem.found}"
                f" at key {shown(self._cursor.key)}: {problem.reason}"
            ) from None


class HeapInteger(HeapValue):
    """The same for integers, with the test in line: counters and sums are what most functions keep."""

    __slots__ = ("_high", "_low")

    def __init__(self, descriptor: ValueState, cursor: KeyCursor, data: dict[Key, Any]) -> None:
        super().__init__(descriptor, cursor, data)
        self._low, self._high = integer_limits(descriptor.type)

    def set(self, value: Any) -> None:
        if type(value) is int and self._low <= value <= self._high:
            self._data[self._cursor.key] = value
        else:
            self._set_other(value)


class HeapNestedValue(HeapValue):
    """The same for values that could be changed in place: what goes out is a copy."""

    __slots__ = ("_copy",)

    def __init__(self, descriptor: ValueState, cursor: KeyCursor, data: dict[Key, Any]) -> None:
        super().__init__(descriptor, cursor, data)
        self._copy: Any = copier(descriptor.type)

    def get(self) -> Any:
        return self._copy(self._data.get(self._cursor.key, self._default))


class HeapRow:
    """The handle of a row state."""

    __slots__ = ("_copies", "_cursor", "_data", "_make", "_normalisers", "_plain", "_usual")

    def __init__(self, schema: pa.Schema, make: MakeRow, *, cursor: KeyCursor, data: dict[Key, Any]) -> None:
        self._make = make
        self._cursor = cursor
        self._data = data
        self._normalisers = [normaliser(field.type) for field in schema]
        self._copies = [(i, copy) for i, field in enumerate(schema) if (copy := copier(field.type)) is not None]
        self._usual = [{usual_type(field.type), type(None)} for field in schema]
        self._plain: set[tuple[type, ...]] = set()
        """Types of whole rows that need no normalising."""

    def get(self) -> Any:
        row = self._data.get(self._cursor.key)
        if row is None or not self._copies:
            return row
        values = list(row)
        for i, copy in self._copies:
            values[i] = copy(values[i])
        return self._make(values)

    def set(self, row: Sequence[Any]) -> None:
        kinds = tuple(map(type, row))
        if kinds in self._plain:
            self._data[self._cursor.key] = row
            return
        self._data[self._cursor.key] = self._make([n(value) for n, value in zip(self._normalisers, row)])
        if len(self._plain) < ROW_SHAPES_MAX and all(kind in usual for kind, usual in zip(kinds, self._usual)):
            self._plain.add(kinds)


@dataclass(frozen=True)
class _Table:
    """One state: its values by key, their Arrow type, and how an array of that type becomes values again."""

    data: dict[Key, Any]
    kind: pa.DataType
    decode: Callable[[pa.Array], list[Any]]


class HeapBackend:
    """Keyed state of one subtask, one dictionary per state."""

    def __init__(self, key_schema: pa.Schema, *, max_parallelism: int, key_groups: range) -> None:
        self.cursor = KeyCursor()
        self._codec = KeyCodec(key_schema)
        self._max_parallelism = max_parallelism
        self._key_groups = key_groups
        self._tables: dict[str, _Table] = {}

    def keys(self, columns: Sequence[pa.Array]) -> list[Key]:
        return self._codec.keys(columns)

    def shown(self, key: Key) -> Any:
        return self._codec.shown(key)

    def value_state(self, descriptor: ValueState) -> ValueHandle:
        data = self._declare(descriptor.name or "", descriptor.type, to_list)
        if pa.types.is_integer(descriptor.type):
            return HeapInteger(descriptor, self.cursor, data)
        handle = HeapValue if copier(descriptor.type) is None else HeapNestedValue
        return handle(descriptor, self.cursor, data)

    def row_state(self, name: str, schema: pa.Schema, make: MakeRow) -> RowHandle:
        def decode(array: pa.Array) -> list[Any]:
            return [make(values) for values in zip(*map(to_list, array.flatten()))]

        data = self._declare(name, pa.struct(list(schema)), decode)
        return HeapRow(schema, make, cursor=self.cursor, data=data)

    def _declare(self, name: str, kind: pa.DataType, decode: Callable[[pa.Array], list[Any]]) -> dict[Key, Any]:
        if not name:
            raise PlanError("a state needs a name")
        if name in self._tables:
            raise PlanError(f"state {name!r} is declared twice")
        data: dict[Key, Any] = {}
        self._tables[name] = _Table(data, stored_type(kind), decode)
        return data

    def freeze(self) -> Mapping[str, FrozenState]:
        return {name: self._frozen(table) for name, table in self._tables.items()}

    def _frozen(self, table: _Table) -> FrozenState:
        codec, kind, max_parallelism = self._codec, table.kind, self._max_parallelism
        data = table.data.copy()
        return FrozenTable(lambda: build_table(codec, data, kind=kind, max_parallelism=max_parallelism))

    def restore(self, states: Mapping[str, RestoredState]) -> None:
        for name, restored in states.items():
            if name not in self._tables:
                known = ", ".join(sorted(self._tables)) or "none"
                raise CheckpointError(
                    f"the checkpoint holds state {name!r}, which the function does not declare ({known})"
                )
            for table in restored.tables():
                self._check_table(name, table)
                self._take_over(name, table)

    def _check_table(self, name: str, table: pa.Table) -> None:
        found = [(field.name, field.type) for field in table.schema][1:-1]
        expected = [(field.name, field.type) for field in self._codec.schema]
        if found != expected:
            raise CheckpointError(
                f"state {name!r} was written with keys {_listed(found)}, but the job's keys are {_listed(expected)};"
                " key by the same columns, or give the operator another uid to start afresh"
            )
        groups = table.column(0).to_numpy()
        if len(groups) and not (self._key_groups.start <= groups.min() and groups.max() < self._key_groups.stop):
            raise ProtocolViolation(
                f"state {name!r} was restored with key groups {groups.min()} to {groups.max()},"
                f" but this subtask owns {self._key_groups.start} to {self._key_groups.stop - 1}"
            )

    def _take_over(self, name: str, table: pa.Table) -> None:
        state = self._tables[name]
        last = table.num_columns - 1
        try:
            values = table.column(last).cast(state.kind)
        except pa.ArrowException as error:
            raise CheckpointError(
                f"state {name!r} holds {format_type(table.field(last).type)} in the checkpoint,"
                f" which cannot become {format_type(state.kind)}: {error}"
            ) from None
        for batch in table.set_column(last, VALUE_COLUMN, values).to_batches():
            keys = self._codec.keys(batch.columns[1:-1])
            state.data.update(zip(keys, state.decode(batch.column(last))))

    def close(self) -> None:
        for table in self._tables.values():
            table.data.clear()


def build_table(codec: KeyCodec, data: Mapping[Key, Any], *, kind: pa.DataType, max_parallelism: int) -> pa.Table:
    """The table of one state, sorted by key group."""
    columns = codec.columns(list(data))
    groups = key_groups(hash_keys(columns), max_parallelism)
    value_name = VALUE_COLUMN
    while value_name in codec.schema.names:
        value_name = "_" + value_name
    fields = [pa.field(KEY_GROUP_COLUMN, pa.int32(), nullable=False), *codec.schema, pa.field(value_name, kind)]
    arrays = [pa.array(groups), *columns, pa.array(list(data.values()), kind)]
    order = pa.array(np.argsort(groups, kind="stable"))
    return pa.table(arrays, schema=pa.schema(fields)).take(order)


def _listed(fields: Sequence[tuple[str, pa.DataType]]) -> str:
    return ", ".join(f"{name} {format_type(kind)}" for name, kind in fields)
