"""Every kind of state, on every backend, in async functions: a call of a key at a time, state goes with its rows."""

from __future__ import annotations

import asyncio
import copy
from collections import Counter
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

import weir
from tests.contract.functions import KINDS, Checkpoint, Kind, Subtasks, known
from tests.contract.state_backends import backends
from tests.states import Shelf
from tests.unit.operators.running import rows
from weir.config import StateBackend
from weir.errors import CheckpointError, PlanError, UserCodeError
from weir.operators.calls import CallPolicy, Retry
from weir.operators.functions.async_map import MapAsync
from weir.runtime.task.calls import ThreadedCalls
from weir.state.declared.kinds import ListState, MapState, OperatorListState, Pickled, Ttl, ValueState
from weir.testing import run_local

SCHEMA = pa.schema([("key", pa.int64()), ("x", pa.int64())])
OUTPUT = "key long, x long, sum long"


class Sums:
    state: Any

    def __init__(self, kind: Kind) -> None:
        self.state, self._add = kind.state, kind.add

    async def __call__(self, row: Any) -> Any:
        await asyncio.sleep(row.x * 7_919 % 5 / 10_000)
        return row.key, row.x, self._add(self.state, row.x)


def made(function: Any, *, retry: int = 1, **options: Any) -> MapAsync:
    policy = CallPolicy(5_000, Retry(attempts=retry, delay="1ms"))
    spec = MapAsync(function, OUTPUT, policy=policy, keys=["key"], **options)
    known(spec, SCHEMA)
    return spec


@pytest.fixture(params=backends())
def backend(request: pytest.FixtureRequest) -> StateBackend:
    return backends()[request.param]


def subtasks(
    spec: MapAsync,
    backend: StateBackend,
    directory: Path,
    parallelism: int,
    checkpoint: Checkpoint | None = None,
    **options: Any,
) -> Subtasks:
    return Subtasks(
        spec,
        ["key"],
        backend=backend,
        directory=directory,
        parallelism=parallelism,
        checkpoint=checkpoint,
        calls=lambda function, policy: ThreadedCalls(function, policy),
        **options,
    )


def batch(start: int, stop: int) -> pa.RecordBatch:
    numbers = range(start, stop)
    return pa.record_batch([pa.array([n % 7 for n in numbers]), pa.array(numbers)], schema=SCHEMA)


def finish(running: Subtasks, *, out_at_least: int | None = None) -> list[tuple[Any, ...]]:
    """Rows as they come out: all of them, or so many and no longer."""
    emitted: list[pa.RecordBatch] = []
    for operator in running.operators:
        while operator.is_waiting and (out_at_least is None or sum(map(len, emitted)) < out_at_least):  # type: ignore[attr-defined]
            operator.tick(0.0, emitted.append)
    return rows(emitted)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("ordered", [True, False])
def test_state_is_as_if_one_row_came_after_the_other_also_after_rescaling(
    kind: str, ordered: bool, backend: StateBackend, tmp_path: Path
) -> None:
    spec = made(Sums(KINDS[kind]), ordered=ordered, capacity=10)
    assert spec.states == ("in_flight", "state")
    found: list[tuple[Any, ...]] = []
    checkpoint: Checkpoint | None = None
    for start, parallelism in ((0, 2), (40, 3), (80, 1)):
        running = subtasks(spec, backend, tmp_path, parallelism, checkpoint)
        running.process(batch(start, start + 40))
        # Some rows are out at the barrier; others are under way, and others wait for those of their key.
        found += finish(running, out_at_least=9)
        checkpoint = running.checkpoint(checkpoint)
        finish(running)
        running.close()
    last = subtasks(spec, backend, tmp_path, 2, checkpoint)
    found += finish(last)
    last.close()
    sums: Counter[int] = Counter()
    expected = []
    for n in range(120):
        sums[n % 7] += n
        expected.append((n % 7, n, sums[n % 7]))
    assert sorted(found) == sorted(expected)


@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("turn", [3, 7, 12])
@pytest.mark.parametrize("capacity", [1, 4])
def test_a_job_that_crashes_counts_every_row_once(
    turn: int, capacity: int, ordered: bool, backend: StateBackend
) -> None:
    env = weir.Environment(parallelism=2, settings=weir.Settings(channel_batches_max=1), backend=backend)
    source = env.from_collection([(n % 7, n) for n in range(120)], SCHEMA, uid="rows")
    asked = source.key_by("key").map_async(Sums(KINDS["map"]), OUTPUT, ordered=ordered, capacity=capacity, uid="asked")
    asked.print(uid="out")
    result = run_local(env, crash_at=[turn, turn + 4], checkpoint_every=2, seed=turn)
    table = pl.DataFrame(result["out"])
    assert sorted(table["x"].to_list()) == list(range(120))
    last = table.group_by("key").agg(pl.max("sum")).sort("key")["sum"].to_list()
    assert last == [sum(range(key, 120, 7)) for key in range(7)]


