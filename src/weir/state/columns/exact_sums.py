"""Sums of 64-bit integers that are exact beyond 64 bits.

Comes in: values and the slot, or the key, that each belongs to. Goes out: whether a sum leaves int64 at any row,
or what all rows come to in two limbs. NumPy only; callers ask only where a cheap bound does not rule it out.

A number is split into halves of 32 bits, which can be added up two billion times before they overflow.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from weir.state.columns.key_order import stable_order
from weir.state.keys.xxhash64 import Ints

INT64_MAX = (1 << 63) - 1
_HALF = 32
_LOW = (1 << _HALF) - 1


def magnitude(values: Ints) -> int:
    """The greatest distance from zero; 0 without values."""
    return max(-int(values.min()), int(values.max()), 0) if len(values) else 0


def add_exactly(sums: Ints, carries: Ints, slots: Ints, values: Ints) -> None:
    """Add values to sums. A sum is `sums + carries * 2**64`."""
    high, low = sums >> _HALF, sums & _LOW
    np.add.at(high, slots, values >> _HALF)
    np.add.at(low, slots, values & _LOW)
    high += low >> _HALF
    low &= _LOW
    kept = ((high + (1 << (_HALF - 1))) & _LOW) - (1 << (_HALF - 1))
    carries += (high - kept) >> _HALF
    sums[:] = (kept << _HALF) | low


def leaves_int64(sums: Ints, slots: Ints, values: Ints) -> bool:
    """Whether adding the values one after the other takes a sum out of range, be it for one row only."""
    order = stable_order(slots, len(sums))
    if order is not None:
        slots, values = slots[order], values[order]
    begins = np.ones(len(slots), np.bool_)
    np.not_equal(slots[1:], slots[:-1], out=begins[1:])
    starts = np.flatnonzero(begins)
    counts = np.diff(starts, append=len(slots))
    before = sums[slots[starts]]
    high = _running(values >> _HALF, starts, counts, before >> _HALF)
    low = _running(values & _LOW, starts, counts, before & _LOW)
    return bool(_are_out(high + (low >> _HALF)).any())


def _running(values: Ints, starts: Ints, counts: Ints, before: Ints) -> Ints:
    """The sum up to each row of those of its slot, on top of what was before."""
    so_far: Ints = np.cumsum(values)
    so_far += np.repeat(before - (so_far[starts] - values[starts]), counts)
    return so_far


def _are_out(high: Ints) -> npt.NDArray[np.bool_]:
    return (high < -(1 << (_HALF - 1))) | (high >= 1 << (_HALF - 1))
