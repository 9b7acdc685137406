"""Engines that are broken in event time, each in one place. The simulation must catch them all."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from tests.sim.patching import all_of, patched
from weir.operators.base import Course, Frozen, Restored
from weir.operators.functions.async_map import STATE as IN_FLIGHT
from weir.operators.functions.async_map import _MapAsync
from weir.operators.functions.keyed import FunctionOperator
from weir.operators.joins.base import LEFT
from weir.operators.joins.interval import _IntervalHalf
from weir.operators.joins.panes import RunPanes
from weir.operators.time.watermarks import AssigningWatermarks
from weir.operators.windows.aggregate import WindowAggregateOperator
from weir.operators.windows.sessions.aggregate import SessionAggregateOperator
from weir.operators.windows.sessions.runs import SessionRuns
from weir.operators.windows.sessions.store import SessionStore
from weir.runtime.task.inner_subtask import InnerSubtask
from weir.runtime.task.subtask import Activity, Subtask
from weir.runtime.task.turns import members
from weir.snapshot.elements import Barrier
from weir.snapshot.parts import Progress
from weir.snapshot.watermark_groups import WatermarkGroups
from weir.snapshot.watermarks import NEVER_US, WatermarkMerge
from weir.state.columns.segments.segment import Segment
from weir.state.columns.segments.store import SegmentStore
from weir.state.timers.keyed import KeyedTimers
from weir.state.timers.older import NOWHERE, Older
from weir.state.timers.queue import TimerQueue
from weir.state.waiting import FrozenWaiting, WaitingRows


def watermark_is_the_greatest() -> AbstractContextManager[None]:
    """The fastest channel decides how far event time has come."""

    def decided_us(self: WatermarkMerge) -> int:
        return max(channel.time_us for channel in self._channels)

    return patched(WatermarkMerge, "_decided_us", decided_us)


def splits_are_taken_as_one() -> AbstractContextManager[None]:
    """The fastest split of a source decides how far it has come."""

    def reading(self: AssigningWatermarks, split: str, still_open: Collection[str] | None) -> None:
        """Nobody cares."""

    return patched(AssigningWatermarks, "reading", reading)


def window_is_emitted_early() -> AbstractContextManager[None]:
    """A window is complete when the watermark comes near its end."""
    original = WindowAggregateOperator.advance

    def advance(self: WindowAggregateOperator, time_us: int, out: Any) -> Course:
        yield from original(self, min(time_us + 2_000_000, (1 << 63) - 1), out)
        return time_us

    return patched(WindowAggregateOperator, "advance", advance)


def barrier_overtakes_a_watermark() -> AbstractContextManager[None]:
    """A barrier is taken although only a part is done of what a watermark has set off."""
    original = Subtask.step

    def step(self: Subtask) -> Activity:
        if isinstance(self, InnerSubtask) and self.chain.is_busy:
            course, self.chain._course = self.chain._course, None
            self._arrivals.hear()
            for channel in members(self._arrivals.filled & ~self._blocked):
                if isinstance(self._inputs[channel].peek(), Barrier):
                    self._take(channel)
            self.chain._course = course
        return original(self)

    return patched(Subtask, "step", step)


def head_is_lost_at_freeze() -> AbstractContextManager[None]:
    """A snapshot holds the segments that there are; what was sealed for it is in the next one."""
    original = SegmentStore.freeze

    def freeze(self: SegmentStore) -> Any:
        sealed, self._lots = self._lots, []
        frozen = original(self)
        self._lots = sealed
        return frozen

    return patched(SegmentStore, "freeze", freeze)


def segment_is_pruned_too_early() -> AbstractContextManager[None]:
    """With a pane that nobody needs any more, all segments go that have rows of it."""

    def drop_before(self: SegmentStore, time_us: int) -> None:
        for lot in self._lots:
            lot.runs()
        self.adopt()
        for bucket_us in self:
            if any(segment.first_us < time_us for segment in self.at(bucket_us)):
                self.drop(bucket_us)

    return patched(SegmentStore, "drop_before", drop_before)


def panes_are_forgotten_on_restore() -> AbstractContextManager[None]:
    """Windows that were open begin anew after a restart."""
    return patched(WindowAggregateOperator, "_restore", lambda self, state: None)


def ended_source_is_waited_for() -> AbstractContextManager[None]:
    """Sources that are aligned with one that has ended wait for ever."""
    original = WatermarkGroups.reached

    def reached(self: WatermarkGroups, member: Any, time_us: int | None) -> None:
        if time_us is not None:
            original(self, member, time_us)

    return patched(WatermarkGroups, "reached", reached)


def watermark_is_forgotten_on_restore() -> AbstractContextManager[None]:
    """After a restart nothing is late, until event time has come as far again."""
    original = WindowAggregateOperator.open

    def open_anew(self: WindowAggregateOperator, context: Any, restored: Any) -> None:
        original(self, context, restored)
        self._watermark_us = NEVER_US

    return patched(WindowAggregateOperator, "open", open_anew)


def drained_input_is_over_for_good() -> AbstractContextManager[None]:
    """Event time has ended with a drain, so that whatever a run from its savepoint reads is late."""

    def watermark_us(self: Restored) -> int:
        return min((progress.watermark_us for progress in self.all_inline(Progress)), default=NEVER_US)

    return patched(Restored, "watermark_us", property(watermark_us))


def late_rows_are_dropped() -> AbstractContextManager[None]:
    """Late rows are counted, and that is all."""

    def leave_out(self: WindowAggregateOperator, part: Any) -> None:
        self.rows_late += part.num_rows

    return patched(WindowAggregateOperator, "_leave_out", leave_out)


# --- Sessions ---------------------------------------------------------------------------------------------


def sessions_are_not_merged() -> AbstractContextManager[None]:
    """A row between two open sessions joins the first of them, which then ends where it lies."""
    original = SessionStore._settle

    def settle(self: SessionStore, pieces: Any, groups: Any, **others: Any) -> None:
        known = others["known"]
        seen: set[int] = set()
        cut, shift = groups.copy(), 0
        for at, (piece, group) in enumerate(zip(pieces.tolist(), groups.tolist(), strict=True)):
            if piece < len(known) and group in seen:
                shift += 1
            elif piece < len(known):
                seen.add(group)
            cut[at] = group + shift
        original(self, pieces, cut, **others)

    return patched(SessionStore, "_settle", settle)


def sessions_are_forgotten_on_restore() -> AbstractContextManager[None]:
    """Rows that come after a restart begin new sessions."""
    forget = patched(SessionAggregateOperator, "_take_over", lambda self, table: None)
    return all_of(forget, patched(SessionRuns, "restore", lambda self, restored: True))


def piece_in_a_segment_is_not_chained() -> AbstractContextManager[None]:
    """A session is over when its piece in the head is, whatever lies in segments of it."""
    return patched(SessionAggregateOperator, "_whole", lambda self, slots, ended_us: slots)


# --- Timers -----------------------------------------------------------------------------------------------


def timers_are_lost_on_restore() -> AbstractContextManager[None]:
    """Timers are set again by rows, if at all."""
    return patched(KeyedTimers, "restore", lambda self, restored: None)


def timers_of_the_clock_are_lost_on_restore() -> AbstractContextManager[None]:
    """Only event time comes back."""
    original = KeyedTimers.restore

    def restore(self: KeyedTimers, restored: Any) -> None:
        original(self, restored)
        self.processing = TimerQueue()

    return patched(KeyedTimers, "restore", restore)


def fired_timers_are_in_the_snapshot() -> AbstractContextManager[None]:
    """A timer that fired is taken for one that stands, by snapshots."""
    pop, listed = TimerQueue.pop, TimerQueue.listed

    def popped(self: TimerQueue, time_us: int) -> Any:
        keys = pop(self, time_us)
        self.__dict__.setdefault("fired", {}).setdefault(time_us, []).extend(keys)
        return keys

    def frozen(self: TimerQueue) -> Any:
        return [*self.__dict__.get("fired", {}).items(), *listed(self)]

    return all_of(patched(TimerQueue, "pop", popped), patched(TimerQueue, "listed", frozen))


def deleted_timer_fires() -> AbstractContextManager[None]:
    """What was set comes, whatever is said afterwards."""
    return patched(TimerQueue, "discard", lambda self, time_us, key: None)


def timer_fires_twice_after_merge() -> AbstractContextManager[None]:
    """When more comes into the log of timers, what has been handed out of it counts as still to come."""
    original = Older.adopted

    def adopted(self: Older, heads: int) -> None:
        self._cursor = NOWHERE
        original(self, heads)

    return patched(Older, "adopted", adopted)


def timers_fire_out_of_order() -> AbstractContextManager[None]:
    """What a timer sets waits until all that were due have fired."""

    def fire_together(self: FunctionOperator, queue: TimerQueue, times: list[int], keys: Any, out: Any) -> None:
        results: list[Any] = []
        self.backend.begin(keys)
        for time_us in times:
            self._call_timers(time_us, queue.pop(time_us), results)
        self.backend.end()
        self._emit(results, out)

    return patched(FunctionOperator, "_fire_together", fire_together)


# --- Calls and joins --------------------------------------------------------------------------------------


def rows_in_flight_are_lost() -> AbstractContextManager[None]:
    """Rows whose calls are under way are not in the snapshot."""
    return patched(_MapAsync, "freeze", lambda self: Frozen())


def results_that_wait_are_lost() -> AbstractContextManager[None]:
    """Rows whose calls have come back, and that wait for their turn, are not in the snapshot."""

    def freeze(self: _MapAsync) -> Frozen:
        left = {number: np.zeros(held.batch().num_rows, np.bool_) for number, held in self._batches.items()}
        for flight in (flight for stretch in self._stretches for flight in stretch.flights if not flight.is_done):
            left[flight.batch.number][flight.index] = True
        waiting = [WaitingRows(held, left[number]) for number, held in self._batches.items()]
        return Frozen(states={IN_FLIGHT: FrozenWaiting(self._schema, waiting, self._files)})

    return patched(_MapAsync, "freeze", freeze)


def watermarks_overtake_calls() -> AbstractContextManager[None]:
    """Event time goes on while calls are under way."""
    return patched(_MapAsync, "watermark", lambda self, time_us, out: time_us)


def join_side_is_not_in_the_snapshot() -> AbstractContextManager[None]:
    """Of the rows that wait for partners, those of the left side come back only."""
    original = RunPanes.open

    def open(self: RunPanes, state: str, context: Any, *, restored: Any, budget: Any) -> None:
        original(self, state, context, restored=restored if state == LEFT else None, budget=budget)

    return patched(RunPanes, "open", open)


def partners_are_forgotten_on_restore() -> AbstractContextManager[None]:
    """Rows of an outer join that had a partner before a restart come out alone, too."""
    original = Segment.__init__

    def made(self: Segment, number: int, bucket_us: int, kept: Any, *, bounds: Any, marks: Any = None) -> None:
        original(self, number, bucket_us, kept, bounds=bounds)

    return patched(Segment, "__init__", made)


def joined_rows_go_too_early() -> AbstractContextManager[None]:
    """Rows are kept until event time has come to them, and not as long as a partner may come."""
    return patched(_IntervalHalf, "cut_us", lambda self, watermark_us: watermark_us)


TIME_VARIANTS = (
    watermark_is_the_greatest,
    splits_are_taken_as_one,
    window_is_emitted_early,
    barrier_overtakes_a_watermark,
    head_is_lost_at_freeze,
    segment_is_pruned_too_early,
    panes_are_forgotten_on_restore,
    ended_source_is_waited_for,
    watermark_is_forgotten_on_restore,
    drained_input_is_over_for_good,
    late_rows_are_dropped,
    sessions_are_not_merged,
    sessions_are_forgotten_on_restore,
    piece_in_a_segment_is_not_chained,
    timers_are_lost_on_restore,
    timers_of_the_clock_are_lost_on_restore,
    fired_timers_are_in_the_snapshot,
    deleted_timer_fires,
    timer_fires_twice_after_merge,
    timers_fire_out_of_order,
    rows_in_flight_are_lost,
    results_that_wait_are_lost,
    watermarks_overtake_calls,
    join_side_is_not_in_the_snapshot,
    partners_are_forgotten_on_restore,
    joined_rows_go_too_early,
)
