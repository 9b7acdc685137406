"""Watermarks made from the rows of a stream: how far its event time has come.

Comes in: batches with a column of times. Goes out: the same batches; and, whenever the
subtask asks, the watermark of its open splits, or word that the stream is idle. Never
looks at a clock itself.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from weir.config import Duration, duration_ms
from weir.errors import DataError, PlanError, SchemaError
from weir.operators.base import Emit, Frozen, Operator, OperatorContext, OperatorSpec, Restored
from weir.operators.user_code import operator_label, user_code_error
from weir.snapshot.elements import StreamIdle, Watermark
from weir.snapshot.parts import SplitProgress
from weir.snapshot.watermark_groups import limit_us
from weir.snapshot.watermarks import NEVER_US
from weir.state.values.conversion import shown

TIME = pa.timestamp("us")
ONLY = ""
"""The split of a source that has only one."""


class WatermarkGenerator:
    """Your own watermarks. Write a subclass; one instance is made for each split of a source."""

    def observe(self, rows: pl.DataFrame) -> datetime | int | None:
        """Look at a batch. A watermark (a time, or microseconds since 1970) that holds from its end on, or None."""
        raise NotImplementedError(f"{type(self).__name__}.observe")

    def periodic(self) -> datetime | int | None:
        """Asked every `Settings.watermark_interval`. A watermark, or None."""
        return None


@dataclass(frozen=True)
class WatermarkStrategy:
    """How watermarks follow from the rows. Made by `bounded_disorder`, `monotonic` and `watermarks_by`."""

    column: str
    disorder_us: int = 0
    idle_after_ms: int | None = None
    jump_max_us: int | None = None
    generator: Callable[[], WatermarkGenerator] | None = None
    group: str | None = None
    """Of sources that stay close to each other."""
    drift_us: int = 0

    def aligned(self, group: str, *, drift: Duration) -> WatermarkStrategy:
        """Keep this source close to the others of the group: it reads no further than `drift` ahead of the watermark
        of the slowest, so that what has to wait for that one does not pile up in state. Sources that are idle or have
        ended are not waited for. The parallel parts of one source are aligned with each other, too.

        >>> import weir
        >>> weir.bounded_disorder("ts", "5s", idle_after="1m").aligned("orders", drift="30s").drift_us
        30000000
        """
        if not isinstance(group, str) or not group:
            raise PlanError(f"aligned: {group!r} is not the name of a group")
        return replace(self, group=group, drift_us=duration_ms(drift, "drift") * 1_000)


def aligned_strategy(specs: Iterable[object]) -> WatermarkStrategy | None:
    """The strategy by which a chain is aligned with others, if it is."""
    strategies = [spec.strategy for spec in specs if isinstance(spec, AssignWatermarks)]
    return next((strategy for strategy in strategies if strategy.group is not None), None)


class AssignWatermarks(OperatorSpec):
    """Hand batches on, and make watermarks from them. Watermarks from before end here."""

    def __init__(self, strategy: WatermarkStrategy) -> None:
        self.strategy = strategy

    def schema(self, inputs: Sequence[pa.Schema]) -> pa.Schema:
        check_time_column(self.strategy.column, inputs[0])
        return inputs[0]

    def make(self) -> AssigningWatermarks:
        return AssigningWatermarks(self.strategy)


def check_time_column(column: str, schema: pa.Schema) -> None:
    """Refuse a column of event times that is not there, or of another type."""
    if column not in schema.names:
        raise SchemaError(f"no column {column!r} for event time; the columns are: {', '.join(schema.names)}")
    kind = schema.field(column).type
    if not pa.types.is_timestamp(kind):
        how = f"pl.from_epoch({column!r}, time_unit='ms')"
        if pa.types.is_string(kind) or pa.types.is_large_string(kind):
            how = f"pl.col({column!r}).str.to_datetime()"
        elif pa.types.is_date(kind):
            how = f"pl.col({column!r}).cast(pl.Datetime('us'))"
        raise SchemaError(
            f"column {column!r} is of type {kind}; event time needs a timestamp: convert it before with "
            f"with_columns({column}={how})"
        )


def times_us(column: pa.Array) -> pa.Array:
    """A timestamp column as int64 microseconds since 1970, in UTC where it has a zone."""
    if column.type.unit != "us":
        column = pc.cast(column, pa.timestamp("us", column.type.tz), safe=False)
    return column.view(pa.int64())


class AssigningWatermarks(Operator):
    """One subtask's watermarks, over the splits that are open."""

    def __init__(self, strategy: WatermarkStrategy) -> None:
        self._strategy = strategy
        self._splits: dict[str, _SplitTime] = {}
        self._restored: dict[str, int] = {}
        """Of splits that may turn up again after a restore."""
        self._split = ONLY
        self._passed_us = self._repeated_us = NEVER_US
        self._idle_since_ms: float | None = None
        self._has_rows = False
        self._is_idle = False
        self._limit_us: int | None = None

    def open(self, context: OperatorContext, restored: Restored | None) -> None:
        self._context = context
        self._label = operator_label(context)
        parts = [] if restored is None else restored.all_inline(SplitProgress)
        own = [] if restored is None else restored.inline_of(context.index, context.parallelism, SplitProgress)
        for part in parts:
            for split, latest_us in part.splits.items():
                if split != ONLY:  # a split with a name is the same wherever it is read
                    self._restored[split] = max(self._restored.get(split, NEVER_US), latest_us)
        # Where rows now come from other subtasks than before, the slowest of all is safe.
        known = [part.splits.get(ONLY, NEVER_US) for part in own or parts]
        self._restored[ONLY] = min(known, default=NEVER_US)
        # What was told before the restart is told again, so that a stream without new rows holds nothing back.
        self._repeated_us = min((part.watermark_us for part in own or parts), default=NEVER_US)

    def reading(self, split: str, still_open: Collection[str] | None) -> None:
        """The next rows come from this split. `still_open`: all that may still have rows; None: nobody knows."""
        self._split = split
        if still_open is not None:
            for gone in [known for known in self._splits if known not in still_open]:
                del self._splits[gone]
            for split_open in still_open:
                self._known(split_open)  # one that has had no rows yet holds event time back

    def process(self, batch: pa.RecordBatch, out: Emit) -> None:
        split = self._known(self._split)
        column = batch.column(self._strategy.column)
        if column.null_count:
            row = shown(batch.slice(column.is_null().index(True).as_py(), 1).to_pylist()[0])
            raise DataError(
                f"{self._label}: row {row} has no time in {self._strategy.column!r}; "
                "leave such rows out before with filter(), or give them a time"
            )
        try:
            split.observe(batch, times_us(column))
        except _TooFar as jump:
            row = shown(batch.slice(jump.row, 1).to_pylist()[0])
            raise DataError(
                f"{self._label}: row {row} is {jump.ahead_us / 1e6:.0f} s ahead of the latest before it, more than "
                f"the {(self._strategy.jump_max_us or 0) / 1e6:.0f} s of jump_max; a wrong time would close every "
                "window up to it. Leave such rows out before, or raise jump_max"
            ) from None
        except DataError:
            raise
        except Exception as error:
            raise user_code_error(error, self._context, doing="the watermark of a batch") from None
        self._has_rows = True
        out(batch)

    def watermark(self, time_us: int, out: Emit) -> int | None:
        return None

    @property
    def is_aligned(self) -> bool:
        """Whether there is a group that it is to stay close to."""
        return self._strategy.group is not None

    @property
    def reached_us(self) -> int | None:
        """How far these rows have come, those included of which nothing was told yet; None: they are idle."""
        return None if self._is_idle and not self._has_rows else self._reached_us

    @property
    def is_ahead(self) -> bool:
        """Whether the slowest of its group is so far behind that no more rows should be read."""
        return self._limit_us is not None and self._reached_us > self._limit_us

    def align(self, slowest_us: Mapping[str, int]) -> None:
        """How far the slowest of each group is, of those that are known."""
        group = self._strategy.group
        if group is not None and group in slowest_us:
            self._limit_us = limit_us(slowest_us[group], self._strategy.drift_us)

    @property
    def _reached_us(self) -> int:
        of_splits = min((split.reached_us for split in self._splits.values()), default=NEVER_US)
        return max(of_splits, self._passed_us, self._repeated_us)

    def generated(self, now_ms: float, *, is_starved: bool) -> Watermark | StreamIdle | None:
        """What is to be told now. `is_starved`: there was room for rows all the time since the last call."""
        if self._repeated_us > self._passed_us:
            self._passed_us = self._repeated_us
            return Watermark(self._passed_us)
        # A user's generator may know that time has passed also where no rows came.
        time_us = min((split.watermark_us for split in self._splits.values()), default=NEVER_US)
        if not self._has_rows and time_us <= self._passed_us:
            if is_starved:
                return self._rest(now_ms)
            self._idle_since_ms = None  # rows that cannot be handed on for want of room are no idleness
            return None
        self._has_rows = False
        self._idle_since_ms = None
        self._is_idle = False
        if time_us <= self._passed_us:
            return None
        self._passed_us = time_us
        return Watermark(time_us)

    def _known(self, name: str) -> _SplitTime:
        if name not in self._splits:
            self._splits[name] = _SplitTime(self._strategy, self._restored.pop(name, NEVER_US))
        return self._splits[name]

    def freeze(self) -> Frozen:
        known = {split: found.latest_us for split, found in self._splits.items()}
        return Frozen(SplitProgress(max(self._passed_us, self._repeated_us), {**self._restored, **known}))

    def _rest(self, now_ms: float) -> StreamIdle | None:
        if self._strategy.idle_after_ms is None or self._is_idle:
            return None
        if self._idle_since_ms is None:
            self._idle_since_ms = now_ms
        if now_ms - self._idle_since_ms < self._strategy.idle_after_ms:
            return None
        self._is_idle = True
        return StreamIdle()


