"""A restore of RocksDB state whose type has changed: opened as it is, converted when it is read and a little at a time.

A failing run names its seed: it alone decides what happens.
"""

from __future__ import annotations

import datetime
import random
from typing import Any

import pyarrow as pa
import pytest

from tests.seeds import seeds
from tests.states import table_of
from tests.unit.state.rocks.world import GROUPS, KEYS, World, as_dict, update, values
from weir.errors import CheckpointError
from weir.snapshot.parts import StatePart
from weir.state.backend import declare
from weir.state.declared.kinds import KeyedState, ListState, MapState, Ttl, ValueState
from weir.state.heap.backend import HeapBackend
from weir.state.rocks import backend as rocks_backend
from weir.state.rocks.backend import RocksBackend
from weir.state.rocks.converting import ConvertingDatabase
from weir.state.rocks.snapshot import OLD


@pytest.fixture(autouse=True)
def slowly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rocks_backend, "CONVERTED_ENTRIES_LEAST", 3)
    monkeypatch.setattr(rocks_backend, "CONVERTED_ENTRIES_PER_KEY", 0)


def database(backend: RocksBackend) -> ConvertingDatabase:
    found = backend._tables["s"].store.database
    assert isinstance(found, ConvertingDatabase)
    return found


def written(world: World, state: KeyedState, keys: int, value: Any) -> StatePart:
    backend = world.backend()
    handle = declare(backend, state.named("s"))
    update(backend, handle, range(keys), value)
    return world.write(backend)


def opened(world: World, state: KeyedState, part: StatePart) -> tuple[RocksBackend, Any]:
    backend = world.backend()
    handle = declare(backend, state.named("s"))
    backend.restore(world.whole(part))
    return backend, handle


def test_a_restore_converts_nothing_reads_convert_what_they_ask_for_and_batches_the_rest(world: World) -> None:
    part = written(world, ValueState("int"), 100, lambda key: key)
    backend, handle = opened(world, ValueState("long"), part)
    found = database(backend)
    assert found.old is not None and len(list(found.old.scan(b""))) == 100
    assert values(backend, handle, [7, 200]) == [7, None]
    update(backend, handle, [8], 2**40)
    batches = 0
    while found.old is not None:
        assert len(list(found.old.scan(b""))) <= 100 - 3 * batches
        backend.begin([])
        backend.end()
        batches += 1
    assert 25 <= batches <= 34
    assert values(backend, handle, range(100)) == [2**40 if key == 8 else key for key in range(100)]


