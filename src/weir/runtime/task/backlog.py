"""Rows that wait at the head of a loop: in memory, and beyond a limit in local files.

Comes in: batches that came back over back-edges. Goes out: the same batches in their
order; and each of them, for as long as a log refers to it, however late it is read. Never
makes anybody wait: a loop whose head could do that would stand still for ever. It says when
more waits than the disk was meant to hold; then the loop is at fault, and not its head.
"""

from __future__ import annotations

import os
import tempfile
import weakref
from collections import deque
from typing import IO, Protocol

import pyarrow as pa

from weir.state.local_disk import refusal
from weir.state.waiting import Stored, StoredBatch

SEGMENT_BYTES_MAX = 64 << 20
"""A local file takes about so much; it is gone when nobody refers to anything in it any more."""


class WaitingBatch(StoredBatch, Protocol):
    """One batch that waits, or that a log refers to."""

    size_bytes: int


class _Held:
    def __init__(self, batch: pa.RecordBatch) -> None:
        self._batch = batch
        self.size_bytes = int(batch.nbytes)
        self.stored: Stored | None = None

    def batch(self) -> pa.RecordBatch:
        return self._batch


class _Segment:
    """A local file without a name: whatever becomes of the process, it does not stay."""

    def __init__(self, directory: str | None) -> None:
        self._directory = directory or tempfile.gettempdir()
        try:
            self._file: IO[bytes] = tempfile.TemporaryFile(prefix="weir-loop-", dir=directory, buffering=0)  # noqa: SIM115
        except OSError as error:
            raise refusal(error, self._directory) from error
        weakref.finalize(self, self._file.close)
        self.length_bytes = 0

    def write(self, data: pa.Buffer) -> int:
        """Where it was written to."""
        start, view = self.length_bytes, memoryview(data)
        while len(view):
            try:
                written = os.pwrite(self._file.fileno(), view, self.length_bytes)
            except OSError as error:
                raise refusal(error, self._directory, len(view)) from error
            self.length_bytes += written
            view = view[written:]
        return start

    def read(self, start: int, length_bytes: int) -> bytes:
        parts = []
        while length_bytes:
            parts.append(os.pread(self._file.fileno(), length_bytes, start))
            start += len(parts[-1])
            length_bytes -= len(parts[-1])
            if not parts[-1]:
                raise OSError("a local file of a loop is shorter than what was written to it")
        return b"".join(parts)


class _Spilled:
    def __init__(self, segment: _Segment, data: pa.Buffer, size_bytes: int) -> None:
        self._segment = segment
        self._start = segment.write(data)
        self._length_bytes = data.size
        self.size_bytes = size_bytes
        self.stored: Stored | None = None

    def batch(self) -> pa.RecordBatch:
        with pa.ipc.open_stream(self._segment.read(self._start, self._length_bytes)) as stream:
            return stream.read_next_batch()


class Backlog:
    """What has come back and was not sent on yet, first in, first out."""

    def __init__(self, memory_bytes_max: int, disk_bytes_max: int, directory: str | None) -> None:
        """`directory`: for local files; None: that for temporary ones."""
        self._memory_bytes_max = memory_bytes_max
        self._disk_bytes_max = disk_bytes_max
        self._directory = directory
        self._waiting: deque[WaitingBatch] = deque()
        self._segment: _Segment | None = None
        self._held_bytes = 0
        self.size_bytes = 0

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def is_over(self) -> bool:
        """Whether more waits than memory may hold."""
        return self.size_bytes > self._memory_bytes_max

    @property
    def is_hopeless(self) -> bool:
        """Whether more waits in local files than they may hold."""
        return self.size_bytes - self._held_bytes > self._disk_bytes_max

    def put(self, batch: pa.RecordBatch) -> WaitingBatch:
        """Take a batch, always."""
        size_bytes = int(batch.nbytes)
        waiting: WaitingBatch
        if self._held_bytes + size_bytes <= self._memory_bytes_max:
            waiting = _Held(batch)
            self._held_bytes += size_bytes
        else:
            waiting = self._spilled(batch, size_bytes)
        self.size_bytes += size_bytes
        self._waiting.append(waiting)
        return waiting

    def peek_bytes(self) -> int:
        """The size of the next one."""
        return self._waiting[0].size_bytes

    def pop(self) -> pa.RecordBatch:
        waiting = self._waiting.popleft()
        self.size_bytes -= waiting.size_bytes
        if isinstance(waiting, _Held):
            self._held_bytes -= waiting.size_bytes
        if not self._waiting:
            self._segment = None
        return waiting.batch()

    def all(self) -> list[WaitingBatch]:
        """Everything that waits now."""
        return list(self._waiting)

    def _spilled(self, batch: pa.RecordBatch, size_bytes: int) -> _Spilled:
        if self._segment is None or self._segment.length_bytes >= SEGMENT_BYTES_MAX:
            self._segment = _Segment(self._directory)
        out = pa.BufferOutputStream()
        with pa.ipc.new_stream(out, batch.schema) as stream:
            stream.write_batch(batch)
        return _Spilled(self._segment, out.getvalue(), size_bytes)
