"""The driver's own storage, for its tasks: what a job without a checkpoint directory keeps in memory.

Comes in: storage calls of a task. Goes out: the same calls on the driver's Storage,
and its answers or errors. A call whose reply is lost raises StorageUnavailable:
its outcome is unknown, as with any storage. Never caches or repeats anything.

    request   {"call", "path" …} | data
    answer    {"value"} or {"error", "message"} | data
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from weir.errors import DataError, ProtocolViolation, StorageFull, StorageUnavailable, TaskLost
from weir.runtime.net.connection import Frame
from weir.runtime.net.lines import Lines
from weir.runtime.net.requests import Head, Requester
from weir.runtime.ports import Storage
from weir.texts import told

CALL_TIMEOUT_S = 60.0

_ERRORS: dict[str, type[Exception]] = {
    kind.__name__: kind
    for kind in (StorageFull, StorageUnavailable, FileNotFoundError, FileExistsError, ProtocolViolation)
}


class StorageService:
    """Answers the calls of RemoteStorage from a Storage."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    def answer(self, request: dict[str, Any], data: pa.Buffer) -> tuple[Head, Frame]:
        """One call; an error of the storage becomes part of the answer."""
        try:
            return self._perform(request, data)
        except Exception as error:
            name = next((kind.__name__ for kind in type(error).__mro__ if kind.__name__ in _ERRORS), None)
            if name is None:
                name = "StorageUnavailable" if isinstance(error, OSError) else "ProtocolViolation"
            return {"error": name, "message": told(str(error) or repr(error))}, b""

    def _perform(self, request: dict[str, Any], data: pa.Buffer) -> tuple[Head, Frame]:
        call, path, storage = request["call"], request["path"], self._storage
        if call == "read":
            return {}, storage.read(path)
        value: Any = None
        if call == "write":
            storage.write(path, pa.py_buffer(data.to_pybytes()))  # its own copy: a small request's memory is gRPC's
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
        return {"value": value}, b""


class RemoteStorage:
    """A Storage that lives in the driver. May be used by many threads."""

    def __init__(self, address: str, lines: Lines, *, timeout_s: float = CALL_TIMEOUT_S) -> None:
        self._address = address
        self._timeout_s = timeout_s
        self._requester = Requester(address, lines)

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
        self._requester.close()

    def _call(self, call: str, path: str, *, data: Frame = b"", target: str = "") -> tuple[Any, pa.Buffer]:
        request = {"call": call, "path": path, "target": target}
        try:
            found, content = self._requester.ask(request, data, timeout_s=self._timeout_s)
        except DataError as error:
            raise StorageFull(f"{call} {path}: {error}, or give a storage location (Checkpoints.to)") from None
        except TaskLost as error:
            where = f"the driver's storage at {self._address}"
            raise StorageUnavailable(f"{call} {path}: {where} did not answer: {error}") from None
        if "error" in found:
            raise _ERRORS.get(found["error"], ProtocolViolation)(found["message"])
        return found.get("value"), content
