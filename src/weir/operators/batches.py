"""Functions of whole batches: Arrow, Polars or pandas.

Comes in: batches. Goes out: what the function made of them, checked against the
declared schema. The function sees batches as the stream happens to be cut.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from importlib import import_module
from typing import Any, Literal, TypeAlias, get_args

import polars as pl
import pyarrow as pa

from weir.errors import PlanError, SchemaError, WeirError
from weir.operators.base import Emit, Frozen, Operator, OperatorContext, OperatorSpec, Restored
from weir.operators.functions import function_states, state_verdict
from weir.operators.polars_bridge import in_flight_type, series_to_arrow, to_polars
from weir.operators.row_codec import emit
from weir.operators.stateful import StatefulFunction, state_names
from weir.operators.user_code import operator_label, user_code_error
from weir.schema import format_schema, parse_schema

BatchKind: TypeAlias = Literal["arrow", "polars", "pandas"]


class MapBatches(OperatorSpec):
    """Call a function with each batch. It returns a batch, a table, a frame, an iterable of these, or None."""

    def __init__(self, function: Callable[[Any], Any], schema: str | pa.Schema, kind: BatchKind = "arrow") -> None:
        if not callable(function):
            raise PlanError(f"map_batches: expected a function of one batch, found {function!r}")
        if kind not in get_args(BatchKind):
            raise PlanError(f"map_batches: kind {kind!r} is not one of {', '.join(get_args(BatchKind))}")
        if kind == "pandas":
            _pandas()
        self.function = function
        self.output = parse_schema(schema)
        self.kind = kind
        self.declared = function_states(function, "map_batches")

    def schema(self, inputs: Sequence[pa.Schema]) -> pa.Schema:
        return self.output

    def make(self) -> Operator:
        return _MapBatches(self)

    @property
    def states(self) -> tuple[str, ...]:
        return state_names(self.declared)

    def verdict(self, state: str, stored: pa.Schema) -> str:
        return state_verdict(self.declared, state, stored)


def _pandas() -> Any:
    try:
        return import_module("pandas")
    except ImportError:
        raise PlanError('map_batches: kind "pandas" needs pandas, which is not installed: pip install pandas') from None


class _MapBatches(Operator):
    def __init__(self, spec: MapBatches) -> None:
        self._stateful = StatefulFunction(spec.function, spec.declared)
        self._function = self._stateful.function
        self._schema = spec.output
        self._kind = spec.kind

    def open(self, context: OperatorContext, restored: Restored | None) -> None:
        self._context = context
        self._stateful.restore(restored)

    def freeze(self) -> Frozen:
        return self._stateful.freeze()

    def process(self, batch: pa.RecordBatch, out: Emit) -> None:
        if not batch.num_rows:
            return
        try:
            results = _as_iterable(self._function(self._given(batch)))
            for result in results:
                if result is not None:
                    emit(self._checked(result), out)
        except WeirError:
            raise
        except Exception as error:
            what = f"a batch of {batch.num_rows} rows ({format_schema(batch.schema)})"
            raise user_code_error(error, self._context, doing=what) from None

    def _given(self, batch: pa.RecordBatch) -> Any:
        if self._kind == "polars":
            return to_polars(batch)
        return batch.to_pandas() if self._kind == "pandas" else batch

    def _checked(self, result: Any) -> pa.RecordBatch:
        """The result as one batch of the declared schema; columns may come in another order."""
        if isinstance(result, pl.DataFrame):
            self._check_names(result.columns, result)
            arrays = [self._from_polars(result.get_column(field.name), field) for field in self._schema]
        elif isinstance(result, (pa.RecordBatch, pa.Table)):
            self._check_names(result.column_names, result)
            arrays = [self._cast(_whole(result.column(field.name)), field) for field in self._schema]
        elif self._kind == "pandas" and isinstance(result, _pandas().DataFrame):
            self._check_names(list(result.columns), result)
            arrays = [self._from_pandas(result[field.name], field) for field in self._schema]
        else:
            raise self._misfit(f"a {type(result).__name__}")
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _check_names(self, names: Sequence[Any], result: Any) -> None:
        if sorted(map(str, names)) != sorted(self._schema.names):
            raise self._misfit(f"columns {', '.join(map(str, names)) or '(none)'}")

    def _from_polars(self, series: pl.Series, field: pa.Field) -> pa.Array:
        found = in_flight_type(series.clear().to_arrow(compat_level=pl.CompatLevel.oldest()).type)
        self._check_type(found, field)
        return self._check_nulls(series_to_arrow(series, field.type), field)

    def _cast(self, array: pa.Array, field: pa.Field) -> pa.Array:
        if array.type != field.type:
            self._check_type(in_flight_type(array.type), field)
            array = array.cast(field.type)
        return self._check_nulls(array, field)

    def _from_pandas(self, series: Any, field: pa.Field) -> pa.Array:
        # pandas has no integers with nulls and other such habits: what can be told without loss is taken.
        try:
            return self._check_nulls(_whole(pa.array(series, field.type, from_pandas=True)), field)
        except (pa.ArrowException, OverflowError, TypeError, ValueError) as error:
            raise self._misfit(f"column {field.name!r} of dtype {series.dtype}: {error}") from None

    def _check_type(self, found: pa.DataType, field: pa.Field) -> None:
        if found != in_flight_type(field.type) and not pa.types.is_null(found):
            raise self._misfit(f"column {field.name!r} of type {found}")

    def _check_nulls(self, array: pa.Array, field: pa.Field) -> pa.Array:
        if array.null_count and not field.nullable:
            raise self._misfit(f"a null in column {field.name!r}")
        return array

    def _misfit(self, found: str) -> SchemaError:
        return SchemaError(
            f"{operator_label(self._context)}: expected a result with ({format_schema(self._schema)}), found {found}"
        )


def _as_iterable(results: Any) -> Iterable[Any]:
    if isinstance(results, (list, tuple)) or hasattr(results, "__next__"):
        return results  # type: ignore[no-any-return]
    return (results,)


def _whole(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
