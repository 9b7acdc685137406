"""Batches as rows for Python functions, and what they return as batches again.

Comes in: batches, or a list of results (tuples, dicts, named tuples, scalars). Goes
out: named tuples, or a batch of the declared schema. Whole columns are converted at
once; nothing here tries or checks row by row until something has gone wrong.
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import repeat
from operator import itemgetter, length_hint
from typing import Any

import pyarrow as pa

from weir.errors import DataError, SchemaError
from weir.operators.base import Emit, OperatorContext
from weir.operators.user_code import operator_label
from weir.schema import format_schema, format_type
from weir.state.values.conversion import NotOfType, shown, to_array, to_list

OUTPUT_ROWS_MAX = 65_536
"""Rows of one emitted batch; what is more goes out in several."""


class RowReader:
    """Reads the rows of batches of one schema."""

    def __init__(self, schema: pa.Schema) -> None:
        # Like any named tuple: columns whose names are no identifiers are called _0, _1, … by position.
        self.row_type: Any = namedtuple("Row", schema.names, rename=True)  # type: ignore[misc]

    def read(self, batch: pa.RecordBatch, context: OperatorContext) -> Rows:
        """The rows; DataError names the operator and the column that holds what Python cannot."""
        columns = []
        for column, name in zip(batch.columns, batch.schema.names, strict=True):
            try:
                columns.append(to_list(column))
            except DataError as error:
                text = f"{operator_label(context)}: column {name!r}"
                raise DataError(f"{text}: {error.message}", without_rows=f"{text} cannot be read") from None
        return Rows(self.row_type, columns, batch.num_rows)


class Rows:
    """The rows of one batch: iterate once; `current` is the row that was handed out last."""

    def __init__(self, row_type: Any, columns: Sequence[list[Any]], count: int) -> None:
        self._row_type = row_type
        self._columns = columns
        self._count = count
        # The first column's iterator tells how far the loop has come, at no cost to the loop.
        self._first: Iterator[Any] = iter(columns[0] if columns else [None] * count)

    def __iter__(self) -> Iterator[Any]:
        # tuple.__new__ skips the named tuple's own constructor, which takes twice as long.
        if not self._columns:
            return map(tuple.__new__, repeat(self._row_type), (() for _ in self._first))
        return map(tuple.__new__, repeat(self._row_type), zip(self._first, *self._columns[1:]))

    @property
    def position(self) -> int:
        return self._count - length_hint(self._first) - 1

    @property
    def current(self) -> Any:
        return self.at(self.position)

    def value(self, column: int) -> Any:
        """One value of the current row."""
        return self._columns[column][self.position]

    def at(self, index: int) -> Any:
        return self._row_type._make(column[index] for column in self._columns)


class RowWriter:
    """Turns results into batches of a declared schema. `label` names the operator in errors."""

    def __init__(self, schema: pa.Schema, label: str) -> None:
        self._schema = schema
        self._names = schema.names
        self._label = label

    def write(self, results: Sequence[Any], row_of: Callable[[int], Any] | None = None) -> pa.RecordBatch:
        """A batch of the results. `row_of`: the input row behind a result, for errors."""
        columns = self._columns(results, row_of)
        arrays = []
        for field, values in zip(self._schema, columns):
            try:
                array = to_array(values, field.type)
            except NotOfType as problem:
                raise self._misfit(field, problem, row_of) from None
            if array.null_count and not field.nullable:
                index = next(i for i, value in enumerate(values) if value is None)
                raise self._misfit(field, NotOfType(index, None, "no value"), row_of)
            arrays.append(array)
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def as_values(self, result: Any) -> Sequence[Any]:
        """One result as the values of the schema's columns."""
        return [column[0] for column in self._columns([result], None)]

    def _columns(self, results: Sequence[Any], row_of: Callable[[int], Any] | None) -> list[Sequence[Any]]:
        kinds = set(map(type, results))
        if all(issubclass(kind, tuple) and self._in_order(kind) for kind in kinds):
            tuples = results
        elif kinds == {dict}:
            return self._columns_of_dicts(results, row_of)
        elif len(self._names) == 1 and not any(issubclass(kind, (tuple, dict)) for kind in kinds):
            return [results]
        else:
            tuples = [self._one(result, index, row_of) for index, result in enumerate(results)]
        width = len(self._names)
        if set(map(len, tuples)) - {width}:
            index = next(i for i, values in enumerate(tuples) if len(values) != width)
            raise self._not_a_row(results[index], f"it has {len(tuples[index])} values", row_of and row_of(index))
        return [list(map(itemgetter(i), tuples)) for i in range(width)]

    def _in_order(self, kind: Any) -> bool:
        """Named tuples that have the schema's names in another order are read by name, all others by position."""
        fields = getattr(kind, "_fields", None)
        return fields is None or list(fields) == self._names or set(fields) != set(self._names)

    def _columns_of_dicts(self, results: Sequence[Any], row_of: Callable[[int], Any] | None) -> list[Sequence[Any]]:
        if set(map(len, results)) == {len(self._names)}:
            try:
                return [list(map(itemgetter(name), results)) for name in self._names]
            except KeyError:
                pass  # Which one, and of which result, is found below.
        for index, result in enumerate(results):
            self._one(result, index, row_of)
        return []

    def _one(self, result: Any, index: int, row_of: Callable[[int], Any] | None) -> Sequence[Any]:
        row = row_of and row_of(index)
        if isinstance(result, dict):
            for name in self._names:
                if name not in result:
                    raise self._not_a_row(result, f"field {name!r} is missing", row)
            if len(result) > len(self._names):
                unknown = next(name for name in result if name not in self._names)
                raise self._not_a_row(result, f"field {unknown!r} is not in the schema", row)
            return [result[name] for name in self._names]
        if isinstance(result, tuple):
            return result if self._in_order(type(result)) else [getattr(result, name) for name in self._names]
        if len(self._names) == 1:
            return (result,)
        raise self._not_a_row(result, "it is neither a tuple nor a dict", row)

    def _not_a_row(self, result: Any, problem: str, row: Any) -> SchemaError:
        text = f"{self._label}: a result is not a row of ({format_schema(self._schema)})"
        return SchemaError(f"{text}: {problem}\n  result: {shown(result)}{_input(row)}", without_rows=text)

    def _misfit(self, field: pa.Field, problem: NotOfType, row_of: Callable[[int], Any] | None) -> SchemaError:
        expected = format_type(field.type) + ("" if field.nullable else " not null")
        row = row_of(problem.index) if row_of else None
        text = f"{self._label}: field {field.name!r} is declared {expected}, but the function returned"
        return SchemaError(
            f"{text} {problem.found}: {problem.reason}{_input(row)}",
            field=field.name,
            without_rows=f"{text} something else",
        )


def _input(row: Any) -> str:
    return "" if row is None else f"\n  row: {shown(row)}"


def emit(batch: pa.RecordBatch, out: Emit) -> None:
    """Hand on a batch, in slices if it is long; nothing if it is empty."""
    for start in range(0, batch.num_rows, OUTPUT_ROWS_MAX):
        out(batch if batch.num_rows <= OUTPUT_ROWS_MAX else batch.slice(start, OUTPUT_ROWS_MAX))


def spread(results: Any) -> Iterable[Any]:
    """What a process function returned, as rows: None is no row, a list or iterator many, all else one."""
    if results is None:
        return ()
    if isinstance(results, list) or hasattr(results, "__next__"):
        return results  # type: ignore[no-any-return]
    return (results,)
