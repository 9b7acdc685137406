"""The driver's own storage, for its tasks: what a job without a checkpoint directory keeps in memory.

Comes in: storage calls of a task. Goes out: the same calls on the driver's Storage,
and its answers or errors. A call whose reply is lost raises StorageUnavailable:
its outcome is unknown, as with any storage. Never caches or repeats anything.

    request   action "storage", body: length of JSON | JSON {"call", "path" …} | data
    reply     length of JSON | JSON {"value"} or {"error", "message"} | data
"""

from __future__ import annotations

import json
import struct
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight

from weir.errors import ProtocolViolation, StorageFull, StorageUnavailable
from weir.runtime.connection import describe
from weir.runtime.lines import Lines
from weir.runtime.ports import Storage
from weir.runtime.wire import call_options, client_of

ACTION = "storage"
CALL_TIMEOUT_S = 60.0

_LENGTH = struct.Struct("<I")

_ERRORS: dict[str, type[Exception]] = {
    kind.__name__: kind
    for kind in (StorageFull, StorageUnavailable, FileNotFoundError, FileExistsError, ProtocolViolation)
}


class StorageService:
    """Answers the calls of RemoteStorage from a Storage."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    def handle(self, action: str, body: pa.Buffer) -> pa.Buffer:
        """One call; an error of the storage becomes part of the answer."""
        try:
            if action != ACTION:
                raise ProtocolViolation(f"no such action: {action}")
            request, data = _unpack(body)
            return self._perform(request, data)
        except Exception as error:
            name = next((kind.__name__ for kind in type(error).__mro__ if kind.__name__ in _ERRORS), None)
            if name is None:
                name = "StorageUnavailable" if isinstance(error, OSError) else "ProtocolViolation"
            return _pack({"error": name, "message": str(error) or repr(error)})

    def _perform(self, request: dict[str, Any], data: pa.Buffer) -> pa.Buffer:
        call, path, storage = request["call"], request["path"], self._storage
        if call == "read":
            return _pack({}, storage.read(path))
        value: Any = None
        if call == "write":
            storage.write(path, pa.py_buffer(data.to_pybytes()))  # its own copy: the request's memory is gRPC's
        elif call == "publish":
            storage.publish(path, data.to_pybytes())
        elif call == "create":
            value = storage.create(path, data.to_pybytes())
        elif call == "list":
            value = storage.list(path)
        elif call == "delete":
            storage.delete(path)
        elif call == "prune":
            storage.prune(path)
        elif call == "move":
            storage.move(path, request["target"])
        else:
            raise ProtocolViolation(f"no such storage call: {call}")
        return _pack({"value": value})


class RemoteStorage:
    """A Storage that lives in the driver. May be used by many threads."""

    def __init__(self, address: str, lines: Lines, *, timeout_s: float = CALL_TIMEOUT_S) -> None:
        self._address = address
        self._options = call_options(lines.token, timeout_s)
        self._client = client_of(address)

    @property
    def creates_atomically(self) -> bool:
        return True  # the driver's memory does

    def write(self, path: str, data: pa.Buffer | bytes) -> None:
        self._call("write", path, data=data)

    def publish(self, path: str, data: bytes) -> None:
        self._call("publish", path, data=data)

    def create(self, path: str, data: bytes) -> bool:
        return bool(self._call("create", path, data=data)[0])

    def read(self, path: str) -> pa.Buffer:
        return self._call("read", path)[1]

    def list(self, path: str) -> list[str]:
        return list(self._call("list", path)[0])

    def delete(self, path: str) -> None:
        self._call("delete", path)

    def prune(self, path: str) -> None:
        self._call("prune", path)

    def move(self, source: str, target: str) -> None:
        self._call("move", source, target=target)

    def close(self) -> None:
        self._client.close()

    def _call(self, call: str, path: str, *, data: pa.Buffer | bytes = b"", target: str = "") -> tuple[Any, pa.Buffer]:
        body = _pack({"call": call, "path": path, "target": target}, data)
        try:
            (reply,) = self._client.do_action(flight.Action(ACTION, body), self._options)
        except Exception as error:
            where = f"the driver's storage at {self._address}"
            raise StorageUnavailable(f"{call} {path}: {where} did not answer: {describe(error)}") from None
        found, content = _unpack(reply.body)
        if "error" in found:
            raise _ERRORS[found["error"]](found["message"])
        return found.get("value"), content


def _pack(head: dict[str, Any], data: pa.Buffer | bytes = b"") -> pa.Buffer:
    text = json.dumps(head).encode()
    return pa.py_buffer(b"".join((_LENGTH.pack(len(text)), text, memoryview(data))))


def _unpack(body: pa.Buffer) -> tuple[dict[str, Any], pa.Buffer]:
    (length,) = _LENGTH.unpack_from(body)
    head = json.loads(body.slice(_LENGTH.size, length).to_pybytes())
    return head, body.slice(_LENGTH.size + length)
