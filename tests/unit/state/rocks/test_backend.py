"""The rocksdb backend: its databases in checkpoints, freezes behind the stream's back, and its memory."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.states import table_of
from weir.config import Heap, RocksDb
from weir.errors import CheckpointError, ConfigError, CorruptCheckpoint
from weir.operators.base import key_group_range
from weir.snapshot.parts import FileRef, StatePart
from weir.state.backends import make_backend
from weir.state.declared.kinds import ListState, MapState, Ttl, ValueState
from weir.state.frozen import RestoredPart, RestoredParts
from weir.state.place import StatePlace
from weir.state.rocks import cells as rocks_cells
from weir.state.rocks.backend import RocksBackend

KEYS = pa.schema([("k", pa.int64())])
GROUPS = 128


class Store:
    """Files of checkpoints, as a writer and a reader of states see them."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.path.mkdir()
        self.checkpoint = 0
        self.uploaded_bytes = 0

    def put(self, name: str, data: Any, *, shared: bool = False) -> FileRef:
        assert "-" not in name
        path = f"{self.checkpoint}-{name}"
        target = self.path / path
        assert not target.exists()
        target.write_bytes(data)
        self.uploaded_bytes += target.stat().st_size
        return FileRef(path, target.stat().st_size, "")

    def put_file(self, name: str, local_path: str, *, shared: bool = False) -> FileRef:
        assert shared
        return self.put(name, Path(local_path).read_bytes())

    def breathe(self) -> None:
        pass

    def read(self, file: FileRef) -> pa.Buffer:
        return pa.py_buffer((self.path / file.path).read_bytes())

    def fetch(self, file: FileRef, local_path: str) -> None:
        os.link(self.path / file.path, local_path)


class World:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.store = Store(path / "store")
        self.made: list[RocksBackend] = []

    def backend(self, groups: range = range(GROUPS), now_ms: Any = lambda: 0, memory: str = "32MB") -> RocksBackend:
        place = StatePlace(backend=RocksDb(memory), directory=str(self.path / f"task-{len(self.made)}"), now_ms=now_ms)
        made = make_backend(KEYS, max_parallelism=GROUPS, key_groups=groups, place=place)
        assert isinstance(made, RocksBackend)
        self.made.append(made)
        return made

    def write(self, backend: RocksBackend, name: str = "s", *, confirm: bool = True) -> StatePart:
        """One checkpoint."""
        self.store.checkpoint += 1
        self.store.uploaded_bytes = 0
        frozen = backend.freeze()[name]
        part = frozen.write(self.store)
        frozen.released()
        if confirm:
            frozen.confirmed(part)
        return part

    def restored(self, *parts: tuple[StatePart, range], own: range = range(GROUPS)) -> dict[str, RestoredParts]:
        found = [RestoredPart(part, groups, self.store) for part, groups in parts]
        return {"s": RestoredParts(found, own)}

    def whole(self, part: StatePart) -> dict[str, RestoredParts]:
        return self.restored((part, range(GROUPS)))


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path)
    yield world
    for backend in world.made:
        backend.close()


def values(backend: RocksBackend, handle: Any, keys: Sequence[int]) -> list[Any]:
    encoded = backend.keys([pa.array(keys, pa.int64())])
    backend.begin(encoded)
    found = []
    for backend.cursor.key in encoded:
        found.append(handle.get())
    backend.end()
    return found


def update(backend: RocksBackend, handle: Any, keys: Sequence[int], value: Any) -> None:
    encoded = backend.keys([pa.array(keys, pa.int64())])
    backend.begin(encoded)
    for key, backend.cursor.key in zip(keys, encoded):
        handle.set(value(key) if callable(value) else value)
    backend.end()


def as_dict(frozen: Any) -> dict[int, Any]:
    table = table_of(frozen)
    return dict(zip(table.column("k").to_pylist(), table.column("value").to_pylist()))