class _TooFar(Exception):
    def __init__(self, row: int, ahead_us: int) -> None:
        super().__init__(row, ahead_us)
        self.row, self.ahead_us = row, ahead_us


class _SplitTime:
    """One split's event time so far."""

    def __init__(self, strategy: WatermarkStrategy, latest_us: int) -> None:
        self._strategy = strategy
        self._generator = None if strategy.generator is None else copy.deepcopy(strategy.generator())
        self.latest_us = latest_us
        """The latest time among its rows; with a generator of the user's, its latest watermark."""

    @property
    def watermark_us(self) -> int:
        if self._generator is not None:
            self._take(self._generator.periodic())
        return self.reached_us

    @property
    def reached_us(self) -> int:
        """The watermark, without asking the user's generator again."""
        if self._generator is not None or self.latest_us == NEVER_US:
            return self.latest_us
        return self.latest_us - self._strategy.disorder_us

    def observe(self, batch: pa.RecordBatch, times: pa.Array) -> None:
        if self._generator is not None:
            self._take(self._generator.observe(pl.DataFrame(batch)))
            return
        if self._strategy.jump_max_us is not None:
            self._check_jumps(times.to_numpy(), self._strategy.jump_max_us)
        self.latest_us = max(self.latest_us, pc.max(times).as_py())

    def _check_jumps(self, times: npt.NDArray[np.int64], jump_max_us: int) -> None:
        """Refuse a row that is too far ahead of the latest before it. Before the first there is none."""
        if self.latest_us != NEVER_US:
            times = np.concatenate(([self.latest_us], times))
        ahead_us = times[1:] - np.maximum.accumulate(times)[:-1]
        if len(ahead_us) and int(ahead_us.max()) > jump_max_us:
            at = int(np.argmax(ahead_us > jump_max_us))
            raise _TooFar(at if self.latest_us != NEVER_US else at + 1, int(ahead_us[at]))

    def _take(self, found: datetime | int | Any | None) -> None:
        if found is None:
            return
        if isinstance(found, datetime):
            found = as_us(found)
        if not isinstance(found, int):
            raise DataError(f"a watermark must be a datetime or whole microseconds, found {found!r}")
        self.latest_us = max(self.latest_us, found)


def as_us(time: datetime) -> int:
    """Microseconds since 1970; a time without a zone is taken as UTC."""
    aware = time if time.tzinfo is not None else time.replace(tzinfo=timezone.utc)
    delta = aware - datetime(1970, 1, 1, tzinfo=timezone.utc)
    return (delta.days * 86_400 + delta.seconds) * 1_000_000 + delta.microseconds
