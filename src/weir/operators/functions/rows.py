"""Map, flat_map and filter with a function of one row, at the row's key where the stream has one.

Comes in: batches. Goes out: batches of the declared schema. The function sees named
tuples. An error names the operator, the row and the user's own lines; the loops
themselves catch nothing per row.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from inspect import isgeneratorfunction
from itertools import chain
from typing import Any, ClassVar

import pyarrow as pa

from weir.errors import PlanError
from weir.operators.base import Operator, OperatorContext, OperatorSpec, Restored
from weir.operators.expressions.polars_bridge import filter_batch
from weir.operators.functions.at_key import FunctionOfRows, KeyedRowOperator, key_schema_of
from weir.operators.functions.declared import states_of
from weir.operators.functions.row_codec import RowWriter
from weir.operators.functions.stateful import StatefulFunction
from weir.operators.user_code import operator_label
from weir.schema import parse_schema
from weir.state.declared.base import StateDescriptor
from weir.state.keys.codec import KeyCodec
from weir.state.values.conversion import shown

_NOT_ROWS = (str, bytes, dict, type(None))
"""What flat_map's function must not return, though Python could iterate over some of it."""

WHOLE = 1 << 40
"""Rows of a piece: all of a batch."""


class RowFunctionSpec(OperatorSpec):
    """A function of one row. `keys`: of a keyed stream, so that its states may be by key."""

    method: ClassVar[str]

    def __init__(
        self, function: Callable[..., Any], *, keys: Sequence[str], state: Mapping[str, StateDescriptor] | None
    ) -> None:
        if not callable(function):
            raise PlanError(f"{self.method}: expected a function of one row, found {function!r}")
        self.function = function
        self.keys = tuple(keys)
        self.declared = states_of(function, self.method, state, keyed=bool(keys))
        self.key_schema: pa.Schema | None = None
        """Of a keyed stream, once `schema` has seen it."""

    def schema(self, inputs: Sequence[pa.Schema]) -> pa.Schema:
        if self.keys:
            self.key_schema = key_schema_of(self.keys, inputs[0])
        return self.output_of(inputs[0])

    @abstractmethod
    def output_of(self, schema: pa.Schema) -> pa.Schema:
        """What comes out where this comes in."""

    @property
    def states(self) -> tuple[str, ...]:
        return self.declared.names

    @property
    def declares_in_open(self) -> bool:
        return self.declared.opens

    def verdict(self, state: str, stored: pa.Schema) -> str:
        keys = None if self.key_schema is None else KeyCodec(self.key_schema).schema
        return self.declared.verdict(state, stored, keys)

    def stateful(self) -> StatefulFunction:
        return StatefulFunction(self.function, self.declared)

    def keys_seen(self) -> pa.Schema:
        if self.key_schema is None:
            raise PlanError(f"{self.method}: its input schema is not known; call schema() before make()")
        return self.key_schema


class MapRows(RowFunctionSpec):
    """One row out for each row in: a tuple, a dict, a named tuple, or a scalar when there is one column."""

    method = "map"

    def __init__(
        self,
        function: Callable[..., Any],
        schema: str | pa.Schema,
        *,
        keys: Sequence[str] = (),
        state: Mapping[str, StateDescriptor] | None = None,
    ) -> None:
        super().__init__(function, keys=keys, state=state)
        self.output = parse_schema(schema)

    def output_of(self, schema: pa.Schema) -> pa.Schema:
        return self.output

    def make(self) -> Operator:
        if self.keys:
            return _KeyedMap(self.keys_seen(), self.stateful(), self.output)
        return _Map(self.stateful(), self.output)


class FlatMapRows(MapRows):
    """Any number of rows out for each row in: the function returns an iterable of rows, or yields them."""

    method = "flat_map"

    def make(self) -> Operator:
        if self.keys:
            return _KeyedFlatMap(self.keys_seen(), self.stateful(), self.output)
        return _FlatMap(self.stateful(), self.output)