def test_a_checkpoint_is_opened_as_it_is_and_goes_on_from_there(world: World) -> None:
    backend = world.backend()
    state = backend.value_state(ValueState("string", name="s"))
    update(backend, state, range(1_000), lambda key: f"v{key}")
    part = world.write(backend)
    update(backend, state, range(10), "later")

    again = world.backend()
    restored = again.value_state(ValueState("string", name="s"))
    again.restore(world.whole(part))
    assert values(again, restored, [0, 999, 1_000]) == ["v0", "v999", None]
    update(again, restored, [0], "changed")
    assert values(again, restored, [0, 1]) == ["changed", "v1"]
    # Links to stored files must not be written to.
    for name, file in part.files.items():
        assert (world.store.path / file.path).stat().st_size == file.length_bytes, name
    third = world.backend()
    third_state = third.value_state(ValueState("string", name="s"))
    third.restore(world.whole(part))
    assert values(third, third_state, [0]) == ["v0"]


def test_only_what_is_new_since_the_last_confirmed_checkpoint_is_uploaded(world: World) -> None:
    backend = world.backend()
    state = backend.value_state(ValueState("string", name="s"))
    count = 50_000
    for start in range(0, count, 10_000):
        update(backend, state, range(start, start + 10_000), lambda key: f"{key:0100d}")
    base = world.write(backend)
    full_bytes = world.store.uploaded_bytes
    update(backend, state, range(0, count, 100), lambda key: f"{key + 1:0100d}")
    changed = world.write(backend, confirm=False)
    assert 0 < world.store.uploaded_bytes <= full_bytes * 0.05
    assert {name for name in base.files if name.endswith(".sst")} <= set(changed.files)

    # The second was never confirmed, so that the third names nothing of it.
    third = world.write(backend)
    of_second = {file.path for file in changed.files.values()} - {file.path for file in base.files.values()}
    assert of_second and not of_second & {file.path for file in third.files.values()}
    again = world.backend()
    restored = again.value_state(ValueState("string", name="s"))
    again.restore(world.whole(third))
    assert values(again, restored, [0, 1]) == [f"{1:0100d}", f"{1:0100d}"]


def test_nothing_is_uploaded_when_nothing_changed(world: World) -> None:
    backend = world.backend()
    state = backend.value_state(ValueState("long", name="s"))
    update(backend, state, range(10), 1)
    part = world.write(backend)
    assert world.write(backend) == part and world.store.uploaded_bytes == 0
    again = world.backend()
    again.value_state(ValueState("long", name="s"))
    again.restore(world.whole(part))
    assert world.write(again) == part and world.store.uploaded_bytes == 0


def test_a_file_name_that_is_used_again_after_a_rollback_is_another_file(world: World) -> None:
    backend = world.backend()
    state = backend.value_state(ValueState("long", name="s"))
    update(backend, state, range(100), 1)
    first = world.write(backend)
    seen: dict[str, FileRef] = {}
    for value in range(2, 16):
        update(backend, state, range(100), value)
        seen.update(world.write(backend).files)  # complete, but the job goes back to the first all the same

    again = world.backend()
    restored = again.value_state(ValueState("long", name="s"))
    again.restore(world.whole(first))
    twice: list[str] = []
    for _ in range(14):
        update(again, restored, range(100), 3)
        after = world.write(again)
        new = [name for name in after.files if name.endswith(".sst") and name not in first.files]
        twice += [name for name in new if name in seen]
        assert all(after.files[name] != seen.get(name) for name in new)
    assert twice, "the trap was not set"
    third = world.backend()
    third_state = third.value_state(ValueState("long", name="s"))
    third.restore(world.whole(after))
    assert values(third, third_state, range(100)) == [3] * 100


