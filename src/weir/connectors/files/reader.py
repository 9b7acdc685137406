"""One subtask's reader of files: its share of the splits, one after the other.

Comes in: what the source says about reading, and the names of the files as they appear.
Goes out: batches, and a position that holds every split of this subtask: read, being read,
or still to be read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import pyarrow as pa

from weir.config import Settings
from weir.connectors.files.known import KnownFiles
from weir.connectors.formats.csv_entrances import CsvEntrances
from weir.connectors.formats.readers import Reading, RowBlock, SplitReader, open_split
from weir.connectors.formats.splits import Split, owner_of, split_named, splits_of
from weir.operators.base import InlinePart, OperatorContext
from weir.operators.source import SourceReader
from weir.runtime.storage.stores.details import FileDetails
from weir.runtime.storage.stores.files import translated
from weir.snapshot.parts import Json

WAIT_MIN_MS, WAIT_MAX_MS = 1.0, 100.0

Opened: TypeAlias = "tuple[Reading, KnownFiles, Callable[[], dict[str, FileDetails]]]"
"""How to read, what is known of the files, and how to list them."""

OpenReading: TypeAlias = Callable[[str, str, Settings], Opened]


class FilesReader(SourceReader):
    """Reads the splits whose name falls to this subtask."""

    def __init__(
        self, open_reading: OpenReading, *, watch_ms: int | None, split_bytes: int, clock: Callable[[], float]
    ) -> None:
        self._open_reading = open_reading
        self._watch_ms = watch_ms
        self._split_bytes = split_bytes
        self._clock = clock
        self._waiting: list[Split] = []
        self._places: dict[str, tuple[int | None, int]] = {}
        """Of splits that were begun before a restore: the block to go on from, and the rows of it to leave out."""
        self._done: dict[str, int] = {}
        self._seen: set[str] = set()
        self._split: Split | None = None
        self._reader: SplitReader | None = None
        self._block: RowBlock | None = None
        self._handed = 0
        self._skip = 0
        self._left_out = 0
        self._entrances = CsvEntrances()

    def open(self, context: OperatorContext, restored: Sequence[InlinePart] | None) -> None:
        self._index, self._parallelism = context.index, context.parallelism
        label = f"{context.name!r} (uid {context.uid!r})"
        self._reading, self._files, self._list = self._open_reading(label, context.uid, context.settings)
        parts = [part.value for part in restored or () if part.value is not None]
        for part in parts:
            self._restore(part)
        self._waiting.sort()
        # A fixed set is what it was at the first start: files that came later are not part of it.
        if self._watch_ms is not None or not parts:
            self._look()
        else:
            self._files.check(self._listed())

    def poll(self, rows_max: int) -> pa.RecordBatch | None:
        while self._block is None or self._handed == self._block.rows.num_rows:
            if not self._advance() or self._is_entering:
                return None
        batch = self._block.rows.slice(self._handed, rows_max)
        self._handed += batch.num_rows
        return batch

    @property
    def _is_entering(self) -> bool:
        """Whether the split's first row is still looked for, in steps between which the subtask does other work."""
        return self._block is not None and self._block.next_offset is None

    @property
    def finished(self) -> bool:
        return self._watch_ms is None and self._split is None and not self._waiting

    def position(self) -> Json:
        unread = {split.name: [split.file_bytes, *self._place_of(split)] for split in self._waiting}
        if self._split is not None:
            unread[self._split.name] = [self._split.file_bytes, *self._place_of(self._split)]
        files = {name.rpartition("@")[0]: None for name in (*unread, *self._done)}
        return {
            "split_bytes": self._split_bytes,
            "splits": unread,
            "done": dict(self._done),
            "files": self._files.position(files),
        }

    @property
    def split(self) -> str:
        return "" if self._split is None else self._split.name

    @property
    def open_splits(self) -> frozenset[str] | None:
        # One after the other: those that wait do not hold event time back.
        return frozenset({self.split})

    @property
    def wait_ms(self) -> float:
        if self._watch_ms is None:
            return WAIT_MIN_MS
        due_ms = self._looked_ms + self._watch_ms - self._now_ms()
        return min(WAIT_MAX_MS, max(WAIT_MIN_MS, due_ms))

    @property
    def lag(self) -> str | None:
        left = len(self._waiting) + (self._split is not None)
        text = f"{len(self._done)} of {len(self._done) + left} splits read"
        return text if not self._left_out else f"{text}, {self._left_out} malformed lines left out"

    def close(self) -> None:
        if self._reader is not None:
            self._reader.close()

    # --- One split after the other ---

    def _advance(self) -> bool:
        """One step towards more rows; False when there are none now."""
        if self._reader is None:
            if not self._waiting and self._watch_ms is not None and self._now_ms() >= self._looked_ms + self._watch_ms:
                self._look()
            if not self._waiting:
                return False
            self._begin(self._waiting.pop(0))
        self._read()
        return True

    def _begin(self, split: Split) -> None:
        self._split = split
        offset, skip = self._places.get(split.name, (None, 0))
        with translated(self._reading.where(split.file), "read"):
            self._reader, self._skip = open_split(self._reading, split, offset, skip, entrances=self._entrances)

    def _read(self) -> None:
        if self._reader is None or self._split is None:
            return
        with translated(self._reading.where(self._split.file), "read"):
            block = self._reader.read()
        if block is None:
            self._end_split(self._reader, self._split)
            return
        self._block = block
        # Blocks may be cut otherwise than before the restore: rows are left out by count, across blocks.
        self._handed = min(self._skip, block.rows.num_rows)
        self._skip -= self._handed

    def _end_split(self, reader: SplitReader, split: Split) -> None:
        self._left_out += reader.skipped
        self._done[split.name] = split.file_bytes
        self._places.pop(split.name, None)
        reader.close()
        self._reader = self._split = self._block = None
        self._handed = self._skip = 0

    def _place_of(self, split: Split) -> tuple[int | None, int]:
        if split != self._split or self._block is None:
            return self._places.get(split.name, (None, 0))
        if self._handed == self._block.rows.num_rows:
            return self._block.next_offset, self._skip
        return self._block.offset, self._handed

    # --- Which splits there are ---

    def _restore(self, part: Json) -> None:
        self._split_bytes = part["split_bytes"]
        for name, (file_bytes, offset, skip) in part["splits"].items():
            if self._is_own(name):
                split = split_named(name, file_bytes, self._split_bytes)
                self._waiting.append(split)
                self._places[name] = (offset, skip)
                self._files.restore(split.file, file_bytes, part.get("files", {}))
        for name, file_bytes in part["done"].items():
            if self._is_own(name):
                self._done[name] = file_bytes
                self._files.restore(name.rpartition("@")[0], file_bytes, part.get("files", {}))

    def _look(self) -> None:
        """Take in the files that are new."""
        self._looked_ms = self._now_ms()
        waiting = {split.name for split in self._waiting}
        for file, details in self._listed().items():
            self._files.see(file, details)
            if file in self._seen or details.size_bytes == 0:
                continue
            self._seen.add(file)
            for split in splits_of(file, details.size_bytes, self._split_bytes):
                if self._is_own(split.name) and split.name not in self._done and split.name not in waiting:
                    self._waiting.append(split)
        self._waiting.sort()

    def _listed(self) -> dict[str, FileDetails]:
        with translated(self._reading.location, "list"):
            return self._list()

    def _is_own(self, name: str) -> bool:
        return owner_of(name, self._parallelism) == self._index

    def _now_ms(self) -> float:
        return self._clock() * 1_000.0
