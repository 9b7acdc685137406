"""What a checkpoint of heap state writes: what changed since the last one that is complete, and now and then all."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from tests.states import Shelf
from weir.snapshot.parts import StatePart
from weir.state.backend import declare
from weir.state.changes import FILES_MAX
from weir.state.declared import changed
from weir.state.declared.changed import CHANGED_RATIO, IGNORED, LISTED_ROWS_LEAST
from weir.state.declared.kinds import KeyedState, ListState, MapState, Ttl, ValueState
from weir.state.frozen import RestoredPart, RestoredParts
from weir.state.heap.backend import SWEEPS_PER_TTL, HeapBackend
from weir.state.place import StatePlace

KEYS = pa.schema([("k", pa.int64())])
GROUPS = range(128)
TTL_MS = 10_000


class Job:
    """A backend with one state, and where its snapshots are put."""

    def __init__(self, state: KeyedState, shelf: Shelf | None = None) -> None:
        self.now_ms = 1_000_000
        place = StatePlace(now_ms=lambda: self.now_ms)
        self.backend = HeapBackend(KEYS, max_parallelism=len(GROUPS), key_groups=GROUPS, place=place)
        self.handle: Any = declare(self.backend, state.named("s"))
        self.shelf = shelf or Shelf()
        self.snapshots = 0

    def at(self, key: int) -> Any:
        self.backend.cursor.key = key
        return self.handle

    def snapshot(self, *, complete: bool = True) -> tuple[StatePart, int]:
        """The part, and how many bytes it took."""
        self.backend.begin([])
        self.snapshots += 1
        self.shelf.prefix, self.shelf.put_bytes = f"{self.now_ms}-{self.snapshots}-", 0
        frozen = self.backend.freeze()["s"]
        part = frozen.write(self.shelf)
        frozen.discard(lambda: None)
        frozen.released()
        if complete:
            frozen.confirmed(part)
        return part, self.shelf.put_bytes

    def rows(self, part: StatePart) -> list[dict[str, Any]]:
        return pa.concat_tables(self.shelf.tables(part)).drop_columns(["__key_group"]).sort_by("k").to_pylist()

    def restored(self, state: KeyedState, part: StatePart) -> Job:
        job = Job(state, self.shelf)
        job.now_ms = self.now_ms + 1
        job.backend.restore({"s": RestoredParts([RestoredPart(part, GROUPS, self.shelf)], GROUPS)})
        return job


STATES: list[tuple[KeyedState, Any]] = [
    (ValueState("long"), lambda handle, value: handle.set(value)),
    (ValueState("array<long>"), lambda handle, value: handle.set([value])),
    (ListState("long"), lambda handle, value: handle.set([value] * 3)),
    (MapState("long", "long"), lambda handle, value: handle.put(value % 3, value)),
    (ValueState("long", ttl=Ttl("1h")), lambda handle, value: handle.set(value)),
    (MapState("long", "long", ttl=Ttl("1h")), lambda handle, value: handle.put(value % 3, value)),
    (ListState("long", ttl=Ttl("1h")), lambda handle, value: handle.set([value] * 3)),
]


@pytest.mark.parametrize(("state", "put"), STATES, ids=lambda case: type(case).__name__)
def test_one_percent_of_the_keys_is_at_most_a_twentieth_of_the_bytes(state: KeyedState, put: Any) -> None:
    job = Job(state)
    for key in range(20_000):
        put(job.at(key), key)
    _, whole_bytes = job.snapshot()
    for key in range(0, 20_000, 100):
        put(job.at(key), key + 3)
    part, changed_bytes = job.snapshot()
    assert 0 < changed_bytes <= whole_bytes / 20
    again = job.restored(state, part)
    assert [_value(again.at(key)) for key in range(0, 20_000, 50)] == [
        _value(job.at(key)) for key in range(0, 20_000, 50)
    ]
    assert again.snapshot() == (part, 0)
    put(again.at(0), 0)
    _, next_bytes = again.snapshot()
    assert 0 < next_bytes < changed_bytes


def _value(handle: Any) -> Any:
    return dict(handle.items()) if hasattr(handle, "items") else handle.get()


@pytest.mark.parametrize(("state", "put"), STATES, ids=lambda case: type(case).__name__)
def test_what_was_read_as_tables_is_written_all_the_same(state: KeyedState, put: Any) -> None:
    job = Job(state)
    for key in range(20):
        put(job.at(key), key)
    job.snapshot()
    put(job.at(7), 700)
    job.shelf.prefix = "read-"
    frozen = job.backend.freeze()["s"]
    table = pa.concat_tables(frozen.tables()).drop_columns(["__key_group"]).sort_by("k")
    assert job.rows(frozen.write(job.shelf)) == table.to_pylist()
    frozen.released()


def test_reading_writes_nothing() -> None:
    job = Job(ValueState("long"))
    job.at(1).set(1)
    part, _ = job.snapshot()
    assert job.at(1).get() == 1 and job.at(2).get() is None
    assert job.snapshot() == (part, 0)


def test_what_a_checkpoint_had_that_failed_is_in_the_next_one() -> None:
    job = Job(MapState("string", "long"))
    for key in range(100):
        job.at(key).put_all({"a": 1, "b": 2})
    job.snapshot()
    job.at(1).put("c", 3)
    lost, _ = job.snapshot(complete=False)
    job.at(2).remove("a")
    job.at(3).clear()
    part, _ = job.snapshot()
    assert not set(part.files.values()) & (set(lost.files.values()) - set(job.snapshot()[0].files.values()))
    rows = [row for row in job.rows(part) if row["k"] < 4]
    assert sorted((row["k"], row["map_key"], row["value"]) for row in rows) == [
        (0, "a", 1),
        (0, "b", 2),
        (1, "a", 1),
        (1, "b", 2),
        (1, "c", 3),
        (2, "b", 2),
    ]


def test_a_chain_of_changes_ends_in_a_whole_when_it_is_half_as_long_as_the_state_or_has_many_files() -> None:
    job = Job(ValueState("long"))
    for key in range(1_000):
        job.at(key).set(0)
    wholes, files = [], []
    for number in range(2 * FILES_MAX):
        for key in range(100 if number < 20 else 1):
            job.at(key).set(number)
        part, _ = job.snapshot()
        wholes.append(len(part.files) == part.detail["whole"])
        files.append(len(part.files))
        assert len(job.rows(part)) == 1_000
    # A whole, five times a tenth; then few, until there are too many files.
    assert wholes[:14] == [number % 6 == 0 for number in range(14)]
    assert max(files) == FILES_MAX and sum(wholes[20:]) == 1


def test_a_state_that_shrinks_is_written_anew() -> None:
    job = Job(ValueState("long"))
    for key in range(1_000):
        job.at(key).set(0)
    job.snapshot()
    for key in range(400):
        job.at(key).clear()
    part, _ = job.snapshot()
    assert (len(part.files), len(job.rows(part))) == (2, 600)
    for key in range(400, 800):
        job.at(key).clear()
    part, _ = job.snapshot()
    assert (len(part.files), part.detail["rows"]) == (1, 200)


def test_nothing_is_noted_before_there_is_a_snapshot_nor_when_so_much_changed_that_all_is_written() -> None:
    job = Job(ValueState("long"))
    layers = job.backend._states["s"].layers

    def change(value: int) -> None:
        for key in range(2 * LISTED_ROWS_LEAST):
            job.at(key).set(value)
            if key % 1_000 == 0:
                job.backend.begin([])

    change(0)
    assert layers.live.note is IGNORED
    job.snapshot()
    assert layers.live.note is not IGNORED
    change(1)
    assert layers.live.note is IGNORED
    part, _ = job.snapshot()
    assert part.detail["rows"] == 2 * LISTED_ROWS_LEAST
    assert {row["value"] for row in job.rows(part)} == {1}


def test_what_changes_often_is_noted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changed, "LIST_ROWS", 100)
    monkeypatch.setattr(changed, "SET_ROWS", 300)
    monkeypatch.setattr(changed, "LISTED_ROWS_LEAST", 200)
    job = Job(ValueState("long"))
    for key in range(10_000):
        job.at(key).set(0)
    job.snapshot()
    changes: Any = job.backend._states["s"].layers._changes
    for number in range(300):
        for key in range(number % 3 * 50, number % 3 * 50 + 100):
            job.at(key).set(number)
        job.backend.begin(range(50))
        assert sum(map(len, changes._lots)) <= CHANGED_RATIO * 10_000 + 200
    part, _ = job.snapshot()
    assert part.detail["rows"] == 10_000 + 200
    assert not changes._retired or len(changes._retired) < 100


@pytest.mark.parametrize(
    ("state", "put"),
    [
        (ValueState("long", ttl=Ttl("10s")), lambda handle: handle.set(1)),
        (ListState("long", ttl=Ttl("10s")), lambda handle: handle.add(1)),
        (MapState("long", "long", ttl=Ttl("10s")), lambda handle: handle.put(1, 1)),
    ],
    ids=lambda case: type(case).__name__,
)
def test_what_expires_without_being_touched_leaves_memory_and_then_the_checkpoints(state: KeyedState, put: Any) -> None:
    job = Job(state)
    for key in range(100):
        put(job.at(key))
    job.snapshot()
    job.now_ms += TTL_MS - 1
    for key in range(10, 100):
        put(job.at(key))
    job.snapshot()
    job.snapshot()
    job.now_ms += TTL_MS // SWEEPS_PER_TTL
    for key in range(5):
        put(job.at(key))
    job.snapshot()
    job.backend.begin(range(100))
    assert sorted(job.backend._states["s"].layers.live) == [*range(5), *range(10, 100)]
    part, _ = job.snapshot()
    # A whole, those that were touched, and the five that are gone.
    assert (part.detail["rows"], len(job.rows(part))) == (100 + 5 + 5, 95)


def test_changes_are_built_in_small_pieces_with_breath_in_between() -> None:
    job = Job(ValueState("long"))
    for key in range(100_000):
        job.at(key).set(0)
    job.snapshot()
    for key in range(20_000):
        job.at(key).set(1)
    job.shelf.prefix, job.shelf.breaths = "next-", 0
    frozen = job.backend.freeze()["s"]
    frozen.write(job.shelf)
    # While they are told apart, and while their tables are made.
    assert job.shelf.breaths == 20 + 20
