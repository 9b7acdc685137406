"""The exactly-once file sink: rows in, an ordinary table of part files out.

An epoch's rows become pending part files, which no reader sees; the commit moves
them into place. The rules for names, owners and commits are in parts.py, the file
formats in formats/encode.py.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Literal

import pyarrow as pa

from weir.config import Settings, Size, size_bytes
from weir.connectors.files.part_names import CommitNote, PartName
from weir.connectors.files.parts import PartDirectory, Seal
from weir.connectors.formats.encode import check_encodable, check_format, encode
from weir.connectors.names import name_of
from weir.errors import CheckpointError, ConfigError, shown
from weir.ids import AttemptId, CheckpointId
from weir.operators.base import OperatorContext
from weir.operators.sink import Fence, Sink, SinkOwner, SinkWriter
from weir.runtime.ports import Opener
from weir.runtime.storage.locations import absolute_location, place_of, shown_location
from weir.runtime.storage.opening import open_writable, opener_of
from weir.snapshot.commit import CommitGrant
from weir.snapshot.parts import Json

FileFormat = Literal["jsonl", "csv", "parquet", "arrow"]


class FileSink(Sink):
    """Part files in a directory (local path or storage URI), each visible once its checkpoint is complete.

    format:     "parquet", "jsonl", "csv" (with a header) or "arrow"
    roll_bytes: rows of an epoch beyond this go to the disk before the epoch ends, as a part of their own
    roll_rows:  the same, by number of rows
    overwrite:  clear what an earlier run of the same job wrote; without it the job refuses to start there

    The directory is an ordinary table: `spark.read.parquet(path)` opens it at any time.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        format: FileFormat = "parquet",
        *,
        roll_bytes: Size = "64MB",
        roll_rows: int = 4_000_000,
        overwrite: bool = False,
    ) -> None:
        self.path = absolute_location(path)
        self.format = check_format(format)
        self.roll_bytes = size_bytes(roll_bytes, "FileSink.roll_bytes")
        self.roll_rows = roll_rows
        self.overwrite = overwrite
        if self.roll_bytes < 1 or roll_rows < 1:
            raise ConfigError("FileSink.roll_bytes and FileSink.roll_rows: must be at least 1")

    def __repr__(self) -> str:
        return f"FileSink({shown(self.path)!r}, format={self.format!r})"

    @property
    def place(self) -> tuple[str, ...]:
        return place_of(self.path)

    def check(self, schema: pa.Schema, name: str) -> None:
        check_encodable(schema, format=self.format, name=name)

    def validate(self, owner: SinkOwner) -> None:
        storage = open_writable(self.path, f"sink {owner.name!r}: the directory", self.opener(owner.settings))
        if not storage.creates_atomically:
            raise ConfigError(
                f"sink {owner.name!r}: {shown_location(self.path)!r} cannot move a file without replacing what is "
                "there, so rows that are committed would not be safe; give a directory in other storage"
            )
        PartDirectory(storage, shown_location(self.path)).check(owner, format=self.format, overwrite=self.overwrite)

    def adopt(self, owner: SinkOwner, fence: Fence) -> None:
        self.parts(owner.settings).adopt(owner, fence, format=self.format, overwrite=self.overwrite)

    def recover(
        self,
        owner: SinkOwner,
        attempt: AttemptId,
        committables: Sequence[Json],
        fence: Fence,
        *,
        oldest: CheckpointId | None,
    ) -> None:
        parts, uid = self.parts(owner.settings), name_of(owner.uid)
        keep = [str(name) for name in _sealed_parts(committables, owner.name)]
        parts.recover(owner, uid, attempt, keep, fence)
        if oldest is not None:
            parts.forget(owner, uid, oldest, keep, fence)

    def committed_up_to(self, owner: SinkOwner) -> CheckpointId | None:
        return self.parts(owner.settings).newest_committed(owner, name_of(owner.uid))

    def attempts_up_to(self, owner: SinkOwner) -> AttemptId | None:
        return self.parts(owner.settings).newest_attempt(owner, name_of(owner.uid))

    def writer(self) -> FileSinkWriter:
        return FileSinkWriter(self)

    def finish(self, owner: SinkOwner, fence: Fence) -> None:
        self.parts(owner.settings).finish(owner, fence)

    def parts(self, settings: Settings | None = None) -> PartDirectory:
        """The directory's parts, opened anew. `settings`: of the job that opens them."""
        return PartDirectory(self.opener(settings or Settings())(self.path), shown_location(self.path))

    def opener(self, settings: Settings) -> Opener:
        """What opens the directory, for a job of these settings. The simulation has one of its own."""
        return opener_of(settings)


