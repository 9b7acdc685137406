"""The aggregates that users name: count, sum, min, max, avg, first, last, and their own.

Comes in: the name of a column, or a Polars expression over the columns of a row.
Goes out: a frozen, picklable `Aggregate`. Nothing is computed here.
"""

from __future__ import annotations

from weir.operators.aggregate_base import Aggregate, Input
from weir.operators.builtin_aggregates import Average, Chosen, Count, Extreme, Sum
from weir.operators.custom_aggregates import aggregate

__all__ = ["Aggregate", "aggregate", "avg", "count", "first", "last", "max", "min", "sum"]


def count(column: Input | None = None) -> Aggregate:
    """How many rows, or how many with a value in this column."""
    return Count(column)


def sum(column: Input) -> Aggregate:
    """The sum without nulls; null where there is nothing else. A sum of integers beyond int64 is an error."""
    return Sum(column)


def min(column: Input) -> Aggregate:
    """The least value without nulls. NaN is greater than any other number."""
    return Extreme(column, "min")


def max(column: Input) -> Aggregate:
    """The greatest value without nulls. NaN is greater than any other number."""
    return Extreme(column, "max")


def avg(column: Input) -> Aggregate:
    """The mean without nulls, as a double."""
    return Average(column)


def first(column: Input) -> Aggregate:
    """The value of the row that came first, be it null."""
    return Chosen(column, "first")


def last(column: Input) -> Aggregate:
    """The value of the row that came last, be it null."""
    return Chosen(column, "last")