class Unsure(Sums):
    """Fails the first time, after it has changed the state; a third of the rows for good."""

    async def __call__(self, row: Any) -> Any:
        found = await super().__call__(row)
        if row.x % 3 == 0 or row.x not in tried:
            tried.add(row.x)
            raise ConnectionError("not now")
        return found


tried: set[int] = set()


def test_a_call_that_fails_changes_nothing(backend: StateBackend, tmp_path: Path) -> None:
    tried.clear()
    running = subtasks(made(Unsure(KINDS["list"]), retry=2, failed="failed"), backend, tmp_path, 1)
    running.process(batch(0, 30))
    found = finish(running)
    running.close()
    sums: Counter[int] = Counter()
    for n in (n for n in range(30) if n % 3):
        sums[n % 7] += n
        assert (n % 7, n, sums[n % 7]) in found
    assert len(found) == 20


def living(kind: str, ttl: Ttl) -> Kind:
    """The same kind of state with a time-to-live. A row below zero only looks."""
    state = copy.copy(KINDS[kind].state)
    state.ttl = ttl

    def look(handle: Any) -> int:
        if kind == "map":
            return sum(value for _, value in handle.items())
        found = handle.get()
        return sum(found) if kind == "list" else int(found or 0)

    return Kind(state, lambda handle, x: look(handle) if x < 0 else KINDS[kind].add(handle, x))


