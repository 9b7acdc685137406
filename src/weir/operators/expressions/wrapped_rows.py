"""In which rows of a frame integers would wrap around, and do so in what the rows come to.

Comes in: the operations of an expression as a tree, a frame. Goes out: rows, and the error about the first of them.
The least and the greatest operand say whether any result could leave its type; only if so is it worked out in which
rows one does. What a condition throws away does not count: of when/then only the branch that a row takes, of &, | and
their horizontal kin only what the other sides leave open, of coalesce and fill_null only what comes up, of filter only
what is kept. Each part of the tree is looked at once: it tells its rows, and what stands around it picks from these.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from typing import TypeAlias

import numpy as np
import polars as pl

from weir.errors import DataError, ProtocolViolation
from weir.operators.expressions.integer_operations import (
    BINARY,
    Range,
    Rows,
    first_beyond,
    range_in,
    range_of,
    rows_beyond,
)


@dataclass(frozen=True, eq=False)
class Operand:
    """What is computed elsewhere: a column, a constant or the result of a function. To select from a frame takes as
    long as to look at 50,000 numbers, so it is done for the last of these only."""

    expression: pl.Expr
    column: str | None
    constant: Range | None
    inside: Check | None


@dataclass(frozen=True, eq=False)
class Operation:
    expression: pl.Expr
    sign: str
    operands: tuple[Operation | Operand, ...]
    bounds: Range


@dataclass(frozen=True, eq=False)
class Every:
    """Of a function that uses all of its inputs in every row."""

    parts: tuple[Check, ...]


@dataclass(frozen=True, eq=False)
class Branch:
    """Of when/then: the condition counts, and of the branches the one that it picks."""

    condition: pl.Expr
    inside: Check | None
    then: Check | None
    otherwise: Check | None


@dataclass(frozen=True, eq=False)
class Side:
    """One of several inputs, and the operations in it."""

    expression: pl.Expr
    inside: Check | None


@dataclass(frozen=True, eq=False)
class Sides:
    """Of & or |: what is computed on one side counts only where no other decides."""

    sides: tuple[Side, ...]
    deciding: bool
    """What decides: False for &, True for |."""


@dataclass(frozen=True, eq=False)
class Replaced:
    """Of coalesce: what is computed on one side counts only where all before it are null."""

    sides: tuple[Side, ...]


Check: TypeAlias = "Operation | Every | Branch | Sides | Replaced"


class Findings:
    """What is known of one frame. No rows are None."""

    def __init__(self, frame: pl.DataFrame) -> None:
        self._frame = frame
        self._rows: dict[int, Rows | None] = {}
        self._ranges: dict[int, Range | None] = {}
        self._values: dict[int, pl.Series] = {}

    def rows(self, check: Check | None) -> Rows | None:
        """The rows in which something in it leaves its type, and counts."""
        if check is None:
            return None
        if id(check) not in self._rows:
            found = self._look(check)
            self._rows[id(check)] = found if found is not None and found.any() else None
        return self._rows[id(check)]

    def error(self, check: Check, row: int) -> DataError:
        """About the first operation in it that leaves its type in this row."""
        inner: Check | None
        if isinstance(check, Branch) and not _holds(self.rows(check.inside), row):
            taken = self.rows(check.then) if check.otherwise is None else _is(self._selected(check.condition), True)
            inner = check.then if _holds(taken, row) else check.otherwise
        else:
            inner = next((one for one in _inner(check) if _holds(self.rows(one), row)), None)
        if inner is not None:
            return self.error(inner, row)
        if not isinstance(check, Operation):
            raise ProtocolViolation(f"{check}: nothing in it leaves its type in row {row}")
        return self._error_of(check, row)

    def _error_of(self, operation: Operation, row: int) -> DataError:
        sign, bounds = operation.sign, operation.bounds
        columns = [self._column(one) for one in operation.operands]
        here = [column.slice(row if row < len(column) else 0, 1) for column in columns]
        values = first_beyond(sign, here, bounds) or first_beyond(sign, columns, bounds) or ()
        is_infix = sign in BINARY and len(values) == 2
        told = f" {sign} ".join(map(str, values)) if is_infix else f"{sign}({', '.join(map(str, values))})"
        return DataError(
            f"{operation.expression}: {told} is beyond the range of its type, {bounds[0]} to {bounds[1]}; "
            f"cast an operand to pl.Float64, pl.Int64 or pl.Decimal(38, 0) before; to wrap around, use map_batches"
        )

    def _look(self, check: Check) -> Rows | None:
        if isinstance(check, Operation):
            return self._of_operation(check)
        if isinstance(check, Every):
            return reduce(_either, map(self.rows, check.parts))
        if isinstance(check, Branch):
            return self._of_branch(check)
        if isinstance(check, Sides):
            return self._of_sides(check)
        return self._of_replaced(check)

    def _of_operation(self, operation: Operation) -> Rows | None:
        ranges = [self._range(one) for one in operation.operands]
        rows = reduce(_either, map(self.rows, _inner(operation)), None)
        result = range_of(operation.sign, ranges)
        if result is None or (operation.bounds[0] <= result[0] and result[1] <= operation.bounds[1]):
            self._ranges[id(operation)] = result
            return rows
        columns = [self._column(one) for one in operation.operands]
        return _either(rows, rows_beyond(operation.sign, columns, operation.bounds))

    def _of_branch(self, branch: Branch) -> Rows | None:
        then, otherwise = self.rows(branch.then), self.rows(branch.otherwise)
        if then is None and otherwise is None:
            return self.rows(branch.inside)
        taken = _is(self._selected(branch.condition), True)
        picked = _either(_both(then, taken), _both(otherwise, ~taken))
        return _either(self.rows(branch.inside), picked)

    def _of_sides(self, both: Sides) -> Rows | None:
        """A side whose own result cannot be relied on in a row decides nothing there."""
        found = [self.rows(side.inside) for side in both.sides]
        rows = reduce(_either, found)
        if rows is None:
            return None
        for number, (side, own) in enumerate(zip(both.sides, found, strict=True)):
            if any(one is not None for other, one in enumerate(found) if other != number):
                decides = _is(self._truth(side), both.deciding)
                rows = _both(rows, ~decides if own is None else ~decides | own)
        return rows

    def _of_replaced(self, replaced: Replaced) -> Rows | None:
        *before, last = replaced.sides
        rows = self.rows(last.inside)
        for side in reversed(before):
            if rows is not None:
                rows = _both(rows, self._selected(side.expression).is_null().to_numpy())
            rows = _either(self.rows(side.inside), rows)
        return rows

    def _range(self, node: Operation | Operand) -> Range | None:
        """What the values lie between; None: there are none."""
        if isinstance(node, Operation):
            self.rows(node)
        elif node.constant is not None:
            return node.constant
        if id(node) not in self._ranges:
            self._ranges[id(node)] = range_in(self._column(node))
        return self._ranges[id(node)]

    def _column(self, node: Operation | Operand) -> pl.Series:
        if isinstance(node, Operand) and node.column is not None:
            return self._frame.get_column(node.column)
        return self._selected(node.expression)

    def _selected(self, expression: pl.Expr) -> pl.Series:
        if id(expression) not in self._values:
            self._values[id(expression)] = self._frame.select(expression).to_series()
        return self._values[id(expression)]

    def _truth(self, side: Side) -> pl.Series:
        """What a side comes to; of one that has sides itself, from theirs."""
        if not isinstance(side.inside, Sides):
            return self._selected(side.expression)
        if id(side.expression) not in self._values:
            do = pl.Series.__or__ if side.inside.deciding else pl.Series.__and__
            self._values[id(side.expression)] = reduce(do, map(self._truth, side.inside.sides))
        return self._values[id(side.expression)]


def _inner(check: Check) -> list[Check]:
    """The parts of a check, in the order in which they are told."""
    found: list[Check | None]
    if isinstance(check, Operation):
        found = [one if isinstance(one, Operation) else one.inside for one in check.operands]
    elif isinstance(check, Every):
        found = [*check.parts]
    elif isinstance(check, Branch):
        found = [check.inside]
    else:
        found = [side.inside for side in check.sides]
    return [one for one in found if one is not None]


def _is(values: pl.Series, wanted: bool) -> Rows:
    return (values == wanted).fill_null(False).to_numpy()


def _holds(rows: Rows | None, row: int) -> bool:
    return rows is not None and bool(rows[row] if row < len(rows) else rows.any())


def _either(one: Rows | None, other: Rows | None) -> Rows | None:
    if one is None or other is None:
        return other if one is None else one
    return one | other if _fit(one, other) else np.array([one.any() or other.any()])


def _both(one: Rows | None, other: Rows) -> Rows | None:
    if one is None:
        return None
    return one & other if _fit(one, other) else np.array([one.any()])


def _fit(one: Rows, other: Rows) -> bool:
    """Of an expression that changes the number of rows, some parts have other rows than the rest."""
    return len(one) == len(other) or 1 in (len(one), len(other))
