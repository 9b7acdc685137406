"""Bytes for everything that crosses a socket: control messages as JSON, elements as frames.

Comes in: messages of snapshot/messages.py, batches and markers. Goes out: frames,
and the same values again on the other side. Never touches a socket or a thread.

    message   kind | JSON {"message": class name, field: value …}
    batch     kind, payload offset, 0, channel | padding | Arrow IPC record batch
    marker    kind, 8, 0, channel | int64 (checkpoint, timestamp, or 0)
    barrier   … like a marker | int64 base, or 0 | where the savepoint goes, if it is one
    credit    kind, 8, 0, channel | int64 (elements taken)
"""

from __future__ import annotations

import json
import struct
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any

import pyarrow as pa

from weir.errors import DataError, ProtocolViolation
from weir.ids import CheckpointId
from weir.runtime.ports import Element
from weir.snapshot import messages
from weir.snapshot.elements import Barrier, BarrierCancelled, EndOfInput, Marker, StreamIdle, Watermark
from weir.snapshot.messages import FromTask, ToTask
from weir.snapshot.parts import Inline, inline_json, inline_of

BATCH, BATCH_WITH_DICTIONARIES, BARRIER, BARRIER_CANCELLED, END_OF_INPUT, CREDIT, MESSAGE = range(16, 23)
WATERMARK, STREAM_IDLE = 23, 24

FRAME_BYTES_MAX = (1 << 31) - 1024
"""gRPC counts the bytes of a message in 31 bits."""

_HEADER = struct.Struct("<BBHI")
_MARKER = struct.Struct("<BBHIq")
_BARRIER = struct.Struct("<q?")
"""What a barrier says besides: its base, or 0, and whether it is stateless."""

# --- control messages -----------------------------------------------------------------------------------

_MESSAGES: Mapping[str, type] = {
    kind.__name__: kind
    for kind in (
        *(messages.TaskRegistered, messages.TaskRestoring, messages.TaskRunning, messages.TaskFailed),
        messages.Heartbeat,
        *(messages.SnapshotTaken, messages.SnapshotDeclined, messages.EpochsCommitted, messages.SubtaskFinished),
        *(messages.DeployTask, messages.StopTask),
        *(messages.TriggerCheckpoint, messages.AbortCheckpoint, messages.CheckpointCompleted),
        *(messages.ResumeSources, messages.DrainSources, messages.SourcesReached, messages.AlignSources),
        *(messages.PositionReached, messages.PositionReserved),
    )
}


def encode_message(message: FromTask | ToTask) -> bytes:
    """A message as one frame."""
    name = type(message).__name__
    if _MESSAGES.get(name) is not type(message):
        raise ProtocolViolation(f"{name} is not a message between a task and the driver")
    try:
        return bytes([MESSAGE]) + json.dumps({"message": name, **_plain(message)}, separators=(",", ":")).encode()
    except (TypeError, ValueError) as error:
        raise ProtocolViolation(f"{name} cannot be written as JSON: {error}") from error


def decode_message(frame: bytes | pa.Buffer) -> FromTask | ToTask:
    """The message in a frame, or ProtocolViolation."""
    data = memoryview(frame).tobytes()
    try:
        if data[0] != MESSAGE:
            raise ValueError(f"frame kind {data[0]}")
        found = json.loads(data[1:])
        kind = _MESSAGES[found.pop("message")]
        return typing.cast("FromTask | ToTask", _build(kind, found))
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        raise ProtocolViolation(f"not a message between a task and the driver: {error!r} in {data[:200]!r}") from error


def _plain(value: Any) -> Any:
    """Dataclasses as dicts; the rest is JSON already (named tuples are lists to json)."""
    if isinstance(value, Inline):
        return inline_json(value)
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return [_plain(item) for item in value]
    return value


def _build(kind: type, found: dict[str, Any]) -> Any:
    readers = _readers(kind)
    if unknown := found.keys() - readers.keys():
        raise ValueError(f"{kind.__name__} has no {', '.join(sorted(unknown))}")
    return kind(**{name: readers[name](value) for name, value in found.items()})


@cache
def _readers(kind: type) -> dict[str, Callable[[Any], Any]]:
    return {name: _reader(hint) for name, hint in typing.get_type_hints(kind).items()}


