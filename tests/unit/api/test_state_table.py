"""What a checkpoint holds, as a listing: of any format, without Spark."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

import weir
from tests.unit.operators.running import context
from weir.errors import CheckpointError
from weir.ids import AttemptId, CheckpointId, SubtaskId, Uid, VertexId
from weir.operators.aggregates import named as of
from weir.operators.aggregates.running import RunningAggregate
from weir.operators.base import Frozen
from weir.runtime.storage import layout
from weir.runtime.storage.opening import open_storage
from weir.runtime.storage.state_files import CheckpointWriter
from weir.snapshot.manifest import build, encode
from weir.snapshot.parts import OperatorPart, Position, StatePart

ROWS = pa.record_batch({"key": ["a", "b", "a", "c"], "value": [1, 2, 3, 4]})
CHECKPOINT, ATTEMPT = CheckpointId(12), AttemptId(1)


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """A checkpoint of one operator that sums values by key, with one subtask."""
    storage = open_storage(str(tmp_path))
    operator = RunningAggregate(["key"], {"total": of.sum("value")}, ROWS.schema, combined=False).make()
    operator.open(context(), None)
    operator.process(ROWS, lambda batch: None)
    operator.flush(lambda batch: None)
    states = _written(operator.freeze(), storage)
    manifest = build(
        job="job",
        checkpoint=CHECKPOINT,
        attempt=ATTEMPT,
        max_parallelism=128,
        created_ms=0,
        parts={
            SubtaskId(VertexId(0), 0): (
                OperatorPart(Uid("sum"), None, states),
                OperatorPart(Uid("source"), Position(7)),
            )
        },
        parallelism={VertexId(0): 1},
    )
    storage.publish(layout.manifest_path(CHECKPOINT), encode(manifest))
    return tmp_path / layout.checkpoint_directory(CHECKPOINT)


def _written(frozen: Frozen, storage: object) -> dict[str, StatePart]:
    writer = CheckpointWriter(
        storage,  # type: ignore[arg-type]
        CHECKPOINT,
        ATTEMPT,
        uid=Uid("sum"),
        subtask=SubtaskId(VertexId(0), 0),
        state="aggregate",
        breathe=lambda: None,
    )
    return {name: state.write(writer) for name, state in frozen.states.items()}


def test_states_are_listed_with_schema_rows_and_size(checkpoint: Path) -> None:
    (found,) = weir.state.describe(checkpoint)
    assert (found.uid, found.state, found.rows, found.parallelism) == ("sum", "aggregate", 3, 1)
    assert found.schema.names == ["key_group", "key", "total#0"]
    assert found.bytes == sum(path.stat().st_size for path in (checkpoint.parent / "shared").iterdir())


@pytest.mark.parametrize(
    ("uid", "state", "message"),
    [
        ("sums", None, "no operator with the uid 'sums'; there are: source, sum"),
        ("source", None, "'source' has no state"),
        ("sum", "totals", "has the states aggregate: there is no 'totals'"),
    ],
)
def test_a_wrong_name_is_answered_with_the_right_ones(
    checkpoint: Path, uid: str, state: str | None, message: str
) -> None:
    with pytest.raises(CheckpointError, match=message):
        weir.state.read(None, checkpoint, uid=uid, state=state)  # type: ignore[arg-type]


def test_a_directory_that_is_no_checkpoint_is_named(tmp_path: Path, checkpoint: Path) -> None:
    with pytest.raises(CheckpointError, match=r"checkpoint directory; name one of its.*chk-0000000012"):
        weir.state.describe(tmp_path)
