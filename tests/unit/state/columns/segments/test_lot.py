"""Heads on their way into segments: what is held, and for how long."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from weir.state.columns.segments.lot import Lot
from weir.state.columns.segments.rows import SegmentLayout, SortedRows
from weir.state.columns.segments.segment import Segment
from weir.state.columns.segments.shelf import ShelfBudget
from weir.state.columns.segments.store import SegmentStore
from weir.state.place import StatePlace

COLUMNS = pa.schema([("key", pa.int64())])
STORED = pa.schema([("key_group", pa.int32()), *COLUMNS])


class Head:
    """Refers to its lot, and the lot to it."""

    def __init__(self, store: SegmentStore) -> None:
        self.made: list[Segment] = []
        self.lot: Lot = store.seal(self.rows, self._made)

    def rows(self) -> Iterator[tuple[int, SortedRows]]:
        for bucket_us in (0, 10):
            batch = pa.RecordBatch.from_arrays([pa.array([bucket_us])], schema=COLUMNS)
            yield bucket_us, SortedRows(np.array([1], np.uint64), np.array([bucket_us]), batch)

    def _made(self, segment: Segment) -> None:
        self.made.append(segment)


def test_a_head_is_let_go_of_when_its_segments_are_made_without_the_collector() -> None:
    layout = SegmentLayout(COLUMNS, STORED, max_parallelism=128, by_time=False)
    store = SegmentStore(layout, ShelfBudget(StatePlace()), name="state")
    head = Head(store)
    seen = weakref.ref(head)
    gc.disable()
    try:
        assert len(head.lot.runs()) == 2 and len(head.made) == 2
        del head
        store.adopt()
        assert seen() is None
    finally:
        gc.enable()
    assert sorted(store) == [0, 10]
