"""The interval join: rows of two streams with the same key, whose times lie close together.

Comes in: rows of the left side at input 0, of the right side at input 1. Goes out: pairs, as
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

from weir.errors import PlanError
from weir.operators.base import Course, Emit, OperatorSpec
from weir.operators.joins.base import LEFT, RIGHT, BufferedJoin, Half, Late, late_sides
from weir.operators.joins.output import JoinLayout, Pieces
from weir.operators.joins.panes import RunPanes, rows_verdict
from weir.operators.joins.runs import Between, matches
from weir.operators.windows.event_time import AlignedWindows
from weir.snapshot.watermarks import END_US, NEVER_US
from weir.state.columns.segments.segment import Segment
from weir.state.keys.hashing import take_rows
from weir.state.keys.xxhash64 import Ints

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
    late: Late = (None, None)

    def schema(self, inputs: Sequence[pa.Schema]) -> pa.Schema:
        if self.lower_us > self.upper_us:
            raise PlanError(
                f"lower ({self.lower_us / 1e6:g} s) is above upper ({self.upper_us / 1e6:g} s), so that nothing would "
                "be joined; both say how far the right row's time may be from the left row's"
            )
        self.of.check()
        return self.of.output

    def sides(self, inputs: Sequence[pa.Schema]) -> Mapping[str, pa.Schema]:
        return late_sides(self.of.left, self.of.right, self.late)

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


class _IntervalHalf(Half):
    """One side, and how far its partners may be."""

    def __init__(self, spec: IntervalJoin, *, is_left: bool) -> None:
        between = Between(spec.lower_us, spec.upper_us)
        self.partners = between if is_left else between.reversed
        self.is_left = is_left
        self.keeps = spec.of.keeps_left if is_left else spec.of.keeps_right
        """Rows without a partner come out, too."""
        side = spec.of.left if is_left else spec.of.right
        panes = RunPanes(side, spec.panes, is_left=is_left, keeps_nulls=self.keeps, settles=self.keeps)
        super().__init__(panes, late=spec.late[0 if is_left else 1])

    def settle(self, segment: Segment, rows: Ints) -> None:
        """These rows need not come out by themselves any more."""
        if self.keeps:
            self.panes.store.mark(segment, rows)

    def cut_us(self, watermark_us: int) -> int:
        """Rows before this time find no partner any more."""
        return watermark_us if watermark_us in (NEVER_US, END_US) else watermark_us - self.partners.upper_us


class IntervalJoinOperator(BufferedJoin):
    """Matches new rows with those that are kept."""

    def __init__(self, spec: IntervalJoin) -> None:
        self._layout = spec.of
        self._sides = left, right = _IntervalHalf(spec, is_left=True), _IntervalHalf(spec, is_left=False)
        super().__init__(left, right)
        self._held_back_us = max([0, *(half.partners.upper_us for half in self._sides if half.keeps)])

    def advance(self, time_us: int, out: Emit) -> Course:
        yield from self.flushing(out)
        self._watermark_us = max(self._watermark_us, time_us)
        for half in self._sides:
            cut_us = half.cut_us(self._watermark_us)
            if half.keeps:
                yield from self._emit_alone(half, cut_us, out)
            half.panes.store.drop_before(cut_us)
        return time_us if time_us in (NEVER_US, END_US) else time_us - self._held_back_us

    def _take(self, new_left: Sequence[Segment], new_right: Sequence[Segment], out: Emit) -> Course:
        left, right = self._sides
        pieces = Pieces(out)
        # Each new row meets the old ones of the other side, and new ones meet once.
        right.panes.store.add(new_right)
        yield from self._join(left, new_left, right, pieces)
        yield from self._join(right, new_right, left, pieces)
        left.panes.store.add(new_left)
        pieces.flush()
        return None

    def _join(self, half: _IntervalHalf, new: Sequence[Segment], other: _IntervalHalf, pieces: Pieces) -> Course:
        for segment in new:
            first_us, last_us = segment.first_us + half.partners.lower_us, segment.last_us + half.partners.upper_us
            for partner in list(other.panes.store.between(first_us, last_us)):
                yield
                found = matches(segment, half.panes.side, partner, other.panes.layout, within=half.partners)
                for pairs in found:
                    half.settle(segment, pairs.rows)
                    other.settle(partner, pairs.partners)
                    times = np.maximum(segment.times[pairs.rows], partner.times[pairs.partners])
                    left, right = (pairs.batch, pairs.other) if half.is_left else (pairs.other, pairs.batch)
                    pieces.add(self._layout.rows(left, right, [self._time_array(times)]))
        return None

    def _emit_alone(self, half: _IntervalHalf, cut_us: int, out: Emit) -> Course:
        """Rows that have found no partner, and find none any more."""
        pieces = Pieces(out)
        for pane_us in half.panes.store:
            for segment in half.panes.store.at(pane_us):
                if segment.first_us >= cut_us:
                    continue
                due, settled = segment.times < cut_us, segment.marks.bits
                alone = np.flatnonzero(due if settled is None else due & ~settled)
                if len(alone):
                    half.settle(segment, alone)
                    rows = take_rows(segment.batch, alone)
                    left, right = (rows, None) if half.is_left else (None, rows)
                    pieces.add(self._layout.rows(left, right, [self._time_array(segment.times[alone])]))
                    yield
        pieces.flush()
        return None

    def _time_array(self, times: Ints) -> pa.Array:
        return pa.array(times).view(self._layout.own[0].type)
