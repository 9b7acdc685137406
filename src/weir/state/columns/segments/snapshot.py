"""Segments on their way into a checkpoint and out of it.

Comes in: segments and their marks as they were at a barrier. Goes out: a part of one file
for each segment, of which only new ones are written, and one for all marks; state tables;
and segments again. Reads nothing that the stream still changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np
import pyarrow as pa

from weir.errors import CheckpointError
from weir.snapshot.parts import FileRef, StatePart
from weir.snapshot.watermarks import NEVER_US
from weir.state.columns.segments.grouping import by_rules
from weir.state.columns.segments.lot import FrozenLot
from weir.state.columns.segments.rows import Combine, Mask, SegmentLayout, SortedRows, rows_in_file
from weir.state.columns.segments.segment import Bounds, Run, Segment, segment_name
from weir.state.columns.segments.shelf import KeptRows, Shelf
from weir.state.columns.segments.tables import RowSource, tables_of
from weir.state.frozen import FrozenState, RestoredPart, StateWriter, decode_table, encode_table

SEGMENTS = "segments"
"""The format: a file for each segment, with the rows' order and times before their columns, and one for the marks."""

VERSION = 1
"""Of the format."""

MARKS = "marks"
"""How the names of files of marks begin."""

_MARKS_SCHEMA = pa.schema([pa.field("segment", pa.string()), pa.field("bits", pa.binary())])


class StoredMarks:
    """The marks of a state, and which file of them a completed checkpoint holds."""

    def __init__(self) -> None:
        self._version = 0
        self._stored: tuple[int, StatePart] | None = None

    @property
    def version(self) -> int:
        """Grows with each change."""
        return self._version

    def changed(self) -> None:
        self._version += 1

    def restored(self, part: StatePart) -> None:
        """The marks are those of this part; the names of later files are others than its own."""
        self._version = part.detail["marks"]
        self._stored = (self._version, part)

    def confirmed(self, version: int, part: StatePart) -> None:
        self._stored = (version, part)

    def stored(self, version: int) -> dict[str, FileRef] | None:
        """The files of this version; None: they have to be written."""
        if self._stored is None or self._stored[0] != version:
            return None
        return {name: file for name, file in self._stored[1].files.items() if name.startswith(MARKS)}


@dataclass(frozen=True)
class FrozenSegment:
    segment: Segment
    marks: Mask | None


class FrozenSegments(FrozenState):
    """All segments of one state of one subtask, by run: the oldest of a bucket first."""

    def __init__(
        self,
        layout: SegmentLayout,
        runs: Sequence[Sequence[FrozenSegment]],
        lots: Sequence[FrozenLot],
        *,
        marks: StoredMarks,
        since_us: int = NEVER_US,
        shown: Combine | None = None,
        useless: list[object] | None = None,
    ) -> None:
        """`lots`: what was sealed and is in no run yet; younger than those. `since_us`: rows from before are gone.
        `shown`: what rows of one key and time become where tables are asked for. `useless`: takes up much memory, and
        time to be freed."""
        self._layout = layout
        self._runs = runs
        self._lots = lots
        self._marks = marks
        self._version = marks.version
        self._since_us = since_us
        self._shown = shown
        self._useless = useless or []

    def tables(self) -> Iterator[pa.Table]:
        found = [
            RowSource(frozen.segment.bounds, frozen.segment.kept.holding.rows, frozen.marks) for frozen in self._each()
        ]
        yield from tables_of(found, self._layout, since_us=self._since_us, shown=self._shown)

    def write(self, out: StateWriter) -> StatePart:
        files: dict[str, FileRef] = {}
        for lot in self._lots:
            lot.runs(out.breathe)
        for frozen in self._each():
            segment = frozen.segment
            files[segment.name] = segment.file or self._put(segment, out)
            out.breathe()
        stored = self._marks.stored(self._version)
        files |= self._put_marks(out) if stored is None else stored
        detail = {
            "version": VERSION,
            **self._layout.detail,
            "marks": self._version,
            "since": self._since_us,
            "runs": [[_described(frozen.segment) for frozen in run] for run in self.runs()],
        }
        return StatePart(SEGMENTS, files, detail)

    def discard(self, breathe: Callable[[], None]) -> None:
        while self._useless:
            self._useless.pop()
            breathe()

    def confirmed(self, part: StatePart) -> None:
        for frozen in self._each():
            # The newest copy, also when an older checkpoint has left one: that one may be retired any time.
            frozen.segment.file = part.files.get(frozen.segment.name, frozen.segment.file)
        self._marks.confirmed(self._version, part)

    def runs(self) -> Iterator[Sequence[FrozenSegment]]:
        """The oldest of a bucket first."""
        yield from self._runs
        for lot in self._lots:
            for run in lot.runs():
                yield [FrozenSegment(segment, None) for segment in run]

    def _each(self) -> Iterator[FrozenSegment]:
        for run in self.runs():
            yield from run

    def _put(self, segment: Segment, out: StateWriter) -> FileRef:
        held = segment.kept.holding
        if held.path is not None:
            return out.put_file(segment.name, held.path, shared=True)
        table = pa.Table.from_batches([self._layout.file_batch(held.rows())])
        return out.put(segment.name, encode_table(table), shared=True)

    def _put_marks(self, out: StateWriter) -> dict[str, FileRef]:
        marked = [(frozen.segment.name, frozen.marks) for frozen in self._each() if frozen.marks is not None]
        if not marked:
            return {}
        columns = [[name for name, _ in marked], [np.packbits(bits).tobytes() for _, bits in marked]]
        table = pa.table([pa.array(c, f.type) for c, f in zip(columns, _MARKS_SCHEMA)], schema=_MARKS_SCHEMA)
        name = f"{MARKS}{self._version:012d}"
        return {name: out.put(name, encode_table(table), shared=True)}


