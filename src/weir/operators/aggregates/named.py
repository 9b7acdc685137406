"""The aggregates that users name: count, sum, min, max, avg, first, last, top, and their own.

Comes in: the name of a column, or a Polars expression over the columns of a row.
Goes out: a frozen, picklable `Aggregate`. Nothing is computed here.
"""

from __future__ import annotations

from collections.abc import Sequence

from weir.operators.aggregates.base import Aggregate, Input
from weir.operators.aggregates.builtin import Average, Count, Extreme, Sum
from weir.operators.aggregates.chosen import Chosen
from weir.operators.aggregates.custom import aggregate
from weir.operators.aggregates.top import Top

__all__ = ["Aggregate", "aggregate", "avg", "count", "first", "last", "max", "min", "sum", "top"]


def count(column: Input | None = None) -> Aggregate:
    """How many rows, or how many with a value in this column."""
    return Count(column)


def sum(column: Input) -> Aggregate:
    """The sum without nulls; null where there is nothing else. A sum of integers beyond int64 is an error. The last
    digits of a sum of floats depend on how rows came together; integers and decimals are exact."""
    return Sum(column)


def min(column: Input) -> Aggregate:
    """The least value without nulls. NaN is greater than any other number."""
    return Extreme(column, "min")


def max(column: Input) -> Aggregate:
    """The greatest value without nulls. NaN is greater than any other number."""
    return Extreme(column, "max")


def avg(column: Input) -> Aggregate:
    """The mean without nulls, as a double. Its last digits may depend on how rows came together."""
    return Average(column)


def first(column: Input) -> Aggregate:
    """The value of the row that came first, be it null."""
    return Chosen(column, "first")


def last(column: Input) -> Aggregate:
    """The value of the row that came last, be it null."""
    return Chosen(column, "last")


def top(
    count: int,
    *,
    by: str | Sequence[str],
    columns: Sequence[str] | None = None,
    reverse: bool | Sequence[bool] = False,
    ties: bool = False,
) -> Aggregate:
    """The rows with the greatest values in the columns `by`, as a list of structs, the greatest first.

    columns: what to keep of the rows; None: all columns
    reverse: the least instead; or for each column of `by` whether the least come first
    ties:    also the rows that are equal to the last of them by `by`; otherwise those that came first are kept

    A null is less than anything else.

    >>> import weir
    >>> bids = weir.Environment().from_collection([(1, 7, 250)], "auction long, bidder long, price long")
    >>> bids.key_by("auction").agg(best=weir.top(10, by="price", columns=["bidder", "price"]))
    Stream[auction bigint, best array<struct<bidder:bigint,price:bigint>>]
    """
    names = (by,) if isinstance(by, str) else tuple(by)
    reversed_ = (reverse,) * len(names) if isinstance(reverse, bool) else tuple(reverse)
    return Top(count, names, None if columns is None else tuple(columns), reversed_, ties)