def test_a_checkpoint_taken_meanwhile_has_what_is_converted_and_what_is_not(world: World) -> None:
    part = written(world, ValueState("int"), 100, lambda key: key)
    backend, handle = opened(world, ValueState("long"), part)
    update(backend, handle, [1, 150], 2**40)
    backend.cursor.key = backend.keys([pa.array([2])])[0]
    backend.begin([backend.cursor.key])
    handle.clear()
    backend.end()
    middle = world.write(backend)
    assert OLD in middle.detail and database(backend).old is not None
    # What was restored is in storage already.
    assert set(part.files.values()) & set(middle.files.values())
    expected = {key: key for key in range(100) if key != 2} | {1: 2**40, 150: 2**40}
    # Whoever reads it sees one type: another subtask, the heap, and whoever declares a third.
    tables = list(world.whole(middle)["s"].tables())
    assert {table.schema.field("value").type for table in tables} == {pa.int64()}
    heap = HeapBackend(KEYS, max_parallelism=GROUPS, key_groups=range(GROUPS))
    on_heap = declare(heap, ValueState("decimal(30,0)").named("s"))
    heap.restore(world.whole(middle))
    for key in (*range(100), 150):
        heap.cursor.key = key
        assert on_heap.get() == expected.get(key)
    again, same = opened(world, ValueState("long"), middle)
    assert database(again).old is not None
    assert values(again, same, [*range(100), 150]) == [expected.get(key) for key in (*range(100), 150)]
    third, wide = opened(world, ValueState("decimal(30,0)"), middle)
    assert values(third, wide, [*range(100), 150]) == [expected.get(key) for key in (*range(100), 150)]
    half = world.backend(range(GROUPS // 2))
    declare(half, ValueState("long").named("s"))
    half.restore(world.restored((middle, range(GROUPS)), own=range(GROUPS // 2)))
    assert 0 < len(as_dict(half.freeze()["s"]).items()) < 100


def test_once_all_is_converted_a_checkpoint_is_an_ordinary_one(world: World) -> None:
    part = written(world, ValueState("int"), 10, lambda key: key)
    backend, handle = opened(world, ValueState("long"), part)
    first = world.write(backend)
    while database(backend).old is not None:
        values(backend, handle, [1])
    last = world.write(backend)
    assert OLD in first.detail and OLD not in last.detail and last.detail["version"] == 1
    again, same = opened(world, ValueState("long"), last)
    assert not isinstance(again._tables["s"].store.database, ConvertingDatabase)
    assert values(again, same, range(10)) == list(range(10))


def test_new_fields_have_their_defaults_also_for_readers_that_do_not_know_them(world: World) -> None:
    part = written(world, ValueState("struct<a:int>"), 20, lambda key: {"a": key})
    state = ValueState("struct<a:long,b:string>", default={"a": 0, "b": "new"})
    backend, handle = opened(world, state, part)
    assert values(backend, handle, [5]) == [{"a": 5, "b": "new"}]
    found = pa.concat_tables(world.whole(world.write(backend))["s"].tables())
    assert sorted(row["a"] for row in found["value"].to_pylist()) == list(range(20))
    assert {row["b"] for row in found["value"].to_pylist()} == {"new"}


def test_what_a_function_migrates_is_migrated_at_once(world: World) -> None:
    part = written(world, ValueState("int"), 10, lambda key: key)
    backend, handle = opened(world, ValueState("string", migrate=str), part)
    assert not isinstance(backend._tables["s"].store.database, ConvertingDatabase)
    assert values(backend, handle, [3]) == ["3"]


def test_a_value_that_does_not_fit_after_all_is_an_error_that_says_so(world: World) -> None:
    part = written(world, ValueState(pa.timestamp("us")), 3, lambda key: datetime.datetime(9_000, 1, 1))
    backend, handle = opened(world, ValueState(pa.timestamp("ns")), part)
    with pytest.raises(CheckpointError, match="a state's value cannot be converted: stored as"):
        values(backend, handle, [1])


CHANGES: list[tuple[KeyedState, KeyedState]] = [
    (ValueState("int"), ValueState("long")),
    (ListState("int"), ListState("long")),
    (MapState("int", "int"), MapState("int", "long")),
    (ValueState("int", ttl=Ttl("1h")), ValueState("long", ttl=Ttl("1h"))),
]


class Job:
    """A state whose type changes once, and a dictionary that says what it holds."""

    def __init__(self, world: World, seed: int, before: KeyedState, after: KeyedState) -> None:
        self.world, self.random = world, random.Random(seed)
        self.state, self.after = before, after
        self.model: dict[int, Any] = {}
        self.part: StatePart | None = None
        self.start()

    def start(self) -> None:
        self.backend = self.world.backend()
        self.handle: Any = declare(self.backend, self.state.named("s"))
        if self.part is not None:
            self.backend.restore(self.world.whole(self.part))

    def batch(self, count: int = 5) -> None:
        numbers = [self.random.randrange(40) for _ in range(count)]
        keys = self.backend.keys([pa.array(numbers)])
        self.backend.begin(keys)
        for number, key in zip(numbers, keys):
            self.backend.cursor.key = key
            self.change(number)
        self.backend.end()

    def change(self, number: int) -> None:
        assert self.held() == self.model.get(number)
        value = self.random.randrange(1, 1_000)
        if self.random.random() < 0.25:
            self.handle.clear()
            self.model.pop(number, None)
        elif isinstance(self.state, ListState):
            self.handle.add(value)
            self.model[number] = [*self.model.get(number, []), value]
        elif isinstance(self.state, MapState):
            if value % 3:
                self.handle.put(value % 4, value)
                self.model[number] = {**self.model.get(number, {}), value % 4: value}
            else:
                self.handle.remove(value % 4)
                left = {k: v for k, v in self.model.get(number, {}).items() if k != value % 4}
                self.model.pop(number, None)
                if left:
                    self.model[number] = left
        else:
            self.handle.set(value)
            self.model[number] = value

    def held(self) -> Any:
        return (dict(self.handle.items()) if isinstance(self.state, MapState) else self.handle.get()) or None

    def snapshot(self) -> None:
        frozen = self.backend.freeze()["s"]
        expected = dict(self.model)
        self.batch()
        self.world.store.checkpoint += 1
        part = frozen.write(self.world.store)
        assert content(table_of(frozen)) == content(pa.concat_tables(self.world.whole(part)["s"].tables()))
        frozen.released()
        if self.random.random() < 0.7:
            frozen.confirmed(part)
        if self.random.random() < 0.3:
            self.part, self.model = part, expected
            if self.random.random() < 0.5:
                self.state = self.after
            self.start()


def content(table: pa.Table) -> list[str]:
    return sorted(map(str, table.to_pylist()))


@pytest.mark.parametrize(("before", "after"), CHANGES, ids=lambda case: type(case).__name__)
@pytest.mark.parametrize("seed", seeds(4))
def test_whatever_happens_meanwhile_nothing_is_lost_and_nothing_comes_back(
    world: World, seed: int, before: KeyedState, after: KeyedState
) -> None:
    job = Job(world, seed, before, after)
    for _ in range(60):
        job.random.choices([job.batch, job.snapshot], [5, 2])[0]()
    job.batch(200)
