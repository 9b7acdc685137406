"""States by key as the columns of a batch function: one row for each key, one column for each state.

Comes in: declared states of any kind. Goes out: their columns' types and defaults, and
columns as the function and as the table want them: a list without elements is no list to
the table, so that keys with nothing in them are forgotten. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from weir.errors import SchemaError
from weir.state.declared.base import Ttl
from weir.state.declared.cursor import MAP_KEY_COLUMN, VALUE_COLUMN
from weir.state.declared.kinds import AggregatingState, KeyedState, ListState, MapState
from weir.state.declared.tables import Shape, shape_of
from weir.state.keys.codec import stored_type


def column_shape(state: KeyedState) -> Shape:
    """What the column of a state holds: a value, a list, the entries of a map, or an accumulator."""
    shape = shape_of(state)
    if not isinstance(state, MapState):
        return shape
    entry = pa.struct([pa.field(MAP_KEY_COLUMN, stored_type(state.key_type)), pa.field(VALUE_COLUMN, shape.type)])
    return Shape(shape.name, "value", pa.list_(entry), ttl=shape.ttl, migrate=shape.migrate)


def column_type(state: KeyedState) -> pa.DataType:
    """As the function is given it."""
    return state.type if not isinstance(state, (ListState, MapState)) else column_shape(state).column_type


class StateColumns:
    """The columns of some states, by name."""

    def __init__(self, declared: Mapping[str, KeyedState]) -> None:
        self.schema = pa.schema([pa.field(name, column_type(state)) for name, state in declared.items()])
        self.ttls: Sequence[Ttl | None] = [state.ttl for state in declared.values()]
        self.defaults = [default_of(state) for state in declared.values()]
        lists = [isinstance(state, (ListState, MapState)) for state in declared.values()]
        self._lists = [index for index, is_list in enumerate(lists) if is_list]
        self._maps = [index for index, state in enumerate(declared.values()) if isinstance(state, MapState)]

    def given(self, columns: Sequence[pa.Array]) -> list[pa.Array]:
        """As the function sees them: never null where a list or a map is."""
        shown = list(columns)
        for index in self._lists:
            if shown[index].null_count:
                shown[index] = pc.coalesce(shown[index], self.defaults[index])
        return shown

    def kept(self, columns: Sequence[pa.Array], label: str) -> list[pa.Array]:
        """As the table keeps them; SchemaError when a map has a null for a key."""
        kept = list(columns)
        for index in self._maps:
            if kept[index].flatten().field(0).null_count:
                raise SchemaError(f"{label}: a map key in the new state {self.schema.names[index]!r} is null")
        for index in self._lists:
            if not len(self.defaults[index]):
                empty = pc.fill_null(pc.equal(pc.list_value_length(kept[index]), 0), False)
                if pc.any(empty).as_py():
                    kept[index] = pc.if_else(empty, pa.scalar(None, kept[index].type), kept[index])
        return kept


def default_of(state: KeyedState) -> pa.Scalar:
    """What a key without values has in the column."""
    if isinstance(state, MapState):
        return pa.scalar([], column_type(state))
    # The default of an aggregating state is a result, and no accumulator.
    return pa.scalar(None if isinstance(state, AggregatingState) else state.default, column_type(state))
