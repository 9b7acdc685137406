"""The tables of keyed states, which all backends write and read alike.

Comes in: a declared state, or a table out of a checkpoint. Goes out: the table's schema,
or the same table in exactly that schema, its values evolved or migrated. A table has the
key group, the key columns, for maps the map key, the value, and for states with a
time-to-live the moment of the last touch. Holds no state.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from weir.errors import CheckpointError, PlanError, ProtocolViolation
from weir.schema import format_type
from weir.state.declared.base import Migrate, StateDescriptor, Ttl
from weir.state.declared.cursor import MAP_KEY_COLUMN, TOUCHED_COLUMN, VALUE_COLUMN
from weir.state.declared.kinds import BroadcastState, ListState, MapState, OperatorListState
from weir.state.frozen import KEY_GROUP_COLUMN
from weir.state.keys.codec import stored_type
from weir.state.values.conversion import NotOfType, shown, to_array, to_list
from weir.state.values.evolution import EVOLVED, MIGRATED, SAME, VERDICTS, evolve, plan_evolution, with_elements

Form: TypeAlias = Literal["value", "list", "map", "elements"]
"""One value per key; a list per key; a map per key, by entries; the elements of an operator's list."""

_FORM_NAMES = {"value": "a value", "list": "a list", "map": "a map", "elements": "an operator list"}

FORM_METADATA = b"weir.form"
PICKLED_METADATA = b"weir.pickled"
"""Of a table's value column: what it is, and whether its bytes are pickles."""


@dataclass(frozen=True)
class Shape:
    """What the table of a state is like besides its keys."""

    name: str
    form: Form
    type: pa.DataType
    """Of one value; of one element in a list."""
    key_type: pa.DataType | None = None
    """Of a map's keys."""
    default: Any = None
    """From which fields that are new in a struct get their values."""
    ttl: Ttl | None = None
    migrate: Migrate | None = None
    pickled: bool = False

    @property
    def column_type(self) -> pa.DataType:
        """Of the value column."""
        return pa.list_(self.type) if self.form == "list" else self.type


def shape_of(state: StateDescriptor) -> Shape:
    """The shape of a declared state, or PlanError when it has no name."""
    if not state.name:
        raise PlanError("a state needs a name")
    is_map = isinstance(state, (MapState, BroadcastState))
    forms: dict[type, Form] = {ListState: "list", OperatorListState: "elements"}
    return Shape(
        state.name,
        "map" if is_map else forms.get(state.__class__, "value"),
        stored_type(state.type),
        stored_type(state.key_type) if isinstance(state, (MapState, BroadcastState)) else None,
        default=state.default,
        ttl=state.ttl,
        migrate=state.migrate,
        pickled=state.pickled,
    )


class TableLayout:
    """The table of one state under one key."""

    def __init__(self, keys: pa.Schema, shape: Shape, *, keyed: bool = True) -> None:
        """`keyed`: whether there are key groups. Operator states have none; the index of a list is their key."""
        self.keys = keys
        self.shape = shape
        taken = set(keys.names)
        metadata = {FORM_METADATA: shape.form, **({PICKLED_METADATA: "yes"} if shape.pickled else {})}
        fields = [*([pa.field(KEY_GROUP_COLUMN, pa.int32(), nullable=False)] if keyed else []), *keys]
        self._front = len(fields)
        if shape.key_type is not None:
            fields.append(pa.field(_free(MAP_KEY_COLUMN, taken), shape.key_type, nullable=False))
        fields.append(pa.field(_free(VALUE_COLUMN, taken), shape.column_type, metadata=metadata))
        if shape.ttl is not None:
            fields.append(pa.field(TOUCHED_COLUMN, pa.int64(), nullable=False))
        self.schema = pa.schema(fields)

    def check_groups(self, table: pa.Table, own: range) -> None:
        """ProtocolViolation when rows of other key groups are among these."""
        groups = table.column(0).to_numpy()
        if len(groups) and not (own.start <= groups.min() and groups.max() < own.stop):
            raise ProtocolViolation(
                f"state {self.shape.name!r} was restored with key groups {groups.min()} to {groups.max()},"
                f" but this subtask owns {own.start} to {own.stop - 1}"
            )

    def plan(self, stored: pa.Schema) -> str:
        """ "same", "evolved" or "migrated", or else the reason why a table of this schema cannot be restored."""
        return _plan(_Stored.of(stored, self.shape), self.shape, self.keys)

    def adapted(self, table: pa.Table, now_ms: int) -> pa.Table:
        """A restored table in this layout's schema, without the rows that have expired; CheckpointError when it
        cannot be read."""
        stored = _Stored.of(table.schema, self.shape)
        verdict = _plan(stored, self.shape, self.keys)
        if verdict not in VERDICTS:
            raise CheckpointError(f"state {self.shape.name!r}: {verdict}")
        columns = [*table.columns[: self._front]]
        if self.shape.key_type is not None:
            columns.append(evolved_column(table.column(stored.map_key), self.shape.key_type, self.shape.name))
        columns.append(adapted_values(table.column(stored.value), self.shape, verdict))
        if self.shape.ttl is None:
            return pa.table(columns, schema=self.schema)
        if stored.touched is None:
            # The state had no time-to-live before: it starts now.
            touched = pa.chunked_array([pa.repeat(pa.scalar(now_ms, pa.int64()), table.num_rows)])
        else:
            touched = table.column(stored.touched)
        found = pa.table([*columns, touched], schema=self.schema)
        alive = pc.greater(touched, now_ms - self.shape.ttl.after_ms)
        return found if pc.all(alive).as_py() is not False else found.filter(alive)


