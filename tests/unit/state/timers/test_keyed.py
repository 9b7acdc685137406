"""Timers on segments against a plain set: whatever is sealed, adopted, merged, frozen and restored in between."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.contract.state_backends import backends
from tests.seeds import seeds
from tests.states import Shelf
from weir.config import RocksDb
from weir.snapshot.watermarks import END_US, NEVER_US
from weir.state.backends import make_backend
from weir.state.columns.segments import merging, store
from weir.state.frozen import RestoredPart, RestoredParts
from weir.state.place import StatePlace
from weir.state.timers import older, reading
from weir.state.timers.keyed import KeyedTimers
from weir.state.timers.tables import DOMAINS, TimeDomain

KEYS = pa.schema([("k", pa.int64())])
PAIRS = pa.schema([("name", pa.string()), ("x", pa.float64())])
GROUPS = 16

Timer = tuple[int, Any]


class Driven:
    """Timers of a subtask, and what they should be."""

    def __init__(self, rng: random.Random, backend: str, directory: Path, keys: pa.Schema = KEYS) -> None:
        self.rng = rng
        self.choice = backends()[backend] if backend == "heap" else RocksDb(rng.choice(["1KB", "40KB", "32MB"]))
        self.directory = directory
        self.schema = keys
        self.model: dict[TimeDomain, set[Timer]] = {domain: set() for domain in DOMAINS}
        self.reached: dict[TimeDomain, int] = dict.fromkeys(DOMAINS, NEVER_US)
        self.shelf = Shelf()
        self.files_before: set[str] = set()
        self.checkpoints = 0
        self.opened = 0
        self.own = range(GROUPS)
        self.open()

    def open(self) -> None:
        self.opened += 1
        place = StatePlace(self.choice, str(self.directory / str(self.opened)))
        self.backend = make_backend(self.schema, max_parallelism=GROUPS, key_groups=self.own, place=place)
        self.timers = KeyedTimers(self.backend, self.schema, max_parallelism=GROUPS, own=self.own, place=place)

    def columns(self, numbers: list[int]) -> list[pa.Array]:
        if self.schema is KEYS:
            return [pa.array([None if n == 0 else n for n in numbers], pa.int64())]
        names = [None if n == 0 else f"name {n % 3}" for n in numbers]
        values = [float("nan") if n % 4 == 3 else None if n % 4 == 2 else n / 2 for n in numbers]
        return [pa.array(names, pa.string()), pa.array(values, pa.float64())]

    def key(self, number: int) -> Any:
        (key,) = self.backend.keys(self.columns([number]))
        return key

    def number(self, key: Any) -> Any:
        """What tells keys apart that are the same in every backend."""
        return str(self.backend.shown(key))

    def set(self, domain: TimeDomain, time_us: int, number: int) -> None:
        key = self.key(number)
        self.timers.of(domain).add(time_us, key)
        self.model[domain].add((time_us, self.number(key)))

    def delete(self, domain: TimeDomain, time_us: int, number: int) -> None:
        key = self.key(number)
        self.timers.of(domain).discard(time_us, key)
        self.model[domain].discard((time_us, self.number(key)))

    def fire(self, domain: TimeDomain, until_us: int) -> None:
        """As the operator does: what fires may set and delete timers of its key."""
        queue, model = self.timers.of(domain), self.model[domain]
        while times := queue.due(until_us, self.rng.choice([1, 5, 1000])):
            assert times == sorted(times)
            for time_us in times:
                while (early_us := queue.head_us) < time_us:
                    self._fired(domain, early_us, until_us)
                self._fired(domain, time_us, until_us)
            self.timers.settle(self.rng.randrange(40))
        assert not {timer for timer in model if timer[0] <= until_us}

    def _fired(self, domain: TimeDomain, time_us: int, until_us: int) -> None:
        queue, model = self.timers.of(domain), self.model[domain]
        earlier = [timer for timer in model if timer[0] < time_us]
        assert not earlier, f"{earlier} should have come before {time_us}"
        for key in queue.pop(time_us):
            assert (time_us, self.number(key)) in model, f"{time_us} of {self.number(key)} fired and is not there"
            model.remove((time_us, self.number(key)))
            if self.rng.random() < 0.2:
                again_us = time_us + self.rng.choice([0, 1, 3, -2])
                queue.add(again_us, key)
                model.add((again_us, self.number(key)))
            if self.rng.random() < 0.2:
                gone_us = time_us + self.rng.choice([1, 2, 5])
                queue.discard(gone_us, key)
                model.discard((gone_us, self.number(key)))

    def freeze(self) -> Any:
        return self.timers.freeze(), {domain: set(timers) for domain, timers in self.model.items()}

    def check(self, frozen: Any) -> None:
        """A checkpoint is written: it is what was there when it was frozen, and only new files are put."""
        state, model = frozen
        self.checkpoints += 1
        self.shelf.prefix = f"{self.checkpoints}/"
        part = state.write(self.shelf)
        restored = RestoredParts([RestoredPart(part, self.own, self.shelf)], self.own)
        assert rows(pa.concat_tables(restored.tables()), self.schema) == rows(
            pa.concat_tables(state.tables()), self.schema
        )
        table = pa.concat_tables(restored.tables())
        shown = self.backend.keys([c.combine_chunks() for c in table.columns[1:-2]]) if len(table) else []
        times = table.column(table.num_columns - 2).cast(pa.int64()).to_pylist()
        found = list(zip(table.columns[-1].to_pylist(), times, map(self.number, shown), strict=True))
        assert len(found) == len(set(found))
        assert set(found) == {(domain, *timer) for domain in DOMAINS for timer in model[domain]}
        if self.rng.random() < 0.5:
            state.confirmed(part)
        state.released()
        if self.rng.random() < 0.3:
            self.restore(part, model)

    def restore(self, part: Any, model: Any) -> None:
        if self.rng.random() < 0.3:
            self.choice = RocksDb("40KB") if self.rng.random() < 0.5 else backends()["heap"]
        self.open()
        own = range(GROUPS)
        state: Any = RestoredParts([RestoredPart(part, own, self.shelf)], own)
        if self.rng.random() < 0.3:  # as at another parallelism
            state = RestoredParts([RestoredPart(part, range(GROUPS + 1), self.shelf)], own)
        self.timers.restore(state)
        self.model = {domain: set(timers) for domain, timers in model.items()}


def rows(table: pa.Table, schema: pa.Schema) -> list[str]:
    return sorted(map(str, table.to_pylist()))


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """What is done in pieces is done in pieces of a few rows."""
    rng = random.Random(str(request.node.name))
    monkeypatch.setattr(older, "READ_ROWS", rng.choice([1, 4, 16]))
    monkeypatch.setattr(older, "ONE_TIME_MAX", rng.choice([2, 8, 1000]))
    monkeypatch.setattr(reading, "READ_ROWS", 4)
    monkeypatch.setattr(store, "AT_ONCE_ROWS_MAX", rng.choice([1, 30, 10_000]))
    monkeypatch.setattr(store, "STEP_ROWS", rng.choice([1, 10]))
    monkeypatch.setattr(store, "TENDED_ROWS", rng.choice([0, 2]))
    monkeypatch.setattr(store, "STEP_RATIO", 1)
    monkeypatch.setattr(merging, "SEGMENT_BYTES_MAX", rng.choice([100, 1_000]))


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("backend", backends())
@pytest.mark.parametrize("seed", seeds(60))
def test_whatever_happens_each_timer_fires_once_in_the_order_of_times(seed: int, backend: str, tmp_path: Path) -> None:
    rng = random.Random(seed)
    driven = Driven(rng, backend, tmp_path, rng.choice([KEYS, PAIRS]))
    spread = rng.choice([20, 400, 1 << 44])
    frozen: list[Any] = []
    for _ in range(400):
        domain = rng.choice(DOMAINS)
        now_us = max(driven.reached[domain], -spread)
        time_us = now_us + rng.randrange(-3, spread)
        action = rng.random()
        if action < 0.5:
            driven.set(domain, time_us, rng.randrange(30))
        elif action < 0.75:
            there = sorted(driven.model[domain])
            number = rng.randrange(30)
            if there and rng.random() < 0.7:
                time_us = rng.choice(there)[0]
            driven.delete(domain, time_us, number)
        elif action < 0.85:
            driven.timers.settle(rng.randrange(40))
        elif action < 0.92:
            # Not more than a few at once, or they are all gone each time.
            driven.fire(domain, now_us + rng.randrange(max(spread // 8, 2)))
            driven.reached[domain] = max(now_us, driven.reached[domain])
        elif action < 0.97 and len(frozen) < 2:
            frozen.append(driven.freeze())
        elif frozen:
            driven.check(frozen.pop(0))
            if rng.random() < 0.5:
                frozen.clear()  # those of an attempt that is over
    for domain in DOMAINS:
        driven.fire(domain, END_US)
    assert not any(driven.model.values())


@pytest.mark.parametrize("at_once", [False, True])
def test_a_jump_over_many_timers_brings_few_of_them_into_memory_at_once(
    at_once: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(older, "READ_ROWS", 500)
    monkeypatch.setattr(older, "ONE_TIME_MAX", 1_000)
    driven = Driven(random.Random(1), "rocksdb", tmp_path)
    driven.choice = RocksDb("2MB")
    driven.open()
    count, batch = 40_000, 1_000
    for start in range(0, count, batch):
        for number in range(start, start + batch):
            driven.timers.event.add(7 if at_once else number * 3, driven.key(number + 1))
        driven.timers.settle(batch)
    queue = driven.timers.event
    assert queue.count < 2_000, "a head that outgrows its share is sealed"
    driven.timers.freeze()
    fired, held = 0, 0
    while times := queue.due(END_US, 100):
        held = max(held, queue.count)
        fired += sum(len(queue.pop(time_us)) for time_us in times)
        driven.timers.settle(100)
    assert fired == count
    assert held <= 3_000
    assert queue.next_us is None


@pytest.mark.parametrize("backend", backends())
def test_a_checkpoint_writes_what_was_set_and_deleted_since_the_last(backend: str, tmp_path: Path) -> None:
    driven = Driven(random.Random(1), backend, tmp_path)
    driven.choice = RocksDb("32MB") if backend == "rocksdb" else driven.choice
    driven.open()
    put: list[int] = []
    for checkpoint in range(3):
        for number in range(20_000 if not checkpoint else 20):
            driven.timers.event.add(1_000 * checkpoint + number, driven.key(number + 1))
        driven.timers.event.discard(5, driven.key(6))
        driven.shelf.prefix = f"{checkpoint}/"
        before = driven.shelf.put_bytes
        frozen = driven.timers.freeze()
        frozen.confirmed(frozen.write(driven.shelf))
        put.append(driven.shelf.put_bytes - before)
        driven.timers.settle(1)
    assert put[1] < put[0] / 50
    assert put[2] < put[0] / 50


def test_a_deleted_timer_is_gone_with_its_note_when_they_are_merged(tmp_path: Path) -> None:
    driven = Driven(random.Random(1), "heap", tmp_path)
    for delete in (False, True):
        for number in range(100):
            change = driven.delete if delete else driven.set
            change("event", number, number + 1)
        driven.timers.freeze()
        driven.timers._consolidate()
    assert len(driven.timers._store) == 0
    assert driven.timers.event.next_us is None
