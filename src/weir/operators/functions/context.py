"""What a process function is given besides rows and states: its key, times, timers and side outputs.

Comes in: where the operator stands, set by it before each call. Goes out: what the user
asks for, worked out when it is asked for and not before. Times are datetimes here, and
microseconds since 1970 everywhere else; a time without a zone counts as UTC.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime, timedelta, timezone
from typing import Any

import pyarrow as pa

from weir.config import Duration, duration_ms
from weir.errors import DataError
from weir.operators.base import OperatorContext
from weir.operators.functions.opening import FunctionContext
from weir.operators.functions.row_codec import Rows
from weir.operators.time.watermarks import as_us
from weir.snapshot.watermarks import END_US, NEVER_US
from weir.state.declared.base import StateDescriptor
from weir.state.declared.cursor import Key, KeyCursor
from weir.state.timers.keyed import KeyedTimers
from weir.state.timers.tables import EVENT, PROCESSING, TimeDomain

EPOCH = datetime(1970, 1, 1)
FIRST_US, LAST_US = as_us(datetime.min), as_us(datetime.max)
"""What a datetime can say."""


NO_KEY_TEXT = "process_broadcast has no key, so neither keyed state nor timers: keep what it learns in a BroadcastState"


class _NoKey:
    """In the place of the key where there is none: whoever looks a value up by it is told so."""

    def __hash__(self) -> int:
        raise LookupError(NO_KEY_TEXT)


NO_KEY = _NoKey()


class Moment:
    """Where the operator is in time, kept by it: the rows in hand, or the timer that fires."""

    def __init__(self) -> None:
        self.watermark_us = NEVER_US
        self.zone: str | None = None
        """Of the column with event times."""
        self.rows: Rows | None = None
        self.time_column: int | None = None
        """The position of the column with the rows' event times, if they have one."""
        self.time_offset: timedelta | None = None
        self.timer_us: int | None = None
        """When a timer fires: its time."""
        self.domain: TimeDomain | None = None
        self.at_end = False

    def shown(self, time_us: int, domain: TimeDomain = EVENT) -> datetime:
        """A time as users know it: with the zone of the stream's event times, if these have one. Where no datetime is
        so early or late, the first or the last."""
        time = EPOCH + timedelta(microseconds=min(max(time_us, FIRST_US), LAST_US))
        if domain != EVENT or self.zone is None:
            return time
        if not FIRST_US <= time_us <= LAST_US:
            return time.replace(tzinfo=timezone.utc)
        zoned: datetime = pa.scalar(time_us, pa.timestamp("us", self.zone)).as_py()
        return zoned


class Timers:
    """The timers of the current key. `on_timer(time, context)` is called once for each, in the order of their times.

    Times are datetimes, or microseconds since 1970. To set a timer that is set already changes nothing.
    """

    __slots__ = ("_cursor", "_moment", "_now_ms", "_refusal", "_timers")

    def __init__(
        self,
        timers: KeyedTimers | None,
        cursor: KeyCursor,
        *,
        moment: Moment,
        now_ms: Callable[[], int],
        refusal: str | None,
    ) -> None:
        """`refusal`: why there are no timers of event time."""
        self._timers = timers
        self._cursor = cursor
        self._moment = moment
        self._now_ms = now_ms
        self._refusal = refusal

    def at(self, time: datetime | int) -> None:
        """Call on_timer once event time has come so far: when the watermark has reached this time."""
        if self._refusal is not None:
            raise DataError(self._refusal)
        self._known.event.add(_to_us(time), self._cursor.key)

    def delete(self, time: datetime | int) -> None:
        """Do without the timer of event time that was set for this time, if there is one."""
        self._known.event.discard(_to_us(time), self._cursor.key)

    def at_processing_time(self, time: datetime | int) -> None:
        """Call on_timer when the wall clock has reached this time; `context.now` is what it shows."""
        self._known.processing.add(_to_us(time), self._cursor.key)

    def delete_processing_time(self, time: datetime | int) -> None:
        """Do without the timer of processing time that was set for this time, if there is one."""
        self._known.processing.discard(_to_us(time), self._cursor.key)

    def after(self, delay: Duration) -> datetime:
        """Call on_timer when so much time has passed by the wall clock. Returns when that is."""
        time_us = _to_us((self._now_ms() + duration_ms(delay, "timers.after")) * 1_000)
        self._known.processing.add(time_us, self._cursor.key)
        return self._moment.shown(time_us, PROCESSING)

    # As Flink calls them.
    register_event_time_timer = at
    delete_event_time_timer = delete
    register_processing_time_timer = at_processing_time
    delete_processing_time_timer = delete_processing_time

    @property
    def _known(self) -> KeyedTimers:
        if self._cursor.key is NO_KEY:
            raise LookupError(NO_KEY_TEXT)
        if self._timers is None:
            raise DataError("the function has no on_timer(self, time, context), which a timer would call; write one")
        return self._timers


