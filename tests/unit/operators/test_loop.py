"""Loops: exactly once whatever crashes, at any parallelism, however full; and their end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

import weir
from tests.seeds import seeds
from weir.api.build import Options
from weir.errors import DataError, JobError, PlanError, SchemaError
from weir.operators.base import Emit, Operator, OperatorSpec
from weir.runtime.task.backlog import Backlog
from weir.testing import collect_local, run_local

ROWS = [(i, i % 13) for i in range(60)]
SCHEMA = "id long, n long"


def environment(parallelism: int = 2, **settings: Any) -> weir.Environment:
    return weir.Environment(parallelism=parallelism, settings=weir.Settings(**settings))


def count_down(rows: weir.Stream) -> tuple[weir.Stream, weir.Stream]:
    less = rows.with_columns(n=pl.col("n") - 1, uid="less")
    return less.filter(pl.col("n") > 0, uid="again"), less.filter(pl.col("n") <= 0, uid="done")


@pytest.mark.parametrize("seed", seeds(12))
def test_every_row_goes_round_and_comes_out_once_whatever_crashes(seed: int) -> None:
    env = environment(
        1 + seed % 3,
        loop_memory_max=[0, 100, "64MB"][seed % 3],
        channel_batches_max=[1, 2, 8][seed // 3 % 3],
        batch_rows_max=[1, 5, 1_000][seed // 2 % 3],
    )
    env.from_collection(ROWS, SCHEMA, uid="rows").iterate(count_down, uid="loop").print(uid="out")
    result = run_local(env, seed=seed, crash_at=[12 + seed, 30 + 2 * seed], checkpoint_every=3 + seed % 5)
    assert result.restarts >= 1
    assert sorted(result["out"]["id"].to_pylist()) == list(range(60))


class Rounds(weir.ProcessFunction):
    """Counts, by key, how often rows of the key have gone round."""

    count = weir.ValueState("long", default=0)

    def process(self, row: Any, context: Any) -> Any:
        self.count.set(self.count.get() + 1)
        yield row.id, row.n - 1
        if row.n <= 1:
            context.side("seen", (context.key, self.count.get()))


@pytest.mark.parametrize("seed", seeds(8))
def test_state_by_key_in_a_loop_has_counted_each_round_once(seed: int) -> None:
    def step(rows: weir.Stream) -> tuple[weir.Stream, weir.Stream]:
        counted = rows.key_by("id").process(Rounds(), SCHEMA, sides={"seen": "id long, rounds long"}, uid="rounds")
        return counted.filter(pl.col("n") > 0, uid="again"), counted.side("seen")

    env = environment(1 + seed % 3, channel_batches_max=1 + seed % 4)
    rows = env.from_collection([(i % 7, i % 5) for i in range(50)], SCHEMA, uid="rows")
    rows.iterate(step, uid="loop").print(uid="out")
    result = run_local(env, seed=seed, crash_at=[20 + seed, 50 + seed], checkpoint_every=4)
    wanted = Counter[int]()
    for i in range(50):
        wanted[i % 7] += max(1, i % 5)
    found = pl.DataFrame(result["out"]).group_by("id").agg(pl.max("rounds"))
    assert dict(found.iter_rows()) == wanted
    assert result["out"].num_rows == 50


def test_a_loop_that_grows_spills_to_a_file_takes_checkpoints_and_comes_to_its_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def step(rows: weir.Stream) -> tuple[weir.Stream, weir.Stream]:
        twice = rows.flat_map(lambda row: [(row.id, row.n - 1)] * 2, SCHEMA, uid="twice")
        return twice.filter(pl.col("n") > 0, uid="again"), twice.filter(pl.col("n") <= 0, uid="done")

    env = environment(2, loop_memory_max=1_000, channel_batches_max=1, batch_rows_max=64)
    env.from_collection([(i, 10) for i in range(20)], SCHEMA, uid="rows").iterate(step, uid="loop").print(uid="out")
    spilled: list[int] = []
    original = Backlog._spilled
    monkeypatch.setattr(Backlog, "_spilled", lambda *given: spilled.append(1) or original(*given))
    result = run_local(env, crash_at=[12, 30], checkpoint_every=3, seed=1)
    assert Counter(result["out"]["id"].to_pylist()) == dict.fromkeys(range(20), 1_024)
    assert result.restarts == 2
    assert len(spilled) > 10


def test_a_loop_that_only_grows_fails_at_the_limit_of_its_files() -> None:
    def step(rows: weir.Stream) -> tuple[weir.Stream, weir.Stream]:
        return rows.flat_map(lambda row: [(row.id, row.n)] * 2, SCHEMA, uid="twice"), rows.filter(pl.col("n") < 0)

    env = environment(1, loop_memory_max=1_000, loop_disk_max=100_000)
    env.from_collection(ROWS, SCHEMA, uid="rows").iterate(step, uid="loop").print(uid="out")
    with pytest.raises(JobError, match=r"(?s)loop.*0\.\d MB of rows that were fed back wait.*Settings\.loop_disk_max"):
        run_local(env)


def test_rows_are_fed_back_through_another_exchange_and_side_outputs_and_unions() -> None:
    def step(rows: weir.Stream) -> tuple[weir.Stream, weir.Stream]:
        less = rows.with_columns(n=pl.col("n") - 1, uid="less", parallelism=3)
        odd, even = (less.filter((pl.col("n") > 0) & (pl.col("n") % 2 == i), uid=f"again-{i}") for i in (1, 0))
        return odd.rebalance().union(even), less.filter(pl.col("n") <= 0, uid="done", parallelism=1)

    env = environment(2)
    env.from_collection(ROWS, SCHEMA, uid="rows").iterate(step, uid="loop").print(uid="out")
    result = run_local(env, seed=5, crash_at=[25, 45], checkpoint_every=5)
    assert sorted(result["out"]["id"].to_pylist()) == list(range(60))


@pytest.mark.parametrize("seed", seeds(4))
def test_loops_follow_each_other_and_lie_in_each_other(seed: int) -> None:
    def outer(rows: weir.Stream) -> tuple[weir.Stream, weir.Stream]:
        def inner(rows: weir.Stream) -> tuple[weir.Stream, weir.Stream]:
            less = rows.with_columns(b=pl.col("b") - 1, rounds=pl.col("rounds") + 1, uid="less-b")
            return less.filter(pl.col("b") > 0, uid="again-b"), less.filter(pl.col("b") <= 0, uid="done-b")

        less = rows.with_columns(a=pl.col("a") - 1, b=pl.lit(3, pl.Int64), uid="less-a").iterate(inner, uid="inner")
        return less.filter(pl.col("a") > 0, uid="again-a"), less.filter(pl.col("a") <= 0, uid="done-a")

    def last(rows: weir.Stream) -> tuple[weir.Stream, weir.Stream]:
        more = rows.with_columns(rounds=pl.col("rounds") + 100, uid="more")
        return more.filter(pl.col("rounds") < 500, uid="again-c"), more.filter(pl.col("rounds") >= 500, uid="done-c")

    env = environment(1 + seed % 2)
    rows = env.from_collection([(i, 1 + i % 4, 0, 0) for i in range(20)], "id long, a long, b long, rounds long")
    rows.iterate(outer, uid="outer").iterate(last, uid="last").print(uid="out")
    result = run_local(env, seed=seed, crash_at=[30, 60, 90], checkpoint_every=6)
    assert sorted(result["out"]["rounds"].to_pylist()) == sorted(500 + 3 * (1 + i % 4) for i in range(20))


@pytest.mark.parametrize("seed", seeds(4))
def test_calls_that_are_under_way_keep_a_loop_open(seed: int) -> None:
    async def tried(row: Any) -> Any:
        return row.id, row.n - 1

    def step(rows: weir.Stream) -> tuple[weir.Stream, weir.Stream]:
        less = rows.map_async(tried, SCHEMA, ordered=False, capacity=3, uid="tried")
        return less.filter(pl.col("n") > 0, uid="again"), less.filter(pl.col("n") <= 0, uid="done")

    env = environment(2)
    env.from_collection(ROWS[:30], SCHEMA, uid="rows").iterate(step, uid="loop").print(uid="out")
    result = run_local(env, seed=seed, crash_at=[30], checkpoint_every=4)
    assert sorted(result["out"]["id"].to_pylist()) == list(range(30))


def test_a_job_without_any_checkpoint_interval_ends_by_itself_and_an_empty_loop_does_too() -> None:
    for rows in (ROWS, []):
        stream = environment(2).from_collection(rows, SCHEMA).iterate(count_down)
        assert collect_local(stream).num_rows == len(rows)


class Woken(weir.CoProcessFunction):
    """Rows of the loop sleep until a row from outside wakes those of their key."""

    asleep = weir.ListState("long")

    def process_left(self, row: Any, context: Any) -> Any:
        if row.n > 0:
            yield row.id, row.n - 1
        else:
            self.asleep.add(row.id)

    def process_right(self, row: Any, context: Any) -> Any:
        for id in self.asleep.get():
            yield id, -1
        self.asleep.clear()


@pytest.mark.parametrize("seed", seeds(3))
def test_a_loop_goes_on_as_long_as_rows_from_outside_enter_it_anywhere(seed: int) -> None:
    env = environment(2, batch_rows_max=4)
    rows = env.from_collection([(i, 2) for i in range(10)], SCHEMA, uid="rows")
    alarm = env.from_collection([(i % 10, 0) for i in range(300)], SCHEMA, uid="alarm", parallelism=1)

    def step(rows: weir.Stream) -> tuple[weir.Stream, weir.Stream]:
        woken = rows.connect(alarm).key_by("id").process(Woken(), SCHEMA, uid="woken")
        return woken.filter(pl.col("n") >= 0, uid="again"), woken.filter(pl.col("n") < 0, uid="done")

    rows.iterate(step, uid="loop").print(uid="out")
    result = run_local(env, seed=seed, crash_at=[40], checkpoint_every=7)
    assert sorted(result["out"]["id"].to_pylist()) == list(range(10))


# --- Event time -----------------------------------------------------------------------------------------

TIMED = "id long, n long, ts timestamp_ntz"
BEGIN = datetime(2026, 1, 1)


class Reminder(weir.ProcessFunction):
    """Feeds a row back a minute of event time later, as often as it says."""

    left = weir.MapState("long", "long")

    def process(self, row: Any, context: Any) -> Any:
        self.left[row.n] = row.n
        context.timers.at(row.ts + timedelta(minutes=1))

    def on_timer(self, time: datetime, context: Any) -> Any:
        for n in list(self.left.keys()):
            yield context.key, n - 1, time
            del self.left[n]


@pytest.mark.parametrize("seed", seeds(4))
def test_timers_in_a_loop_fire_at_the_end_of_time_and_what_they_feed_back_still_goes_round(seed: int) -> None:
    def step(rows: weir.Stream) -> tuple[weir.Stream, weir.Stream]:
        later = rows.key_by("id").process(Reminder(), TIMED, uid="later")
        return later.filter(pl.col("n") > 0, uid="again"), later.filter(pl.col("n") <= 0, uid="done")

    env = environment(2)
    rows = [(i, 1 + i % 3, BEGIN + timedelta(seconds=i)) for i in range(30)]
    timed = env.from_collection(rows, TIMED, watermark=weir.bounded_disorder("ts", "1s"), uid="rows")
    timed.iterate(step, uid="loop").print(uid="out")
    result = run_local(env, seed=seed, crash_at=[40], checkpoint_every=5)
    assert sorted(result["out"]["id"].to_pylist()) == list(range(30))


def test_rows_that_come_out_of_a_loop_after_the_end_of_the_input_are_not_late_behind_it() -> None:
    env = environment(2)
    rows = [(i, 5, BEGIN) for i in range(10)]
    timed = env.from_collection(rows, TIMED, watermark=weir.monotonic("ts"), uid="rows")
    counted = timed.iterate(count_down, uid="loop").key_by("n").window(weir.tumbling("1h")).agg(c=weir.count(), uid="c")
    assert collect_local(counted)["c"].to_pylist() == [10]


class AtTheEnd(OperatorSpec):
    """Emits a row when its input ends."""

    def schema(self, inputs: Sequence[pa.Schema]) -> pa.Schema:
        return inputs[0]

    def make(self) -> Operator:
        return LastWords()


class LastWords(Operator):
    def process(self, batch: pa.RecordBatch, out: Emit) -> None:
        out(batch.slice(0, 0))

    def end(self, out: Emit) -> None:
        out(pa.RecordBatch.from_pylist([{"id": 1, "n": 1}]))


def test_rows_that_are_fed_back_when_the_input_has_ended_are_an_error_that_names_the_loop() -> None:
    def step(rows: weir.Stream) -> tuple[weir.Stream, weir.Stream]:
        return rows._apply("last", AtTheEnd, Options()), rows.filter(pl.col("n") > 5)

    stream = environment(1).from_collection(ROWS, SCHEMA).iterate(step, uid="endless")
    with pytest.raises(DataError, match=r"'endless'.*1 rows were fed back after the loop had ended"):
        collect_local(stream)


# --- Bad input ------------------------------------------------------------------------------------------


def test_what_is_fed_back_must_have_the_columns_of_the_loop() -> None:
    rows = environment().from_collection(ROWS, SCHEMA)
    with pytest.raises(SchemaError, match=r"iterate \(.*test_loop.py:\d+\): the columns differ: id, n here, id there"):
        rows.iterate(lambda rows: (rows.select("id"), rows))
    with pytest.raises(SchemaError, match="column 'n' is int64 here and double there"):
        rows.iterate(lambda rows: (rows.with_columns(n=pl.col("n") * 1.0), rows))


def test_what_is_fed_back_must_come_from_the_loop_and_be_changed() -> None:
    rows = environment().from_collection(ROWS, SCHEMA)
    with pytest.raises(PlanError, match="does not come from the loop"):
        rows.iterate(lambda inside: (rows.filter(pl.col("n") > 0), inside))
    with pytest.raises(PlanError, match="would go round for ever"):
        rows.iterate(lambda inside: (inside, inside))


@pytest.mark.parametrize("returned", [None, 1, (1, 2), [1, 2]])
def test_a_step_that_returns_something_else_is_refused(returned: Any) -> None:
    rows = environment().from_collection(ROWS, SCHEMA)
    with pytest.raises(PlanError, match=r"iterate \(.*must return two streams"):
        rows.iterate(lambda inside: returned)


def test_only_the_loop_that_leads_to_a_sink_is_planned_and_all_of_it() -> None:
    env = environment()
    rows = env.from_collection(ROWS, SCHEMA, uid="rows")

    def step(rows: weir.Stream) -> tuple[weir.Stream, weir.Stream]:
        rows.print(uid="inside")
        return count_down(rows)

    rows.iterate(step, uid="loop")
    plan = env.plan()
    uids = {operator.uid for vertex in plan.vertices for operator in vertex.operators}
    assert uids == {"rows", "loop", "inside", "less", "again"}
    (loop,) = plan.loops
    names = {plan.vertices[subtask.vertex].name for subtask in loop.members}
    assert names == {"loop", "less → again"}
