"""Every kind of state, on every backend, in functions of co-groups: by key, and of each window."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

import weir
from tests.contract.functions import KINDS, Checkpoint, Kind, Subtasks, known
from tests.contract.state_backends import backends
from weir.config import StateBackend
from weir.errors import CheckpointError, PlanError, UserCodeError
from weir.operators.joins.co_group import CoGroup
from weir.operators.joins.side import JoinSide
from weir.snapshot.watermarks import END_US
from weir.state.declared.kinds import BroadcastState, KeyedState, ListState, OperatorListState, ValueState
from weir.state.declared.per_window import per_window
from weir.testing import collect_local

SECOND = 1_000_000
LEFT = pa.schema([("key", pa.int64()), ("x", pa.int64()), ("ts", pa.timestamp("us"))])
RIGHT = pa.schema([("y", pa.int64()), ("other", pa.dictionary(pa.int32(), pa.int64())), ("ts", pa.timestamp("us"))])
OUTPUT = "key long, x long, sum long"
TEN = weir.tumbling("10s")


def key_of(left: Any, right: Any) -> Any:
    return (left["key"] if len(left) else right["other"].cast(int))[0]


def told(key: Any, x: int, total: int) -> pl.DataFrame:
    return pl.DataFrame([(key, x, total)], dict.fromkeys(("key", "x", "sum"), pl.Int64), orient="row")


class Summed:
    """Adds up the rows of both sides of each window at its state, and tells the state's sum."""

    state: Any

    def __init__(self, kind: Kind, *, of_window: bool = False) -> None:
        state: Any = kind.state
        self.state, self._add = per_window(state) if of_window else state, kind.add

    def __call__(self, left: Any, right: Any) -> Any:
        found = int(left["x"].sum()) + int(right["y"].sum())
        return told(key_of(left, right), found, self._add(self.state, found))


def plain(kind: Kind) -> Callable[..., Any]:
    def function(left: Any, right: Any, state: Any) -> Any:
        found = int(left["x"].sum()) + int(right["y"].sum())
        return told(key_of(left, right), found, kind.add(state.state, found))

    return function


def made(function: Any, windows: Any = TEN, **options: Any) -> CoGroup:
    sides = JoinSide("left", LEFT, ("key",), "ts"), JoinSide("right", RIGHT, ("other",), "ts")
    spec = CoGroup(*sides, windows, function, OUTPUT, **options)
    known(spec, LEFT, RIGHT)
    return spec


@pytest.fixture(params=backends())
def backend(request: pytest.FixtureRequest) -> StateBackend:
    return backends()[request.param]


def subtasks(
    spec: CoGroup, backend: StateBackend, directory: Path, parallelism: int, checkpoint: Checkpoint | None = None
) -> Subtasks:
    return Subtasks(
        spec, [["key"], ["other"]], backend=backend, directory=directory, parallelism=parallelism, checkpoint=checkpoint
    )


def rows_at(numbers: Any) -> pa.Array:
    return pa.array([n * SECOND for n in numbers], pa.int64()).view(pa.timestamp("us"))


def feed(running: Subtasks, start: int, stop: int) -> list[tuple[Any, ...]]:
    """A row a second, by turns on the left and on the right; a seventh has no key."""
    left, right = range(start, stop, 2), range(start + 1, stop, 2)
    out = running.process(pa.record_batch([pa.array(map(keyed, left)), pa.array(left), rows_at(left)], schema=LEFT))
    others = pa.array(map(keyed, right), pa.int64()).dictionary_encode()
    return out + running.process(
        pa.record_batch([pa.array(right), others, rows_at(right)], schema=RIGHT), input_number=1
    )


def keyed(number: int) -> int | None:
    return number % 7 or None


def held(checkpoint: Checkpoint, name: str) -> int:
    return sum(table.num_rows for part in checkpoint.parts for table in checkpoint.files.tables(part[name]))


