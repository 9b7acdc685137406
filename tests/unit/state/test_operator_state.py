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
