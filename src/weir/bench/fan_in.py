"""The workload `fan-in`: what an element costs a subtask that takes from few channels or from many. Needs no Spark.

Comes in: numbers of channels. Goes out: microseconds for each element, by number of channels, and whether every row
came through once, in the order of its channel, with event time where it must be. Measures the subtask that production
runs, on channels within a task. Never writes anything, and takes no checkpoint.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from weir.bench.harness import BenchReport
from weir.errors import ConfigError
from weir.graph.plan import Plan
from weir.ids import AttemptId, SubtaskId, VertexId
from weir.runtime.clock import SystemClock
from weir.runtime.net.channels import LocalChannel
from weir.runtime.storage.opening import open_storage
from weir.runtime.storage.stores.memory import MemoryStorage
from weir.runtime.task.chain import Chain
from weir.runtime.task.gate import Gate
from weir.runtime.task.inner_subtask import InnerSubtask, Inputs
from weir.runtime.task.snapshots import Snapshotter
from weir.runtime.task.subtask import Activity, Equipment
from weir.snapshot.alignment import ExactlyOnceAlignment
from weir.snapshot.elements import Watermark

FLAT_RATIO_MAX = 1.5
"""How many times the cheapest number of channels the dearest may cost."""
ROWS_PER_WATERMARK = 4
CHANNELS_MAX = 4_096
SCHEMA = pa.schema([("channel", pa.int64()), ("number", pa.int64())])


@dataclass(frozen=True)
class FanInOptions:
    """What is measured."""

    channels: Sequence[int] = (2, 16, 64, 256)
    elements: int = 100_000
    """Of each round; a round has no fewer than five for each channel."""
    rounds: int = 5
    """Of each number of channels, in turn; the fastest counts."""

    def __post_init__(self) -> None:
        if not self.channels or not all(1 <= count <= CHANNELS_MAX for count in self.channels):
            raise ConfigError(f"--channels: expected numbers from 1 to {CHANNELS_MAX:,}, found {list(self.channels)}")


def counts_of(text: str) -> tuple[int, ...]:
    """Numbers of channels as they are typed: 2,16,64."""
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise ConfigError(f"--channels: expected numbers such as 2,16,64, found {text!r}") from None


@dataclass(frozen=True)
class _Round:
    elements: int
    seconds: float
    verified: bool


def run_fan_in(options: FanInOptions) -> list[BenchReport]:
    """A report for each number of channels, all measured in turn several times, and last the comparison of them."""
    rounds: dict[int, list[_Round]] = {count: [] for count in options.channels}
    for _ in range(options.rounds):
        for count, done in rounds.items():
            done.append(_round(count, options.elements))
    costs_us = {count: min(one.seconds / one.elements for one in done) * 1e6 for count, done in rounds.items()}
    ratio = max(costs_us.values()) / min(costs_us.values())
    return [
        *(_report(done, channels=count, us_per_element=round(costs_us[count], 2)) for count, done in rounds.items()),
        _report(
            [one for done in rounds.values() for one in done],
            channels=list(rounds),
            dearest_to_cheapest=round(ratio, 2),
            flat=ratio <= FLAT_RATIO_MAX,
        ),
    ]


def _report(rounds: Sequence[_Round], **more: Any) -> BenchReport:
    elements, seconds = sum(one.elements for one in rounds), sum(one.seconds for one in rounds)
    return BenchReport(
        workload="fan-in",
        events=elements,
        seconds=round(seconds, 3),
        events_per_s=round(elements / seconds),
        checkpoints=0,
        verified=all(one.verified for one in rounds),
        parallelism=1,
        more=more,
    )


def _round(count: int, elements: int) -> _Round:
    """So many elements, dealt out to the channels beforehand, taken one by one."""
    groups = max(1, elements // (count * (ROWS_PER_WATERMARK + 1)))
    channels = [LocalChannel(groups * (ROWS_PER_WATERMARK + 1)) for _ in range(count)]
    taken: list[pa.RecordBatch] = []
    subtask = _subtask(channels, taken.append)
    for group in range(groups):
        for number, channel in enumerate(channels):
            _fill(channel, number, group)
    begin_s = time.perf_counter()
    while subtask.step() is Activity.BUSY:
        pass
    seconds = time.perf_counter() - begin_s
    verified = subtask.watermark_us == groups and _is_right(taken, count, groups * ROWS_PER_WATERMARK)
    return _Round(groups * (ROWS_PER_WATERMARK + 1) * count, seconds, verified)


def _fill(channel: LocalChannel, number: int, group: int) -> None:
    for row in range(group * ROWS_PER_WATERMARK, (group + 1) * ROWS_PER_WATERMARK):
        channel.offer(pa.record_batch([pa.array([number]), pa.array([row])], schema=SCHEMA))
    channel.offer(Watermark(group + 1))


def _is_right(taken: Sequence[pa.RecordBatch], count: int, rows: int) -> bool:
    """Every row of every channel once, those of one channel in their order."""
    table = pa.Table.from_batches(taken, SCHEMA)
    by_channel = np.argsort(table["channel"].to_numpy(), kind="stable")
    numbers = table["number"].to_numpy()[by_channel]
    owners = table["channel"].to_numpy()[by_channel]
    return np.array_equal(owners, np.repeat(np.arange(count), rows)) and np.array_equal(
        numbers, np.tile(np.arange(rows), count)
    )


def _subtask(channels: Sequence[LocalChannel], emit: Callable[[pa.RecordBatch], None]) -> InnerSubtask:
    here, clock, storage = SubtaskId(VertexId(0), 0), SystemClock(), MemoryStorage(1 << 20)
    nobody: Any = _Nobody()
    equipment = Equipment(
        id=here,
        chain=Chain([], emit),
        gate=Gate(Plan((), (), 128), here, nobody),
        sink=None,
        snapshotter=Snapshotter(
            here,
            AttemptId(1),
            storage=storage,
            background=nobody,
            control=nobody,
            clock=clock,
            sink=None,
            opener=open_storage,
        ),
        clock=clock,
        buffer_timeout_ms=10.0,
        watermark_interval_ms=200.0,
    )
    # One row at most: a batch that was merged from several would not be the cost of an element.
    inputs = Inputs(channels, [0] * len(channels), ExactlyOnceAlignment(len(channels)), rows_max=1, bytes_max=1 << 20)
    return InnerSubtask(equipment, inputs)


class _Nobody:
    """Whom a subtask without outputs and checkpoints never asks for anything."""

    def __getattr__(self, name: str) -> Any:
        raise ConfigError(f"fan-in: the subtask asked for {name}")