def _described(segment: Segment) -> list[Any]:
    bounds = segment.bounds
    return [segment.number, segment.bucket_us, bounds.rows, bounds.low, bounds.high, bounds.first_us, bounds.last_us]


# --- Out of a checkpoint ------------------------------------------------------------------------------


def since_of(part: StatePart) -> int:
    """Rows from before this time are gone, whether or not their segment is."""
    since_us: int = part.detail.get("since", NEVER_US)
    return since_us


def fits(part: RestoredPart, layout: SegmentLayout) -> bool:
    """Whether the files of a part are segments of this layout."""
    detail = part.part.detail
    if part.part.format != SEGMENTS or detail["version"] != VERSION or detail["schema"] != layout.code:
        return False
    return bool(detail["max_parallelism"] == layout.max_parallelism and detail["mark"] == layout.mark)


def opened(part: RestoredPart, layout: SegmentLayout, shelf: Shelf, *, marks: Mapping[str, Mask]) -> list[Run]:
    """The segments of a part that fits, with their files as they are, and their marks."""
    return [
        Run([_opened(part, of, layout, shelf=shelf, marks=marks) for of in run]) for run in part.part.detail["runs"]
    ]


def _opened(
    part: RestoredPart, of: Sequence[Any], layout: SegmentLayout, *, shelf: Shelf, marks: Mapping[str, Mask]
) -> Segment:
    number, bucket_us, *bounds = of
    name = segment_name(number)
    found = marks.get(name)
    segment = Segment(
        number,
        bucket_us,
        kept_out_of(part, name, layout, shelf),
        bounds=Bounds(*bounds),
        marks=None if found is None else found[: bounds[0]].copy(),
    )
    segment.file = part.part.files[name]
    return segment


def kept_out_of(part: RestoredPart, name: str, layout: SegmentLayout, shelf: Shelf) -> KeptRows:
    """The rows of a segment's file: on disk, where there is one."""
    if not shelf.is_on_disk:
        return shelf.keep(rows_in(part, name, layout.rows_of))
    path = shelf.new_path()
    part.files.fetch(part.part.files[name], path)
    return shelf.take_over(path)


def marks_in(part: RestoredPart) -> dict[str, Mask]:
    """By segment; with some bits behind its last row."""
    found: dict[str, Mask] = {}
    for name, file in part.part.files.items():
        if name.startswith(MARKS):
            table = decode_table(part.files.read(file), file.path)
            for segment, bits in zip(table.column(0).to_pylist(), table.column(1).to_pylist()):
                found[segment] = np.unpackbits(np.frombuffer(bits, np.uint8)).view(np.bool_)
    return found


def rows_in(part: RestoredPart, name: str, rows_of: Callable[[pa.RecordBatch], SortedRows]) -> SortedRows:
    """The rows of a segment's file."""
    file = part.part.files[name]
    (batch,) = decode_table(part.files.read(file), file.path).combine_chunks().to_batches()
    return rows_of(batch)


def read_segments(part: RestoredPart) -> Iterator[pa.Table]:
    """The tables of the format "segments", the oldest of a bucket first; each sorted by key group."""
    detail = part.part.detail
    if detail["version"] != VERSION:
        raise CheckpointError(
            f"a state was written in version {detail['version']!r} of the segments format, but this version of Weir "
            f"reads version {VERSION}; restore it with the version that wrote it, and take a savepoint there"
        )
    layout = SegmentLayout.of(detail)
    shown = None if layout.rules is None else by_rules(layout.rules, layout.chain)
    marks = marks_in(part)
    found = []
    for run in detail["runs"]:
        for number, _, *bounds in run:
            name, rows = segment_name(number), bounds[0]
            bits = marks.get(name)
            rows_of: Callable[[], SortedRows] = partial(rows_in, part, name, rows_in_file)
            if shown is not None:
                rows_of = cache(rows_of)  # they are put together piece by piece
            found.append(RowSource(Bounds(*bounds), rows_of, None if bits is None else bits[:rows]))
    yield from tables_of(found, layout, since_us=since_of(part.part), shown=shown)