SPECS: dict[str, Callable[[Kind], CoGroup]] = {
    "object": lambda kind: made(Summed(kind)),
    "plain": lambda kind: made(plain(kind), state={"state": kind.state}),
    "sliding": lambda kind: made(Summed(kind), weir.sliding("10s", "5s")),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("function", SPECS)
def test_state_by_key_goes_on_from_window_to_window_also_after_rescaling(
    function: str, kind: str, backend: StateBackend, tmp_path: Path
) -> None:
    spec = SPECS[function](KINDS[kind])
    assert spec.states == ("left", "right", "state")
    found: list[tuple[Any, ...]] = []
    checkpoint: Checkpoint | None = None
    for start, parallelism in ((0, 2), (40, 3), (80, 1), (120, 1)):
        running = subtasks(spec, backend, tmp_path, parallelism, checkpoint)
        feed(running, start, start + 40)
        found += running.watermark((start + 35) * SECOND)
        running.flush()
        checkpoint = running.checkpoint(checkpoint)
        running.close()
    last = subtasks(spec, backend, tmp_path, 2, checkpoint)
    found += last.watermark(END_US)
    last.close()
    assert sum(row[1] for row in found) == sum(range(160)) * (2 if function == "sliding" else 1)
    sums: Counter[int | None] = Counter()
    for key, x, total, *_ in found:
        sums[key] += x
        assert total == sums[key]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("windows", [TEN, weir.sliding("10s", "5s")], ids=["tumbling", "sliding"])
def test_state_of_a_window_is_its_own_and_gone_with_it(
    kind: str, windows: Any, backend: StateBackend, tmp_path: Path
) -> None:
    class Calls(Summed):
        def __call__(self, left: Any, right: Any) -> Any:
            count = self._add(self.state, 1)
            return told(key_of(left, right), len(left) + len(right), count)

    spec = made(Calls(KINDS[kind], of_window=True), windows, lateness_us=20 * SECOND)
    per = 1 if windows is TEN else 2
    first = subtasks(spec, backend, tmp_path, 1)
    feed(first, 20, 30)
    found = first.watermark(44 * SECOND)
    assert len(found) == 7 if per == 1 else len(found) > 7
    assert {row[2] for row in found} == {1}
    checkpoint = first.checkpoint()
    assert held(checkpoint, "state") == len(found)
    first.close()
    again = subtasks(spec, backend, tmp_path, 2, checkpoint)
    late = pa.record_batch([pa.array([1]), pa.array([5]), rows_at([26])], schema=LEFT)
    again.process(late)
    emitted = again.flush()
    # The key came out before, in each of the windows that the row is in; this is the second time.
    assert [(key, count) for key, _, count, *_ in emitted] == [(1, 2)] * per
    again.watermark(49 * SECOND)
    assert held(again.checkpoint(checkpoint), "state") > 0
    again.watermark(60 * SECOND)
    assert held(again.checkpoint(checkpoint), "state") == 0
    again.close()


@pytest.mark.parametrize("windows", [TEN, weir.sliding("10s", "5s")], ids=["tumbling", "sliding"])
def test_state_of_windows_that_are_over_by_a_shorter_lateness_is_gone(
    windows: Any, backend: StateBackend, tmp_path: Path
) -> None:
    longer, shorter = (
        made(Summed(KINDS["value"], of_window=True), windows, lateness_us=lateness_us)
        for lateness_us in (60 * SECOND, 5 * SECOND)
    )
    first = subtasks(longer, backend, tmp_path, 1)
    feed(first, 0, 40)
    first.watermark(42 * SECOND)
    checkpoint = first.checkpoint()
    assert held(checkpoint, "state") > 0
    first.close()
    again = subtasks(shorter, backend, tmp_path, 2, checkpoint)
    again.watermark(43 * SECOND)
    again.watermark(50 * SECOND)
    assert held(again.checkpoint(checkpoint), "state") == 0
    again.close()


class Everything(Summed):
    """Operator state, hooks, and a state that open declares, beside the class's."""

    windows = OperatorListState("long", redistribute="union")
    names = BroadcastState("string", "long", default=0)
    count = 0
    is_closed = False

    def open(self, context: Any) -> None:
        self.last = context.state("last", per_window(ListState("long")))

    def __call__(self, left: Any, right: Any) -> Any:
        self.count += 1
        self.windows.add(self.count)
        self.names["windows"] += 1
        self.last.add(self.count)
        key = key_of(left, right)
        return told(key, len(self.last.get()), self._add(self.state, 1))

    def snapshot_state(self) -> Any:
        return self.count

    def restore_state(self, values: Any) -> None:
        self.count = sum(values)

    def close(self) -> None:
        self.is_closed = True


def test_a_function_of_co_groups_keeps_all_that_a_function_may(backend: StateBackend, tmp_path: Path) -> None:
    spec = made(Everything(KINDS["value"]))
    assert spec.states == ("left", "right", "windows", "names", "state", "snapshot_state") and spec.declares_in_open
    first = subtasks(spec, backend, tmp_path, 2)
    feed(first, 0, 20)
    assert len(first.watermark(10 * SECOND)) == 7
    checkpoint = first.checkpoint()
    first.close()
    again = subtasks(spec, backend, tmp_path, 1, checkpoint)
    function = again.operators[0]._call.function  # type: ignore[attr-defined]
    assert function.count == 7 and len(function.windows.get()) == 7
    assert sorted(row[1:3] for row in again.watermark(END_US)) == [(1, 2)] * 7
    again.close()
    assert function.is_closed


def test_the_keys_of_state_are_called_what_they_are_on_the_left(backend: StateBackend, tmp_path: Path) -> None:
    running = subtasks(made(Summed(KINDS["value"])), backend, tmp_path, 1)
    feed(running, 0, 10)
    running.watermark(END_US)
    checkpoint = running.checkpoint()
    (table,) = checkpoint.files.tables(checkpoint.parts[0]["state"])
    running.close()
    assert table.column_names == ["__key_group", "key", "value"] and table.schema.field("key").type == pa.int64()


def test_mistakes_are_told(backend: StateBackend, tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="co_group: 'left' is what the operator calls a state of its own"):
        made(lambda left, right, state: None, state={"left": ValueState("long")})

    class Fails(Summed):
        def __call__(self, left: Any, right: Any) -> Any:
            self.state.value = "x"

    running = subtasks(made(Fails(KINDS["value"])), backend, tmp_path, 1)
    feed(running, 1, 2)
    with pytest.raises(
        UserCodeError, match=r"failed in co_group.*state 'state' holds bigint, but was set to 'x'.*at key 1"
    ):
        running.watermark(END_US)
    running.close()


def test_a_state_of_another_form_is_refused_with_the_operators_name(backend: StateBackend, tmp_path: Path) -> None:
    def run(state: KeyedState, checkpoint: Checkpoint | None = None) -> Subtasks:
        spec = made(Summed(Kind(state, lambda handle, x: 0)))
        if checkpoint is not None:
            stored = next(iter(checkpoint.files.tables(checkpoint.parts[0]["state"]))).schema
            assert spec.verdict("state", stored) not in ("same", "evolved", "migrated")
        return subtasks(spec, backend, tmp_path, 1, checkpoint)

    first = run(ValueState("long"))
    checkpoint = first.checkpoint()
    first.close()
    for state in (ValueState("string"), per_window(ValueState("long"))):
        with pytest.raises(CheckpointError, match=r"^operator 'the-name'.*'state'"):
            run(state, checkpoint)


def test_a_job_says_it_in_one_line() -> None:
    env = weir.Environment(parallelism=2)
    rows = [(n % 3, n) for n in range(30)]
    one, two = (
        env.from_collection(rows, "key long, x long", uid=uid)
        .with_columns(ts=(pl.col("x") * SECOND).cast(pl.Datetime("us")), uid=f"{uid} times")
        .with_watermarks(weir.monotonic("ts"))
        .key_by("key")
        for uid in ("one", "two")
    )

    def numbered(left: Any, right: Any, state: Any) -> Any:
        state.windows.value += 1
        return pl.DataFrame({"key": left["key"][:1], "window": [state.windows.value]})

    state = {"windows": ValueState("long", default=0)}
    out = one.co_group(two, TEN).apply(numbered, "key long, window long", state=state, uid="numbered")
    found = collect_local(out, checkpoint_every=3, crash_at=[9]).select(["key", "window"]).to_pylist()
    assert sorted(tuple(row.values()) for row in found) == [(key, n) for key in range(3) for n in (1, 2, 3)]
