"""Databases in checkpoints: what is uploaded, what is restored elsewhere, and freezes behind the stream's back."""

from __future__ import annotations

import os
import threading
from typing import Any

import pyarrow as pa
import pytest

from tests.states import table_of
from tests.unit.state.rocks.world import GROUPS, KEYS, World, as_dict, update, values
from weir.config import Heap
from weir.operators.base import key_group_range
from weir.snapshot.parts import FileRef
from weir.state.backends import make_backend
from weir.state.declared.kinds import MapState, ValueState
from weir.state.place import StatePlace


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


def test_a_changed_type_is_restored(world: World) -> None:
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
