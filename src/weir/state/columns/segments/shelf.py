"""Where sorted rows lie: in memory, or in local files of which a bounded part is resident.

Comes in: sorted rows, and the place that an operator was given. Goes out: the same rows,
whenever they are asked for. A file is mapped into memory and never changes; what was not
looked at of late is given back, though the operating system may keep it. Files are written
*aside*, while the stream goes on; until one is there its rows stay in memory, and count. A
file goes when nobody refers to its rows any more: a few at a time, since many may be left
together. One thread keeps rows here; any may hand them in, or read them.
"""

from __future__ import annotations

import mmap
import os
import shutil
import weakref
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Protocol

import pyarrow as pa

from weir.config import RocksDb
from weir.errors import ConfigError, CorruptCheckpoint, LocalDiskFailed
from weir.state.aside import Errand
from weir.state.columns.segments.rows import SegmentLayout, SortedRows
from weir.state.local_disk import refusal
from weir.state.pieces import Pieces, run_through
from weir.state.place import StatePlace

HELD_SHARE = 0.4
"""Of the memory budget, for rows that are in no file yet."""

RESIDENT_SHARE = 0.4
"""Of the memory budget, for files that were looked at of late. The rest is for marks, and what is being worked on."""


LEAVING_SHARE = 0.75
"""Of those rows: what is more begins to go into files, before memory is short."""

WRITTEN_BYTES_MIN = 16 << 20
"""So much is put into files together, if there is so much."""

WAIT_S = 0.005
"""So long at once the stream waits for files, where memory is short."""


REMOVED_AT_ONCE = 4
"""Files, for each that has come into being since the last time, and so many at least."""


class Holding(Protocol):
    """How rows are held just now. For any thread."""

    size_bytes: int

    @property
    def path(self) -> str | None:
        """The local file that holds them; None: memory does."""

    def rows(self) -> SortedRows:
        """The rows."""


class UselessFiles:
    """Files that nobody refers to any more. Behind a checkpoint there are many at once, of all that has gone while it
    was written: to remove them together would hold up the stream."""

    def __init__(self) -> None:
        self._paths: deque[str] = deque()
        self._is_over = False

    def __len__(self) -> int:
        return len(self._paths)

    def add(self, path: str) -> None:
        """For any thread."""
        self._paths.append(path)
        if self._is_over:
            self.remove_some()

    def remove_some(self, files_max: int = REMOVED_AT_ONCE) -> None:
        """For any thread."""
        for _ in range(min(len(self._paths), files_max)):
            # Another thread may have taken the last one; the task's directory may be gone already.
            with suppress(IndexError, OSError):
                os.unlink(self._paths.popleft())

    def __del__(self) -> None:
        self._is_over = True
        self.remove_some(len(self._paths))


class _InMemory:
    path = None

    def __init__(self, rows: SortedRows) -> None:
        self._rows = rows
        self.size_bytes = rows.size_bytes

    def rows(self) -> SortedRows:
        return self._rows


class _InFile:
    """A local file; mapped when it is first looked at, to be removed when nobody refers to it."""

    def __init__(self, path: str, layout: SegmentLayout, useless: UselessFiles) -> None:
        self._path = path
        self._useless = useless
        self._layout = layout
        self._map: mmap.mmap | None = None
        self._rows: SortedRows | None = None
        self.size_bytes = os.path.getsize(path)
        self.touched = 0
        """When it was last looked at, as its shelf counts; 0: not since its pages were given back."""

    @property
    def path(self) -> str | None:
        return self._path

    def rows(self) -> SortedRows:
        if self._rows is None:
            try:
                with open(self._path, "rb") as file:
                    self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
                reader = pa.ipc.open_file(pa.BufferReader(pa.py_buffer(self._map)))
                self._rows = self._layout.rows_of(reader.get_batch(0))
            except (pa.ArrowInvalid, ValueError) as error:
                raise CorruptCheckpoint(
                    f"the local state file {self._path} is not what was put there: {error}"
                ) from None
        return self._rows

    def give_back(self) -> None:
        """Whoever still looks at the rows has them read again, and notices nothing."""
        self.touched = 0
        if self._map is not None and hasattr(mmap, "MADV_DONTNEED"):
            self._map.madvise(mmap.MADV_DONTNEED)

    def __del__(self) -> None:
        self._useless.add(self._path)


