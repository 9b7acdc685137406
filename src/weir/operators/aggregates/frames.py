"""Accumulators of any type by slot, in Polars frames.

Comes in: for each row its slot and its accumulators. Goes out: the merged
accumulators of any slots. The frames never change: a merge appends the new rows of
the slots that it touched, and `_rows` says which row of which frame is a slot's own.
"""

from __future__ import annotations

import decimal
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from weir.errors import DataError
from weir.operators.expressions.checked_groups import GroupChecks
from weir.operators.expressions.polars_bridge import series_to_arrow
from weir.state.columns.growing import grown
from weir.state.columns.kernels import Kernel, Rule
from weir.state.keys.xxhash64 import Ints

SLOT = "__slot"
"""The column of slots beside the accumulators."""

_SIZE_MARGIN = 1 - 1e-9
"""Floats are not exact: a sum that is this close to the limit is looked at more closely."""

_EXACT = decimal.Context(prec=100)

_TIER_RATIO = 4
"""A frame is at least so many times larger than the next, so that there are few of them."""

_GARBAGE_RATIO = 2
"""Rows that are kept for each slot, at most, before those of the past are dropped."""

_GARBAGE_ROWS_MIN = 4_096


class FrameKernel(Kernel):
    """An aggregate whose accumulators are merged by Polars expressions over the rows of a slot."""

    def __init__(
        self,
        fields: Sequence[pa.Field],
        merge: Mapping[str, pl.Expr],
        sums_of: str | None = None,
        checks: GroupChecks | None = None,
        rules: Sequence[Rule] | None = None,
    ) -> None:
        """`sums_of`: the output whose accumulators are sums; wide decimals among them are checked for overflow.
        `checks`: of the integers of other expressions. `rules`: what the expressions are, if each is one."""
        self._checks = checks
        self._rules = rules
        self._fields = list(fields)
        self._merge = [expression.alias(name) for name, expression in merge.items()]
        self._sums_of = sums_of
        self._sums = [number for number, field in enumerate(fields) if sums_of and pa.types.is_decimal(field.type)]
        """Which of the accumulators are sums of decimals."""
        self._empty = pl.DataFrame(pa.schema(self._fields).empty_table())
        self._types = self._empty.schema
        self.clear()

    def clear(self) -> None:
        self._frames: list[pl.DataFrame] = []
        self._row_count = 0
        self._count = 0
        self._rows: Ints = np.empty(0, np.int64)
        self._reach = dict.fromkeys(self._sums, 0.0)
        """No sum is further from zero than this."""
        self._signs = dict.fromkeys(self._sums, (False, False))

    @property
    def adds_numbers(self) -> bool:
        return bool(self._sums)

    @property
    def rules(self) -> Sequence[Rule] | None:
        return self._rules

    @property
    def size_bytes(self) -> int:
        return self._rows.nbytes + sum(int(frame.estimated_size()) for frame in self._frames)

    def can_combine(self, accumulators: Sequence[pa.Array]) -> bool:
        """Sums that only rise, or only fall, and stay small."""
        for number in self._sums:
            values = _as_floats(accumulators[number])
            negative, positive = self._signs[number]
            negative, positive = negative or bool((values < 0).any()), positive or bool((values > 0).any())
            if (negative and positive) or self._reach[number] + np.abs(values).sum() >= self._limit(number):
                return False
        return True

    def merge(self, slots: Ints, accumulators: Sequence[pa.Array], *, count: int) -> None:
        columns = [pl.Series(field.name, array) for field, array in zip(self._fields, accumulators, strict=True)]
        incoming = pl.DataFrame([*columns, pl.Series(SLOT, slots)])
        known = distinct(slots[slots < self._count], self._count)
        if len(known):
            stored = self._gather(self._rows[known]).with_columns(pl.Series(SLOT, known))
            incoming = pl.concat([stored, incoming])
        for number in self._sums:
            self._check_sums(number, accumulators[number], incoming)
        if self._checks is not None:
            self._checks.run(incoming, SLOT)
        merged = self._merged(incoming)
        self._grow(count)
        touched = merged.get_column(SLOT).to_numpy()
        self._rows[touched] = np.arange(self._row_count, self._row_count + len(touched))
        self._append(merged.select(pl.col(name).cast(kind) for name, kind in self._types.items()))

    def read(self, slots: Ints) -> list[pa.Array]:
        return self._to_arrow(self._gather(self._rows[slots]))

    def _merged(self, incoming: pl.DataFrame) -> pl.DataFrame:
        """One row for each slot, of accumulators of which those of a slot are in their order."""
        return incoming.group_by(SLOT).agg(*self._merge)

    def _check_sums(self, number: int, added: pa.Array, incoming: pl.DataFrame) -> None:
        """Polars adds decimals modulo 128 bits. Where floats say that no sum comes close to the limit, none does;
        otherwise they are added up one by one: no row may take a sum beyond it."""
        values = _as_floats(added)
        negative, positive = self._signs[number]
        self._signs[number] = negative or bool((values < 0).any()), positive or bool((values > 0).any())
        self._reach[number] += float(np.abs(values).sum())
        if self._reach[number] < self._limit(number):
            return
        field, sums = self._fields[number], dict[int, decimal.Decimal]()
        limit = decimal.Decimal(10) ** (field.type.precision - field.type.scale)
        with decimal.localcontext(_EXACT):
            for slot, value in incoming.select(SLOT, field.name).iter_rows():
                if value is not None:
                    sums[slot] = sums.get(slot, decimal.Decimal(0)) + value
                    if abs(sums[slot]) >= limit:
                        raise DataError(
                            f"aggregate {self._sums_of!r}: a sum is beyond the range of {field.type}; "
                            "cast the column to double before summing"
                        )

    def _limit(self, number: int) -> float:
        kind = self._fields[number].type
        return float(10.0 ** (kind.precision - kind.scale)) * _SIZE_MARGIN

    def _gather(self, rows: Ints) -> pl.DataFrame:
        return self._whole()[rows]

    def _whole(self) -> pl.DataFrame:
        return pl.concat(self._frames, rechunk=False) if self._frames else self._empty

    def _to_arrow(self, frame: pl.DataFrame) -> list[pa.Array]:
        return [series_to_arrow(frame.get_column(field.name), field.type) for field in self._fields]

    def _grow(self, count: int) -> None:
        self._rows = grown(self._rows, count, 0)
        self._count = count

    def _append(self, frame: pl.DataFrame) -> None:
        self._frames.append(_detached(frame))
        self._row_count += len(frame)
        if self._row_count > _GARBAGE_RATIO * self._count + _GARBAGE_ROWS_MIN:
            self._frames = [_detached(self._gather(self._rows[: self._count]))]
            self._rows[: self._count] = np.arange(self._count)
            self._row_count = self._count
        while len(self._frames) > 1 and len(self._frames[-2]) < _TIER_RATIO * len(self._frames[-1]):
            last = self._frames.pop()
            self._frames[-1] = _detached(pl.concat([self._frames[-1], last]))


def distinct(slots: Ints, count: int) -> Ints:
    """Each slot once, at the place of its last occurrence; `count` slots exist."""
    return slots[last_rows(slots, count)]


def last_rows(slots: Ints, count: int) -> Ints:
    """The rows at which slots occur for the last time; `count` slots exist."""
    numbers = np.arange(len(slots), dtype=np.int32)
    last = np.empty(count, np.int32)  # only read where it was written
    last[slots] = numbers
    return np.flatnonzero(last[slots] == numbers)


def _as_floats(array: pa.Array) -> npt.NDArray[np.float64]:
    floats: npt.NDArray[np.float64] = pl.Series(array.drop_null()).cast(pl.Float64).to_numpy()
    return floats


def _detached(frame: pl.DataFrame) -> pl.DataFrame:
    """The same rows in memory of their own: a gathered string would keep the whole batch alive that it came from."""
    if not any(kind.is_nested() or kind in (pl.String, pl.Binary) for kind in frame.dtypes):
        return frame.rechunk()
    return pl.DataFrame(frame.rechunk().to_arrow(compat_level=pl.CompatLevel.oldest()))