def _reader(hint: Any) -> Callable[[Any], Any]:
    """How to turn JSON into a value of this type."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if isinstance(hint, typing.NewType):
        return _reader(hint.__supertype__)
    if hint == Inline | None:
        return inline_of
    if origin in (typing.Union, types.UnionType):
        inner = _reader(next(a for a in arguments if a is not type(None)))
        return lambda value: None if value is None else inner(value)
    if origin is tuple:
        item = _reader(arguments[0])
        return lambda value: tuple(item(v) for v in value)
    if origin is not None and issubclass(origin, Mapping):
        item = _reader(arguments[1])
        return lambda value: {name: item(v) for name, v in value.items()}
    if is_dataclass(hint):
        return lambda value: _build(typing.cast(type, hint), value)
    if isinstance(hint, type) and issubclass(hint, tuple):
        return lambda value: hint(*value)
    if hint in (int, str, bool):
        return lambda value: _checked(value, hint)
    return lambda value: value


def _checked(value: Any, kind: type) -> Any:
    if type(value) is not kind:
        raise TypeError(f"{value!r} is not of type {kind.__name__}")
    return value


# --- elements -------------------------------------------------------------------------------------------


def frame_kind_and_channel(frame: bytes | pa.Buffer) -> tuple[int, int]:
    kind, _, _, channel = _HEADER.unpack_from(frame)
    return kind, channel


def encode_credit(channel: int, count: int) -> bytes:
    """Leave to send `count` more elements on a channel."""
    return _MARKER.pack(CREDIT, _HEADER.size, 0, channel, count)


def decode_credit(frame: bytes | pa.Buffer) -> int:
    return int(_MARKER.unpack_from(frame)[4])


class ElementCodec:
    """The elements of one edge, whose schema both sides know, as frames and back."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._has_dictionary = any(_has_dictionary(field.type) for field in schema)

    def encode(self, element: Element, channel: int) -> bytes:
        """One element of a channel as a frame."""
        if isinstance(element, pa.RecordBatch):
            return self._encode_batch(element, channel)
        if isinstance(element, Barrier):
            marker = _MARKER.pack(BARRIER, _HEADER.size, 0, channel, element.checkpoint)
            besides = _BARRIER.pack(element.base or 0, element.is_stateless)
            return marker + besides + (element.savepoint or "").encode()
        if isinstance(element, BarrierCancelled):
            return _MARKER.pack(BARRIER_CANCELLED, _HEADER.size, 0, channel, element.checkpoint)
        if isinstance(element, EndOfInput):
            return _MARKER.pack(END_OF_INPUT, _HEADER.size, 0, channel, 0)
        if isinstance(element, Watermark):
            return _MARKER.pack(WATERMARK, _HEADER.size, 0, channel, element.time_us)
        if isinstance(element, StreamIdle):
            return _MARKER.pack(STREAM_IDLE, _HEADER.size, 0, channel, 0)
        raise ProtocolViolation(f"{type(element).__name__} cannot travel in a channel")

    def decode(self, frame: pa.Buffer) -> Element:
        """The element in a frame; a batch's columns lie in the frame itself where its alignment allows."""
        kind, offset, _, _ = _HEADER.unpack_from(frame)
        if kind in (BATCH, BATCH_WITH_DICTIONARIES):
            return self._decode_batch(frame.slice(offset), kind)
        return _marker(kind, _MARKER.unpack_from(frame)[4], memoryview(frame)[_MARKER.size :].tobytes())

    def _encode_batch(self, batch: pa.RecordBatch, channel: int) -> bytes:
        found, expected = batch.schema, self._schema
        if not found.equals(expected) and (found.names != expected.names or found.types != expected.types):
            raise ProtocolViolation(f"a batch does not have the schema of its edge: found {found}, expected {expected}")
        if self._has_dictionary:
            kind, payload = BATCH_WITH_DICTIONARIES, _as_stream(batch)
        else:
            kind, payload = BATCH, batch.serialize()
        size_bytes = payload.size + 2 * _HEADER.size
        if size_bytes > FRAME_BYTES_MAX:
            raise DataError(
                f"a batch of {batch.num_rows} rows has {payload.size} bytes; at most {FRAME_BYTES_MAX} can be sent at "
                "once: let the operator before the exchange emit smaller batches"
            )
        # Flight puts a tag and the frame's length, seven bits a byte, before the frame, in memory that is aligned
        # to 16 bytes. With the right padding, columns arrive aligned and are used where they lie.
        before = 1 + (size_bytes.bit_length() + 6) // 7 + _HEADER.size
        offset = _HEADER.size + -before % 8
        header = _HEADER.pack(kind, offset, 0, channel)
        return b"".join((header, bytes(offset - _HEADER.size), memoryview(payload)))

    def _decode_batch(self, payload: pa.Buffer, kind: int) -> pa.RecordBatch:
        if payload.address % 8:
            payload = pa.py_buffer(payload.to_pybytes())
        if kind == BATCH:
            return pa.ipc.read_record_batch(payload, self._schema)
        with pa.ipc.open_stream(payload) as stream:
            return stream.read_next_batch()


def _marker(kind: int, value: int, rest: bytes) -> Marker:
    if kind == BARRIER:
        base, is_stateless = _BARRIER.unpack_from(rest)
        savepoint = rest[_BARRIER.size :].decode()
        return Barrier(CheckpointId(value), savepoint or None, CheckpointId(base) if base else None, is_stateless)
    if kind == BARRIER_CANCELLED:
        return BarrierCancelled(CheckpointId(value))
    if kind == END_OF_INPUT:
        return EndOfInput()
    if kind == WATERMARK:
        return Watermark(value)
    if kind == STREAM_IDLE:
        return StreamIdle()
    raise ProtocolViolation(f"a frame of kind {kind} is no element")


def _as_stream(batch: pa.RecordBatch) -> pa.Buffer:
    """A batch with its schema and dictionaries, which a bare record batch leaves out."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as stream:
        stream.write_batch(batch)
    return sink.getvalue()


def _has_dictionary(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        return True
    if isinstance(kind, pa.BaseExtensionType):
        return _has_dictionary(kind.storage_type)
    return any(_has_dictionary(kind.field(i).type) for i in range(kind.num_fields))
