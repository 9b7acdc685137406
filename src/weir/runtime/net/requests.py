"""Requests and their answers over one connection: many at a time, in pieces, none of them larger than a limit.

Comes in: a head that is JSON, and bytes. Goes out: the same for the answer, or TaskLost when
none came: then nobody knows whether the request was heard. Never repeats anything.

    piece     kind, flag of the last one, 0, number of the request | bytes
    message   its pieces together: length of the head | head | data

Why not Flight's own single calls (DoAction): gRPC takes such a message in as a whole, however
large, before anybody can look at its token, while a stream is refused unread.
"""

from __future__ import annotations

import json
import logging
import struct
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NoAnswer
from typing import Any

import pyarrow as pa

from weir.errors import DataError, ProtocolViolation, TaskLost
from weir.runtime.net.connection import Connection, Frame
from weir.runtime.net.flight import CONNECT_TIMEOUT_S, Handlers, connect
from weir.runtime.net.lines import Lines
from weir.texts import told

_LOG = logging.getLogger(__name__)

HELLO = "requests"
"""In the hello of a connection that carries requests."""

PIECE_BYTES_MAX = 1 << 20
"""Pings and other messages wait behind no more than this."""

REQUESTS_MAX = 64
"""Requests of one connection that may be under way at once."""

_REQUEST, _ANSWER = 48, 49
_PIECE = struct.Struct("<BBHI")
_LENGTH = struct.Struct("<I")

Head = Mapping[str, Any]
Answer = Callable[[dict[str, Any], pa.Buffer], "tuple[Head, Frame]"]


class Requester:
    """The asking end. Connects with the first request, and again when the line was lost. For any thread."""

    def __init__(self, address: str, lines: Lines, *, connect_timeout_s: float = CONNECT_TIMEOUT_S) -> None:
        self._address = address
        self._lines = lines
        self._connect_timeout_s = connect_timeout_s
        self._lock = threading.Lock()
        self._line: _AskingLine | None = None

    def ask(self, head: Head, data: Frame = b"", *, timeout_s: float) -> tuple[dict[str, Any], pa.Buffer]:
        """The answer. TaskLost: there is none. DataError: the request is too large."""
        return self._connected().ask(head, data, timeout_s)

    def close(self) -> None:
        with self._lock:
            line, self._line = self._line, None
        if line is not None:
            line.connection.close()

    def _connected(self) -> _AskingLine:
        with self._lock:
            if self._line is None or self._line.lost is not None:
                self._line = _AskingLine(self._address, self._lines, self._connect_timeout_s)
            return self._line


class _AskingLine:
    """One connection of a requester."""

    def __init__(self, address: str, lines: Lines, connect_timeout_s: float) -> None:
        self.lost: str | None = None
        self._bytes_max = lines.message_bytes_max
        self._lock = threading.Lock()
        self._next = 0
        self._open: dict[int, tuple[_Pieces, Future[pa.Buffer]]] = {}
        self.connection = connect(
            address,
            lines,
            {HELLO: True},
            on_frame=self._take,
            on_close=self._ended,
            timeout_s=connect_timeout_s,
        )

    def ask(self, head: Head, data: Frame, timeout_s: float) -> tuple[dict[str, Any], pa.Buffer]:
        body = _body(head, data, self._bytes_max)
        future: Future[pa.Buffer] = Future()
        with self._lock:
            if self.lost is not None:
                raise TaskLost(self.lost)
            number = self._next
            self._next = (number + 1) % (1 << 32)
            self._open[number] = _Pieces(self._bytes_max), future
        for piece in _pieces(_REQUEST, number, body):
            self.connection.send(piece)
        try:
            return _opened(future.result(timeout_s))
        except NoAnswer:
            raise TaskLost(f"no answer within {timeout_s:g} s") from None
        finally:
            with self._lock:
                self._open.pop(number, None)

    def _take(self, frame: pa.Buffer) -> None:
        kind, is_last, _, number = _PIECE.unpack_from(frame)
        if kind != _ANSWER:
            raise ProtocolViolation(f"a frame of kind {kind} is no answer")
        with self._lock:
            pieces, future = self._open.get(number, (None, None))
        if pieces is not None and future is not None:  # otherwise nobody waits for it any more
            pieces.add(frame.slice(_PIECE.size))
            if is_last:
                future.set_result(pieces.whole())

    def _ended(self, reason: str | None) -> None:
        with self._lock:
            self.lost = reason or "the other side has left"
            waiting = [future for _, future in self._open.values()]
        for future in waiting:
            if not future.done():
                future.set_exception(TaskLost(self.lost))


