"""Batches as user functions want them, and what they return as batches again.

Comes in: a batch, or whatever a function gave: Arrow, Polars, pandas, a dict of columns. Goes out: the
one in the chosen kind, the other as a batch of exactly the declared schema, or an
error that says what was found.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from importlib import import_module
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
import polars as pl
import pyarrow as pa

from weir.errors import PlanError, SchemaError
from weir.operators.batches.pandas_columns import from_pandas
from weir.operators.expressions.polars_bridge import in_flight_type, series_to_arrow, to_polars
from weir.schema import format_schema
from weir.state.keys.xxhash64 import Ints
from weir.state.values.conversion import NotOfType

BatchKind: TypeAlias = Literal["arrow", "polars", "pandas"]


def check_kind(kind: str, method: str) -> None:
    """PlanError when there is no such kind of batch, or not here."""
    if kind not in get_args(BatchKind):
        raise PlanError(f"{method}: kind {kind!r} is not one of {', '.join(get_args(BatchKind))}")
    if kind == "pandas":
        _pandas(method)


def given(batch: pa.RecordBatch, kind: BatchKind) -> Any:
    """A batch in the kind that the function wants."""
    if kind == "polars":
        return to_polars(batch)
    return batch.to_pandas() if kind == "pandas" else batch


def given_with(batch: pa.RecordBatch, name: str, ascending: Ints, kind: BatchKind) -> Any:
    """The same with one more column, of numbers that ascend."""
    if kind == "polars":
        # Polars groups by a column faster when it is told that it is sorted.
        return to_polars(batch).insert_column(batch.num_columns, pl.Series(name, ascending).set_sorted())
    return given(batch.append_column(name, pa.array(ascending)), kind)


def _pandas(method: str) -> Any:
    try:
        return import_module("pandas")
    except ImportError:
        raise PlanError(f'{method}: kind "pandas" needs pandas, which is not installed: pip install pandas') from None


class Results:
    """Turns what a function returned into batches of one schema. `label`: for messages."""

    def __init__(self, schema: pa.Schema, *, label: str, others: bool = False) -> None:
        """`others`: columns that are not in the schema are left aside rather than refused."""
        self._schema = schema
        self._names = schema.names
        self._in_flight = {field.name: in_flight_type(field.type) for field in schema}
        self._label = label
        self._others = others

    def checked(self, result: Any) -> pa.RecordBatch:
        """One batch of the schema; columns may come in another order."""
        if isinstance(result, pl.DataFrame):
            self._check_names(result.columns)
            arrays = [self._from_polars(result.get_column(field.name), field) for field in self._schema]
        elif isinstance(result, (pa.RecordBatch, pa.Table)):
            self._check_names(result.column_names)
            arrays = [self._cast(_whole(result.column(field.name)), field) for field in self._schema]
        elif isinstance(result, Mapping):
            self._check_names(list(result))
            arrays = self._same_length([self._from_any(result[field.name], field) for field in self._schema])
        elif hasattr(result, "columns") and hasattr(result, "dtypes") and type(result).__module__.startswith("pandas"):
            self._check_names(list(result.columns))
            arrays = [self._from_pandas(result[field.name], field) for field in self._schema]
        else:
            raise self._misfit(f"a {type(result).__name__}")
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _from_any(self, column: Any, field: pa.Field) -> pa.Array:
        """One column of a dictionary."""
        if isinstance(column, pl.Series):
            return self._from_polars(column, field)
        if isinstance(column, (pa.Array, pa.ChunkedArray)):
            return self._cast(_whole(column), field)
        if isinstance(column, np.ndarray):
            return self._from_polars(pl.Series(field.name, column), field)
        raise self._misfit(f"column {field.name!r} of type {type(column).__name__}, not a Series or an array")

    def _same_length(self, arrays: list[pa.Array]) -> list[pa.Array]:
        if len(set(map(len, arrays))) > 1:
            found = ", ".join(f"{name} {len(array)}" for name, array in zip(self._names, arrays, strict=True))
            raise self._misfit(f"columns of different lengths: {found}")
        return arrays

    def _check_names(self, names: Sequence[Any]) -> None:
        if names == self._names:
            return
        found = list(map(str, names))
        if self._others:
            found = [name for name in found if name in self._names]
        if sorted(found) != sorted(self._names):
            raise self._misfit(f"columns {', '.join(map(str, names)) or '(none)'}")

    def _from_polars(self, series: pl.Series, field: pa.Field) -> pa.Array:
        self._check_type(_arrow_type(series.dtype), field)
        return self._check_nulls(series_to_arrow(series, field.type), field)

    def _cast(self, array: pa.Array, field: pa.Field) -> pa.Array:
        if array.type != field.type:
            self._check_type(in_flight_type(array.type), field)
            array = array.cast(field.type)
        return self._check_nulls(array, field)

    def _from_pandas(self, series: Any, field: pa.Field) -> pa.Array:
        try:
            array = from_pandas(series, field.type)
        except NotOfType as problem:
            raise self._misfit(f"column {field.name!r} with {problem.found}: {problem.reason}") from None
        except (pa.ArrowException, OverflowError, TypeError, ValueError) as error:
            raise self._misfit(f"column {field.name!r} of dtype {series.dtype}: {error}") from None
        return self._check_nulls(array, field)

    def _check_type(self, found: pa.DataType, field: pa.Field) -> None:
        if found != self._in_flight[field.name] and not pa.types.is_null(found):
            raise self._misfit(f"column {field.name!r} of type {found}")

    def _check_nulls(self, array: pa.Array, field: pa.Field) -> pa.Array:
        if array.null_count and not field.nullable:
            raise self._misfit(f"a null in column {field.name!r}")
        return array

    def _misfit(self, found: str) -> SchemaError:
        text = f"{self._label}: expected a result with ({format_schema(self._schema)})"
        return SchemaError(f"{text}, found {found}", without_rows=f"{text}, found another")


@lru_cache(maxsize=256)
def _arrow_type(kind: pl.DataType) -> pa.DataType:
    """What a column of this type is in flight."""
    return in_flight_type(pl.Series(dtype=kind).to_arrow(compat_level=pl.CompatLevel.oldest()).type)


def _whole(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
