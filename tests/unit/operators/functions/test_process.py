"""The keyed process function, and value state in it."""

from __future__ import annotations

import datetime
import pickle
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tests.states import table_of
from tests.unit.operators.running import KeyedRun, context, cut, opened, rows, run
from weir.errors import CheckpointError, PlanError, SchemaError, UserCodeError
from weir.operators.base import KEY_GROUP_COLUMN
from weir.operators.functions.interfaces import ProcessFunction
from weir.operators.functions.process import ProcessRows
from weir.state.declared.kinds import ValueState

OUTPUT = "key long, total long"
BATCH = pa.record_batch({"key": [1, 2, 1, None, 2, None, 1], "value": [10, 20, 30, 40, 50, 60, 70]})
TOTALS = [(1, 10), (2, 20), (1, 40), (None, 40), (2, 70), (None, 100), (1, 110)]


class RunningTotal(ProcessFunction):
    total = ValueState("long", default=0)

    def process(self, row: Any, context: Any) -> Any:
        self.total.set(self.total.get() + row.value)
        yield row.key, self.total.get()


class Returning(RunningTotal):
    """The same, returned in turn as a tuple, a list, a dict and an iterator."""

    def process(self, row: Any, context: Any) -> Any:
        self.total.value += row.value
        result = (row.key, self.total.value)
        forms = [result, [result], {"total": result[1], "key": result[0]}, iter([result])]
        return forms[row.value // 10 % 4]


def plain(row: Any, state: Any) -> Iterator[Any]:
    state.total.set(state.total.get() + row.value)
    yield row.key, state.total.get()


def spec(function: Any = None, keys: tuple[str, ...] = ("key",), **options: Any) -> ProcessRows:
    made = ProcessRows(keys, RunningTotal() if function is None else function, OUTPUT, **options)
    made.schema([BATCH.schema])
    return made


@pytest.mark.parametrize("size", [1, 2, 7])
@pytest.mark.parametrize(
    "made",
    [spec(), spec(Returning()), spec(plain, state={"total": ValueState("long", default=0)})],
    ids=["yielding", "returning", "plain function"],
)
def test_each_row_meets_the_state_of_its_own_key_however_the_stream_is_cut(made: ProcessRows, size: int) -> None:
    assert rows(run(made, *cut(BATCH, size))) == TOTALS


def test_none_and_empty_lists_emit_nothing() -> None:
    assert run(spec(lambda row, state: None), BATCH) == []
    assert run(spec(lambda row, state: []), BATCH) == []


def test_cleared_state_is_the_default_again() -> None:
    class Clearing(RunningTotal):
        def process(self, row: Any, context: Any) -> Any:
            self.total.set(self.total.get() + row.value)
            result = (row.key, self.total.get())
            if row.value == 30:
                self.total.clear()
            return result

    assert rows(run(spec(Clearing()), BATCH)) == [*TOTALS[:6], (1, 70)]


def test_several_states_keep_apart_and_are_matched_by_name() -> None:
    class Two(ProcessFunction):
        first = ValueState("long")
        count = ValueState("long", default=0, name="n")

        def process(self, row: Any, context: Any) -> Any:
            if self.first.get() is None:
                self.first.set(row.value)
            self.count.set(self.count.get() + 1)
            return row.key, self.first.get() + 1_000 * self.count.get()

    made = spec(Two())
    assert made.states == ("first", "n")
    assert rows(run(made, BATCH))[-1] == (1, 3_010)


def test_the_context_knows_the_key_as_users_write_it() -> None:
    moment = datetime.datetime(2024, 1, 1, tzinfo=datetime.timezone.utc)
    batch = pa.record_batch({"day": pa.array([moment], pa.timestamp("us", "UTC")), "word": ["x"], "n": [1]})
    seen: list[Any] = []

    class Looking(ProcessFunction):
        def process(self, row: Any, context: Any) -> Any:
            seen.append((context.key, context.uid, context.name, context.index, context.parallelism))

    for keys, expected in ((("day", "word"), (moment, "x")), (("day",), moment), (("word",), "x")):
        made = ProcessRows(keys, Looking(), OUTPUT)
        made.schema([batch.schema])
        run(made, batch)
        assert seen.pop() == (expected, "the-uid", "the-name", 0, 1)


def test_nan_is_one_key_and_so_are_both_zeros() -> None:
    keys = pa.array([float("nan"), 0.0, np.float64("nan"), -0.0, None, float("nan")])
    batch = pa.record_batch({"key": keys, "value": [1, 1, 1, 1, 1, 1]})
    made = ProcessRows(["key"], lambda row, state: plain_count(state), "n long", {"n": ValueState("long", default=0)})
    made.schema([batch.schema])
    assert rows(run(made, *cut(batch, 2))) == [(1,), (1,), (2,), (2,), (1,), (3,)]


def plain_count(state: Any) -> int:
    state.n.value += 1
    return int(state.n.value)


def test_moments_that_look_alike_on_a_clock_are_different_keys() -> None:
    twice = [datetime.datetime(2024, 10, 27, hour, 30, tzinfo=datetime.timezone.utc) for hour in (0, 1)]
    batch = pa.record_batch({"key": pa.array(twice, pa.timestamp("us", "Europe/Berlin")), "value": [1, 1]})
    made = ProcessRows(["key"], lambda row, state: plain_count(state), "n long", {"n": ValueState("long", default=0)})
    made.schema([batch.schema])
    assert rows(run(made, batch)) == [(1,), (1,)]


@pytest.mark.parametrize(("before", "after"), [(1, 1), (2, 5), (5, 3)])
@pytest.mark.parametrize("keys", [("key",), ("key", "word")])
def test_a_snapshot_restores_at_another_parallelism(before: int, after: int, keys: tuple[str, ...]) -> None:
    rng = np.random.default_rng(7)
    schema = pa.schema([("key", pa.int64()), ("word", pa.string()), ("value", pa.int64())])
    numbers = [None if n == 0 else int(n) for n in rng.integers(0, 50, 600)]
    words = [[None, "é", "long enough to be out of line"][n] for n in rng.integers(0, 3, 600)]
    values = rng.integers(0, 100, 600).tolist()
    batches = cut(pa.record_batch([pa.array(numbers), pa.array(words), pa.array(values)], schema=schema), 100)

    made = ProcessRows(keys, RunningTotal(), OUTPUT)
    made.schema([schema])
    reference = KeyedRun(made, keys, parallelism=1)
    expected = [reference.process(batch) for batch in batches]

    first = KeyedRun(made, keys, parallelism=before)
    got = [first.process(batch) for batch in batches[:3]]
    tables = first.freeze()
    first.process(batches[5])  # What comes after the snapshot is not in it.
    second = KeyedRun(made, keys, parallelism=after, tables=tables)
    got += [second.process(batch) for batch in batches[3:]]
    assert [sorted(map(str, out)) for out in got] == [sorted(map(str, out)) for out in expected]
    for table in tables["total"]:
        assert table.schema.names == [KEY_GROUP_COLUMN, *keys, "value"]
        groups = table.column(0).to_pylist()
        assert groups == sorted(groups)


def test_a_frozen_table_does_not_see_later_changes() -> None:
    operator, _ = opened(spec(), BATCH.schema)
    operator.process(BATCH, lambda batch: None)
    build = operator.freeze().states["total"]
    operator.process(BATCH, lambda batch: None)
    assert sorted(table_of(build).column("value").to_pylist()) == [70, 100, 110]


def test_instances_share_nothing_that_the_function_keeps_for_itself() -> None:
    class Remembering(ProcessFunction):
        def __init__(self) -> None:
            self.seen: list[int] = []

        def process(self, row: Any, context: Any) -> Any:
            self.seen.append(row.value)
            return row.key, len(self.seen)

    made = spec(Remembering())
    runs = KeyedRun(made, ("key",), parallelism=2)
    assert max(total for _, total in runs.process(BATCH)) < BATCH.num_rows
    assert made.function.seen == []  # type: ignore[union-attr]


def test_open_and_close_are_called_once_and_their_errors_are_the_users() -> None:
    calls: list[str] = []

    class Opened(RunningTotal):
        def open(self, context: Any) -> None:
            calls.append(f"open {context.index}")

        def close(self) -> None:
            calls.append("close")

    class Broken(RunningTotal):
        def open(self, context: Any) -> None:
            raise ConnectionError("no such host")

    run(spec(Opened()), BATCH)
    assert calls == ["open 0", "close"]
    operator = spec(Broken()).make()
    with pytest.raises(UserCodeError, match=r"(?s)failed in open\(\): ConnectionError.*in open"):
        operator.open(context(), None)
    operator.close()


class Failing(RunningTotal):
    def process(self, row: Any, context: Any) -> Any:
        yield row.key, self.divide(row)

    def divide(self, row: Any) -> int:
        return 1 // (row.value - 40)


class FailingToo(Failing):
    def process(self, row: Any, context: Any) -> Any:
        return row.key, self.divide(row)


@pytest.mark.parametrize("function", [Failing(), FailingToo()], ids=["yielding", "returning"])
def test_an_exception_names_operator_row_and_key_and_shows_only_the_users_lines(function: Any) -> None:
    with pytest.raises(UserCodeError) as caught:
        run(spec(function), BATCH.slice(2))
    text = str(caught.value)
    assert "operator 'the-name' (uid 'the-uid') failed: ZeroDivisionError" in text
    assert "key: None" in text
    assert "row: Row(key=None, value=40)" in text
    assert "in divide" in text and "in process" in text
    assert "weir/operators" not in text and "weir/state" not in text
    assert str(pickle.loads(pickle.dumps(caught.value))) == text


def test_a_state_value_of_the_wrong_type_is_reported_where_it_was_set() -> None:
    class Wrong(RunningTotal):
        def process(self, row: Any, context: Any) -> Any:
            self.total.set(row.value / 2)

    with pytest.raises(UserCodeError) as caught:
        run(spec(Wrong()), BATCH)
    text = str(caught.value)
    assert "state 'total' holds bigint, but was set to 5.0 (float) at key 1" in text
    assert "operator 'the-name' (uid 'the-uid')" in text
    assert "self.total.set(row.value / 2)" in text


def test_a_result_that_does_not_fit_the_schema_is_refused() -> None:
    with pytest.raises(SchemaError, match=r"operator 'the-name'.*field 'total' is declared bigint.*'many' \(str\)"):
        run(spec(lambda row, state: (row.key, "many")), BATCH)


def test_an_unknown_state_of_a_plain_function_is_named() -> None:
    with pytest.raises(UserCodeError, match="there is no state 'sum'; declared are: total"):
        run(spec(lambda row, state: state.sum.get(), state={"total": ValueState("long")}), BATCH)


def test_what_cannot_be_a_process_function_is_refused_when_built() -> None:
    class Twice(ProcessFunction):
        a = ValueState("long", name="same")
        b = ValueState("long", name="same")

    with pytest.raises(PlanError, match=r"pass an instance, RunningTotal\(…\)"):
        ProcessRows(["key"], RunningTotal, OUTPUT)
    with pytest.raises(PlanError, match="two states are called 'same'"):
        ProcessRows(["key"], Twice(), OUTPUT)
    with pytest.raises(PlanError, match="leave out state="):
        ProcessRows(["key"], RunningTotal(), OUTPUT, {"x": ValueState("long")})
    with pytest.raises(PlanError, match="must be a ValueState or another state, found 0"):
        ProcessRows(["key"], plain, OUTPUT, {"total": 0})  # type: ignore[dict-item]
    with pytest.raises(SchemaError, match="no column 'kee'; the columns are: key, value"):
        ProcessRows(["kee"], RunningTotal(), OUTPUT).schema([BATCH.schema])


def test_state_cannot_be_read_outside_a_running_job() -> None:
    with pytest.raises(PlanError, match="only a function of a running job"):
        RunningTotal.total.get()


def test_a_checkpoint_with_other_keys_or_another_type_is_refused() -> None:
    tables = _tables(spec(), ("key",))
    other = ProcessRows(["value"], RunningTotal(), OUTPUT)
    other.schema([BATCH.schema])
    with pytest.raises(CheckpointError, match="keys key bigint, but the job's keys are value bigint"):
        KeyedRun(other, ("value",), parallelism=1, tables=tables)

    class Text(ProcessFunction):
        total = ValueState("date")

    with pytest.raises(CheckpointError, match="stored as bigint, declared as date: bigint cannot become date"):
        KeyedRun(spec(Text()), ("key",), parallelism=1, tables=tables)

    class Renamed(ProcessFunction):
        sum = ValueState("long")

    with pytest.raises(CheckpointError, match=r"holds state 'total', which the function does not declare \(sum\)"):
        KeyedRun(spec(Renamed()), ("key",), parallelism=1, tables=tables)


def test_a_state_may_become_wider_and_new_ones_may_join() -> None:
    class Small(RunningTotal):
        total = ValueState("int", default=0)

    class Wider(RunningTotal):
        count = ValueState("long", default=0)

    tables = _tables(spec(Small()), ("key",))
    after = KeyedRun(spec(Wider()), ("key",), parallelism=2, tables=tables)
    assert sorted(after.process(BATCH.slice(0, 2))) == [(1, 120), (2, 90)]


def _tables(made: ProcessRows, keys: tuple[str, ...]) -> Any:
    before = KeyedRun(made, keys, parallelism=1)
    before.process(BATCH)
    return before.freeze()
