"""The as-of join: each row with the version of another stream's row that held at its time.

Comes in: rows of the left side at input 0, versions at input 1. Goes out: each left row, once
the watermark has passed its time, with the newest version of its key at or before that.
State: left rows that wait for the watermark, and the versions that later ones may ask for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from weir.errors import PlanError, ProtocolViolation
from weir.operators.aggregates.state import BATCH_ROWS_MAX
from weir.operators.base import Course, Emit, Frozen, OperatorContext, OperatorSpec, PiecewiseOperator, Restored
from weir.operators.joins.base import LEFT, RIGHT, Half, restored_progress, row_times
from weir.operators.joins.output import JoinLayout, Pieces
from weir.operators.joins.panes import RunPanes, rows_verdict
from weir.operators.joins.side import gathered
from weir.operators.joins.versions import Versions
from weir.operators.user_code import operator_label
from weir.operators.windows.event_time import AlignedWindows
from weir.snapshot.parts import Progress
from weir.snapshot.watermarks import NEVER_US
from weir.state.columns.segments.segment import Segment
from weir.state.columns.segments.shelf import ShelfBudget
from weir.state.keys.hashing import take_rows
from weir.state.keys.xxhash64 import Ints

PANE_US = 5_000_000
"""Left rows wait by panes of this length, which are dropped as a whole."""


@dataclass(frozen=True, eq=False)
class AsOfJoin(OperatorSpec):
    """`late`: the tag of a side output for late rows of the left side; None: they are left out."""

    of: JoinLayout
    late: str | None = None

    def schema(self, inputs: Sequence[pa.Schema]) -> pa.Schema:
        if self.of.how not in ("left", "inner"):
            raise PlanError(f"how={self.of.how!r}: an as-of join is 'left' (every left row comes out) or 'inner'")
        self.of.check()
        return self.of.output

    def sides(self, inputs: Sequence[pa.Schema]) -> Mapping[str, pa.Schema]:
        return {} if self.late is None else {self.late: self.of.left.schema}

    def make(self) -> AsOfJoinOperator:
        return AsOfJoinOperator(self)

    @property
    def states(self) -> tuple[str, ...]:
        return (LEFT, RIGHT)

    def verdict(self, state: str, stored: pa.Schema) -> str:
        return rows_verdict(stored, (self.of.left if state == LEFT else self.of.right).stored)


class AsOfJoinOperator(PiecewiseOperator):
    """Left rows wait; versions stay."""

    def __init__(self, spec: AsOfJoin) -> None:
        self._layout = of = spec.of
        panes = AlignedWindows(PANE_US, PANE_US)
        self._left = Half(RunPanes(of.left, panes, is_left=True, keeps_nulls=of.keeps_left), late=spec.late)
        self._versions = Versions(of.right)
        self._changes: list[pa.RecordBatch] = []
        self._changed_rows = 0
        self._watermark_us = NEVER_US
        self.rows_late = 0

    def open(self, context: OperatorContext, restored: Restored | None) -> None:
        self._context = context
        if restored is not None:
            self._watermark_us, self.rows_late = restored_progress(restored, context)
        budget = ShelfBudget(context.place)
        self._left.panes.open(LEFT, context, restored=restored, budget=budget)
        self._versions.open(RIGHT, context, restored=restored, budget=budget, watermark_us=self._watermark_us)

    def process(self, batch: pa.RecordBatch, out: Emit) -> None:
        if not batch.num_rows:
            return
        times = row_times(self._layout.left, batch, self._context)
        if int(times.min()) < self._watermark_us:
            late = np.flatnonzero(times < self._watermark_us)
            self.rows_late += len(late)
            if self._left.late is not None and (side := self.sides.get(self._left.late)) is not None:
                side(take_rows(batch, late))
            batch = take_rows(batch, np.flatnonzero(times >= self._watermark_us))
        self._left.add(batch)
        if self._left.waiting_rows >= BATCH_ROWS_MAX:
            self.flush(out)

    def process_from(self, input_number: int, batch: pa.RecordBatch, out: Emit) -> None:
        if input_number == 0 or not batch.num_rows:
            self.process(batch, out)
            return
        # A version that comes late has not held for rows that are out already, but it does for those to come.
        times = row_times(self._layout.right, batch, self._context)
        self.rows_late += int(np.count_nonzero(times < self._watermark_us))
        self._changes.append(batch)
        self._changed_rows += batch.num_rows
        if self._changed_rows >= BATCH_ROWS_MAX:
            self.flush(out)

    def flush(self, out: Emit) -> None:
        """Keep what has come since the last time."""
        self._catch_up()
        new = self._left.take()
        self._left.panes.store.add(new)
        changes, self._changes, self._changed_rows = self._changes, [], 0
        versions = self._versions.add(gathered(changes), watermark_us=self._watermark_us) if changes else ()
        if new or versions:
            self._leave(self._merging(new, versions))

    def advance(self, time_us: int, out: Emit) -> Course:
        yield from self.flushing(out)
        before_us, self._watermark_us = self._watermark_us, max(self._watermark_us, time_us)
        pieces = Pieces(out)
        for run in list(self._left.panes.store.between(before_us, self._watermark_us - 1)):
            due = np.flatnonzero((run.times >= before_us) & (run.times < self._watermark_us))
            for start in range(0, len(due), BATCH_ROWS_MAX):
                rows = due[start : start + BATCH_ROWS_MAX]
                yield from self._emit(take_rows(run.batch, rows), run.times[rows], pieces)
        pieces.flush()
        self._left.panes.store.drop_before(self._watermark_us)
        self._versions.drop_replaced(self._watermark_us)
        return time_us

    def _merging(self, new: Sequence[Segment], versions: Sequence[Segment]) -> Course:
        yield from self._left.panes.store.merging(new)
        yield from self._versions.store.merging(versions)
        return None

    def freeze(self) -> Frozen:
        self._catch_up()
        if self._left.waiting_rows or self._changes:
            raise ProtocolViolation(f"{operator_label(self._context)}: a snapshot without a flush before it")
        states = {
            LEFT: self._left.panes.store.freeze(),
            RIGHT: self._versions.store.freeze(),
        }
        return Frozen(Progress(self._watermark_us, self.rows_late), states)

    def _emit(self, batch: pa.RecordBatch, times: Ints, pieces: Pieces) -> Course:
        alone = np.ones(batch.num_rows, np.bool_)
        for found in self._versions.find(batch, self._layout.left, times):
            yield
            if found is None:
                continue
            alone[found.rows] = False
            pieces.add(self._layout.rows(take_rows(batch, found.rows), found.versions, ()))
        if self._layout.keeps_left and alone.any():
            pieces.add(self._layout.rows(take_rows(batch, np.flatnonzero(alone)), None, ()))
        yield
        return None
