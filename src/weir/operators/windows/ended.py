"""Keys of which a session has ended: told by the last row of it, without a look at the others.

Comes in: rows by key and time, and the stretch of time in which the last row of a session
lies. Goes out: keys. Changes nothing.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from weir.operators.windows.buffer import RowBuffer
from weir.operators.windows.pieces import Mask, same_keys
from weir.state.columns.segments.segment import Segment
from weir.state.keys.hashing import take_rows
from weir.state.keys.xxhash64 import Ints, Words


def ended_keys(buffer: RowBuffer, first_us: int, last_us: int, *, gap_us: int) -> Words:
    """The orders of keys that have a row between these times, both included, and no later one within the gap. They
    ascend. Where two keys have one order, it is among them if in doubt."""
    segments = [s for s in buffer.store.between(first_us, last_us) if len(s)]
    found = [(s, _inside(s, first_us, last_us)) for s in segments]
    found = [(segment, rows) for segment, rows in found if len(rows)]
    if not found:
        return np.empty(0, np.uint64)
    orders = np.concatenate([segment.order[rows] for segment, rows in found])
    times = np.concatenate([segment.times[rows] for segment, rows in found])
    keys = pa.Table.from_batches([_keys(buffer, segment, rows) for segment, rows in found]).combine_chunks()
    sorting = np.lexsort((times, orders))
    ordered, timed = orders[sorting], times[sorting]
    is_last = np.append(ordered[1:] != ordered[:-1], True)
    inner = np.flatnonzero(~is_last)
    # Between two of these rows there is no other; where two keys have one order, it is not known whose is the next.
    ends = (timed[inner + 1] - timed[inner] >= gap_us) | _differ(keys, sorting, inner)
    sure = ordered[inner[ends]]
    last = sorting[is_last]
    orders, times, whose = orders[last], times[last], keys.take(pa.array(last)).combine_chunks().to_batches()[0]
    goes_on = np.zeros(len(orders), np.bool_)
    for segment in buffer.store.between(int(times.min()) + 1, int(times.max()) + gap_us - 1):
        rows, followers = _followers(segment, orders, times, gap_us=gap_us)
        if len(rows):
            goes_on[rows[_of_same_key(whose, rows, _keys(buffer, segment, followers))]] = True
    ended: Words = orders[~goes_on | np.isin(orders, sure)]
    return ended


def _inside(segment: Segment, first_us: int, last_us: int) -> Ints:
    times, gone = segment.times, segment.marks.bits
    inside = (times >= first_us) & (times <= last_us)
    return np.flatnonzero(inside if gone is None else inside & ~gone)


def _keys(buffer: RowBuffer, segment: Segment, rows: Ints) -> pa.RecordBatch:
    columns = buffer.layout.key_columns(segment.batch)
    names = [str(number) for number in range(len(columns))]
    return take_rows(pa.RecordBatch.from_arrays(columns, names), rows)


def _differ(keys: pa.Table, sorting: Ints, places: Ints) -> Mask:
    """Where a row is followed by one of another key."""
    (batch,) = keys.to_batches()
    return ~same_keys(batch.columns, sorting[places], sorting[places + 1])


def _followers(segment: Segment, orders: Words, times: Ints, *, gap_us: int) -> tuple[Ints, Ints]:
    """The keys that have a later row in a segment, less than the gap behind their time; and where that is."""
    first, stop = np.searchsorted(segment.order, orders), np.searchsorted(segment.order, orders, side="right")
    ends = stop.copy()
    for _ in range(int((stop - first).max(initial=0)).bit_length()):
        middle = (first + stop) >> 1
        inside = first < stop
        earlier = inside & (segment.times.take(middle, mode="clip") <= times)
        first, stop = np.where(earlier, middle + 1, first), np.where(inside & ~earlier, middle, stop)
    rows = np.flatnonzero(first < ends)
    rows = rows[segment.times[first[rows]] - times[rows] < gap_us]
    return rows, first[rows]


def _of_same_key(whose: pa.RecordBatch, rows: Ints, others: pa.RecordBatch) -> Ints:
    both = pa.Table.from_batches([take_rows(whose, rows), others]).combine_chunks().to_batches()[0]
    numbers = np.arange(len(rows))
    return np.flatnonzero(same_keys(both.columns, numbers, numbers + len(rows)))
