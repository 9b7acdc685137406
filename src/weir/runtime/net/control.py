"""The line between the driver and its tasks.

Comes in: messages to send. Goes out: the other side's messages, and who was lost,
by callbacks in the connections' own threads. Never judges a message: what an old
attempt says is delivered as it is, and refused by the machines that know better.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any, cast

import pyarrow as pa

from weir.ids import AttemptId, TaskIndex
from weir.runtime.net.connection import LEAVE_TIMEOUT_S, Connection
from weir.runtime.net.flight import FrameServer, Handlers, Refused, connect
from weir.runtime.net.lines import Lines
from weir.runtime.net.remote_storage import RemoteStorage, StorageService
from weir.runtime.net.requests import HELLO, Answers
from weir.runtime.net.wire_format import decode_message, encode_message
from weir.runtime.ports import Storage
from weir.snapshot.messages import FromTask, ToTask

__all__ = ["ControlClient", "ControlServer", "RemoteStorage"]

MESSAGES_MAX = 10_000
"""Messages that may wait for a peer that does not read; beyond that the connection is given up."""


class ControlServer:
    """The driver's end, for all attempts of a job, one after the other.

    on_message: what a task says, whatever attempt it is of.
    on_lost:    (attempt, task, reason), when a task went away without a goodbye.
    storage:    given, it is served to the tasks as RemoteStorage; it must bear calls from many threads.
    """

    def __init__(
        self,
        host: str,
        lines: Lines,
        *,
        on_message: Callable[[FromTask], None],
        on_lost: Callable[[AttemptId, TaskIndex, str], None],
        storage: Storage | None = None,
    ) -> None:
        self._on_message = on_message
        self._on_lost = on_lost
        self._lock = threading.Lock()
        self._connections: dict[tuple[AttemptId, TaskIndex], Connection] = {}
        self._answers = None if storage is None else Answers(StorageService(storage).answer, lines)
        self._server = FrameServer(host, lines, self._accept, frames_max=MESSAGES_MAX)
        self.address: str = self._server.address

    def send(self, attempt: AttemptId, task: TaskIndex, message: ToTask) -> bool:
        """Send to one task. False when it is not connected; its loss is reported apart."""
        with self._lock:
            connection = self._connections.get((attempt, task))
        if connection is not None:
            connection.send(encode_message(message))
        return connection is not None

    def close(self, timeout_s: float = LEAVE_TIMEOUT_S) -> None:
        self._server.close(timeout_s)

    def _accept(self, hello: Mapping[str, Any], connection: Connection) -> Handlers:
        if HELLO in hello:
            if self._answers is None:
                raise Refused("the job's storage is not in the driver")
            return self._answers.serve(connection)
        key = AttemptId(int(hello["attempt"])), TaskIndex(int(hello["task"]))
        with self._lock:
            if key in self._connections:
                raise Refused(f"task {key[1]} of attempt {key[0]} is connected already")
            self._connections[key] = connection

        def take(frame: pa.Buffer) -> None:
            self._on_message(cast(FromTask, decode_message(frame)))

        def lost(reason: str | None) -> None:
            with self._lock:
                del self._connections[key]
            if reason is not None:
                self._on_lost(*key, reason)

        return Handlers(on_frame=take, on_close=lost)


class ControlClient:
    """A task's end. Connects when made, or raises TaskLost.

    on_message: what the driver says.
    on_lost:    why there is no driver any more; not called after this end's own close.
    """

    def __init__(
        self,
        address: str,
        lines: Lines,
        *,
        attempt: AttemptId,
        task: TaskIndex,
        on_message: Callable[[ToTask], None],
        on_lost: Callable[[str], None],
    ) -> None:
        self._on_lost = on_lost
        self._closed = False
        self._connection = connect(
            address,
            lines,
            {"attempt": attempt, "task": task},
            on_frame=lambda frame: on_message(cast(ToTask, decode_message(frame))),
            on_close=self._ended,
            frames_max=MESSAGES_MAX,
        )

    def send(self, message: FromTask) -> None:
        """Send to the driver. Never waits; when the driver is gone, nothing happens but on_lost."""
        self._connection.send(encode_message(message))

    def close(self, timeout_s: float = LEAVE_TIMEOUT_S) -> None:
        """Leave, after everything that was sent."""
        self._closed = True
        self._connection.close(timeout_s)

    def _ended(self, reason: str | None) -> None:
        if not self._closed:
            self._on_lost(reason or "the driver has left")