class FileSinkWriter(SinkWriter):
    """One subtask's writer: at most `roll_bytes` of the current epoch are in memory."""

    def __init__(self, sink: FileSink) -> None:
        self._sink = sink
        self._batches: list[pa.RecordBatch] = []
        self._rows = 0
        self._bytes = 0
        self._written: list[PartName] = []
        self._seals: dict[PartName, Seal] = {}
        """Of the parts that are pending, and not handed over yet."""
        self._epoch = 0
        self._noted: CommitNote | None = None

    def open(self, context: OperatorContext, restored: Sequence[Json] | None) -> None:
        self._context = context
        self._uid = name_of(context.uid)
        self._parts = self._sink.parts(context.settings)
        self._inherited = _sealed_parts(restored or (), context.name)

    def write(self, batch: pa.RecordBatch) -> None:
        if batch.num_rows == 0:
            return
        self._batches.append(batch)
        self._rows += batch.num_rows
        self._bytes += batch.nbytes
        if self._bytes >= self._sink.roll_bytes or self._rows >= self._sink.roll_rows:
            name, batches = self._cut()
            self._store(name, batches)

    def prepare(self, checkpoint: CheckpointId) -> Callable[[], Json]:
        rest = [self._cut()] if self._batches else []
        names, self._written = self._written, []
        self._epoch += 1

        def make_durable() -> Json:
            for name, batches in rest:
                self._store(name, batches)
            seals = [(str(name), self._seals.pop(name)) for name in names]
            return {"parts": [[name, seal.length_bytes, seal.checksum] for name, seal in seals]} if seals else None

        return make_durable

    def commit(self, grant: CommitGrant, committables: Sequence[Json]) -> None:
        context, names = self._context, list(_sealed_parts(committables, self._context.name))
        if not names:
            return
        # Those that this writer has not written itself.
        inherited = {name: seal for name in names if (seal := self._inherited.get(name)) is not None}
        self._parts.check_whole(inherited, context.name)
        own = [name.epoch for name in names if name.attempt == context.attempt]
        note = CommitNote(
            context.lineage,
            self._uid,
            grant.checkpoint,
            context.attempt,
            context.index,
            max([self._noted.epoch if self._noted else -1, *own]),
            frozenset(map(str, self._inherited)),
        )
        self._parts.commit(names, note, before=self._noted, sink=context.name)
        self._noted = note

    def close(self) -> None:
        self._batches = []

    def _cut(self) -> tuple[PartName, list[pa.RecordBatch]]:
        """Take what is buffered, as the epoch's next part."""
        name = PartName(
            lineage=self._context.lineage,
            uid=self._uid,
            subtask=self._context.index,
            attempt=self._context.attempt,
            epoch=self._epoch,
            number=len(self._written),
            kind=self._sink.format,
        )
        batches = self._batches
        self._batches, self._rows, self._bytes = [], 0, 0
        self._written.append(name)
        return name, batches

    def _store(self, name: PartName, batches: Sequence[pa.RecordBatch]) -> None:
        self._seals[name] = self._parts.write_pending(name, encode(batches, self._sink.format))


def _sealed_parts(committables: Sequence[Json], sink: str) -> dict[PartName, Seal | None]:
    """The parts that checkpoints name, and what each must be; None: an older checkpoint, which does not say."""
    found: dict[PartName, Seal | None] = {}
    for entry in (entry for epoch in committables if epoch is not None for entry in epoch["parts"]):
        text, seal = (entry, None) if isinstance(entry, str) else (entry[0], Seal(entry[1], entry[2]))
        if (name := PartName.parse(text)) is None:
            raise CheckpointError(f"sink {sink!r}: the checkpoint names a part that no file sink writes: {text!r}")
        found[name] = seal
    return found
