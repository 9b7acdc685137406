"""Operator state out of a manifest: which subtask gets what, at another parallelism."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.operators.running import context
from weir.ids import AttemptId, CheckpointId, SubtaskId, Uid
from weir.runtime.storage.state_files import CheckpointWriter, restored_part
from weir.runtime.storage.stores.memory import MemoryStorage
from weir.snapshot.manifest import Manifest, OperatorSnapshot, PartOf
from weir.snapshot.parts import StatePart
from weir.state.declared.kinds import OperatorListState, OperatorState
from weir.state.operator_state import OperatorStates

UID = Uid("the-uid")


def states() -> OperatorStates:
    declared: dict[str, OperatorState] = {
        "dealt": OperatorListState("long", name="dealt"),
        "shared": OperatorListState("long", redistribute="union", name="shared"),
    }
    return OperatorStates(declared)


def checkpoint(storage: Any, parts: list[OperatorStates]) -> Manifest:
    """What subtasks with these states put into a checkpoint."""
    written = []
    for index, part in enumerate(parts):
        of_part: dict[str, StatePart] = {}
        for name, frozen in part.freeze().items():
            subtask = SubtaskId("v", index)  # type: ignore[arg-type]
            writer = CheckpointWriter(
                storage,
                CheckpointId(1),
                AttemptId(1),
                uid=UID,
                subtask=subtask,
                state=name,
                breathe=lambda: None,
            )
            of_part[name] = frozen.write(writer)
        written.append(PartOf(index, None, of_part))
    snapshot = OperatorSnapshot(len(parts), tuple(written))
    return Manifest("job", CheckpointId(1), AttemptId(1), 128, 0.0, {UID: snapshot})


@pytest.mark.parametrize("is_own", [True, False])
def test_lists_are_dealt_out_or_shared_from_two_to_five_to_three(is_own: bool) -> None:
    parts = [states(), states()]
    parts[0].handles["dealt"].set([1, 2, 3])
    parts[1].handles["dealt"].set([4])
    parts[1].handles["shared"].set([9])
    for parallelism in (5, 3):
        storage = MemoryStorage(1 << 20)
        manifest = checkpoint(storage, parts)
        parts = []
        for index in range(parallelism):
            restored = restored_part(manifest, context(index, parallelism), storage, is_own=is_own)
            assert restored is not None
            parts.append(states())
            parts[-1].restore(restored.states)
            parts[-1].handles["shared"].set(parts[-1].handles["shared"].get()[:1])
        dealt = [part.handles["dealt"].get() for part in parts]
        assert sorted(value for values in dealt for value in values) == [1, 2, 3, 4]
        assert max(map(len, dealt)) - min(map(len, dealt)) <= 1
        assert [part.handles["shared"].get() for part in parts] == [[9]] * parallelism
