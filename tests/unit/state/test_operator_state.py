"""Operator lists and broadcast maps: handles, snapshots, and who gets what at another parallelism."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from tests.states import as_restored, table_of
from weir.errors import CheckpointError
from weir.snapshot.manifest import checksum
from weir.snapshot.parts import FileRef, StatePart
from weir.state.declared.kinds import BroadcastState, OperatorListState, OperatorState, Pickled
from weir.state.frozen import FrozenState, RestoredPart
from weir.state.operator_state import OperatorStates, RestoredOperatorState, redistribution_of


class Files:
    """Storage in a dictionary, as a writer and as a reader."""

    def __init__(self) -> None:
        self.held: dict[str, Any] = {}

    def put(self, name: str, data: Any, *, shared: bool = False) -> FileRef:
        path = f"{len(self.held)}-{name}"
        self.held[path] = data
        return FileRef(path, data.size, checksum(data))

    def put_file(self, name: str, local_path: str, *, shared: bool = False) -> FileRef:
        raise NotImplementedError

    def breathe(self) -> None:
        pass

    def read(self, file: FileRef) -> Any:
        return self.held[file.path]

    def fetch(self, file: FileRef, local_path: str) -> None:
        raise NotImplementedError


def states(state: OperatorState) -> tuple[OperatorStates, Any]:
    made = OperatorStates({"s": state.named("s")})
    return made, made.handles["s"]


def written(frozen: list[FrozenState], *, export: bool) -> tuple[list[StatePart], Files]:
    files = Files()
    return [state.export(files) if export else state.write(files) for state in frozen], files


def rescaled(parts: list[StatePart], files: Files, state: OperatorState, parallelism: int) -> list[Any]:
    """The handles of the new subtasks."""
    old = [RestoredPart(part, range(0), files) for part in parts]
    redistribute = redistribution_of(parts[0].detail)
    assert redistribute is not None
    found = []
    for index in range(parallelism):
        made, handle = states(state)
        made.restore({"s": RestoredOperatorState(old, redistribute, index, parallelism)})
        found.append(handle)
    return found


@pytest.mark.parametrize("export", [False, True])
def test_a_split_list_is_dealt_out_and_nothing_is_lost_or_doubled(export: bool) -> None:
    state = OperatorListState("long")
    held = [[1, 2, 3], [], [4, 5, 6, 7]]
    for parallelism in (2, 5, 3, 1):
        frozen = []
        for values in held:
            made, handle = states(state)
            handle.set(values)
            frozen.append(made.freeze()["s"])
        now = [handle.get() for handle in rescaled(*written(frozen, export=export), state, parallelism)]
        assert sorted(value for values in now for value in values) == [1, 2, 3, 4, 5, 6, 7]
        assert max(map(len, now)) - min(map(len, now)) <= 1 or now == held
        held = now


def test_at_the_same_parallelism_each_subtask_keeps_its_own() -> None:
    made = [states(OperatorListState("long")) for _ in range(2)]
    made[0][1].set([1, 2])
    made[1][1].set([3])
    parts = written([one.freeze()["s"] for one, _ in made], export=False)
    assert [handle.get() for handle in rescaled(*parts, OperatorListState("long"), 2)] == [[1, 2], [3]]


def test_a_union_list_goes_to_all_and_a_broadcast_map_is_copied() -> None:
    union = OperatorListState("string", redistribute="union")
    made = [states(union) for _ in range(2)]
    for number, (_, handle) in enumerate(made):
        handle.add(f"of {number}")
    parts = written([one.freeze()["s"] for one, _ in made], export=True)
    assert [handle.get() for handle in rescaled(*parts, union, 3)] == [["of 0", "of 1"]] * 3

    broadcast = BroadcastState("string", "long", default=0)
    made = [states(broadcast) for _ in range(2)]
    for _, handle in made:
        handle["a"] = 1
    parts = written([one.freeze()["s"] for one, _ in made], export=True)
    assert [handle.items() for handle in rescaled(*parts, broadcast, 3)] == [[("a", 1)]] * 3
    assert rescaled(*parts, broadcast, 1)[0]["zz"] == 0


@pytest.mark.parametrize("state", [OperatorListState("long"), BroadcastState("long", "long")], ids=str)
def test_frozen_operator_state_stays_as_it_was_and_layers_do_not_pile_up(state: OperatorState) -> None:
    made, handle = states(state)
    alive = [made.freeze()["s"]]
    for number in range(20):
        handle.add(number) if isinstance(state, OperatorListState) else handle.put(number, number)
        alive.append(made.freeze()["s"])
    for count, frozen in enumerate(alive):
        assert table_of(frozen).column("value").to_pylist() == list(range(count))
        frozen.released()
    handle.clear()
    last = made.freeze()["s"]
    assert table_of(last).num_rows == 0
    assert len(handle.data.below) <= 2


def test_wrong_values_and_unknown_states_are_named() -> None:
    made, handle = states(OperatorListState("long"))
    with pytest.raises(TypeError, match=r"^state 's' holds a list of bigint, but was given 'x' \(str\): wrong type$"):
        handle.add("x")
    with pytest.raises(CheckpointError, match=r"holds state 't', which the function does not declare \(s\)"):
        made.restore(as_restored({"t": []}))


def test_operator_states_evolve_migrate_and_hold_pickled_objects() -> None:
    made, handle = states(OperatorListState("int"))
    handle.set([1, 2])
    table = table_of(made.freeze()["s"])
    assert table.schema.names == ["index", "value"] and table.schema.types == [pa.int32(), pa.int32()]
    for state, expected in [
        (OperatorListState("long"), [1, 2]),
        (OperatorListState("string", migrate=str), ["1", "2"]),
        (OperatorListState(Pickled(), migrate=lambda old: {old}), [{1}, {2}]),
    ]:
        again, new = states(state)
        again.restore(as_restored({"s": [table]}))
        assert new.get() == expected
    with pytest.raises(CheckpointError, match="as an operator list state, the function declares a map state"):
        states(BroadcastState("int", "int"))[0].restore(as_restored({"s": [table]}))


def one_after_the_other(steps: list[Any], state: OperatorState) -> tuple[Files, list[StatePart], list[int]]:
    """Snapshots after each step, all complete: their parts, and how many files each has put."""
    made, handle = states(state)
    files = Files()
    parts, put = [], []
    for step in steps:
        step(handle)
        frozen, before = made.freeze()["s"], len(files.held)
        parts.append(frozen.write(files))
        put.append(len(files.held) - before)
        frozen.released()
        frozen.confirmed(parts[-1])
    return files, parts, put


def rows_in(part: StatePart, files: Files) -> int:
    return sum(read_rows(files.held[file.path]) for file in part.files.values())


def read_rows(data: Any) -> int:
    return int(pa.ipc.open_file(pa.BufferReader(data)).read_all().num_rows)


def test_a_checkpoint_of_a_broadcast_map_has_the_entries_that_changed_and_says_which_are_gone() -> None:
    state = BroadcastState("string", "long")
    files, parts, put = one_after_the_other(
        [
            lambda handle: handle.put_all({str(number): number for number in range(1_000)}),
            lambda handle: handle.put("7", 70_000),
            lambda handle: None,
            lambda handle: (handle.remove("8"), handle.put("new", 1)),
        ],
        state,
    )
    assert put == [1, 1, 0, 1] and parts[1] == parts[2]
    assert [rows_in(part, files) for part in parts] == [1_000, 1_001, 1_001, 1_003]
    expected: dict[str, int] = {str(number): number for number in range(1_000)} | {"7": 70_000, "new": 1}
    del expected["8"]
    for handle in rescaled([parts[3], parts[3]], files, state, 3):
        assert dict(handle.items()) == expected


@pytest.mark.parametrize("redistribute", ["split", "union"])
def test_a_list_keeps_its_order_when_it_is_read_from_changes(redistribute: Any) -> None:
    state = OperatorListState("long", redistribute=redistribute)
    files, parts, put = one_after_the_other(
        [
            lambda handle: handle.set(range(1_000, 1_100)),
            lambda handle: handle.add_all([2_000, 2_001]),
            lambda handle: handle.set([5_000, *handle.get()[1:90]]),
        ],
        state,
    )
    assert put == [1, 1, 1]
    # Ints that are equal are other ones when they were set again; none of the last is older than its list.
    assert rows_in(parts[1], files) == 102
    expected = [5_000, *range(1_001, 1_090)]
    assert [handle.get() for handle in rescaled([parts[2]], files, state, 1)] == [expected]
    found = [handle.get() for handle in rescaled([parts[2]], files, state, 2)]
    assert found == ([expected[::2], expected[1::2]] if redistribute == "split" else [expected, expected])


def test_a_restored_operator_state_goes_on_with_the_files_of_its_part_unless_they_are_anothers() -> None:
    state = BroadcastState("long", "long")
    files, parts, _ = one_after_the_other([lambda handle: handle.put_all(dict.fromkeys(range(100), 1))], state)
    for is_own in (True, False):
        made, handle = states(state)
        old = [RestoredPart(parts[0], range(0), files)]
        made.restore({"s": RestoredOperatorState(old, "broadcast", 0, 1, is_own)})
        handle.put(1, 2)
        part = made.freeze()["s"].write(files)
        assert (set(parts[0].files.values()) < set(part.files.values())) is is_own
        handle.put(2, 2)
        assert rows_in(made.freeze()["s"].write(files), files) == (102 if is_own else 100)


def test_what_a_failed_checkpoint_had_of_an_operator_state_is_in_the_next_one() -> None:
    state = BroadcastState("long", "long")
    made, handle = states(state)
    files = Files()
    handle.put_all(dict.fromkeys(range(100), 1))
    first = made.freeze()["s"]
    part = first.write(files)
    first.released()
    first.confirmed(part)
    handle.put(1, 2)
    lost = made.freeze()["s"]
    lost.write(files)
    lost.released()
    # What was frozen is merged again by now: a change in place must not pass for what the checkpoint holds.
    made.freeze()["s"].released()
    handle.put(2, 2)
    last = made.freeze()["s"]
    found = rescaled([last.write(files)], files, state, 1)[0]
    assert dict(found.items()) == {**dict.fromkeys(range(100), 1), 1: 2, 2: 2}
