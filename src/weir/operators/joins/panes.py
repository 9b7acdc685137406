"""The rows of one side of a join that may still be needed, by panes of time.

Comes in: batches. Goes out: segments of sorted rows by pane, for whoever matches them, and
state tables. Behind its time a pane is gone as a whole. Emits nothing by itself.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from weir.errors import CheckpointError
from weir.operators.base import OperatorContext, Restored
from weir.operators.joins.runs import RunLayout
from weir.operators.joins.side import SETTLED, JoinSide
from weir.operators.user_code import operator_label
from weir.operators.windows.event_time import TimeWindows
from weir.state.columns.segments.segment import Segment
from weir.state.columns.segments.shelf import ShelfBudget
from weir.state.columns.segments.store import SegmentStore
from weir.state.frozen import KEY_GROUP_COLUMN
from weir.state.keys.hashing import take_rows
from weir.state.keys.store import Mask
from weir.state.keys.xxhash64 import Ints


class RunPanes:
    """The rows of one side.

    keeps_nulls: whether rows are kept that have a null in their key; they have no partner, but may come out alone
    settles:     whether it is kept of each row if it has come out already; that is its mark
    """

    layout: RunLayout
    store: SegmentStore

    def __init__(
        self, side: JoinSide, panes: TimeWindows, *, is_left: bool, keeps_nulls: bool, settles: bool = False
    ) -> None:
        self.side = side
        self._windows = panes
        self._is_left = is_left
        self._keeps_nulls = keeps_nulls
        self._settles = settles

    def open(self, state: str, context: OperatorContext, *, restored: Restored | None, budget: ShelfBudget) -> None:
        """Get ready, with what a checkpoint holds."""
        self.layout = RunLayout.of(
            self.side,
            self._windows.pane_us_max,
            is_left=self._is_left,
            settles=self._settles,
            max_parallelism=context.max_parallelism,
        )
        self.store = SegmentStore(self.layout.segments, budget, name=state)
        if restored is None or state not in restored.states or self.store.restore(restored.states[state]):
            return
        for table in restored.tables(state):
            check_restored(table.schema, self.layout.segments.table, context)
            for batch in table.to_batches():
                self._take_over(batch)
        self.store.settle()

    def runs_of(self, batch: pa.RecordBatch) -> list[Segment]:
        """New rows as segments, one for each pane; they are not kept yet."""
        whole = None if self._keeps_nulls else self.side.whole_keys(batch)
        if whole is not None:
            batch = take_rows(batch, np.flatnonzero(whole))
        if not batch.num_rows:
            return []
        times = self.side.times(batch)
        panes = self._windows.panes(times)
        if int(panes.min()) == int(panes.max()):
            return [self._segment(batch, times, pane_us=int(panes[0]))]
        parts = _by_pane(panes)
        return [self._segment(take_rows(batch, rows), times[rows], pane_us=pane_us) for pane_us, rows in parts]

    def _segment(self, batch: pa.RecordBatch, times: Ints, *, pane_us: int, settled: Mask | None = None) -> Segment:
        unsorted = self.layout.unsorted(batch, times, pane_us=pane_us)
        order = self.layout.segments.arranged(unsorted.order, times)
        return self.store.new(pane_us, unsorted.take(order), None if settled is None else settled[order])

    def _take_over(self, batch: pa.RecordBatch) -> None:
        if not batch.num_rows:
            return
        rows = batch.select(self.side.schema.names).cast(self.side.schema)
        times = self.side.times(rows)
        flags = batch.column(SETTLED).to_numpy(zero_copy_only=False) if self._settles else None
        for pane_us, picked in _by_pane(self._windows.panes(times)):
            settled = None if flags is None else flags[picked]
            segment = self._segment(take_rows(rows, picked), times[picked], pane_us=pane_us, settled=settled)
            self.store.add([segment])
            self.store.merge([segment])


def _by_pane(panes: Ints) -> Iterator[tuple[int, Ints]]:
    """The numbers of the rows of each pane, in their order."""
    order = np.argsort(panes, kind="stable")
    ordered = panes[order]
    bounds = [0, *(np.flatnonzero(ordered[1:] != ordered[:-1]) + 1).tolist(), len(ordered)]
    for start, stop in itertools.pairwise(bounds):
        yield int(ordered[start]), order[start:stop]


def check_restored(found: pa.Schema, stored: pa.Schema, context: OperatorContext) -> None:
    """CheckpointError when a table of a checkpoint is not what the join keeps."""
    if (verdict := rows_verdict(found, stored)) != "same":
        raise CheckpointError(f"{operator_label(context)}: the checkpoint's state does not fit: {verdict}")


def rows_verdict(found: pa.Schema, stored: pa.Schema) -> str:
    """Whether a table of buffered rows can be restored: "same", or else why not."""
    ours = {field.name: field.type for field in stored if field.name != KEY_GROUP_COLUMN}
    theirs = {field.name: field.type for field in found if field.name != KEY_GROUP_COLUMN}
    if ours == theirs:
        return "same"
    changed = sorted({*ours.items()} ^ {*theirs.items()}, key=lambda item: item[0])
    name = changed[0][0]
    return (
        f"the rows that wait to be joined have {name!r} as {theirs.get(name, 'nothing')} in the checkpoint and as "
        f"{ours.get(name, 'nothing')} in the job; give the join another uid to start afresh"
    )