@pytest.mark.parametrize("old", [1, 2, 3])
@pytest.mark.parametrize("new", [1, 2, 5])
def test_state_moves_between_parallelisms_by_tables(world: World, old: int, new: int) -> None:
    count = 2_000
    parts = []
    for index in range(old):
        groups = key_group_range(index, old, GROUPS)
        backend = world.backend(groups)
        state = backend.value_state(ValueState("long", name="s"))
        keys = list(range(count))
        encoded = backend.keys([pa.array(keys)])
        own = [key for key, code in zip(keys, encoded) if int.from_bytes(code[:2], "big") in groups]
        update(backend, state, own, lambda key: -key)
        parts.append((world.write(backend), groups))
    found: dict[int, Any] = {}
    for index in range(new):
        groups = key_group_range(index, new, GROUPS)
        backend = world.backend(groups)
        backend.value_state(ValueState("long", name="s"))
        overlapping = [(p, held) for p, held in parts if held.start < groups.stop and groups.start < held.stop]
        backend.restore(world.restored(*overlapping, own=groups))
        mine = as_dict(backend.freeze()["s"])
        assert not mine.keys() & found.keys()
        found.update(mine)
    assert found == {key: -key for key in range(count)}


def test_state_moves_to_the_heap_and_back(world: World) -> None:
    backend = world.backend()
    state = backend.map_state(MapState("string", "array<long>", name="s"))
    encoded = backend.keys([pa.array(range(3))])
    for key, backend.cursor.key in enumerate(encoded):
        state.put_all({f"m{i}": [key, i] for i in range(key)})
    part = world.write(backend)
    heap = make_backend(KEYS, max_parallelism=GROUPS, key_groups=range(GROUPS), place=StatePlace(backend=Heap()))
    on_heap = heap.map_state(MapState("string", "array<long>", name="s"))
    heap.restore(world.whole(part))
    heap.cursor.key = heap.keys([pa.array([2])])[0]
    assert dict(on_heap.items()) == {"m0": [2, 0], "m1": [2, 1]}
    back = world.backend()
    again = back.map_state(MapState("string", "array<long>", name="s"))
    back.restore(world.restored((heap.freeze()["s"].write(world.store), range(GROUPS))))
    back.cursor.key = back.keys([pa.array([2])])[0]
    assert dict(again.items()) == {"m0": [2, 0], "m1": [2, 1]}


def test_a_changed_type_is_restored_by_tables(world: World) -> None:
    backend = world.backend()
    state = backend.value_state(ValueState("int", name="s"))
    update(backend, state, range(10), 7)
    part = world.write(backend)
    again = world.backend()
    wider = again.value_state(ValueState("long", name="s"))
    again.restore(world.whole(part))
    update(again, wider, [3], 2**40)
    assert values(again, wider, [2, 3]) == [7, 2**40]
    world.write(again)
    assert world.store.uploaded_bytes > 0


def test_what_is_written_after_a_freeze_is_not_in_it_and_is_read_at_once(world: World) -> None:
    backend = world.backend()
    state = backend.value_state(ValueState("long", name="s"))
    maps = backend.map_state(MapState("long", "long", name="m"))
    update(backend, state, range(5_000), 1)
    backend.cursor.key = backend.keys([pa.array([0])])[0]
    maps.put(1, 1)
    frozen = backend.freeze()
    update(backend, state, range(2_500), 2)
    maps.put(1, 2)
    maps.put(2, 2)
    backend.cursor.key = backend.keys([pa.array([4_999])])[0]
    state.clear()
    backend.end()
    assert values(backend, state, [0, 2_500, 4_999]) == [2, 1, None]
    assert as_dict(frozen["s"]) == dict.fromkeys(range(5_000), 1)
    assert table_of(frozen["m"]).num_rows == 1
    later = backend.freeze()
    assert as_dict(later["s"]) == {**dict.fromkeys(range(2_500), 2), **dict.fromkeys(range(2_500, 4_999), 1)}
    for state_ in (*frozen.values(), *later.values()):
        state_.released()
    assert values(backend, state, [0, 2_500, 4_999]) == [2, 1, None]