def _free(name: str, taken: set[str]) -> str:
    while name in taken:
        name = "_" + name
    return name


@dataclass(frozen=True)
class _Stored:
    """Which columns a stored table has, by position."""

    schema: pa.Schema
    keys: Sequence[tuple[str, pa.DataType]]
    map_key: int
    value: int
    touched: int | None

    @staticmethod
    def of(schema: pa.Schema, shape: Shape) -> _Stored:
        touched = len(schema) - 1 if schema.names[-1] == TOUCHED_COLUMN else None
        value = len(schema) - 1 if touched is None else touched - 1
        map_key = value - 1
        first = 1 if schema.names[0] == KEY_GROUP_COLUMN else 0
        keys = [(field.name, field.type) for field in schema][first : map_key if shape.key_type is not None else value]
        return _Stored(schema, keys, map_key, value, touched)

    @property
    def field(self) -> pa.Field:
        return self.schema.field(self.value)

    def metadata(self, key: bytes) -> str | None:
        found = (self.field.metadata or {}).get(key)
        return None if found is None else found.decode()


def _plan(stored: _Stored, shape: Shape, keys: pa.Schema) -> str:
    form = stored.metadata(FORM_METADATA)
    if form is not None and form != shape.form:
        return (
            f"the checkpoint holds it as {_FORM_NAMES.get(form, form)} state, the function declares"
            f" {_FORM_NAMES[shape.form]} state;"
            " give the new one another name"
        )
    expected = [(field.name, field.type) for field in keys]
    if stored.keys != expected:
        return (
            f"it was written with keys {_listed(stored.keys)}, but the job's keys are {_listed(expected)};"
            " key by the same columns, or give the operator another uid to start afresh"
        )
    if shape.key_type is not None:
        verdict = plan_evolution(stored.schema.field(stored.map_key).type, shape.key_type, has_migrate=False)
        if verdict not in VERDICTS:
            return f"its map keys are {verdict.partition('. ')[0]}. Give the new state another name"
        if verdict == EVOLVED and plan_values(stored.field, shape) == SAME:
            return EVOLVED
    return plan_values(stored.field, shape)


def plan_values(stored: pa.Field, shape: Shape) -> str:
    """The verdict on the value column alone."""
    has_migrate = shape.migrate is not None
    if shape.pickled and PICKLED_METADATA not in (stored.metadata or {}):
        # Nothing is unpickled that was not pickled by a state of ours.
        if has_migrate:
            return MIGRATED
        return (
            f"stored as {format_type(stored.type)}, declared as Pickled(): give the state a migrate=function of the old"
            " value that returns the new one"
        )
    return plan_evolution(stored.type, shape.column_type, has_migrate, shape.default)


def _listed(fields: Sequence[tuple[str, pa.DataType]]) -> str:
    return ", ".join(f"{name} {format_type(kind)}" for name, kind in fields)


# --- Values -------------------------------------------------------------------------------------------


def adapted_values(column: pa.ChunkedArray, shape: Shape, verdict: str) -> pa.ChunkedArray:
    """A value column in the type that is declared now."""
    if verdict == SAME:
        return column
    if verdict == MIGRATED:
        return _chunks(column, lambda chunk: _migrated_column(chunk, shape), shape.column_type)
    return evolved_column(column, shape.column_type, shape.name, shape.default)


def evolved_column(column: pa.ChunkedArray, kind: pa.DataType, name: str, default: Any = None) -> pa.ChunkedArray:
    """A column whose type has evolved, or CheckpointError when a value does not fit after all."""
    try:
        return _chunks(column, lambda chunk: evolve(chunk, kind, default), kind)
    except pa.ArrowException as error:
        raise CheckpointError(
            f"state {name!r}: stored as {format_type(column.type)}, declared as {format_type(kind)}: {error}"
        ) from None


def _chunks(column: pa.ChunkedArray, convert: Callable[[pa.Array], pa.Array], kind: pa.DataType) -> pa.ChunkedArray:
    return pa.chunked_array([convert(chunk) for chunk in column.chunks], kind)


def _migrated_column(array: pa.Array, shape: Shape) -> pa.Array:
    if shape.form == "list" and (pa.types.is_list(array.type) or pa.types.is_large_list(array.type)):
        return with_elements(array, _migrated(array.flatten(), shape), shape.column_type)
    return _migrated(array, shape)


def _migrated(array: pa.Array, shape: Shape) -> pa.Array:
    """What the user's function makes of each value."""
    migrate: Any = shape.migrate
    made = []
    for value in to_list(array):
        try:
            made.append(migrate(value))
        except Exception as error:
            raise CheckpointError(
                f"state {shape.name!r}: migrate failed for {shown(value)}: {type(error).__name__}: {error}"
            ) from error
    try:
        return to_array([pickle.dumps(value) for value in made] if shape.pickled else made, shape.type)
    except NotOfType as problem:
        raise CheckpointError(
            f"state {shape.name!r} holds {format_type(shape.type)}, but migrate returned {problem.found}:"
            f" {problem.reason}"
        ) from None
