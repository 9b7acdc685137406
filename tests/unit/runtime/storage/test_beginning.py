"""What an attempt begins with: a checkpoint, with its state or without, and where sources have come since."""

from __future__ import annotations

import pytest

from tests.unit.runtime.fakes import context
from weir.ids import AttemptId, CheckpointId, SubtaskId, Uid, VertexId
from weir.operators.base import InlinePart
from weir.runtime.storage.beginning import Beginning
from weir.runtime.storage.local_copies import NO_COPIES
from weir.runtime.storage.stores.memory import MemoryStorage
from weir.snapshot.manifest import build
from weir.snapshot.parts import OperatorPart, Position, Reserved, StatePart

MANIFEST = build(
    job="job",
    checkpoint=CheckpointId(3),
    attempt=AttemptId(1),
    max_parallelism=8,
    created_ms=0,
    parts={SubtaskId(VertexId(0), 0): (OperatorPart(Uid("source"), Position(5), {"seen": StatePart("arrow")}),)},
    parallelism={VertexId(0): 1},
    kind="checkpoint",
    lineage="a" * 10,  # type: ignore[arg-type]
)


@pytest.mark.parametrize(("loses_state", "states"), [(False, ["seen"]), (True, [])])
def test_state_behind_whose_checkpoint_rows_were_read_is_left_out_and_positions_are_not(
    loses_state: bool, states: list[str]
) -> None:
    beginning = Beginning(MANIFEST, loses_state=loses_state)
    found = beginning.restored(context("source"), MemoryStorage(1 << 20), NO_COPIES)
    assert found is not None
    assert sorted(found.states) == states
    assert beginning.positions_of(Uid("source"), found) == [InlinePart(0, 1, 5)]


def test_readers_begin_where_the_last_note_says_rather_than_the_checkpoint() -> None:
    beginning = Beginning(MANIFEST, positions={Uid("source"): Reserved((7, 9))})
    assert beginning.positions_of(Uid("source"), None) == [InlinePart(0, 2, 7), InlinePart(1, 2, 9)]
    assert beginning.positions_of(Uid("other"), None) is None