def _to_us(time: datetime | int) -> int:
    if isinstance(time, datetime):
        if time.tzinfo is not None:
            return as_us(time)
        since = time - EPOCH
        return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds
    if isinstance(time, int) and not isinstance(time, bool):
        if not NEVER_US <= time < END_US:
            raise DataError(f"a timer for {time} is out of range: a time is a datetime, or microseconds since 1970")
        return time
    raise DataError(f"a timer needs a datetime, or whole microseconds since 1970; found {time!r}")


class ProcessContext(FunctionContext):
    """Where a process function stands."""

    __slots__ = ("_cursor", "_moment", "_now_ms", "_shown", "_sides", "timers")

    def __init__(
        self,
        context: OperatorContext,
        declare: Callable[[str, StateDescriptor], Any],
        cursor: KeyCursor,
        shown: Callable[[Key], Any],
        *,
        moment: Moment,
        timers: Timers,
        sides: Mapping[str, list[Any]],
    ) -> None:
        super().__init__(context, declare)
        self.timers = timers
        self._cursor = cursor
        self._shown = shown
        self._moment = moment
        self._now_ms = context.place.now_ms
        self._sides = sides

    @property
    def key(self) -> Any:
        """The current row's key: a scalar for one key column, a tuple for several."""
        return self._shown(self._cursor.key)

    @property
    def timestamp(self) -> datetime | None:
        """The row's event time, or that of the timer; None where the stream has none."""
        moment = self._moment
        if moment.timer_us is not None and moment.domain is not None:
            return moment.shown(moment.timer_us, moment.domain)
        if moment.rows is None or moment.time_column is None:
            return None
        time: datetime = moment.rows.value(moment.time_column)
        return time if moment.time_offset is None else time + moment.time_offset

    @property
    def watermark(self) -> datetime | None:
        """How far event time has come: no row before it is expected any more. None before the first watermark."""
        time_us = self._moment.watermark_us
        return None if time_us == NEVER_US else self._moment.shown(time_us)

    @property
    def now(self) -> datetime:
        """What the wall clock shows, in UTC."""
        return EPOCH + timedelta(milliseconds=self._now_ms())

    @property
    def at_end(self) -> bool:
        """Whether the input has ended: every timer fires now, so that one that sets the next for ever must stop."""
        return self._moment.at_end

    @property
    def time_domain(self) -> TimeDomain | None:
        """In on_timer: whether the timer is one of "event" or of "processing" time."""
        return self._moment.domain

    def side(self, tag: str, row: Any) -> None:
        """Put a row out beside the stream: `result.side(tag)` reads it."""
        rows = self._sides.get(tag)
        if rows is None:
            there = ", ".join(map(repr, self._sides)) or "none"
            raise DataError(f"there is no side output {tag!r}; declared with sides= are: {there}")
        rows.append(row)
