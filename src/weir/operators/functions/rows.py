"""Map, flat_map and filter with a function of one row.

Comes in: batches. Goes out: batches of the declared schema. The function sees named
tuples. An error names the operator, the row and the user's own lines; the loops
themselves catch nothing per row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from inspect import isgeneratorfunction
from itertools import chain
from typing import Any

import pyarrow as pa

from weir.errors import PlanError, UserCodeError
from weir.operators.base import Emit, Frozen, Operator, OperatorContext, OperatorSpec, Restored
from weir.operators.expressions.polars_bridge import filter_batch
from weir.operators.functions.interfaces import function_states, state_verdict
from weir.operators.functions.row_codec import RowReader, Rows, RowWriter, emit
from weir.operators.functions.stateful import StatefulFunction, state_names
from weir.operators.user_code import operator_label, user_code_error
from weir.schema import parse_schema
from weir.state.values.conversion import shown

PIECE_ROWS = 2_048
"""Rows that become Python objects at once, and go on before the next do: some 5 ms of work."""

_NOT_ROWS = (str, bytes, dict, type(None))
"""What flat_map's function must not return, though Python could iterate over some of it."""


class MapRows(OperatorSpec):
    """One row out for each row in: a tuple, a dict, a named tuple, or a scalar when there is one column."""

    def __init__(self, function: Callable[[Any], Any], schema: str | pa.Schema) -> None:
        self.function = _callable(function, "map")
        self.output = parse_schema(schema)
        self.declared = function_states(function, "map")

    def schema(self, inputs: Sequence[pa.Schema]) -> pa.Schema:
        return self.output

    def make(self) -> Operator:
        return _Map(StatefulFunction(self.function, self.declared), self.output)

    @property
    def states(self) -> tuple[str, ...]:
        return state_names(self.declared)

    def verdict(self, state: str, stored: pa.Schema) -> str:
        return state_verdict(self.declared, state, stored)


class FlatMapRows(OperatorSpec):
    """Any number of rows out for each row in: the function returns an iterable of rows, or yields them."""

    def __init__(self, function: Callable[[Any], Any], schema: str | pa.Schema) -> None:
        self.function = _callable(function, "flat_map")
        self.output = parse_schema(schema)
        self.declared = function_states(function, "flat_map")

    def schema(self, inputs: Sequence[pa.Schema]) -> pa.Schema:
        return self.output

    def make(self) -> Operator:
        return _FlatMap(StatefulFunction(self.function, self.declared), self.output)

    @property
    def states(self) -> tuple[str, ...]:
        return state_names(self.declared)

    def verdict(self, state: str, stored: pa.Schema) -> str:
        return state_verdict(self.declared, state, stored)


class FilterRows(OperatorSpec):
    """Keep the rows for which the function returns something true."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self.function = _callable(function, "filter")
        self.declared = function_states(function, "filter")

    def schema(self, inputs: Sequence[pa.Schema]) -> pa.Schema:
        return inputs[0]

    def make(self) -> Operator:
        return _FilterRows(StatefulFunction(self.function, self.declared))

    @property
    def states(self) -> tuple[str, ...]:
        return state_names(self.declared)

    def verdict(self, state: str, stored: pa.Schema) -> str:
        return state_verdict(self.declared, state, stored)


def _callable(function: Any, operator: str) -> Callable[[Any], Any]:
    if not callable(function):
        raise PlanError(f"{operator}: expected a function of one row, found {function!r}")
    return function  # type: ignore[no-any-return]


class RowOperator(Operator):
    """What all operators with a function of rows share: a reader for their input, and errors."""

    context: OperatorContext
    piece_rows = PIECE_ROWS
    _reader: RowReader | None = None

    def open(self, context: OperatorContext, restored: Restored | None) -> None:
        self.context = context

    def process(self, batch: pa.RecordBatch, out: Emit) -> None:
        for start in range(0, batch.num_rows, self.piece_rows):
            made = self.convert(batch.slice(start, self.piece_rows))
            # What a piece gave goes on at once: whoever comes next need not wait for the rest of a large batch.
            if made is not None:
                emit(made, out)

    def convert(self, piece: pa.RecordBatch) -> pa.RecordBatch | None:
        """What a piece of a batch becomes; None: nothing."""
        raise NotImplementedError

    def read(self, batch: pa.RecordBatch) -> Rows:
        if self._reader is None:
            self._reader = RowReader(batch.schema)
        return self._reader.read(batch, self.context)

    def failure(self, error: Exception, rows: Rows) -> UserCodeError:
        return user_code_error(error, self.context, row=rows.current)


class _FunctionOfRows(RowOperator):
    """A row operator whose function may have operator states."""

    def __init__(self, stateful: StatefulFunction) -> None:
        self._stateful = stateful
        self._function: Callable[[Any], Any] = stateful.function

    def open(self, context: OperatorContext, restored: Restored | None) -> None:
        super().open(context, restored)
        self._stateful.restore(restored)

    def freeze(self) -> Frozen:
        return self._stateful.freeze()


class _Map(_FunctionOfRows):
    def __init__(self, stateful: StatefulFunction, output: pa.Schema) -> None:
        super().__init__(stateful)
        self._output = output

    def open(self, context: OperatorContext, restored: Restored | None) -> None:
        super().open(context, restored)
        self._writer = RowWriter(self._output, operator_label(context))

    def convert(self, piece: pa.RecordBatch) -> pa.RecordBatch | None:
        rows = self.read(piece)
        function = self._function
        try:
            results = [function(row) for row in rows]
        except Exception as error:
            raise self.failure(error, rows) from None
        return self._writer.write(results, rows.at)


class _FlatMap(_Map):
    def convert(self, piece: pa.RecordBatch) -> pa.RecordBatch | None:
        rows = self.read(piece)
        try:
            results = self._results(rows)
        except Exception as error:
            raise self.failure(error, rows) from None
        return self._writer.write(results) if results else None

    def _results(self, rows: Rows) -> list[Any]:
        function = self._function
        if isgeneratorfunction(function):
            return list(chain.from_iterable(map(function, rows)))
        results: list[Any] = []
        extend = results.extend
        for row in rows:
            found = function(row)
            if isinstance(found, _NOT_ROWS):
                raise _not_rows(found)
            extend(found)
        return results


def _not_rows(found: Any) -> TypeError:
    return TypeError(f"the function returned {shown(found)}; return a list of rows ([] for none), or yield them")


class _FilterRows(_FunctionOfRows):
    def process(self, batch: pa.RecordBatch, out: Emit) -> None:
        rows = self.read(batch)
        function = self._function
        try:
            mask = [bool(function(row)) for row in rows]
        except Exception as error:
            raise self.failure(error, rows) from None
        passing = sum(mask)
        if passing == len(mask):
            if mask:
                out(batch)
        elif passing:
            out(filter_batch(batch, pa.array(mask, pa.bool_())))