@pytest.mark.parametrize("refresh", ["write", "read"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_value_lives_for_as_long_as_in_any_function_also_across_a_restore(
    kind: str, refresh: Any, backend: StateBackend, tmp_path: Path
) -> None:
    spec, now_ms = made(Sums(living(kind, Ttl("10s", refresh)))), [1_000_000]

    def told(running: Subtasks, x: int, key: int = 1) -> int:
        running.process(pa.record_batch([pa.array([key]), pa.array([x])], schema=SCHEMA))
        ((_, _, found),) = finish(running)
        return int(found)

    first = subtasks(spec, backend, tmp_path, 1, now_ms=lambda: now_ms[0])
    assert told(first, 5) == 5 and told(first, 5, key=2) == 5
    now_ms[0] += 6_000
    assert told(first, -1) == 5
    checkpoint = first.checkpoint()
    first.close()
    again = subtasks(spec, backend, tmp_path, 2, checkpoint, now_ms=lambda: now_ms[0])
    now_ms[0] += 4_000
    # A look at it has kept it alive, or not.
    assert told(again, -1) == (5 if refresh == "read" else 0)
    assert told(again, -1, key=2) == 0
    now_ms[0] += 9_999
    assert told(again, -1) == (5 if refresh == "read" else 0)
    now_ms[0] += 10_000
    assert told(again, -1) == 0
    assert told(again, 7) == 7
    checkpoint = again.checkpoint(checkpoint)
    again.close()
    tables = [table for part in checkpoint.parts for table in checkpoint.files.tables(part["state"])]
    held = pa.concat_tables(tables)
    assert held["__touched_ms"].to_pylist() == [now_ms[0]], "what has expired is not written"


def test_the_entries_of_a_map_expire_one_by_one(backend: StateBackend, tmp_path: Path) -> None:
    class Pages:
        pages = MapState("long", "long", default=0, ttl=Ttl("10s"))

        async def __call__(self, row: Any) -> Any:
            self.pages[row.x] += 1
            return row.key, row.x, sum(10**page * seen for page, seen in self.pages.items())

    now_ms = [1_000_000]
    running = subtasks(made(Pages()), backend, tmp_path, 1, now_ms=lambda: now_ms[0])

    def told(x: int) -> int:
        running.process(pa.record_batch([pa.array([1]), pa.array([x])], schema=SCHEMA))
        ((_, _, found),) = finish(running)
        return int(found)

    assert told(0) == 1 and told(1) == 11
    now_ms[0] += 6_000
    assert told(1) == 21
    now_ms[0] += 4_000
    assert told(2) == 120
    checkpoint = running.checkpoint()
    table = pa.concat_tables(checkpoint.files.tables(checkpoint.parts[0]["pages"]))
    assert sorted(zip(table["map_key"].to_pylist(), table["value"].to_pylist())) == [(1, 2), (2, 1)]
    running.close()


def test_pickled_values_are_what_was_set_whatever_becomes_of_the_object(backend: StateBackend, tmp_path: Path) -> None:
    class Fitted:
        seen = ValueState(Pickled())
        listed = ListState(Pickled())

        async def __call__(self, row: Any) -> Any:
            seen = self.seen.value or set()
            seen.add(row.x)
            if row.x % 2:
                self.seen.value = seen
                self.listed.add({row.x})
            seen.add("not set")
            return row.key, row.x, len(self.seen.value or ()) * 100 + sum(map(len, self.listed.get()))

    spec = made(Fitted())
    first = subtasks(spec, backend, tmp_path, 1)
    first.process(pa.record_batch([pa.array([1, 1, 1]), pa.array([1, 2, 3])], schema=SCHEMA))
    assert finish(first) == [(1, 1, 101), (1, 2, 101), (1, 3, 202)]
    checkpoint = first.checkpoint()
    first.close()
    again = subtasks(spec, backend, tmp_path, 2, checkpoint)
    again.process(pa.record_batch([pa.array([1]), pa.array([5])], schema=SCHEMA))
    assert finish(again) == [(1, 5, 303)]
    again.close()


def test_of_a_map_a_checkpoint_writes_the_entries_that_a_call_has_changed(tmp_path: Path) -> None:
    class Entries:
        held = MapState("long", "long", default=0)

        async def __call__(self, row: Any) -> Any:
            if row.x < 0:
                del self.held[-row.x]
            elif row.x == 1_000:
                self.held.put_all({n: n for n in range(200)})
            else:
                self.held[row.x] += 1
            return row.key, row.x, len(self.held)

    running = subtasks(made(Entries()), backends()["heap"], tmp_path, 1)

    def told(*xs: int) -> list[Any]:
        running.process(pa.record_batch([pa.array([1] * len(xs)), pa.array(xs)], schema=SCHEMA))
        return [length for _, _, length in finish(running)]

    assert told(1_000) == [200]
    frozen = running.operators[0].freeze().states["held"]
    part = frozen.write(shelf := Shelf())
    frozen.confirmed(part)
    frozen.released()
    assert told(7, -8) == [200, 199]
    second = running.operators[0].freeze().states["held"].write(shelf)
    running.close()
    assert second.detail["rows"] - part.detail["rows"] == 2


def test_a_plain_function_has_its_states_behind_the_row_and_open_may_declare_more(
    backend: StateBackend, tmp_path: Path
) -> None:
    async def numbered(row: Any, state: Any) -> Any:
        state.seen.value += 1
        return row.key, row.x, state.seen.value

    running = subtasks(made(numbered, state={"seen": ValueState("long", default=0)}), backend, tmp_path, 1)
    running.process(batch(0, 14))
    assert sorted(finish(running)) == sorted((n % 7, n, n // 7 + 1) for n in range(14))
    running.close()

    class Opened(Sums):
        calls = 0

        def open(self, context: Any) -> None:
            self.more = context.state("more", MapState("long", "long", default=0))

        async def __call__(self, row: Any) -> Any:
            self.calls += 1
            self.more[0] += row.x
            return row.key, row.x, self.more[0]

        def snapshot_state(self) -> Any:
            return self.calls

        def restore_state(self, values: Any) -> None:
            self.calls = sum(values)

    spec = made(Opened(KINDS["value"]))
    assert spec.states == ("in_flight", "state", "snapshot_state") and spec.declares_in_open
    first = subtasks(spec, backend, tmp_path, 1)
    first.process(batch(0, 7))
    finish(first)
    checkpoint = first.checkpoint()
    first.close()
    again = subtasks(spec, backend, tmp_path, 2, checkpoint)
    again.process(batch(7, 14))
    assert sorted(finish(again)) == [(key, key + 7, key + key + 7) for key in range(7)]
    assert sum(operator._stateful.function.calls for operator in again.operators) == 14  # type: ignore[attr-defined]
    again.close()


def test_a_value_of_another_type_names_state_row_and_key(backend: StateBackend, tmp_path: Path) -> None:
    class Wrong(Sums):
        async def __call__(self, row: Any) -> Any:
            self.state.value = "x"
            return row.key, row.x, 0

    running = subtasks(made(Wrong(KINDS["value"])), backend, tmp_path, 1)
    running.process(batch(3, 4))
    with pytest.raises(UserCodeError) as caught:
        finish(running)
    running.close()
    text = str(caught.value)
    assert "(uid 'the-uid')" in text and "state 'state' holds bigint, but was set to 'x'" in text
    assert "row: Row(key=3, x=3)" in text and "key: 3" in text


def test_a_state_of_another_form_is_refused(backend: StateBackend, tmp_path: Path) -> None:
    first = subtasks(made(Sums(KINDS["value"])), backend, tmp_path, 1)
    checkpoint = first.checkpoint()
    first.close()
    spec = made(Sums(Kind(ListState("string"), lambda handle, x: 0)))
    stored = next(iter(checkpoint.files.tables(checkpoint.parts[0]["state"]))).schema
    assert "holds it as a value state, the function declares a list state" in spec.verdict("state", stored)
    with pytest.raises(CheckpointError, match=r"^operator 'the-name'.*'state'"):
        subtasks(spec, backend, tmp_path, 1, checkpoint)


def test_mistakes_are_told_when_the_job_is_written() -> None:
    for state, found in (
        (OperatorListState("long"), "belongs to the subtask"),
        (weir.per_window(ValueState("long")), r"is per_window\(…\)"),
    ):
        with pytest.raises(PlanError, match=f"state '?.*{found}"):
            made(Sums(Kind(state, lambda handle, x: 0)))
    with pytest.raises(PlanError, match=r"which needs a key: use key_by\(…\)\.map_async"):
        MapAsync(Sums(KINDS["value"]), OUTPUT, policy=CallPolicy(1_000))
