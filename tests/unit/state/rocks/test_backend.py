"""The rocksdb backend: what it holds in memory, what it sweeps, and what it refuses."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from tests.states import table_of
from tests.unit.state.rocks.world import GROUPS, KEYS, World, as_dict, update, values
from weir.config import RocksDb
from weir.errors import CheckpointError, ConfigError, CorruptCheckpoint
from weir.snapshot.parts import StatePart
from weir.state.backends import make_backend
from weir.state.declared.kinds import ListState, MapState, Ttl, ValueState
from weir.state.place import StatePlace
from weir.state.rocks import cells as rocks_cells


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


def test_keys_that_are_asked_for_one_after_the_other_are_made_by_batches(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = world.backend()
    backend.value_state(ValueState("long", name="s"))
    sizes: list[int] = []
    decode = backend._encoded.decode
    monkeypatch.setattr(backend._encoded, "decode", lambda keys: (sizes.append(len(keys)), decode(keys))[1])
    for first in (0, 1_000):
        keys = backend.keys([pa.array(range(first, first + 1_000))])
        backend.begin(keys)
        assert [backend.shown(key) for key in keys] == list(range(first, first + 1_000))
        assert backend.shown(backend.keys([pa.array([7_777])])[0]) == 7_777
        assert sizes == [1, 1_000, 1]
        sizes.clear()
