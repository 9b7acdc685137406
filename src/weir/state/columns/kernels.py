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

from weir.errors import DataError, ProtocolViolation
from weir.state.columns.exact_sums import INT64_MAX, add_exactly, leaves_int64, magnitude
from weir.state.columns.growing import grown
from weir.state.keys.columns import Valid, build_fixed, fixed_values, numpy_type, valid_rows
from weir.state.keys.xxhash64 import Ints

Rule: TypeAlias = Literal["add", "min", "max", "first", "last", "earliest", "latest"]
"""How two accumulators become one. Earliest and latest: the one with the least or the greatest number, which is in the
column behind it."""

_CAPACITY_MIN = 1_024
_NOTHING = (0, 0, 0, 0)


class Kernel(ABC):
    """The accumulators of one aggregate, by slot."""

    @abstractmethod
    def merge(self, slots: Ints, accumulators: Sequence[pa.Array], *, count: int) -> None:
        """Merge one accumulator per row into its slot. There are `count` slots by now: the new ones are among `slots`.

        Rows of one slot are merged in their order.
        """

    @abstractmethod
    def read(self, slots: Ints) -> list[pa.Array]:
        """The accumulators of these slots, as copies. DataError when a sum among them is beyond its type: what is added
        up may be so in passing, and must not be when it is shown, sent or kept."""

    @property
    def adds_numbers(self) -> bool:
        """Whether there are sums that may leave their type."""
        return False

    @property
    def rules(self) -> Sequence[Rule] | None:
        """How each accumulator is merged; None: not by a rule of its own."""
        return None

    @property
    @abstractmethod
    def size_bytes(self) -> int:
        """What it takes in memory, about."""

    def show_every_row(self) -> None:
        """What each row comes to is shown: no sum may be beyond its type in passing either."""

    def can_combine(self, accumulators: Sequence[pa.Array]) -> bool:
        """Whether these may be merged with what is here before they are sent on: whoever gets the sum of several rows
        cannot tell any more where it was in between."""
        return True

    def pour(self, slots: Ints, target: Kernel, into: Ints, *, count: int) -> None:
        """Merge slots into those of another kernel of the same aggregate, or of this one, in passing."""
        target.merge(into, self.read(slots), count=count)

    def make_room(self, count: int) -> None:
        """There will be about so many slots: room that takes no memory until it is used, where there is such."""

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

    @property
    def adds_numbers(self) -> bool:
        return any(column.adds_integers for column in self._columns)

    @property
    def rules(self) -> Sequence[Rule] | None:
        return [column.rule for column in self._columns]

    @property
    def size_bytes(self) -> int:
        return sum(column.size_bytes for column in self._columns)

    def show_every_row(self) -> None:
        for column in self._columns:
            column.shows_every_row = True

    def can_combine(self, accumulators: Sequence[pa.Array]) -> bool:
        return all(column.can_combine(array) for column, array in zip(self._columns, accumulators, strict=True))

    def pour(self, slots: Ints, target: Kernel, into: Ints, *, count: int) -> None:
        if not isinstance(target, FixedKernel):
            raise ProtocolViolation(f"accumulators of one kind are merged into those of another: {target!r}")
        for column, other in zip(self._columns, target._columns, strict=True):
            column.pour(slots, other, into, count)

    def make_room(self, count: int) -> None:
        for column in self._columns:
            column.make_room(count)

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
        self.rule: Rule = rule
        self._name = name
        self._identity, self._function = _identity_and_function(rule, numpy_type(kind))
        self._count = 0
        self._values: npt.NDArray[Any] = np.full(_CAPACITY_MIN, self._identity)
        self._valid: Valid = None
        self.adds_integers = rule == "add" and self._values.dtype == np.int64
        self._magnitude_max = 0
        """No sum is further from zero than this."""
        self._carry: Ints | None = None
        """While there are sums beyond int64: by slot, how often 2**64 is to be added."""
        self._has_signs = [False, False]
        """Whether a value was negative, and whether one was positive, since the column was empty."""
        self.shows_every_row = False
        self._looked_at = _NOTHING
        """The rows that may be merged next: their address, their number, the least and the greatest."""

    @property
    def size_bytes(self) -> int:
        return sum(array.nbytes for array in (self._values, self._valid, self._carry) if array is not None)

    def merge(self, slots: Ints, array: pa.Array, count: int) -> None:
        known = self._count
        self._grow(count)
        values, valid = fixed_values(array), valid_rows(array)
        if valid is not None and self._valid is None:
            self._valid = np.zeros(len(self._values), np.bool_)
            self._valid[:known] = True
        if self.rule in ("first", "last"):
            self._place(slots, values, valid=valid, known=known)
            return
        if valid is not None:
            rows = np.flatnonzero(valid)
            slots, values = slots[rows], values[rows]
        if self._valid is not None:
            self._valid[slots] = True
        self._reduce(slots, values)

    def read(self, slots: Ints) -> pa.Array:
        if self._carry is not None and self._carry[slots].any():
            raise self._beyond()
        return self._array(slots)

    def _array(self, slots: Ints) -> pa.Array:
        return build_fixed(self._values[slots], None if self._valid is None else self._valid[slots], self._kind)

    def can_combine(self, array: pa.Array) -> bool:
        if not self.adds_integers:
            return True
        values = fixed_values(array.drop_null() if array.null_count else array)
        if not len(values):
            return True
        least, greatest = int(values.min()), int(values.max())
        self._looked_at = values.ctypes.data, len(values), least, greatest
        if self._magnitude_max + max(-least, greatest) * len(values) > INT64_MAX:
            return False
        has_negative, has_positive = self._has_signs[0] or least < 0, self._has_signs[1] or greatest > 0
        # Sums that only rise, or only fall, are furthest from zero at their ends.
        return not (self.shows_every_row and has_negative and has_positive)

    def pour(self, slots: Ints, other: _SlotColumn, into: Ints, count: int) -> None:
        carry = None if self._carry is None else self._carry[slots]
        other.merge(into, self._array(slots), count)
        if carry is not None and carry.any():
            np.add.at(other._keep_carry(), into, carry)

    def clear(self) -> None:
        self._values[: self._count] = self._identity
        self._valid = self._carry = None
        self._has_signs = [False, False]
        self._count = self._magnitude_max = 0

    def make_room(self, count: int) -> None:
        if self._identity == 0 and not self._count:  # else all of it would have to be written
            self._values = np.zeros(max(count, _CAPACITY_MIN), self._values.dtype)

    def _grow(self, count: int) -> None:
        self._values = grown(self._values, count, self._identity)
        if self._valid is not None:
            self._valid = grown(self._valid, count, False)
        if self._carry is not None:
            self._carry = grown(self._carry, len(self._values), 0)
        self._count = count

    def _place(self, slots: Ints, values: npt.NDArray[Any], *, valid: Valid, known: int) -> None:
        """Keep each slot's first or last row. NumPy assigns in order, so that the last assignment stays."""
        if self.rule == "first":
            rows = np.flatnonzero(slots >= known)[::-1]
            slots, values, valid = slots[rows], values[rows], None if valid is None else valid[rows]
        self._values[slots] = values
        if self._valid is not None:
            self._valid[slots] = True if valid is None else valid

    def _reduce(self, slots: Ints, values: npt.NDArray[Any]) -> None:
        if self.adds_integers and len(values) and not self._is_safe(values):
            self._add_exactly(slots, values)
            return
        with np.errstate(invalid="ignore", over="ignore"):
            self._function.at(self._values, slots, values)

    def _is_safe(self, values: Ints) -> bool:
        """Whether no sum can leave int64. Costs next to nothing while sums are small against that."""
        least, greatest = self._ends_of(values)
        self._has_signs = [self._has_signs[0] or least < 0, self._has_signs[1] or greatest > 0]
        added = max(-least, greatest) * len(values)
        if self._magnitude_max + added > INT64_MAX and self._carry is None:
            self._magnitude_max = magnitude(self._values[: self._count])
        if self._carry is not None or self._magnitude_max + added > INT64_MAX:
            return False
        self._magnitude_max += added
        return True

    def _ends_of(self, values: Ints) -> tuple[int, int]:
        """The least and the greatest; known already if the same rows were just asked for."""
        address, count, least, greatest = self._looked_at
        self._looked_at = _NOTHING
        if address == values.ctypes.data and count == len(values):
            return least, greatest
        return int(values.min()), int(values.max())

    def _add_exactly(self, slots: Ints, values: Ints) -> None:
        if self.shows_every_row and leaves_int64(self._values[: self._count], slots, values):
            raise self._beyond()
        carry = self._keep_carry()
        add_exactly(self._values[: self._count], carry[: self._count], slots, values)
        if not carry.any():
            self._carry = None
            self._magnitude_max = magnitude(self._values[: self._count])

    def _keep_carry(self) -> Ints:
        if self._carry is None:
            self._carry = np.zeros(len(self._values), np.int64)
        return self._carry

    def _beyond(self) -> DataError:
        return DataError(
            f"aggregate {self._name!r}: a sum is beyond the range of {self._kind}; "
            "cast the column to double or to decimal(38, 0) before summing"
        )


def _identity_and_function(rule: Rule, dtype: np.dtype[Any]) -> tuple[Any, np.ufunc]:
    """What changes nothing when merged with, and how to merge. NaN is the greatest of numbers, as in Spark."""
    floating = dtype.kind == "f"
    if rule == "min":
        return (dtype.type(np.nan), np.fmin) if floating else (dtype.type(np.iinfo(dtype).max), np.minimum)
    if rule == "max":
        return dtype.type(-np.inf if floating else np.iinfo(dtype).min), np.maximum
    return dtype.type(0), np.add
