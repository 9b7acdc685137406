"""Accumulators of fixed width by slot, in NumPy arrays.

Comes in: for each row its slot and its accumulators. Goes out: the merged
accumulators of any slots, as Arrow arrays. Never sees keys or rows of the user.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from weir.errors import DataError
from weir.state.growing import grown
from weir.state.key_columns import Valid, build_fixed, fixed_values, numpy_type, valid_rows
from weir.state.xxhash64 import Ints

Rule: TypeAlias = Literal["add", "min", "max", "first", "last"]
"""How two accumulators become one."""

_CAPACITY_MIN = 1_024
_INT64_MAX = (1 << 63) - 1


class Kernel(ABC):
    """The accumulators of one aggregate, by slot."""

    @abstractmethod
    def merge(self, slots: Ints, accumulators: Sequence[pa.Array], *, count: int) -> None:
        """Merge one accumulator per row into its slot. There are `count` slots by now: the new ones are among `slots`.

        Rows of one slot are merged in their order.
        """

    @abstractmethod
    def read(self, slots: Ints) -> list[pa.Array]:
        """The accumulators of these slots, as copies."""

    @abstractmethod
    def clear(self) -> None:
        """Back to no slots at all."""


class FixedKernel(Kernel):
    """An aggregate whose accumulators are all of fixed width and merge each by a rule of its own."""

    def __init__(self, types: Sequence[pa.DataType], rules: Sequence[Rule], name: str) -> None:
        self._columns = [_SlotColumn(kind, rule, name) for kind, rule in zip(types, rules, strict=True)]

    def merge(self, slots: Ints, accumulators: Sequence[pa.Array], *, count: int) -> None:
        for column, array in zip(self._columns, accumulators, strict=True):
            column.merge(slots, array, count)

    def read(self, slots: Ints) -> list[pa.Array]:
        return [column.read(slots) for column in self._columns]

    def clear(self) -> None:
        for column in self._columns:
            column.clear()


def is_fixed_width(kind: pa.DataType) -> bool:
    """Whether accumulators of this type fit into NumPy arrays."""
    types = pa.types
    return bool(
        types.is_boolean(kind) or types.is_integer(kind) or types.is_floating(kind) or types.is_temporal(kind)
    ) and not types.is_interval(kind)


class _SlotColumn:
    """One accumulator by slot. Which slots are null is only kept once there was a null."""

    def __init__(self, kind: pa.DataType, rule: Rule, name: str) -> None:
        self._kind = kind
        self._rule: Rule = rule
        self._name = name
        self._identity, self._function = _identity_and_function(rule, numpy_type(kind))
        self._count = 0
        self._values: npt.NDArray[Any] = np.full(_CAPACITY_MIN, self._identity)
        self._valid: Valid = None
        self._magnitude_max = 0
        """No sum is further from zero than this."""

    def merge(self, slots: Ints, array: pa.Array, count: int) -> None:
        known = self._count
        self._grow(count)
        values, valid = fixed_values(array), valid_rows(array)
        if valid is not None and self._valid is None:
            self._valid = np.zeros(len(self._values), np.bool_)
            self._valid[:known] = True
        if self._rule in ("first", "last"):
            self._place(slots, values, valid=valid, known=known)
            return
        if valid is not None:
            rows = np.flatnonzero(valid)
            slots, values = slots[rows], values[rows]
        if self._valid is not None:
            self._valid[slots] = True
        self._reduce(slots, values)

    def read(self, slots: Ints) -> pa.Array:
        return build_fixed(self._values[slots], None if self._valid is None else self._valid[slots], self._kind)

    def clear(self) -> None:
        self._values[: self._count] = self._identity
        self._valid = None
        self._count = self._magnitude_max = 0

    def _grow(self, count: int) -> None:
        self._values = grown(self._values, count, self._identity)
        if self._valid is not None:
            self._valid = grown(self._valid, count, False)
        self._count = count

    def _place(self, slots: Ints, values: npt.NDArray[Any], *, valid: Valid, known: int) -> None:
        """Keep each slot's first or last row. NumPy assigns in order, so that the last assignment stays."""
        if self._rule == "first":
            rows = np.flatnonzero(slots >= known)[::-1]
            slots, values, valid = slots[rows], values[rows], None if valid is None else valid[rows]
        self._values[slots] = values
        if self._valid is not None:
            self._valid[slots] = True if valid is None else valid

    def _reduce(self, slots: Ints, values: npt.NDArray[Any]) -> None:
        if self._rule == "add" and self._values.dtype == np.int64:
            self._check_sums(slots, values)
        with np.errstate(invalid="ignore", over="ignore"):
            self._function.at(self._values, slots, values)

    def _check_sums(self, slots: Ints, values: Ints) -> None:
        """Refuse a sum beyond int64. Costs next to nothing while sums are small against that."""
        if not len(values):
            return
        added = max(-int(values.min()), int(values.max()), 0) * len(values)
        if self._magnitude_max + added > _INT64_MAX:
            present = self._values[: self._count]
            self._magnitude_max = max(-int(present.min()), int(present.max()))
        if self._magnitude_max + added > _INT64_MAX and self._overflows(slots, values):
            raise DataError(
                f"aggregate {self._name!r}: a sum is beyond the range of {self._kind}; "
                "cast the column to double or to decimal(38, 0) before summing"
            )
        self._magnitude_max += added

    def _overflows(self, slots: Ints, values: Ints) -> bool:
        """Whether any sum leaves int64, computed exactly in two halves."""
        high, low = self._values[: self._count] >> 32, self._values[: self._count] & 0xFFFFFFFF
        np.add.at(high, slots, values >> 32)
        np.add.at(low, slots, values & 0xFFFFFFFF)
        high += low >> 32
        return bool(((high < -(1 << 31)) | (high >= 1 << 31)).any())


def _identity_and_function(rule: Rule, dtype: np.dtype[Any]) -> tuple[Any, np.ufunc]:
    """What changes nothing when merged with, and how to merge. NaN is the greatest of numbers, as in Spark."""
    floating = dtype.kind == "f"
    if rule == "min":
        return (dtype.type(np.nan), np.fmin) if floating else (dtype.type(np.iinfo(dtype).max), np.minimum)
    if rule == "max":
        return dtype.type(-np.inf if floating else np.iinfo(dtype).min), np.maximum
    return dtype.type(0), np.add
