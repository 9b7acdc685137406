"""Joins by windows: rows of two streams with the same key in the same window of event time.

Comes in: rows of the left side at input 0, of the right side at input 1. Goes out, once the
watermark has passed a window's end: its pairs, and with an outer join its rows without a
partner. State: the rows of both sides by panes, which windows that overlap share. The time
of a result is its window's last instant.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from weir.operators.base import Course, Emit, OperatorSpec
from weir.operators.joins.base import LEFT, RIGHT, BufferedJoin, Half, Late, late_sides
from weir.operators.joins.output import JoinLayout, Pieces
from weir.operators.joins.panes import RunPanes, rows_verdict
from weir.operators.joins.runs import matches
from weir.operators.joins.side import JoinSide
from weir.operators.windows.definition import END, START
from weir.operators.windows.event_time import TimeWindows
from weir.snapshot.watermarks import NEVER_US
from weir.state.columns.segments.segment import Segment
from weir.state.keys.hashing import take_rows
from weir.state.keys.store import Mask
from weir.state.keys.xxhash64 import Ints


def window_fields(side: JoinSide) -> list[pa.Field]:
    """The columns with a window's bounds, in the time zone of a side."""
    kind = pa.timestamp("us", side.schema.field(side.time).type.tz)
    return [pa.field(START, kind), pa.field(END, kind)]


@dataclass(frozen=True, eq=False)
class WindowJoin(OperatorSpec):
    """The pairs of each window."""

    of: JoinLayout
    windows: TimeWindows
    late: Late = (None, None)
    lateness_us: int = 0

    def schema(self, inputs: Sequence[pa.Schema]) -> pa.Schema:
        self.of.check()
        return self.of.output

    def sides(self, inputs: Sequence[pa.Schema]) -> Mapping[str, pa.Schema]:
        return late_sides(self.of.left, self.of.right, self.late)

    def make(self) -> WindowJoinOperator:
        return WindowJoinOperator(self)

    @property
    def states(self) -> tuple[str, ...]:
        return (LEFT, RIGHT)

    def verdict(self, state: str, stored: pa.Schema) -> str:
        return rows_verdict(stored, (self.of.left if state == LEFT else self.of.right).stored)


class WindowedJoin(BufferedJoin):
    """Keeps panes, and calls `_fire` for each window when its end is passed, and again for late rows."""

    def __init__(self, left: Half, right: Half, windows: TimeWindows, *, lateness_us: int) -> None:
        super().__init__(left, right)
        self._windows = windows
        self._lateness_us = lateness_us
        self._over_us = NEVER_US
        """Windows that were over by then have been told of; behind a restore with less lateness some were not."""

    def advance(self, time_us: int, out: Emit) -> Course:
        yield from self.flushing(out)
        before_us, self._watermark_us = self._watermark_us, max(self._watermark_us, time_us)
        panes = {pane_us for half in self._halves for pane_us in half.panes.store}
        due = {window for pane_us in panes for window in self._windows.windows(pane_us)}
        for window in sorted(due):
            if before_us < window[1] <= self._watermark_us:
                yield from self._fire(window, *self._runs(window), out)
            if self._over_us < window[1] + self._lateness_us <= self._watermark_us:
                self._over(window, *self._runs(window))
        self._over_us = self._watermark_us
        for half in self._halves:
            for pane_us in half.panes.store:
                if self._is_over(pane_us):
                    half.panes.store.drop(pane_us)
        return time_us

    def _late(self, times: Ints) -> Mask | None:
        if not self._is_over(self._windows.pane_of(int(times.min()))):
            return None
        panes = self._windows.panes(times)
        return np.isin(panes, [pane for pane in np.unique(panes).tolist() if self._is_over(pane)])

    def _take(self, new_left: Sequence[Segment], new_right: Sequence[Segment], out: Emit) -> Course:
        self._left.panes.store.add(new_left)
        self._right.panes.store.add(new_right)
        if not self._lateness_us:
            return None
        new = [*new_left, *new_right]
        windows = {window for pane_us in {run.bucket_us for run in new} for window in self._windows.windows(pane_us)}
        for window in sorted(windows):
            if window[1] <= self._watermark_us < window[1] + self._lateness_us:
                yield from self._fire(window, *self._runs(window), out, new=new)
        return None

    def _is_over(self, pane_us: int) -> bool:
        return self._windows.last_end(pane_us) + self._lateness_us <= self._watermark_us

    def _runs(self, window: tuple[int, int]) -> tuple[list[Segment], list[Segment]]:
        starts = self._windows.pane_starts(window[0])
        left, right = ([run for pane in starts for run in half.panes.store.at(pane)] for half in self._halves)
        return left, right

    def _fire(
        self,
        window: tuple[int, int],
        left: Sequence[Segment],
        right: Sequence[Segment],
        out: Emit,
        *,
        new: Sequence[Segment] | None = None,
    ) -> Course:
        """Emit a window. `new`: what has come since it was emitted; then only what that changes."""
        raise NotImplementedError(type(self).__name__)

    def _over(self, window: tuple[int, int], left: Sequence[Segment], right: Sequence[Segment]) -> None:
        """A window will not be seen again."""


class WindowJoinOperator(WindowedJoin):
    """Joins a window's runs, each with each: they are sorted already."""

    def __init__(self, spec: WindowJoin) -> None:
        self._layout = of = spec.of
        left = RunPanes(of.left, spec.windows, is_left=True, keeps_nulls=of.keeps_left)
        right = RunPanes(of.right, spec.windows, is_left=False, keeps_nulls=of.keeps_right)
        halves = Half(left, late=spec.late[0]), Half(right, late=spec.late[1])
        super().__init__(*halves, spec.windows, lateness_us=spec.lateness_us)

    def _fire(
        self,
        window: tuple[int, int],
        left: Sequence[Segment],
        right: Sequence[Segment],
        out: Emit,
        *,
        new: Sequence[Segment] | None = None,
    ) -> Course:
        pieces = Pieces(out)
        concerned = {id(run) for run in (*left, *right)} if new is None else set(map(id, new))
        alone = [np.ones(len(run), np.bool_) for run in right]
        for run in left:
            unmatched = np.ones(len(run), np.bool_)
            for other, others_unmatched in zip(right, alone, strict=True):
                if not {id(run), id(other)} & concerned:
                    continue
                for pairs in matches(run, self._layout.left, other, self._right.panes.layout, within=None):
                    unmatched[pairs.rows] = False
                    others_unmatched[pairs.partners] = False
                    pieces.add(self._rows(pairs.batch, pairs.other, window))
                    yield
            if self._layout.keeps_left and id(run) in concerned and unmatched.any():
                pieces.add(self._rows(take_rows(run.batch, np.flatnonzero(unmatched)), None, window))
        if self._layout.keeps_right:
            for run, unmatched in zip(right, alone, strict=True):
                if id(run) in concerned and unmatched.any():
                    pieces.add(self._rows(None, take_rows(run.batch, np.flatnonzero(unmatched)), window))
                    yield
        pieces.flush()
        return None

    def _rows(
        self, left: pa.RecordBatch | None, right: pa.RecordBatch | None, window: tuple[int, int]
    ) -> pa.RecordBatch:
        count = max(batch.num_rows for batch in (left, right) if batch is not None)
        return self._layout.rows(left, right, bounds(self._layout.own, window, count))


def bounds(fields: Sequence[pa.Field], window: tuple[int, int], count: int) -> list[pa.Array]:
    """A window's start and end, for so many rows."""
    return [
        pa.array(np.full(count, bound, np.int64)).view(field.type) for field, bound in zip(fields, window, strict=True)
    ]
