"""State of event time on a long stream: what the watermark has passed is gone, and a drained input may go on."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

import weir
from tests.states import as_restored, table_of
from tests.unit.operators.running import context
from weir import connectors as io
from weir.operators.base import Operator, OperatorSpec, Restored, RestoredInline
from weir.snapshot.watermarks import END_US

SECOND_US = 1_000_000
STEPS = 150
KEYS = STEPS + 20
SCHEMA = pa.schema([("id", pa.int64()), ("key", pa.int64()), ("ts", pa.timestamp("us"))])


class Closing(weir.ProcessFunction):
    """Counts the rows of a key until two seconds behind the first."""

    rows = weir.ValueState("long", default=0)

    def process(self, row: Any, context: Any) -> None:
        if not self.rows.value:
            context.timers.at(row.ts.replace(microsecond=0))
        self.rows.value += 1

    def on_timer(self, time: datetime, context: Any) -> Iterator[tuple[int, int]]:
        yield context.key, self.rows.value
        self.rows.clear()


class Meeting(weir.CoProcessFunction):
    """Keeps what has come on either side until its time is passed."""

    waiting = weir.ListState("long")

    def process_left(self, row: Any, context: Any) -> None:
        self.waiting.add(row.id)
        context.timers.at(row.ts)

    process_right = process_left

    def on_timer(self, time: datetime, context: Any) -> Iterator[tuple[int, int]]:
        yield context.key, len(list(self.waiting.get()))
        self.waiting.clear()


def counted(rows: pl.DataFrame, window: Any) -> tuple[int, int]:
    return window.key, len(rows)


def both(left: pl.DataFrame, right: pl.DataFrame) -> pl.DataFrame:
    return pl.concat([left, right]).group_by("key").agg(n=pl.len().cast(pl.Int64))


COUNTS = "key long, n long"
SECONDS = weir.tumbling("5s")
"""All of these take rows as they are, and give late ones away."""
ONE: dict[str, Callable[[Any], weir.Stream]] = {
    "tumbling": lambda keyed: keyed.window(SECONDS, late="late").agg(n=weir.count(), uid="op"),
    "sliding": lambda keyed: keyed.window(weir.sliding("9s", "2s"), late="late").agg(n=weir.count(), uid="op"),
    "lateness": lambda keyed: keyed.window(SECONDS, late="late", lateness="3s").agg(n=weir.count(), uid="op"),
    "session": lambda keyed: keyed.window(weir.session("3s"), late="late").agg(n=weir.count(), uid="op"),
    "process over windows": lambda keyed: keyed.window(SECONDS, late="late").process(counted, COUNTS, uid="op"),
    "process over sessions": lambda keyed: keyed.window(weir.session("3s")).process(counted, COUNTS, uid="op"),
    "early results": lambda keyed: keyed.window(SECONDS, trigger=weir.on_count(3)).agg(n=weir.count(), uid="op"),
    "timers": lambda keyed: keyed.process(Closing(), COUNTS, uid="op"),
}
TWO: dict[str, Callable[[Any, Any], weir.Stream]] = {
    "interval join": lambda left, right: left.interval_join(right, lower="-2s", upper="3s", uid="op"),
    "full interval join": lambda left, right: left.interval_join(right, lower="-2s", upper="3s", how="full", uid="op"),
    "window join": lambda left, right: left.join(right, SECONDS, how="full", uid="op"),
    "co_group": lambda left, right: left.co_group(right, SECONDS).apply(both, COUNTS, uid="op"),
    "as-of join": lambda left, right: left.as_of(right, uid="op"),
    "two streams, one function": lambda left, right: left.connect(right).process(Meeting(), COUNTS, uid="op"),
}


def spec_of(name: str) -> OperatorSpec:
    env = weir.Environment(parallelism=1)
    streams = [
        env.from_collection([], SCHEMA, watermark=weir.monotonic("ts"), uid=f"rows-{n}").key_by("key") for n in (0, 1)
    ]
    result = ONE[name](streams[0]) if name in ONE else TWO[name](*streams)
    result.write(io.Discard(), uid="out")
    if name in ONE:
        streams[1].agg(n=weir.count(), uid="unused").write(io.Discard(), uid="unused-out")
    (found,) = [
        operator.spec for vertex in env.plan().vertices for operator in vertex.operators if operator.uid == "op"
    ]
    assert isinstance(found, OperatorSpec)
    return found


def opened(spec: OperatorSpec, restored: Restored | None = None) -> Operator:
    operator = spec.make()
    operator.open(context(), restored)
    return operator


def batch_of(rng: random.Random, at_s: int, count: int) -> pa.RecordBatch:
    """Rows of the second behind `at_s`, of keys that do not come again much later."""
    ids = [rng.randrange(1_000) for _ in range(count)]
    keys = [at_s // 10 * 10 + rng.randrange(20) for _ in range(count)]
    times = [at_s * SECOND_US + rng.randrange(SECOND_US) for _ in range(count)]
    return pa.record_batch([ids, keys, pa.array(times, pa.int64()).view(pa.timestamp("us"))], schema=SCHEMA)


def feed(operator: Operator, name: str, rng: random.Random, at_s: int) -> list[pa.RecordBatch]:
    out: list[pa.RecordBatch] = []
    for port in (0, 1) if name in TWO else (0,):
        operator.process_from(port, batch_of(rng, at_s, 30), out.append)
    operator.flush(out.append)
    return out


def entries(operator: Operator) -> int:
    return sum(table_of(state).num_rows for state in operator.freeze().states.values())


@pytest.mark.parametrize("name", [*ONE, *TWO])
def test_what_the_watermark_has_passed_is_gone_from_the_state(name: str) -> None:
    operator, rng, out = opened(spec_of(name)), random.Random(1), []
    held = []
    for at_s in range(STEPS):
        out += feed(operator, name, rng, at_s)
        operator.watermark(at_s * SECOND_US, out.append)
        if at_s % 7 == 0:
            held.append(entries(operator))
    assert sum(batch.num_rows for batch in out) > 150
    operator.watermark(END_US, out.append)
    operator.end(out.append)
    if name == "as-of join":
        # The newest version of each key stays: that is the table which rows are joined with.
        assert held[-1] < 3 * KEYS  # of 4,500 that came
        assert entries(operator) < 2 * KEYS
    else:
        assert max(held[len(held) // 3 :]) <= 1.5 * max(held[: len(held) // 3])
        assert entries(operator) == 0


@pytest.mark.parametrize("name", [*ONE, *TWO])
def test_what_comes_after_a_drained_input_is_not_late_for_that(name: str) -> None:
    """`stop(drain=True)` ends event time; a run from its savepoint goes on where the sources stood."""
    spec, rng = spec_of(name), random.Random(2)
    operator, out = opened(spec), []
    for at_s in range(10):
        feed(operator, name, rng, at_s)
    operator.watermark(9 * SECOND_US, out.append)
    operator.watermark(END_US, out.append)
    operator.end(out.append)
    frozen = operator.freeze()
    restored = Restored(
        [RestoredInline(0, 1, frozen.inline)],
        as_restored({state: [table_of(part)] for state, part in frozen.states.items()}),
    )
    again, more = opened(spec, restored), []
    again.watermark(9 * SECOND_US, more.append)  # told again by whoever makes the watermarks
    for at_s in range(20, 30):
        more += feed(again, name, rng, at_s)
        again.watermark(at_s * SECOND_US, more.append)
    assert again.rows_late == 0
    assert sum(batch.num_rows for batch in more) > 0
