"""Files of segments that later checkpoints refer to: always those that the newest completed one names."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa

from tests.states import Shelf
from weir.snapshot.parts import StatePart
from weir.state.columns.segments.rows import SegmentLayout
from weir.state.columns.segments.shelf import ShelfBudget
from weir.state.columns.segments.store import SegmentStore
from weir.state.frozen import KEY_GROUP_COLUMN, FrozenState
from weir.state.place import StatePlace

SCHEMA = pa.schema([(KEY_GROUP_COLUMN, pa.int32()), ("key", pa.int64()), ("value", pa.int64())])
ROWS = pa.record_batch({"key": pa.array([1, 2], pa.int64()), "value": pa.array([10, 20], pa.int64())})


def segments() -> Callable[[], FrozenState]:
    layout = SegmentLayout(ROWS.schema, SCHEMA, max_parallelism=128)
    store = SegmentStore(layout, ShelfBudget(StatePlace()), name="rows")
    store.add([store.new(0, layout.sorted(np.arange(2, dtype=np.uint64), np.arange(2), ROWS))])
    return store.freeze


def paths(part: StatePart) -> list[str]:
    return [file.path for file in part.files.values()]


def test_checkpoints_that_overlapped_leave_the_files_of_the_newest_to_those_that_follow() -> None:
    # With more under way than are retained, the first may be retired, with its files, before a third begins.
    freeze, shelf = segments(), Shelf()

    def written(frozen: FrozenState, checkpoint: int) -> StatePart:
        shelf.prefix = f"{checkpoint}-"
        return frozen.write(shelf)

    first, second = freeze(), freeze()
    parts = written(first, 1), written(second, 2)
    assert paths(parts[0]) != paths(parts[1])
    first.confirmed(parts[0])
    second.confirmed(parts[1])
    assert paths(written(freeze(), 3)) == paths(parts[1])
