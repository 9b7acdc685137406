"""Timers on their way into a checkpoint and out of it.

Comes in: the segments of the log as they were at a barrier, how far each domain has handed
them out, and the few timers that lie behind that. Goes out: a part of which only new segments
are written, state tables of the timers that stand, and a part's pieces again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from weir.errors import CheckpointError
from weir.snapshot.parts import StatePart
from weir.state.columns.segments.rows import SegmentLayout, rows_in_file
from weir.state.columns.segments.segment import segment_name
from weir.state.columns.segments.snapshot import FrozenSegments, rows_in
from weir.state.declared.cursor import Key
from weir.state.frozen import (
    FrozenState,
    RestoredPart,
    RestoredSlice,
    StateWriter,
    decode_table,
    encode_table,
    write_tables,
)
from weir.state.timers.reading import BucketReader, Stretch
from weir.state.timers.rows import domain_of, end_of, order_in
from weir.state.timers.tables import DOMAINS, TimeDomain, timer_table

FORMAT = "timers"
"""The format: the segments of the log, and a table of the timers behind the cursors."""

VERSION = 1
"""Of the format."""

BEHIND = "behind"
"""The file of timers that are due, or were set for a time that has passed, and have not fired."""

TABLE_ROWS = 65_536

Runs: TypeAlias = "Mapping[int, Sequence[Sequence[Stretch]]]"
Cursors: TypeAlias = "Mapping[TimeDomain, int | None]"
Behind: TypeAlias = "Mapping[TimeDomain, Sequence[tuple[int, Sequence[Key]]]]"


class FrozenTimers(FrozenState):
    """All timers of one operator of one subtask."""

    def __init__(
        self,
        layout: SegmentLayout,
        segments: FrozenSegments,
        *,
        cursors: Cursors,
        behind: Behind,
        columns_of: Callable[[Sequence[Key]], list[pa.Array]],
    ) -> None:
        self._layout = layout
        self._segments = segments
        self._cursors = cursors
        self._behind = behind
        self._columns_of = columns_of

    def tables(self) -> Iterator[pa.Table]:
        runs: dict[int, list[list[Stretch]]] = {}
        for run in self._segments.runs():
            found = [Stretch(f.segment.bounds.low, f.segment.bounds.high, f.segment.kept.holding.rows) for f in run]
            runs.setdefault(run[0].segment.bucket_us, []).append(found)
        yield from self._tables_behind()
        yield from _tables(self._layout, runs, self._cursors)

    def write(self, out: StateWriter) -> StatePart:
        part = self._segments.write(out)
        files = dict(part.files)
        behind = pa.concat_tables(self._tables_behind())
        if len(behind):
            files[BEHIND] = out.put(BEHIND, encode_table(behind))
        detail = {
            "version": VERSION,
            **self._layout.detail,
            "cursors": self._cursors,
            "segments": part.detail,
        }
        return StatePart(FORMAT, files, detail)

    def export(self, out: StateWriter) -> StatePart:
        return write_tables(self.tables(), out)

    def confirmed(self, part: StatePart) -> None:
        self._segments.confirmed(part)

    def _tables_behind(self) -> Iterator[pa.Table]:
        yield self._layout.table.empty_table()
        for domain, buckets in self._behind.items():
            for time_us, keys in buckets:
                times = np.full(len(keys), time_us)
                columns = self._columns_of(keys)
                count = self._layout.max_parallelism
                yield timer_table(self._layout.table, columns, times, domain, max_parallelism=count)


def _tables(layout: SegmentLayout, runs: Runs, cursors: Cursors) -> Iterator[pa.Table]:
    """What stands behind the cursors."""
    for bucket_us in sorted(runs):
        domain = domain_of(bucket_us)
        cursor_us = cursors[domain]
        reader = BucketReader(runs[bucket_us], -1 if cursor_us is None else order_in(bucket_us, end_of(cursor_us)))
        while reader.next_order is not None:
            rows, _ = reader.read(TABLE_ROWS)
            if len(rows):
                columns, count = rows.batch.columns[:-1], layout.max_parallelism
                yield timer_table(layout.table, columns, rows.times, domain, max_parallelism=count)


# --- Out of a checkpoint ------------------------------------------------------------------------------


@dataclass(frozen=True)
class StoredTimers:
    """A part in this format, as it is."""

    part: RestoredPart
    cursors: Cursors

    @staticmethod
    def of(part: RestoredPart) -> StoredTimers | None:
        """None where it is in another format."""
        if part.part.format != FORMAT:
            return None
        detail = _detail(part)
        return StoredTimers(part, {domain: detail["cursors"][domain] for domain in DOMAINS})

    @property
    def whole(self) -> RestoredPart:
        """The segments alone."""
        part = self.part.part
        return replace(self.part, part=replace(part, format="segments", detail=part.detail["segments"]))

    def slices(self) -> Sequence[RestoredSlice]:
        return ()

    def tables(self) -> Iterator[pa.Table]:
        """The timers behind the cursors."""
        file = self.part.part.files.get(BEHIND)
        if file is not None:
            yield decode_table(self.part.files.read(file), file.path)


def read_timers(part: RestoredPart) -> Iterator[pa.Table]:
    """The tables of the format "timers"; each sorted by key group."""
    detail = _detail(part)
    layout = SegmentLayout.of(detail)
    yield layout.table.empty_table()
    stored = StoredTimers.of(part)
    if stored is None:
        return
    yield from stored.tables()
    runs: dict[int, list[list[Stretch]]] = {}
    for run in detail["segments"]["runs"]:
        found = [
            Stretch(low, high, partial(rows_in, part, segment_name(number), rows_in_file))
            for number, _, _, low, high, *_ in run
        ]
        runs.setdefault(run[0][1], []).append(found)
    yield from _tables(layout, runs, stored.cursors)


def _detail(part: RestoredPart) -> Any:
    detail = part.part.detail
    if detail["version"] != VERSION:
        raise CheckpointError(
            f"timers were written in version {detail['version']!r} of their format, but this version of Weir reads "
            f"version {VERSION}; restore them with the version that wrote them, and take a savepoint there"
        )
    return detail