def test_the_stream_goes_on_while_another_thread_reads_what_was_frozen(world: World) -> None:
    backend = world.backend()
    state = backend.value_state(ValueState("long", name="s"))
    update(backend, state, range(3_000), 0)
    for round_ in range(1, 6):
        frozen = backend.freeze()["s"]
        found: list[dict[int, Any]] = []
        reader = threading.Thread(target=lambda frozen=frozen, found=found: found.append(as_dict(frozen)))
        reader.start()
        while reader.is_alive():
            update(backend, state, range(3_000), round_)
        reader.join()
        update(backend, state, range(3_000), round_)
        assert found == [dict.fromkeys(range(3_000), round_ - 1)]
        frozen.released()


def test_a_snapshot_that_is_never_written_leaves_nothing_behind(world: World) -> None:
    backend = world.backend()
    state = backend.value_state(ValueState("long", name="s"))
    for value in range(3):
        update(backend, state, range(10), value)
        backend.freeze()["s"].released()
    update(backend, state, range(10), 5)
    assert values(backend, state, [1]) == [5]
    assert os.listdir(world.path / "task-0" / "0") == ["database"]


def test_expired_values_are_left_out_of_tables_and_swept_out_of_the_database(world: World) -> None:
    now = [0]
    backend = world.backend(now_ms=lambda: now[0])
    state = backend.value_state(ValueState("long", name="s", ttl=Ttl("1s")))
    lists = backend.list_state(ListState("long", name="l", ttl=Ttl("1s")))
    update(backend, state, range(1_000), 1)
    backend.cursor.key = backend.keys([pa.array([1])])[0]
    lists.add(1)
    now[0] = 900
    update(backend, state, range(500), 2)
    now[0] = 1_500
    frozen = backend.freeze()
    assert as_dict(frozen["s"]) == dict.fromkeys(range(500), 2)
    assert table_of(frozen["l"]).num_rows == 0
    for one in frozen.values():
        one.released()
    for _ in range(10):
        values(backend, state, range(100))
    database = backend._tables["s"].store.database
    assert len(list(database.scan(b""))) == 500
    assert values(backend, state, [0, 700]) == [2, None]


def test_no_more_of_large_values_is_read_at_once_than_there_is_room_for(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rocks_cells, "RETAINED_BYTES_MAX", 1_000_000)
    backend = world.backend()
    state = backend.value_state(ValueState("binary", name="s"))
    keys = backend.keys([pa.array(range(2_000))])
    for start in range(0, 2_000, 100):
        for backend.cursor.key in keys[start : start + 100]:
            state.set(backend.cursor.key * 1_000)
        backend.end()
    cells = backend._tables["s"].cells
    backend.begin([])
    backend.begin(keys)
    assert 64 <= len(cells.clean) < 200  # type: ignore[union-attr]
    for backend.cursor.key in keys:
        assert state.get() == backend.cursor.key * 1_000
        assert len(cells.clean) < 200  # type: ignore[union-attr]
    backend.end()


def test_large_maps_are_not_read_to_change_one_entry(world: World) -> None:
    backend = world.backend()
    state = backend.map_state(MapState("long", "string", name="s"))
    keys = backend.keys([pa.array([1])])
    backend.cursor.key = keys[0]
    state.put_all({i: str(i) for i in range(10_000)})
    backend.end()
    scans: list[bytes] = []
    database = backend._tables["s"].store.database
    scan = database.scan
    database.scan = lambda prefix: scans.append(prefix) or scan(prefix)  # type: ignore[method-assign, func-returns-value]
    backend.begin(keys)
    assert state.get(77) == "77" and 10_000 not in state
    state.put(77, "other")
    state.remove(78)
    backend.end()
    assert not scans
    assert state.get(77) == "other" and 78 not in state and len(state) == 9_999


def test_memory_stays_bounded_when_nobody_says_where_a_batch_ends(world: World) -> None:
    backend = world.backend()
    state = backend.value_state(ValueState("long", name="s"))
    cells = state.data  # type: ignore[attr-defined]
    most = 0
    for start in range(0, 200_000, 10_000):
        encoded = backend.keys([pa.array(range(start, start + 10_000))])
        for key, backend.cursor.key in enumerate(encoded, start):
            if state.get() is None:
                state.set(key)
        most = max(most, len(cells))
    assert most <= 70_000
    assert values(backend, state, [0, 199_999]) == [0, 199_999]