class KeptRows:
    """Rows that lie on a shelf."""

    def __init__(self, shelf: Shelf, holding: Holding) -> None:
        self._shelf = shelf
        self.holding = holding
        """How, just now. A thread that reads behind the stream's back goes on with what it found here."""

    def rows(self) -> SortedRows:
        """The rows, for the thread that keeps them."""
        if isinstance(self.holding, _InFile):
            self._shelf.touch(self.holding)
        return self.holding.rows()

    def leave(self) -> Leaving | None:
        """Begin to put the rows into a file; None: they are in one."""
        if not isinstance(self.holding, _InMemory):
            return None
        return Leaving(self, self._shelf.writer())


class Leaving:
    """Rows on their way into a file. What nobody refers to any more is not written."""

    def __init__(self, kept: KeptRows, write: Callable[[SortedRows], Holding]) -> None:
        self._kept = weakref.ref(kept)
        self._write: Callable[[SortedRows], Holding] | None = write
        self._written: Holding | None = None
        self.size_bytes = kept.holding.size_bytes

    def perform(self) -> None:
        """For any thread; once."""
        write, self._write = self._write, None  # which knows the shelf: nothing but the stream is to keep that alive
        if (kept := self._kept()) is not None and write is not None:
            self._written = write(kept.holding.rows())

    def arrive(self) -> None:
        """The errand is over: for the thread that keeps the rows."""
        if (kept := self._kept()) is not None and self._written is not None:
            kept.holding = self._written


class Shelf:
    """The rows of one operator of one subtask: of one layout each, and all within one budget."""

    def __init__(self, budget: ShelfBudget, layout: SegmentLayout, name: str) -> None:
        self._budget = budget
        self._layout = layout
        self._name = name

    def keep(self, rows: SortedRows) -> KeptRows:
        """Take rows, into memory for now."""
        kept = self.hand_in(rows)
        self.count(kept)
        return kept

    def hand_in(self, rows: SortedRows) -> KeptRows:
        """The same for any thread: they count when the one that keeps rows here says so."""
        return KeptRows(self, _InMemory(rows))

    def count(self, kept: KeptRows) -> None:
        """From now on these rows are within the budget."""
        self._budget.holds(kept)

    def take_over(self, path: str) -> KeptRows:
        """Take a file from `new_path`."""
        return KeptRows(self, _InFile(path, self._layout, self._budget.useless))

    @property
    def is_on_disk(self) -> bool:
        return self._budget.directory is not None

    def new_path(self) -> str:
        """Where a file may be put."""
        return self._budget.new_path(self._name)

    def touch(self, file: _InFile) -> None:
        self._budget.touch(file)

    def writer(self) -> Callable[[SortedRows], Holding]:
        """Puts rows into a new file, in any thread; LocalDiskFailed, with nothing left behind, when there is no
        room."""
        return partial(self._file, self.new_path())

    def _file(self, path: str, rows: SortedRows) -> Holding:
        try:
            return self._written(path, rows)
        except LocalDiskFailed:
            if not self._budget.useless:
                raise
        self._budget.useless.remove_some(len(self._budget.useless))  # they may be what takes up the room
        return self._written(path, rows)

    def _written(self, path: str, rows: SortedRows) -> Holding:
        try:
            with pa.OSFile(path, "wb") as file, pa.ipc.new_file(file, self._layout.file_schema) as writer:
                writer.write_batch(self._layout.file_batch(rows))
        except OSError as error:
            if os.path.exists(path):
                os.unlink(path)
            raise refusal(error, os.path.dirname(path), rows.size_bytes) from error
        return _InFile(path, self._layout, self._budget.useless)


