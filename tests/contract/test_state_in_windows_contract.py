"""Every kind of state, on every backend, in functions of windows: by key, and of each window."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import weir
from tests.contract.functions import KINDS, Checkpoint, Kind, Subtasks, known
from tests.contract.state_backends import backends
from weir.config import StateBackend
from weir.errors import CheckpointError, PlanError, UserCodeError
from weir.operators.base import OperatorSpec
from weir.operators.windows.counts import CountedRows
from weir.operators.windows.functions import ProcessFunctionOfWindow, ReduceFunction
from weir.operators.windows.rows import WindowRows
from weir.snapshot.watermarks import END_US
from weir.state.declared.kinds import BroadcastState, KeyedState, ListState, OperatorListState, ValueState
from weir.state.declared.per_window import per_window

SECOND = 1_000_000
SCHEMA = pa.schema([("key", pa.int64()), ("x", pa.int64()), ("ts", pa.timestamp("us"))])
OUTPUT = "key long, x long, sum long"
TEN = weir.tumbling("10s")


class Summed:
    """Adds up the rows of each window at its state, and tells the state's sum."""

    state: Any

    def __init__(self, kind: Kind, *, of_window: bool = False) -> None:
        state: Any = kind.state
        self.state, self._add = per_window(state) if of_window else state, kind.add

    def __call__(self, rows: Any, window: Any) -> Any:
        found = int(rows["x"].sum())
        return window.key, found, self._add(self.state, found)


class Reduced(Summed):
    """Puts the state's sum into what the rows become."""

    def __call__(self, so_far: Any, row: Any) -> Any:
        return so_far.key, self._add(self.state, row.x), row.ts


def plain(kind: Kind) -> Callable[..., Any]:
    def function(rows: Any, window: Any, state: Any) -> Any:
        found = int(rows["x"].sum())
        return window.key, found, kind.add(state.state, found)

    return function


def processed(function: Any, windows: Any = TEN, state: Any = None, **options: Any) -> OperatorSpec:
    made = ProcessFunctionOfWindow(("key",), SCHEMA, "ts", function, OUTPUT, state)
    if isinstance(windows, weir.count_window(1).__class__):
        return known(CountedRows(windows, made), SCHEMA)
    return known(WindowRows(windows, made, "ts", **options), SCHEMA)


@pytest.fixture(params=backends())
def backend(request: pytest.FixtureRequest) -> StateBackend:
    return backends()[request.param]


def batch(start: int, stop: int) -> pa.RecordBatch:
    """A row a second, of seven keys."""
    numbers = range(start, stop)
    times = pa.array([n * SECOND for n in numbers]).view(pa.timestamp("us"))
    return pa.record_batch([pa.array([n % 7 for n in numbers]), pa.array(numbers), times], schema=SCHEMA)