KILLED = """
import os, sys
import pyarrow as pa
from weir.config import RocksDb
from weir.state.declared.kinds import ValueState
from weir.state.place import StatePlace
from weir.state.rocks.backend import RocksBackend
keys = pa.schema([("k", pa.int64())])
place = StatePlace(backend=RocksDb("32MB"), directory=sys.argv[1])
backend = RocksBackend(keys, max_parallelism=128, key_groups=range(128), place=place)
state = backend.value_state(ValueState("long", name="s"))
for backend.cursor.key in backend.keys([pa.array(range(1000))]):
    state.set(1)
backend.end()
backend.freeze()["s"].tables().__next__()
os.kill(os.getpid(), 9)
"""


def test_what_a_killed_process_leaves_does_not_harm_the_next(world: World, tmp_path: Path) -> None:
    directory = tmp_path / "task-0"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    killed = subprocess.run([sys.executable, "-c", KILLED, str(directory)], env=environment, timeout=60)
    assert killed.returncode == -9 and os.listdir(directory / "0")
    backend = world.backend()
    state = backend.value_state(ValueState("long", name="s"))
    assert values(backend, state, [1]) == [None]
    update(backend, state, [1], 2)
    assert as_dict(backend.freeze()["s"]) == {1: 2}


def test_a_checkpoint_whose_links_cannot_be_made_is_refused_and_the_stream_goes_on(world: World) -> None:
    backend = world.backend()
    state = backend.value_state(ValueState("long", name="s"))
    update(backend, state, range(10), 1)
    frozen = backend.freeze()["s"]
    (world.path / "task-0" / "0" / "frozen-1").mkdir()  # whatever else goes wrong is told in the same way
    update(backend, state, range(10), 2)
    with pytest.raises(OSError, match="cannot be frozen"):
        frozen.write(world.store)
    frozen.released()
    assert values(backend, state, [1]) == [2]
    assert world.write(backend).files


def test_files_that_are_no_database_are_refused(world: World) -> None:
    backend = world.backend()
    state = backend.value_state(ValueState("long", name="s"))
    update(backend, state, [1], 1)
    part = world.write(backend)
    less = StatePart(part.format, {n: f for n, f in part.files.items() if not n.endswith(".sst")}, part.detail)
    again = world.backend()
    again.value_state(ValueState("long", name="s"))
    with pytest.raises(CorruptCheckpoint, match="state 's': its files are no database"):
        again.restore(world.whole(less))
    third = world.backend(range(64))
    third.value_state(ValueState("long", name="s"))
    with pytest.raises(CorruptCheckpoint, match="the files of a state are no database"):
        third.restore(world.restored((less, range(GROUPS)), own=range(64)))


def test_a_backend_without_a_directory_says_so() -> None:
    with pytest.raises(ConfigError, match="needs a local directory"):
        make_backend(KEYS, max_parallelism=GROUPS, key_groups=range(GROUPS), place=StatePlace(backend=RocksDb()))


def test_a_part_of_another_version_or_with_a_path_for_a_name_is_refused(world: World) -> None:
    backend = world.backend()
    state = backend.value_state(ValueState("long", name="s"))
    update(backend, state, [1], 1)
    part = world.write(backend)
    newer = StatePart(part.format, part.files, {**part.detail, "version": 99})
    again = world.backend()
    again.value_state(ValueState("long", name="s"))
    with pytest.raises(CheckpointError, match="version 99 of the rocksdb format"):
        again.restore(world.whole(newer))
    file = next(iter(part.files.values()))
    odd = StatePart(part.format, {**part.files, "../escape": file}, part.detail)
    with pytest.raises(CorruptCheckpoint, match=r"'\.\./escape'"):
        again.restore(world.whole(odd))
    shutil.rmtree(world.path / "task-0", ignore_errors=True)
