"""Rows made from their numbers: a source that is deterministic, parallel and replayable.

Comes in: a function from row numbers to columns. Goes out: its batches, at full
speed or at a rate. Never touches anything but the clock that it is given.

Row i belongs to split i modulo `splits`, and a split to subtask split modulo the parallelism.
So the subtasks interleave row by row, one subtask alone yields the rows in order, and the
positions of the splits mean the same at every parallelism.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from weir.connectors.formats.exact_values import Unfit, cast_column, is_kin
from weir.connectors.strides import Strides
from weir.errors import ConfigError, SchemaError, UserCodeError
from weir.operators.base import InlinePart, OperatorContext
from weir.operators.source import Source, SourceReader
from weir.schema import format_schema, format_type, parse_schema
from weir.snapshot.parts import Json
from weir.state.values.conversion import NotOfType, to_array

SPLITS = 128
BURST_MS = 1_000.0
"""With a rate: how much of what was missed while the reader was not polled is made up for."""
WAIT_MIN_MS, WAIT_MAX_MS = 1.0, 10.0
_PLAIN = {
    pa.int32(): np.dtype(np.int32),
    pa.int64(): np.dtype(np.int64),
    pa.float32(): np.dtype(np.float32),
    pa.float64(): np.dtype(np.float64),
    pa.timestamp("us"): np.dtype(np.int64),
    pa.timestamp("us", "UTC"): np.dtype(np.int64),
}

Numbers: TypeAlias = "npt.NDArray[np.int64]"
Columns: TypeAlias = "Mapping[str, Any]"
Make: TypeAlias = "Callable[[Numbers], pa.RecordBatch | Columns]"


class Generator(Source):
    """Rows 0 to `count`, each made from its number alone.

    count:  how many rows; None: without end
    make:   from an int64 array of row numbers to a RecordBatch or a dict of columns (NumPy or Arrow arrays, or
            lists, which take longer); the same number must always give the same row
    schema: of what `make` returns, as DDL or a pyarrow schema
    rate:   rows a second over all subtasks; None: as fast as they are taken
    splits: the most subtasks that can take part; fixed for the life of a job's checkpoints

    >>> Generator(10, lambda n: {"n": n, "key": n % 3}, "n long, key long").schema.names
    ['n', 'key']
    """

    def __init__(
        self,
        count: int | None,
        make: Make,
        schema: str | pa.Schema,
        *,
        rate: float | None = None,
        splits: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if count is not None and count < 0:
            raise ConfigError(f"Generator.count: {count} is negative; write None for rows without end")
        if rate is not None and not rate > 0:
            raise ConfigError(f"Generator.rate: {rate} is not above 0; leave it out to run at full speed")
        if splits is not None and splits < 1:
            raise ConfigError(f"Generator.splits: {splits} is below 1")
        self.count = count
        self.make = make
        self.rate = rate
        self.splits = splits or SPLITS
        self.clock = clock
        self._schema = parse_schema(schema)

    def __repr__(self) -> str:
        count = "without end" if self.count is None else f"{self.count} rows"
        return f"Generator({count}{'' if self.rate is None else f', {self.rate:g}/s'})"

    @property
    def schema(self) -> pa.Schema:
        return self._schema

    @property
    def bounded(self) -> bool:
        return self.count is not None

    def is_read_to_end(self, positions: Sequence[Json]) -> bool:
        """Not, where there are more rows by now."""
        rounds = dict.fromkeys(range(self.splits), 0)
        for position in positions:
            rounds.update({int(split): done for split, done in position["rounds"].items()})
        are_same = all(position["splits"] == self.splits for position in positions)
        return are_same and Strides(self.splits, self.count, rounds).finished

    def reader(self) -> SourceReader:
        return _GeneratorReader(self)


class _GeneratorReader(SourceReader):
    def __init__(self, generator: Generator) -> None:
        self._generator = generator

    def open(self, context: OperatorContext, restored: Sequence[InlinePart] | None) -> None:
        own = range(context.index, self._generator.splits, context.parallelism)
        rounds = dict.fromkeys(own, 0)
        for part in restored or ():
            if part.value is None:
                continue
            self._check_splits(part.value["splits"], context)
            rounds.update({int(s): done for s, done in part.value["rounds"].items() if int(s) in rounds})
        self._context = context
        self._strides = Strides(self._generator.splits, self._generator.count, rounds)
        rate = self._generator.rate
        self._budget = None
        if rate is not None and len(own):
            self._budget = _Budget(rate * len(own) / self._generator.splits, self._generator.clock)

    def poll(self, rows_max: int) -> pa.RecordBatch | None:
        if self._budget is not None:
            rows_max = min(rows_max, self._budget.due())
        if rows_max <= 0:
            return None
        numbers = self._strides.take(rows_max)
        if not len(numbers):
            return None
        if self._budget is not None:
            self._budget.spend(len(numbers))
        return self._batch(numbers)

    @property
    def finished(self) -> bool:
        return self._strides.finished

    def position(self) -> Json:
        rounds = {str(split): done for split, done in self._strides.rounds().items()}
        return {"splits": self._generator.splits, "rounds": rounds}

    @property
    def wait_ms(self) -> float:
        return WAIT_MAX_MS if self._budget is None else self._budget.wait_ms()

    @property
    def lag(self) -> str | None:
        return None if self._budget is None else f"{self._budget.due()} rows behind the rate"

    def _check_splits(self, splits: int, context: OperatorContext) -> None:
        if splits != self._generator.splits:
            raise ConfigError(
                f"source {context.name!r} (uid {context.uid!r}): the checkpoint was taken with Generator.splits="
                f"{splits}, and it is {self._generator.splits} now; set it back to {splits}"
            )

    # --- What the user's function returns ---

    def _batch(self, numbers: Numbers) -> pa.RecordBatch:
        try:
            made = self._generator.make(numbers)
        except Exception as error:
            raise UserCodeError(
                f"source {self._context.name!r} (uid {self._context.uid!r}): the generator's function raised "
                f"{type(error).__name__} for rows {_shown(numbers)}:\n{_users_traceback(error)}"
            ) from error
        schema = self._generator.schema
        batch = made if isinstance(made, pa.RecordBatch) else self._from_columns(made, schema)
        if batch.schema is not schema and not batch.schema.equals(schema):
            raise self._mismatch(f"it returned ({format_schema(batch.schema)})")
        for field, column in zip(schema, batch.columns, strict=True):
            if not field.nullable and column.null_count:
                raise self._mismatch(f"column {field.name!r} is declared not null, and has no value in some row")
        if batch.num_rows != len(numbers):
            raise self._mismatch(f"it returned {batch.num_rows} rows for {len(numbers)} numbers")
        return batch

    def _from_columns(self, columns: Any, schema: pa.Schema) -> pa.RecordBatch:
        if not isinstance(columns, Mapping):
            raise self._mismatch(f"it returned a {type(columns).__name__}, not a RecordBatch or a dict of columns")
        if columns.keys() != set(schema.names):
            raise self._mismatch(f"it returned the columns {', '.join(map(str, columns))}")
        arrays = [_array(columns[field.name], field, self._mismatch) for field in schema]
        try:
            return pa.RecordBatch.from_arrays(arrays, schema=schema)
        except pa.ArrowInvalid as error:
            raise self._mismatch(f"it returned columns that do not fit together: {error}") from error

    def _mismatch(self, found: str) -> SchemaError:
        text = (
            f"source {self._context.name!r} (uid {self._context.uid!r}): the generator's function does not fit its "
            f"schema ({format_schema(self._generator.schema)})"
        )
        return SchemaError(f"{text}: {found}", without_rows=text)


def _array(values: Any, field: pa.Field, mismatch: Callable[[str], SchemaError]) -> pa.Array:
    if isinstance(values, np.ndarray) and _PLAIN.get(field.type) == values.dtype and values.flags.c_contiguous:
        # The same memory. pa.array would do as well, but it imports pandas first, if there is one.
        return pa.Array.from_buffers(field.type, len(values), [None, pa.py_buffer(values)])
    try:
        found = _as_arrow(values, field)
    except NotOfType as problem:
        raise mismatch(f"column {field.name!r} has {problem.found}: {problem.reason}") from None
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise mismatch(f"column {field.name!r}: {error}") from error
    if not is_kin(found.type, field.type, made=True):
        raise mismatch(f"column {field.name!r} is {format_type(found.type)}")
    try:
        return cast_column(found, field)
    except Unfit as error:
        raise mismatch(str(error)) from None


def _as_arrow(values: Any, field: pa.Field) -> pa.Array:
    """Arrays as they are; lists, and other things that hold Python values, as the declared type."""
    if isinstance(values, pa.ChunkedArray):
        return values.combine_chunks()
    if isinstance(values, pa.Array):
        return values
    if isinstance(values, pl.Series):
        return values.to_arrow(compat_level=pl.CompatLevel.oldest())
    if hasattr(values, "dtype") and values.dtype != object:
        found = pa.array(values)
        return found.combine_chunks() if isinstance(found, pa.ChunkedArray) else found
    listed = values if isinstance(values, list) else list(values)
    if pa.types.is_temporal(field.type) and set(map(type, listed)) <= {int, type(None)}:
        return pa.array(listed, pa.int64())  # counted in the type's unit, as in an array of NumPy
    return to_array(listed, field.type)


def _shown(numbers: Numbers) -> str:
    return str(numbers[0]) if len(numbers) == 1 else f"{numbers[0]} to {numbers[-1]}"


def _users_traceback(error: BaseException) -> str:
    """From the user's own function down, without our frames."""
    below = error.__traceback__.tb_next if error.__traceback__ else None
    return "".join(traceback.format_exception(type(error), error, below)).rstrip()


class _Budget:
    """How many rows are due by the clock. A reader that was not polled for long catches up a little, not all."""

    def __init__(self, rate_per_s: float, clock: Callable[[], float]) -> None:
        self._rate_per_ms = rate_per_s / 1_000.0
        self._clock = clock
        self._since_ms = clock() * 1_000.0
        self._spent = 0

    def due(self) -> int:
        now_ms = self._clock() * 1_000.0
        earned = (now_ms - self._since_ms) * self._rate_per_ms
        burst = max(1.0, BURST_MS * self._rate_per_ms)
        if earned - self._spent > burst:
            self._since_ms = now_ms - burst / self._rate_per_ms
            self._spent = 0
            earned = burst
        # A hair more than earned: rounding must not hold a row back that is due.
        return int(earned + 1e-6) - self._spent

    def spend(self, rows: int) -> None:
        self._spent += rows

    def wait_ms(self) -> float:
        missing = self._spent + 1 - (self._clock() * 1_000.0 - self._since_ms) * self._rate_per_ms
        return min(WAIT_MAX_MS, max(WAIT_MIN_MS, missing / self._rate_per_ms))