SPECS: dict[str, Callable[[Kind], OperatorSpec]] = {
    "process": lambda kind: processed(Summed(kind)),
    "process, plain": lambda kind: processed(plain(kind), state={"state": kind.state}),
    "process, sessions": lambda kind: processed(Summed(kind), weir.session("7s")),
    "process, count": lambda kind: processed(Summed(kind), weir.count_window(1)),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("function", SPECS)
def test_state_by_key_goes_on_from_window_to_window_also_after_rescaling(
    function: str, kind: str, backend: StateBackend, tmp_path: Path
) -> None:
    spec = SPECS[function](KINDS[kind])
    assert "state" in spec.states
    sums: Counter[int] = Counter()
    checkpoint: Checkpoint | None = None
    found: list[tuple[Any, ...]] = []
    for start, parallelism in ((0, 2), (40, 3), (80, 1), (120, 1)):
        running = Subtasks(
            spec, ["key"], backend=backend, directory=tmp_path, parallelism=parallelism, checkpoint=checkpoint
        )
        found += running.process(batch(start, start + 40))
        found += running.watermark((start + 35) * SECOND)
        checkpoint = running.checkpoint(checkpoint)
        running.close()
    last = Subtasks(spec, ["key"], backend=backend, directory=tmp_path, parallelism=2, checkpoint=checkpoint)
    found += last.watermark(END_US)
    last.close()
    assert sum(row[1] for row in found) == sum(range(160))
    for key, x, total in found:
        sums[key] += x
        assert total == sums[key]


@pytest.mark.parametrize("kind", KINDS)
def test_a_reduce_keeps_state_by_key(kind: str, backend: StateBackend, tmp_path: Path) -> None:
    made = ReduceFunction(("key",), SCHEMA, "ts", Reduced(KINDS[kind]))
    spec = known(WindowRows(weir.tumbling("70s"), made, "ts"), SCHEMA)
    first = Subtasks(spec, ["key"], backend=backend, directory=tmp_path, parallelism=2)
    first.process(batch(0, 70))
    before = first.watermark(70 * SECOND)
    first.process(batch(70, 140))
    checkpoint = first.checkpoint()
    first.close()
    again = Subtasks(spec, ["key"], backend=backend, directory=tmp_path, parallelism=3, checkpoint=checkpoint)
    after = again.watermark(END_US)
    again.close()
    # A window's first row is taken as it is; the others are added up at the key.
    sums = {key: sum(n for n in range(key + 7, 70, 7)) for key in range(7)}
    assert {row[0]: row[1] for row in before} == sums
    assert {row[0]: row[1] for row in after} == {
        key: total + sum(n for n in range(77 + key, 140, 7)) for key, total in sums.items()
    }


class Firings(Summed):
    """Counts how often each window came out, and how many windows of the key there were."""

    seen = ValueState("long", default=0)

    def __call__(self, rows: Any, window: Any) -> Any:
        firing = self._add(self.state, 1)
        if firing == 1:
            self.seen.value += 1
        return window.key, firing, self.seen.value


def held(checkpoint: Checkpoint, name: str) -> int:
    return sum(table.num_rows for part in checkpoint.parts for table in checkpoint.files.tables(part[name]))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("lateness", ["0s", "20s"])
def test_state_of_a_window_is_its_own_and_gone_with_it(
    kind: str, lateness: str, backend: StateBackend, tmp_path: Path
) -> None:
    late_us = int(lateness[:-1]) * SECOND
    spec = processed(Firings(KINDS[kind], of_window=True), trigger=weir.on_count(1), lateness_us=late_us)
    first = Subtasks(spec, ["key"], backend=backend, directory=tmp_path, parallelism=1)
    rows = pa.record_batch(
        [pa.array([1, 1, 2]), pa.array([1, 2, 3]), pa.array([1, 2, 3]).view(pa.timestamp("us"))], schema=SCHEMA
    )
    one = rows.slice(0, 1)
    assert first.process(one) == [(1, 1, 1)]
    assert first.process(one) == [(1, 2, 1)]
    later = pa.record_batch(
        [pa.array([1]), pa.array([1]), pa.array([15 * SECOND]).view(pa.timestamp("us"))], schema=SCHEMA
    )
    assert first.process(later) == [(1, 1, 2)]
    checkpoint = first.checkpoint()
    assert held(checkpoint, "state") == 2
    first.close()
    again = Subtasks(spec, ["key"], backend=backend, directory=tmp_path, parallelism=2, checkpoint=checkpoint)
    assert sorted(again.process(rows.slice(1, 2))) == [(1, 3, 2), (2, 1, 1)]
    # At its end each window comes out once more.
    assert sorted(again.watermark(10 * SECOND)) == [(1, 4, 2), (2, 2, 1)]
    checkpoint = again.checkpoint(checkpoint)
    assert held(checkpoint, "state") == (1 if not late_us else 3)
    again.watermark(30 * SECOND)
    assert held(again.checkpoint(checkpoint), "state") == (0 if not late_us else 1)
    again.watermark(END_US)
    checkpoint = again.checkpoint(checkpoint)
    assert held(checkpoint, "state") == 0 and held(checkpoint, "seen") == 2
    again.close()


@pytest.mark.parametrize("windows", [TEN, weir.sliding("10s", "5s")], ids=["tumbling", "sliding"])
def test_state_of_windows_that_are_over_by_a_shorter_lateness_is_gone(
    windows: Any, backend: StateBackend, tmp_path: Path
) -> None:
    def started(lateness_us: int, checkpoint: Checkpoint | None = None) -> Subtasks:
        spec = processed(Summed(KINDS["value"], of_window=True), windows, lateness_us=lateness_us)
        parallelism = 1 if checkpoint is None else 2
        return Subtasks(
            spec, ["key"], backend=backend, directory=tmp_path, parallelism=parallelism, checkpoint=checkpoint
        )

    first = started(60 * SECOND)
    first.process(batch(0, 40))
    first.watermark(42 * SECOND)
    checkpoint = first.checkpoint()
    assert held(checkpoint, "state") > 0
    first.close()
    again = started(5 * SECOND, checkpoint)
    again.watermark(43 * SECOND)
    again.watermark(50 * SECOND)
    assert held(again.checkpoint(checkpoint), "state") == 0
    again.close()


class Trail:
    """A map of a window, used in all the ways of a dictionary."""

    trail = per_window(weir.MapState("string", "long", default=7))

    def __call__(self, rows: Any, window: Any) -> Any:
        trail = self.trail
        assert trail.is_empty() and trail.get("a") == 7 == trail["a"] and trail.get("a", 1) == 1 and len(trail) == 0
        trail.put("a", 1)
        trail["b"] = 2
        trail.put_all({"c": 3, "d": 4})
        del trail["d"]
        trail.remove("zz")
        assert "a" in trail and trail.contains("b") and sorted(trail) == trail.keys() == ["a", "b", "c"]
        assert trail.values() == [1, 2, 3] and dict(trail.items())["c"] == 3
        trail.clear()
        return window.key, len(trail), 0


def test_a_map_of_a_window_is_a_dictionary_too(backend: StateBackend, tmp_path: Path) -> None:
    running = Subtasks(processed(Trail()), ["key"], backend=backend, directory=tmp_path, parallelism=1)
    running.process(batch(0, 5))
    assert len(running.watermark(END_US)) == 5
    running.close()


class Everything(Summed):
    """Operator state, hooks, and a state that open declares, beside the class's."""

    windows = OperatorListState("long", redistribute="union")
    names = BroadcastState("string", "long", default=0)
    count = 0

    def open(self, context: Any) -> None:
        self.last = context.state("last", per_window(ListState("long")))

    def __call__(self, rows: Any, window: Any) -> Any:
        self.count += 1
        self.windows.add(window.key)
        self.names["windows"] += 1
        self.last.add(self.count)
        return window.key, len(self.last.get()), self._add(self.state, 1)

    def snapshot_state(self) -> Any:
        return self.count

    def restore_state(self, values: Any) -> None:
        self.count = sum(values)


def test_a_function_of_windows_keeps_all_that_a_function_may(backend: StateBackend, tmp_path: Path) -> None:
    spec = processed(Everything(KINDS["value"]))
    assert spec.states == ("rows", "windows", "names", "state", "snapshot_state") and spec.declares_in_open
    first = Subtasks(spec, ["key"], backend=backend, directory=tmp_path, parallelism=2)
    first.process(batch(0, 20))
    first.watermark(10 * SECOND)
    checkpoint = first.checkpoint()
    first.close()
    again = Subtasks(spec, ["key"], backend=backend, directory=tmp_path, parallelism=1, checkpoint=checkpoint)
    function = again.operators[0]._call.function  # type: ignore[attr-defined]
    assert function.count == 7 and sorted(function.windows.get()) == list(range(7))
    assert sorted(again.watermark(END_US)) == [(key, 1, 2) for key in range(7)]
    again.close()


def test_mistakes_are_told(backend: StateBackend, tmp_path: Path) -> None:
    of_window = Summed(KINDS["value"], of_window=True)
    for windows in (weir.session("5s"), weir.global_window()):
        with pytest.raises(PlanError, match=r"state 'state' is per_window\(…\): only tumbling, sliding and calendar"):
            processed(of_window, windows)
    with pytest.raises(PlanError, match=r"is per_window\(…\): a count window comes out once"):
        processed(of_window, weir.count_window(3))
    with pytest.raises(PlanError, match=r"is per_window\(…\): with a trigger that is purging"):
        processed(of_window, trigger=weir.on_count(1).purging())
    with pytest.raises(PlanError, match="'rows' is what the operator calls a state of its own"):
        processed(lambda rows, window, state: None, state={"rows": ValueState("long")})
    for wrong in (weir.ValueState("long", ttl=weir.Ttl("1h")), ValueState(weir.Pickled()), OperatorListState("long")):
        with pytest.raises(PlanError, match="per_window: "):
            per_window(wrong)

    class Fails(Summed):
        def __call__(self, rows: Any, window: Any) -> Any:
            raise ValueError("no")

    running = Subtasks(processed(Fails(KINDS["value"])), ["key"], backend=backend, directory=tmp_path, parallelism=1)
    running.process(batch(0, 1))
    with pytest.raises(UserCodeError, match=r"\(uid 'the-uid'\) failed in Window\(key=0"):
        running.watermark(END_US)
    running.close()


def test_a_state_of_another_form_is_refused_with_the_operators_name(backend: StateBackend, tmp_path: Path) -> None:
    def run(state: KeyedState, checkpoint: Checkpoint | None = None) -> Subtasks:
        spec = processed(Summed(Kind(state, lambda handle, x: 0)))
        return Subtasks(spec, ["key"], backend=backend, directory=tmp_path, parallelism=1, checkpoint=checkpoint)

    first = run(ValueState("long"))
    checkpoint = first.checkpoint()
    first.close()
    for state in (ValueState("string"), per_window(ValueState("long"))):
        with pytest.raises(CheckpointError, match=r"^operator 'the-name'.*'state'"):
            run(state, checkpoint)