class Answers:
    """The answering end of all connections of one server. Each request is answered by a thread of its own: the one that
    reads must go on reading."""

    def __init__(self, answer: Answer, lines: Lines) -> None:
        self._answer = answer
        self._bytes_max = lines.message_bytes_max
        self._changed = threading.Condition()
        self._busy = 0

    def serve(self, connection: Connection) -> Handlers:
        """Handlers for a connection whose hello says that it carries requests."""
        line = _AnsweringLine(connection, self)
        return Handlers(on_frame=line.take, on_close=lambda reason: None)

    def settle(self, timeout_s: float) -> bool:
        """Wait until what was asked has been answered; False when that took too long."""
        with self._changed:
            return self._changed.wait_for(lambda: self._busy == 0, timeout_s)

    def begin(self, respond: Callable[[], None]) -> None:
        with self._changed:
            self._busy += 1
        threading.Thread(target=self._run, args=(respond,), name="weir-answer", daemon=True).start()

    def answered(self, body: pa.Buffer) -> bytes:
        """The body of the answer to a request."""
        head, data = _opened(body)
        found, content = self._answer(head, data)
        return _body(found, content, self._bytes_max)

    @property
    def bytes_max(self) -> int:
        return self._bytes_max

    def _run(self, respond: Callable[[], None]) -> None:
        try:
            respond()
        finally:
            with self._changed:
                self._busy -= 1
                self._changed.notify_all()


class _AnsweringLine:
    """One connection of a server."""

    def __init__(self, connection: Connection, answers: Answers) -> None:
        self._connection = connection
        self._answers = answers
        self._lock = threading.Lock()
        self._arriving: dict[int, _Pieces] = {}
        self._asked = 0

    def take(self, frame: pa.Buffer) -> None:
        kind, is_last, _, number = _PIECE.unpack_from(frame)
        if kind != _REQUEST:
            raise ProtocolViolation(f"a frame of kind {kind} is no request")
        pieces = self._arriving.setdefault(number, _Pieces(self._answers.bytes_max))
        pieces.add(frame.slice(_PIECE.size))
        with self._lock:
            if len(self._arriving) + self._asked > REQUESTS_MAX:
                raise ProtocolViolation(f"more than {REQUESTS_MAX} requests at once")
            self._asked += is_last
        if is_last:
            body = self._arriving.pop(number).whole()
            self._answers.begin(lambda: self._respond(number, body))

    def _respond(self, number: int, body: pa.Buffer) -> None:
        try:
            answer = self._answers.answered(body)
        except Exception as error:
            _LOG.exception("a request could not be answered")
            answer = _body({"error": type(error).__name__, "message": told(str(error) or repr(error))}, b"", 1 << 20)
        with self._lock:
            self._asked -= 1
        for piece in _pieces(_ANSWER, number, answer):
            self._connection.send(piece)


class _Pieces:
    """A message that arrives in pieces."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._found: list[pa.Buffer] = []
        self._size_bytes = 0

    def add(self, piece: pa.Buffer) -> None:
        self._size_bytes += piece.size
        if self._size_bytes > self._bytes_max:
            raise ProtocolViolation(f"a message of more than {self._bytes_max} bytes (Settings.message_max)")
        self._found.append(piece)

    def whole(self) -> pa.Buffer:
        found, self._found = self._found, []
        return found[0] if len(found) == 1 else pa.py_buffer(b"".join(memoryview(piece) for piece in found))


def _body(head: Head, data: Frame, bytes_max: int) -> bytes:
    text = json.dumps(head, default=str).encode()
    size_bytes = _LENGTH.size + len(text) + len(data)
    if size_bytes > bytes_max:
        raise DataError(
            f"a message of {size_bytes} bytes is above the limit of {bytes_max}; raise Settings.message_max"
        )
    return b"".join((_LENGTH.pack(len(text)), text, memoryview(data)))


def _opened(body: pa.Buffer) -> tuple[dict[str, Any], pa.Buffer]:
    (length,) = _LENGTH.unpack_from(body)
    head = json.loads(body.slice(_LENGTH.size, length).to_pybytes())
    if not isinstance(head, dict):
        raise ProtocolViolation("the head of a message is no JSON object")
    return head, body.slice(_LENGTH.size + length)


def _pieces(kind: int, number: int, body: bytes) -> Iterator[bytes]:
    view = memoryview(body)
    for start in range(0, len(view), PIECE_BYTES_MAX):
        piece = view[start : start + PIECE_BYTES_MAX]
        is_last = start + PIECE_BYTES_MAX >= len(view)
        yield b"".join((_PIECE.pack(kind, is_last, 0, number), piece))
