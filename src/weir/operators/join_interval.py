"""The interval join: rows of two streams with the same key, whose times lie close together.

Comes in: rows of the left side at port 0, of the right side at port 1. Goes out: pairs, as
soon as both rows are here; with an outer join, rows without a partner once the watermark
says that none can come. State: the rows of each side that later ones may still be joined
with. A pair's time is the later of both.

Watermarks: of two rows the one that comes second is not late, so that pairs are not
either. A row without a partner comes out behind the time of its last possible partner;
so an outer join holds watermarks back by that much: `upper` for the left side, `-lower` for
the right side, the greater of both for a full join.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa

from weir.errors import DataError, PlanError, ProtocolViolation
from weir.operators.aggregate_state import BATCH_ROWS_MAX
from weir.operators.base import Emit, Frozen, Operator, OperatorContext, OperatorSpec, Restored
from weir.operators.join_output import JoinLayout, Pieces
from weir.operators.join_panes import RunPanes, rows_verdict
from weir.operators.join_runs import Between, Run, matches
from weir.operators.join_side import JoinSide, gathered
from weir.operators.user_code import operator_label
from weir.operators.windows import AlignedWindows
from weir.snapshot.watermarks import END_US, NEVER_US
from weir.state.hashing import take_rows
from weir.state.xxhash64 import Ints

LEFT, RIGHT = "left", "right"
"""The names of the state tables."""

PANES_PER_INTERVAL = 2
PANE_US_MIN = 1_000_000
PANE_US_MAX = 1 << 40
PANES_MAX = 64
"""How many panes of rows are kept at most, unless they are PANE_US_MAX long."""


@dataclass(frozen=True, eq=False)
class IntervalJoin(OperatorSpec):
    """Left rows at t with right rows from t + lower_us to t + upper_us.

    late: the tags of side outputs for late rows of the left and of the right side; None: they are left out
    """

    of: JoinLayout
    lower_us: int
    upper_us: int
    late: tuple[str | None, str | None] = (None, None)

    def schema(self, inputs: Sequence[pa.Schema]) -> pa.Schema:
        if self.lower_us > self.upper_us:
            raise PlanError(
                f"lower ({self.lower_us / 1e6:g} s) is above upper ({self.upper_us / 1e6:g} s), so that nothing would "
                "be joined; both say how far the right row's time may be from the left row's"
            )
        self.of.check()
        return self.of.output

    def sides(self, inputs: Sequence[pa.Schema]) -> Mapping[str, pa.Schema]:
        return late_sides(self.of, self.late)

    def make(self) -> IntervalJoinOperator:
        return IntervalJoinOperator(self)

    @property
    def states(self) -> tuple[str, ...]:
        return (LEFT, RIGHT)

    def verdict(self, state: str, stored: pa.Schema) -> str:
        side, keeps = (self.of.left, self.of.keeps_left) if state == LEFT else (self.of.right, self.of.keeps_right)
        return rows_verdict(stored, side.settling if keeps else side.stored)

    @cached_property
    def panes(self) -> AlignedWindows:
        """By which rows are kept: a few for the interval, but not many for all that must be kept."""
        kept_us = max(self.upper_us, -self.lower_us, 0)
        wanted_us = max((self.upper_us - self.lower_us) // PANES_PER_INTERVAL, kept_us // PANES_MAX, PANE_US_MIN)
        pane_us = min(wanted_us, PANE_US_MAX)
        return AlignedWindows(pane_us, pane_us)


def late_sides(of: JoinLayout, late: tuple[str | None, str | None]) -> dict[str, pa.Schema]:
    """The schemas of the side outputs for late rows."""
    if late[0] is not None and late[0] == late[1]:
        raise PlanError(f"late rows of both sides cannot go to one side output {late[0]!r}; give two tags")
    sides = zip(late, (of.left, of.right), strict=True)
    return {tag: side.schema for tag, side in sides if tag is not None}


class _Half:
    """One side: its rows, those that have just come, and how far its partners may be."""

    def __init__(self, panes: RunPanes, partners: Between, *, is_left: bool, keeps: bool, late: str | None) -> None:
        self.panes = panes
        self.partners = partners
        self.is_left = is_left
        self.keeps = keeps
        """Rows without a partner come out, too."""
        self.late = late
        self.waiting: list[pa.RecordBatch] = []
        self.waiting_rows = 0

    def take(self) -> list[Run]:
        """What has just come, as runs."""
        batches, self.waiting, self.waiting_rows = self.waiting, [], 0
        return self.panes.runs_of(gathered(batches)) if batches else []

    def cut_us(self, watermark_us: int) -> int:
        """Rows before this time find no partner any more."""
        if watermark_us in (NEVER_US, END_US):
            return watermark_us
        return watermark_us - self.partners.upper_us


class IntervalJoinOperator(Operator):
    """Matches new rows with those that are kept."""

    def __init__(self, spec: IntervalJoin) -> None:
        self._layout = spec.of
        between = Between(spec.lower_us, spec.upper_us)
        self._halves = (
            self._half(spec, spec.of.left, between, is_left=True),
            self._half(spec, spec.of.right, between.reversed, is_left=False),
        )
        self._held_back_us = max(0, *(half.partners.upper_us for half in self._halves if half.keeps), 0)
        self._watermark_us = NEVER_US
        self.rows_late = 0

    def _half(self, spec: IntervalJoin, side: JoinSide, partners: Between, *, is_left: bool) -> _Half:
        keeps = spec.of.keeps_left if is_left else spec.of.keeps_right
        panes = RunPanes(side, spec.panes, is_left=is_left, keeps_nulls=keeps, settles=keeps)
        return _Half(panes, partners, is_left=is_left, keeps=keeps, late=spec.late[0 if is_left else 1])

    def open(self, context: OperatorContext, restored: Restored | None) -> None:
        self._context = context
        if restored is None:
            return
        self._watermark_us, self.rows_late = restored_progress(restored, context)
        for state, half in zip((LEFT, RIGHT), self._halves, strict=True):
            half.panes.restore(state, restored, context)

    def process(self, batch: pa.RecordBatch, out: Emit) -> None:
        self.process_from(0, batch, out)

    def process_from(self, port: int, batch: pa.RecordBatch, out: Emit) -> None:
        if not batch.num_rows:
            return
        half = self._halves[port]
        times = row_times(half.panes.side, batch, self._context)
        if int(times.min()) < self._watermark_us:
            late = np.flatnonzero(times < self._watermark_us)
            self.rows_late += len(late)
            if half.late is not None and (side := self.sides.get(half.late)) is not None:
                side(take_rows(batch, late))
            batch = take_rows(batch, np.flatnonzero(times >= self._watermark_us))
        half.waiting.append(batch)
        half.waiting_rows += batch.num_rows
        if half.waiting_rows >= BATCH_ROWS_MAX:
            self.flush(out)

    def flush(self, out: Emit) -> None:
        """Join what has come since the last time."""
        left, right = self._halves
        if not left.waiting_rows and not right.waiting_rows:
            left.waiting, right.waiting = [], []
            return
        pieces = Pieces(out)
        new_left, new_right = left.take(), right.take()
        # Each new row meets the old ones of the other side, and new ones meet once.
        right.panes.add(new_right)
        self._join(left, new_left, right, pieces)
        self._join(right, new_right, left, pieces)
        left.panes.add(new_left)
        for half, runs in ((left, new_left), (right, new_right)):
            half.panes.merge(runs)
        pieces.flush()

    def watermark(self, time_us: int, out: Emit) -> int | None:
        self.flush(out)
        self._watermark_us = max(self._watermark_us, time_us)
        for half in self._halves:
            cut_us = half.cut_us(self._watermark_us)
            if half.keeps:
                self._emit_alone(half, cut_us, out)
            for pane_us in half.panes:
                if max((run.last_us for run in half.panes.at(pane_us)), default=cut_us - 1) < cut_us:
                    half.panes.replace(pane_us, ())
        return time_us if time_us in (NEVER_US, END_US) else time_us - self._held_back_us

    def freeze(self) -> Frozen:
        if any(half.waiting_rows for half in self._halves):
            raise ProtocolViolation(f"{operator_label(self._context)}: a snapshot without a flush before it")
        states = {
            state: half.panes.freeze(self._context.max_parallelism)
            for state, half in zip((LEFT, RIGHT), self._halves, strict=True)
        }
        return Frozen({"watermark_us": self._watermark_us, "rows_late": self.rows_late}, states)

    def _join(self, half: _Half, runs: Sequence[Run], other: _Half, pieces: Pieces) -> None:
        for run in runs:
            first_us, last_us = run.first_us + half.partners.lower_us, run.last_us + half.partners.upper_us
            for partner in other.panes.between(first_us, last_us):
                found = matches(run, half.panes.side, partner, other.panes.layout, within=half.partners)
                for pairs in found:
                    run.settle(pairs.rows)
                    partner.settle(pairs.partners)
                    times = np.maximum(run.times[pairs.rows], partner.times[pairs.partners])
                    left, right = (pairs.batch, pairs.other) if half.is_left else (pairs.other, pairs.batch)
                    pieces.add(self._layout.rows(left, right, [self._time_array(times)]))

    def _emit_alone(self, half: _Half, cut_us: int, out: Emit) -> None:
        """Rows that have found no partner, and find none any more."""
        pieces = Pieces(out)
        for pane_us in half.panes:
            for run in half.panes.at(pane_us):
                if run.settled is None or run.first_us >= cut_us:
                    continue
                alone = np.flatnonzero(~run.settled & (run.times < cut_us))
                if len(alone):
                    run.settle(alone)
                    rows = take_rows(run.batch, alone)
                    left, right = (rows, None) if half.is_left else (None, rows)
                    pieces.add(self._layout.rows(left, right, [self._time_array(run.times[alone])]))
        pieces.flush()

    def _time_array(self, times: Ints) -> pa.Array:
        return pa.array(times).view(self._layout.own[0].type)


def row_times(side: JoinSide, batch: pa.RecordBatch, context: OperatorContext) -> Ints:
    """The rows' times, or DataError with the operator's name."""
    try:
        return side.times(batch)
    except DataError as error:
        raise DataError(f"{operator_label(context)}: {error.message}") from None


def restored_progress(restored: Restored, context: OperatorContext) -> tuple[int, int]:
    """The watermark, and how many rows were late before."""
    known = [part.value for part in restored.inline if part.value is not None]
    watermark_us = min((value["watermark_us"] for value in known), default=NEVER_US)
    return watermark_us, sum(value["rows_late"] for value in restored.inline_for(context.index, context.parallelism))
