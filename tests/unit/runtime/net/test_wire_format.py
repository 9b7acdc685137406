"""Everything that crosses a socket comes out as it went in, or is refused."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest

from weir.errors import DataError, ProtocolViolation
from weir.ids import AttemptId, CheckpointId, SubtaskId, TaskIndex, Uid, VertexId
from weir.runtime.net import wire_format as codec
from weir.runtime.net.wire_format import ElementCodec, decode_message, encode_message
from weir.snapshot import messages as m
from weir.snapshot.coordinator.events import AttemptEnded
from weir.snapshot.elements import Barrier, BarrierCancelled, EndOfInput
from weir.snapshot.parts import FileRef, OperatorPart, Position, Reserved, StatePart

ATTEMPT, CHECKPOINT, SUBTASK = AttemptId(3), CheckpointId(7), SubtaskId(VertexId(1), 2)
PARTS = (
    OperatorPart(
        Uid("count"),
        inline=Position([1, 2.5, None]),
        states={"sums": StatePart("arrow", {"0": FileRef("a/b", 10, "crc")}, [1])},
    ),
    OperatorPart(Uid("sink")),
)
MESSAGES = [
    m.TaskRegistered(ATTEMPT, TaskIndex(1), "grpc://127.0.0.1:1", 4711),
    m.TaskRunning(ATTEMPT, TaskIndex(1)),
    m.TaskRestoring(ATTEMPT, TaskIndex(1), 300, 900),
    m.SnapshotTaken(ATTEMPT, CHECKPOINT, SUBTASK, PARTS, duration_ms=12, uploaded_bytes=7),
    m.SnapshotTaken(ATTEMPT, CHECKPOINT, SUBTASK, PARTS, exported=PARTS),
    m.SnapshotTaken(ATTEMPT, CHECKPOINT, SUBTASK, PARTS, export_refused="no such bucket"),
    m.SnapshotDeclined(ATTEMPT, CHECKPOINT, SUBTASK, "disk full: ü", "STORAGE_FULL"),
    m.EpochsCommitted(ATTEMPT, CHECKPOINT, SUBTASK),
    m.SubtaskFinished(ATTEMPT, SUBTASK),
    m.TaskFailed(ATTEMPT, TaskIndex(0), "boom", "USER_CODE", False),
    m.Heartbeat(ATTEMPT, TaskIndex(0), {"rows": {"count": 3}}),
    m.DeployTask(ATTEMPT, ("grpc://127.0.0.1:1", "grpc://127.0.0.1:2"), None),
    m.DeployTask(ATTEMPT, (), CHECKPOINT),
    m.DeployTask(ATTEMPT, (), CHECKPOINT, "s3://bucket/savepoint"),
    m.DeployTask(ATTEMPT, (), None, positions={Uid("source"): Reserved(({"0": 5}, None))}),
    m.DeployTask(ATTEMPT, (), CHECKPOINT, loses_state=True, reserves=True),
    m.PositionReached(ATTEMPT, TaskIndex(1), SUBTASK, Uid("source"), 3, {"0": 5}, CHECKPOINT),
    m.PositionReserved(ATTEMPT, SUBTASK, 3),
    m.TriggerCheckpoint(ATTEMPT, CHECKPOINT),
    m.TriggerCheckpoint(ATTEMPT, CHECKPOINT, is_stateless=True),
    m.TriggerCheckpoint(ATTEMPT, CHECKPOINT, "file:///tmp/ü", pause=True),
    m.ResumeSources(ATTEMPT),
    m.DrainSources(ATTEMPT),
    m.SourcesReached(ATTEMPT, TaskIndex(1), (m.SourceReached(SubtaskId(VertexId(0), 1), -(1 << 63)),)),
    m.AlignSources(ATTEMPT, {"orders": 5}),
    m.AbortCheckpoint(ATTEMPT, CHECKPOINT),
    m.CheckpointCompleted(ATTEMPT, CHECKPOINT),
    m.StopTask(ATTEMPT, cancelled=True),
]
SCHEMA = pa.schema([("word", pa.string()), ("n", pa.int64())])
WORDS = pa.record_batch([["a", None, "c"], [1, 2, None]], schema=SCHEMA)


def there_and_back(element: object, schema: pa.Schema = SCHEMA, channel: int = 5) -> object:
    frame = ElementCodec(schema).encode(element, channel)
    assert codec.frame_kind_and_channel(frame)[1] == channel
    return ElementCodec(schema).decode(pa.py_buffer(frame))


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_a_message_comes_out_equal_and_with_its_own_types(message: m.FromTask) -> None:
    found = decode_message(pa.py_buffer(encode_message(message)))
    assert found == message
    if isinstance(found, m.SnapshotTaken):
        assert type(found.subtask) is SubtaskId
        assert type(found.parts) is tuple
        assert type(found.parts[0].states["sums"]) is StatePart
        assert type(found.parts[0].states["sums"].files["0"]) is FileRef


def test_every_message_between_tasks_and_driver_is_known() -> None:
    names = {name.strip() for family in (m.FromTask, m.ToTask) for name in str(family).split("|")}
    assert names == set(codec._MESSAGES) == {type(message).__name__ for message in MESSAGES}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{",
        '{"attempt": 1, "task": 1}',
        '{"message": "Unknown", "attempt": 1}',
        '{"message": "TaskRunning", "attempt": 1}',
        '{"message": "TaskRunning", "attempt": 1, "task": 1, "more": 1}',
        '{"message": "TaskRunning", "attempt": "1", "task": 1}',
        '{"message": "SubtaskFinished", "attempt": 1, "subtask": [1, 2, 3]}',
        '{"message": "AttemptEnded", "attempt": 1}',
    ],
)
def test_what_is_no_message_is_a_protocol_violation(text: str) -> None:
    with pytest.raises(ProtocolViolation):
        decode_message(bytes([codec.MESSAGE]) + text.encode())


def test_a_frame_of_another_kind_is_no_message() -> None:
    frame = encode_message(MESSAGES[1])
    with pytest.raises(ProtocolViolation):
        decode_message(bytes([codec.CREDIT]) + frame[1:])
    with pytest.raises(ProtocolViolation):
        decode_message(b"")


def test_what_only_the_coordinator_hears_is_not_sent() -> None:
    with pytest.raises(ProtocolViolation, match="AttemptEnded"):
        encode_message(AttemptEnded(ATTEMPT))  # type: ignore[arg-type]


def test_a_message_that_is_not_json_says_which_one() -> None:
    with pytest.raises(ProtocolViolation, match="Heartbeat"):
        encode_message(m.Heartbeat(ATTEMPT, TaskIndex(0), {"rows": object()}))


def test_a_message_is_one_line_of_json() -> None:
    frame = encode_message(MESSAGES[1])
    assert json.loads(frame[1:]) == {"message": "TaskRunning", "attempt": 3, "task": 1}


MARKERS = [
    Barrier(CHECKPOINT),
    Barrier(CHECKPOINT, base=CHECKPOINT, is_stateless=True),
    Barrier(CHECKPOINT, "s3://bucket/ü?a=b"),
    BarrierCancelled(CHECKPOINT),
    EndOfInput(),
]


@pytest.mark.parametrize("marker", MARKERS, ids=repr)
def test_a_marker_comes_out_equal(marker: object) -> None:
    assert there_and_back(marker) == marker


@pytest.mark.parametrize("rows", [WORDS, WORDS.slice(1, 1), WORDS.slice(0, 0)], ids=["all", "a slice", "none"])
def test_a_batch_comes_out_equal(rows: pa.RecordBatch) -> None:
    assert there_and_back(rows) == rows


def test_dictionaries_travel_with_their_batch_also_within_other_types() -> None:
    words = pa.array(["x", "y", "x"]).dictionary_encode()
    nested = pa.ListArray.from_arrays([0, 2, 3], words)
    for column in (words, nested):
        batch = pa.record_batch([column], names=["w"])
        assert there_and_back(batch, batch.schema).to_pylist() == batch.to_pylist()


def test_columns_are_aligned_wherever_the_frame_lies() -> None:
    frame = ElementCodec(SCHEMA).encode(WORDS, 0)
    for shift in range(8):
        shifted = pa.py_buffer(bytes(shift) + frame).slice(shift)
        batch = ElementCodec(SCHEMA).decode(shifted)
        assert batch == WORDS
        assert batch.column(1).buffers()[1].address % 8 == 0


def test_a_batch_that_does_not_have_the_schema_of_its_edge_is_refused_before_it_is_sent() -> None:
    for schema in (pa.schema([("word", pa.string())]), pa.schema([("word", pa.string()), ("n", pa.int32())])):
        with pytest.raises(ProtocolViolation, match="expected word: string"):
            ElementCodec(schema).encode(WORDS, 0)


def test_a_promise_of_no_nulls_does_not_make_another_schema() -> None:
    strict = pa.schema([pa.field("word", pa.string(), nullable=False), ("n", pa.int64())], metadata={"a": "b"})
    assert there_and_back(WORDS, strict).to_pylist() == WORDS.to_pylist()


def test_a_batch_beyond_what_one_frame_holds_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codec, "FRAME_BYTES_MAX", 100)
    with pytest.raises(DataError, match="smaller batches"):
        ElementCodec(SCHEMA).encode(WORDS, 0)


def test_what_is_no_element_is_refused() -> None:
    with pytest.raises(ProtocolViolation, match="str"):
        ElementCodec(SCHEMA).encode("text", 0)  # type: ignore[arg-type]
    with pytest.raises(ProtocolViolation, match="no element"):
        ElementCodec(SCHEMA).decode(pa.py_buffer(codec.encode_credit(1, 2)))
