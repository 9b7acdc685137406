"""Rows by key: which belong together, in an order that keeps that of each key's own rows.

Comes in: for each row the number of its key. Goes out: rows sorted by it, and where each
key begins. NumPy only.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from weir.state.keys.xxhash64 import Ints


def stable_order(numbers: Ints, count: int) -> Ints | None:
    """The rows by ascending number, which is less than `count`; None: they are in that order already.

    >>> stable_order(np.array([2, 0, 2, 1]), 3)
    array([1, 3, 0, 2])
    """
    if bool((numbers[1:] >= numbers[:-1]).all()):
        return None
    order: Ints = np.argsort(numbers.astype(np.uint16), kind="stable")
    shift = 16
    while count > 1 << shift:
        order = order[np.argsort((numbers[order] >> shift).astype(np.uint16), kind="stable")]
        shift += 16
    return order


@dataclass(frozen=True)
class GroupedRows:
    """Rows whose numbers ascend."""

    numbers: Ints
    """Those that occur, each once."""
    of: Ints
    """For each row, which of them it has."""


def group_sorted(numbers: Ints) -> GroupedRows:
    """The groups of rows in ascending order; there is at least one row."""
    begins = np.empty(len(numbers), np.bool_)
    begins[0] = True
    np.not_equal(numbers[1:], numbers[:-1], out=begins[1:])
    of: Ints = np.cumsum(begins, dtype=np.int64)
    of -= 1
    # Twice as fast as numbers[begins].
    return GroupedRows(numbers.take(np.flatnonzero(begins)), of)
