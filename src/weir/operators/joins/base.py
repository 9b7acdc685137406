"""What joins have in common that keep rows of both sides: two inputs, late rows, snapshots.

Comes in: rows of the left side at input 0, of the right side at input 1. Goes out: to the
join itself, new rows in sorted segments, a flush at a time; and late rows to side outputs.
Never decides which rows belong together.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from weir.errors import DataError, PlanError, ProtocolViolation
from weir.operators.aggregates.state import BATCH_ROWS_MAX
from weir.operators.base import Course, Emit, Frozen, OperatorContext, PiecewiseOperator, Restored
from weir.operators.joins.panes import RunPanes
from weir.operators.joins.side import JoinSide, gathered
from weir.operators.user_code import operator_label
from weir.snapshot.parts import Progress
from weir.snapshot.watermarks import NEVER_US
from weir.state.columns.segments.segment import Segment
from weir.state.columns.segments.shelf import ShelfBudget
from weir.state.keys.hashing import take_rows
from weir.state.keys.store import Mask
from weir.state.keys.xxhash64 import Ints
from weir.state.pieces import run_through

LEFT, RIGHT = "left", "right"
"""The names of the state tables."""

Late = tuple[str | None, str | None]
"""The tags of side outputs for late rows of the left and of the right side; None: they are left out."""


class Half:
    """One side: the rows that are kept, and those that have just come."""

    def __init__(self, panes: RunPanes, *, late: str | None = None) -> None:
        self.panes = panes
        self.late = late
        self._waiting: list[pa.RecordBatch] = []
        self.waiting_rows = 0

    def add(self, batch: pa.RecordBatch) -> None:
        if batch.num_rows:
            self._waiting.append(batch)
            self.waiting_rows += batch.num_rows

    def take(self) -> list[Segment]:
        """What has just come, as segments."""
        batches, self._waiting, self.waiting_rows = self._waiting, [], 0
        return self.panes.runs_of(gathered(batches)) if batches else []


class BufferedJoin(PiecewiseOperator):
    """Keeps rows of both sides until the watermark says that nobody needs them."""

    def __init__(self, left: Half, right: Half) -> None:
        self._left, self._right = self._halves = left, right
        self._watermark_us = NEVER_US
        self.rows_late = 0

    def open(self, context: OperatorContext, restored: Restored | None) -> None:
        self._context = context
        if restored is not None:
            self._watermark_us, self.rows_late = restored_progress(restored, context)
        budget = ShelfBudget(context.place)
        for state, half in zip((LEFT, RIGHT), self._halves, strict=True):
            half.panes.open(state, context, restored=restored, budget=budget)

    def process(self, batch: pa.RecordBatch, out: Emit) -> None:
        self.process_from(0, batch, out)

    def process_from(self, input_number: int, batch: pa.RecordBatch, out: Emit) -> None:
        if not batch.num_rows:
            return
        half = self._halves[input_number]
        late = self._late(row_times(half.panes.side, batch, self._context))
        if late is not None:
            rows = np.flatnonzero(late)
            self.rows_late += len(rows)
            if half.late is not None and (side := self.sides.get(half.late)) is not None:
                side(take_rows(batch, rows))
            batch = take_rows(batch, np.flatnonzero(~late))
        half.add(batch)
        if half.waiting_rows >= BATCH_ROWS_MAX:
            self._leave(self.flushing(out))

    def flush(self, out: Emit) -> None:
        """Join, or keep, what has come since the last time."""
        run_through(self._joining(out))

    def flushing(self, out: Emit) -> Course:
        yield from self._joining(out)
        yield from self._catching_up()
        return None

    def _joining(self, out: Emit) -> Course:
        yield from self._catching_up()
        if self._left.waiting_rows or self._right.waiting_rows:
            new_left, new_right = self._left.take(), self._right.take()
            yield
            yield from self._take(new_left, new_right, out)
            self._leave(self._merging(new_left, new_right))
        return None

    def _merging(self, new_left: Sequence[Segment], new_right: Sequence[Segment]) -> Course:
        yield from self._left.panes.store.merging(new_left)
        yield from self._right.panes.store.merging(new_right)
        return None

    def freeze(self) -> Frozen:
        self._catch_up()
        if any(half.waiting_rows for half in self._halves):
            raise ProtocolViolation(f"{operator_label(self._context)}: a snapshot without a flush before it")
        states = {state: half.panes.store.freeze() for state, half in zip((LEFT, RIGHT), self._halves, strict=True)}
        return Frozen(Progress(self._watermark_us, self.rows_late), states)

    def _late(self, times: Ints) -> Mask | None:
        """Which rows come too late; None: none does."""
        return times < self._watermark_us if int(times.min()) < self._watermark_us else None

    def _take(self, new_left: Sequence[Segment], new_right: Sequence[Segment], out: Emit) -> Course:
        """Add new rows to the panes."""
        raise NotImplementedError(type(self).__name__)


def late_sides(left: JoinSide, right: JoinSide, late: Late) -> dict[str, pa.Schema]:
    """The schemas of the side outputs for late rows."""
    if late[0] is not None and late[0] == late[1]:
        raise PlanError(f"late rows of both sides cannot go to one side output {late[0]!r}; give two tags")
    sides = zip(late, (left, right), strict=True)
    return {tag: side.schema for tag, side in sides if tag is not None}


def row_times(side: JoinSide, batch: pa.RecordBatch, context: OperatorContext) -> Ints:
    """The rows' times, or DataError with the operator's name."""
    try:
        return side.times(batch)
    except DataError as error:
        raise DataError(f"{operator_label(context)}: {error.message}") from None


def restored_progress(restored: Restored, context: OperatorContext) -> tuple[int, int]:
    """The watermark, and how many rows were late before."""
    return restored.watermark_us, sum(
        own.rows_late for own in restored.inline_for(context.index, context.parallelism, Progress)
    )