class FilterRows(RowFunctionSpec):
    """Keep the rows for which the function returns something true."""

    method = "filter"

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        keys: Sequence[str] = (),
        state: Mapping[str, StateDescriptor] | None = None,
    ) -> None:
        super().__init__(function, keys=keys, state=state)

    def output_of(self, schema: pa.Schema) -> pa.Schema:
        return schema

    def make(self) -> Operator:
        if self.keys:
            return _KeyedFilter(self.keys_seen(), self.stateful())
        return _Filter(self.stateful())


class _Map(FunctionOfRows):
    def __init__(self, stateful: StatefulFunction, output: pa.Schema) -> None:
        super().__init__(stateful)
        self._output = output

    def open(self, context: OperatorContext, restored: Restored | None) -> None:
        super().open(context, restored)
        self._writer = RowWriter(self._output, operator_label(context))

    def convert(self, piece: pa.RecordBatch) -> pa.RecordBatch | None:
        return _mapped(self, piece, self._writer)


class _KeyedMap(KeyedRowOperator):
    def __init__(self, key_schema: pa.Schema, stateful: StatefulFunction, output: pa.Schema) -> None:
        super().__init__(key_schema, stateful)
        self._output = output

    def open(self, context: OperatorContext, restored: Restored | None) -> None:
        super().open(context, restored)
        self._writer = RowWriter(self._output, operator_label(context))

    def convert(self, piece: pa.RecordBatch) -> pa.RecordBatch | None:
        return _mapped(self, piece, self._writer)


class _FlatMap(_Map):
    def convert(self, piece: pa.RecordBatch) -> pa.RecordBatch | None:
        return _flat_mapped(self, piece, self._writer)


class _KeyedFlatMap(_KeyedMap):
    def convert(self, piece: pa.RecordBatch) -> pa.RecordBatch | None:
        return _flat_mapped(self, piece, self._writer)


class _Filter(FunctionOfRows):
    piece_rows = WHOLE

    def convert(self, piece: pa.RecordBatch) -> pa.RecordBatch | None:
        return _filtered(self, piece)


class _KeyedFilter(KeyedRowOperator):
    def convert(self, piece: pa.RecordBatch) -> pa.RecordBatch | None:
        return _filtered(self, piece)


def _mapped(operator: FunctionOfRows, piece: pa.RecordBatch, writer: RowWriter) -> pa.RecordBatch:
    rows = operator.read(piece)
    try:
        results = operator.results(piece, rows)
    except Exception as error:
        raise operator.failure(error, rows) from None
    return writer.write(results, rows.at)


def _flat_mapped(operator: FunctionOfRows, piece: pa.RecordBatch, writer: RowWriter) -> pa.RecordBatch | None:
    rows = operator.read(piece)
    found = operator.called(piece, rows)
    try:
        # One after the other, so that what is yielded is made while its row is the current one.
        yields = isgeneratorfunction(operator.stateful.function)
        results = list(chain.from_iterable(found if yields else _checked(found)))
    except Exception as error:
        raise operator.failure(error, rows) from None
    return writer.write(results) if results else None


def _checked(found: Iterator[Any]) -> Iterator[Iterable[Any]]:
    for some in found:
        if isinstance(some, _NOT_ROWS):
            raise TypeError(f"the function returned {shown(some)}; return a list of rows ([] for none), or yield them")
        yield some


def _filtered(operator: FunctionOfRows, piece: pa.RecordBatch) -> pa.RecordBatch | None:
    rows = operator.read(piece)
    try:
        mask = list(map(bool, operator.results(piece, rows)))
    except Exception as error:
        raise operator.failure(error, rows) from None
    passing = sum(mask)
    if not passing:
        return None
    return piece if passing == len(mask) else filter_batch(piece, pa.array(mask, pa.bool_()))