class ShelfBudget:
    """What all shelves of one operator of one subtask share: a directory, and memory."""

    def __init__(self, place: StatePlace) -> None:
        """`place` says whether there is a limit at all: on heap everything stays in memory."""
        self.directory: str | None = None
        self._files = 0
        self._touches = 0
        self.useless = UselessFiles()
        self._aside = place.aside
        self._removal: Errand | None = None
        self._begun_since = 0
        """Files, since the last removal was asked for."""
        self._held: weakref.WeakSet[KeptRows] = weakref.WeakSet()
        self._held_bytes = 0
        self._leaving: deque[tuple[Leaving, Errand]] = deque()
        """Of those: the first to be written first."""
        self._leaving_bytes = 0
        self._resident: weakref.WeakSet[_InFile] = weakref.WeakSet()
        self._resident_bytes = 0
        """Neither falls when rows go: both are counted anew when they seem to be too many."""
        if not isinstance(place.backend, RocksDb):
            return
        if place.directory is None:
            raise ConfigError(
                "the rocksdb backend needs a local directory, and there is none where this job runs; use the heap "
                "backend here"
            )
        self.directory = os.path.join(place.directory, "segments")
        shutil.rmtree(self.directory, ignore_errors=True)  # what a process that was killed has left
        os.makedirs(self.directory)
        budget_bytes = place.backend.memory_max_bytes // max(place.tables_per_task, 1)
        self.held_bytes_max = int(budget_bytes * HELD_SHARE)
        self._resident_bytes_max = int(budget_bytes * RESIDENT_SHARE)

    def new_path(self, name: str) -> str:
        self._files += 1
        self._begun_since += 1
        self._remove_useless()
        return os.path.join(self.directory or "", f"{name}-{self._files}.arrow")

    def holds(self, kept: KeptRows) -> None:
        if self.directory is not None:
            self._held.add(kept)
            self._held_bytes += kept.holding.size_bytes

    def touch(self, file: _InFile) -> None:
        """A file is looked at. Others are given back at once where it is too much: a look at all of many files must not
        have all of them in memory."""
        self._touches += 1
        is_new, file.touched = not file.touched, self._touches
        if is_new:
            self._resident.add(file)
            self._resident_bytes += file.size_bytes
            if self._resident_bytes > self._resident_bytes_max:
                self._give_back()

    def settle(self) -> None:
        """Nobody works with rows now: put some into files where they are too many."""
        run_through(self.settling())

    def settling(self) -> Pieces:
        """The same, in pieces. Waits for files only where more is held than may be."""
        if self.directory is None:
            return
        self._remove_useless()
        self._arrive()
        if self._held_bytes - self._leaving_bytes > LEAVING_SHARE * self.held_bytes_max:
            self._held_bytes = self._leaving_bytes + sum(kept.holding.size_bytes for kept in self._held)
            yield from self._putting_into_files()
        while self._leaving and self._held_bytes > self.held_bytes_max:
            self._arrive(WAIT_S)
            yield

    def _putting_into_files(self) -> Pieces:
        """The largest first, down to half of what may be held, but not much more at once than must be: small rows are
        merged soon."""
        begun_bytes = 0
        for kept in sorted(self._held, key=lambda kept: -kept.holding.size_bytes):
            staying_bytes = self._held_bytes - self._leaving_bytes
            enough = begun_bytes >= WRITTEN_BYTES_MIN and staying_bytes <= LEAVING_SHARE * self.held_bytes_max
            if enough or 2 * staying_bytes <= self.held_bytes_max:
                break
            leaving = kept.leave()
            if leaving is not None:
                errand = self._aside.run(leaving.perform)  # which may fail here and now
                begun_bytes += leaving.size_bytes
                self._leaving_bytes += leaving.size_bytes
                self._leaving.append((leaving, errand))
            self._held.discard(kept)
            self._arrive()
            yield

    def _arrive(self, wait_s: float = 0.0) -> None:
        """Take over the files that are there; `wait_s`: wait so long for the first."""
        while self._leaving and self._leaving[0][1].is_over(wait_s):
            leaving, _ = self._leaving.popleft()
            leaving.arrive()
            self._leaving_bytes -= leaving.size_bytes
            self._held_bytes -= leaving.size_bytes
            wait_s = 0.0

    def _remove_useless(self) -> None:
        if not self.useless:
            self._begun_since = 0
        elif self._removal is None or self._removal.is_over():
            # Errands wait for each other: of many that write, each must leave room for what went meanwhile.
            files, self._begun_since = REMOVED_AT_ONCE * max(self._begun_since, 1), 0
            self._removal = self._aside.run(partial(self.useless.remove_some, files))

    def _give_back(self) -> None:
        """Those that were not looked at for longest, down to half of what may be resident; but the one that is being
        looked at stays."""
        files = sorted(self._resident, key=lambda file: file.touched)
        left_bytes = sum(file.size_bytes for file in files)
        if left_bytes > self._resident_bytes_max:
            for file in files[:-1]:
                if 2 * left_bytes <= self._resident_bytes_max:
                    break
                left_bytes -= file.size_bytes
                file.give_back()
                self._resident.discard(file)
        self._resident_bytes = left_bytes
