"""The two ends of a channel: within a task, and between two tasks.

Comes in: elements that the loop offers, frames that a connection delivers. Goes
out: the same elements in the same order, never more than `capacity` on the way.
Never blocks, and knows nothing of how frames travel.

Between tasks a channel runs on credit: the sender starts with `capacity`, each
element takes one, and the receiver gives back what its loop has taken. What is
on the way always has room at the other end, so that channels which share a
connection cannot hold each other up.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import pyarrow as pa

from weir.errors import ProtocolViolation
from weir.runtime.net.connection import Frame
from weir.runtime.net.wire_format import ElementCodec, encode_credit
from weir.runtime.ports import Element


class LocalChannel:
    """Both ends of a channel within one task; batches pass by reference. For one thread."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._elements: deque[Element] = deque()
        self._tell = _nobody
        self.bytes_out = 0
        self.bytes_in = 0

    def offer(self, element: Element) -> bool:
        if len(self._elements) >= self._capacity:
            return False
        self._elements.append(element)
        self._tell()
        self.bytes_out += _size_bytes(element)
        return True

    def peek(self) -> Element | None:
        return self._elements[0] if self._elements else None

    def pop(self) -> Element:
        if not self._elements:
            raise ProtocolViolation("pop from an empty channel")
        element = self._elements.popleft()
        self.bytes_in += _size_bytes(element)
        return element

    def on_arrival(self, tell: Callable[[], None]) -> None:
        self._tell = tell


class RemoteOut:
    """The sending end. `offer` belongs to the loop's thread, `grant` to the connection's."""

    def __init__(self, number: int, codec: ElementCodec, *, capacity: int, send: Callable[[Frame], None]) -> None:
        self._number = number
        self._codec = codec
        self._send = send
        # Two counters, each written by one thread only, instead of one that would need a lock.
        self._granted = capacity
        self._used = 0
        self.bytes_out = 0

    def offer(self, element: Element) -> bool:
        if self._used >= self._granted:
            return False
        frame = self._codec.encode(element, self._number)
        self._used += 1
        self.bytes_out += len(frame)
        self._send(frame)
        return True

    def grant(self, count: int) -> None:
        self._granted += count


class RemoteIn:
    """The receiving end. `arrived` belongs to the connection's thread, the rest to the loop's.

    Frames are decoded by the loop: a thread that lets go of the interpreter's lock for every
    batch would wait to get it back from a loop that is busy.
    """

    def __init__(self, number: int, codec: ElementCodec, *, capacity: int, send: Callable[[Frame], None]) -> None:
        self._number = number
        self._codec = codec
        self._capacity = capacity
        self._send = send
        self._frames: deque[pa.Buffer] = deque()
        self._tell = _nobody
        self._head: Element | None = None
        self._taken = 0
        # Half the capacity at a time: half as many messages, and the sender always has the other half.
        self._credit_step = max(1, capacity // 2)
        self.bytes_in = 0

    def arrived(self, frame: pa.Buffer) -> None:
        if len(self._frames) >= self._capacity:
            raise ProtocolViolation(f"channel {self._number} was sent more than its {self._capacity} elements")
        # In this order: whoever is told finds it there.
        self._frames.append(frame)
        self._tell()

    def on_arrival(self, tell: Callable[[], None]) -> None:
        self._tell = tell

    def peek(self) -> Element | None:
        if self._head is None and self._frames:
            self._head = self._codec.decode(self._frames[0])
        return self._head

    def pop(self) -> Element:
        element = self.peek()
        if element is None:
            raise ProtocolViolation("pop from an empty channel")
        self._head = None
        self.bytes_in += len(self._frames.popleft())
        self._taken += 1
        if self._taken >= self._credit_step:
            credit = encode_credit(self._number, self._taken)
            self._taken = 0
            self._send(credit)
        return element


def _size_bytes(element: Element) -> int:
    return int(element.nbytes) if isinstance(element, pa.RecordBatch) else 0


def _nobody() -> None:
    """Nobody listens yet."""
