"""Pieces of sessions: how they lie in segments, and how those that touch become one.

Comes in: keys, times and accumulators. Goes out: sorted rows by bucket, of which each is one
piece; and pieces again. A piece's bucket is a stretch of time that holds its last row: when
event time has passed that by more than the gap, the bucket is due. Holds no state.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from weir.operators.aggregates.layout import AggregateLayout
from weir.operators.aggregates.state import Accumulators
from weir.operators.base import OperatorContext
from weir.operators.windows.sessions.store import SessionStore
from weir.state.columns.kernels import Rule
from weir.state.columns.segments.grouping import stretches
from weir.state.columns.segments.rows import ChainRule, SegmentLayout, SortedRows, places
from weir.state.keys.hashing import hash_keys
from weir.state.keys.xxhash64 import Ints, Words

FIRST, LAST = "__first", "__last"
"""The columns with the times of a session's first and last row, in microseconds."""

_GAP = b"weir.gap"
"""In the metadata of a state table."""

BUCKETS = 16
"""Open sessions lie in about so many buckets."""

PIECE_ROWS = 16_384
"""Sessions that become rows at once."""

BUCKET_US_MIN = 5_000_000
"""Shorter ones would be many files for few sessions."""


@dataclass(frozen=True)
class SessionPieces:
    """Parts of sessions, or whole ones."""

    keys: list[pa.Array]
    firsts: Ints
    lasts: Ints
    columns: list[pa.Array]
    """Accumulators."""

    def __len__(self) -> int:
        return len(self.firsts)

    def take(self, rows: Ints) -> SessionPieces:
        numbers = pa.array(rows)
        keys, columns = ([array.take(numbers) for array in arrays] for arrays in (self.keys, self.columns))
        return SessionPieces(keys, self.firsts[rows], self.lasts[rows], columns)

    @staticmethod
    def joined(parts: Sequence[SessionPieces]) -> SessionPieces:
        """Those of several, one after the other; there is at least one."""
        if len(parts) == 1:
            return parts[0]
        keys = [pa.concat_arrays(arrays) for arrays in zip(*(part.keys for part in parts), strict=True)]
        columns = [pa.concat_arrays(arrays) for arrays in zip(*(part.columns for part in parts), strict=True)]
        firsts, lasts = np.concatenate([p.firsts for p in parts]), np.concatenate([p.lasts for p in parts])
        return SessionPieces(keys, firsts, lasts, columns)


def stored_schema(layout: AggregateLayout) -> pa.Schema:
    """The state table: key group, keys, times, accumulators."""
    fields, width = list(layout.stored), 1 + len(layout.keys)
    return pa.schema([*fields[:width], pa.field(FIRST, pa.int64()), pa.field(LAST, pa.int64()), *fields[width:]])


def gap_of(stored: pa.Schema) -> int | None:
    """The gap with which a state table was written, in microseconds; None: earlier versions have not noted it."""
    gap_us = (stored.metadata or {}).get(_GAP)
    return None if gap_us is None else int(gap_us)


def _rules(layout: AggregateLayout, context: OperatorContext) -> dict[str, Rule] | None:
    """How pieces become one, column by column; None: not all aggregates are that simple."""
    rules = Accumulators(layout, context).rules
    if rules is None:
        return None
    accumulators = list(layout.combined)[len(layout.keys) :]
    return {FIRST: "min", LAST: "max", **{field.name: rule for field, rule in zip(accumulators, rules, strict=True)}}


class PieceLayout:
    """How the pieces of one operator lie in segments."""

    def __init__(self, layout: AggregateLayout, context: OperatorContext, *, gap_us: int, kept_us: int) -> None:
        """`kept_us`: how long a session stays behind its last row."""
        self.bucket_us = max(kept_us // BUCKETS, BUCKET_US_MIN)
        # Segments that lie otherwise, since the gap or the lateness was another, are not taken over as they are.
        table = stored_schema(layout).with_metadata({_GAP: str(gap_us), "weir.bucket": str(self.bucket_us)})
        self.segments = SegmentLayout(
            pa.schema(list(table)[1:]),
            table,
            max_parallelism=context.max_parallelism,
            by_time=True,
            rules=_rules(layout, context),
            chain=ChainRule(FIRST, LAST, gap_us),
        )
        self._layout = layout
        self._context = context
        self._gap_us = gap_us
        self._width = len(layout.keys)

    def order(self, hashes: Words) -> Words:
        """Where keys lie in a segment."""
        return places(hashes, self.segments.max_parallelism)

    def buckets(self, lasts: Ints) -> Ints:
        """The buckets of pieces by their last rows."""
        return lasts // self.bucket_us * self.bucket_us

    def pieces_of(self, batch: pa.RecordBatch) -> SessionPieces:
        """The pieces of a segment's rows, or of those of a state table without the key group."""
        columns, width = batch.columns, self._width
        firsts, lasts = columns[width].to_numpy(), columns[width + 1].to_numpy()
        return SessionPieces(columns[:width], firsts, lasts, columns[width + 2 :])

    def firsts_of(self, batch: pa.RecordBatch) -> Ints:
        firsts: Ints = batch.column(self._width).to_numpy()
        return firsts

    def open_in(self, store: SessionStore, slots: Ints) -> SessionPieces:
        """Sessions of a store, as pieces."""
        return SessionPieces(store.keys(slots), store.starts(slots), store.lasts(slots), store.accumulators.read(slots))

    def rows_in(self, store: SessionStore, slots: Ints) -> Iterator[tuple[int, Ints, SortedRows]]:
        """Sessions of a store that takes no more rows, by bucket, in pieces of which none ends within a key: which
        they are, and their rows."""
        for bucket_us, numbers in self._by_bucket(store.lasts(slots)):
            chosen = slots[numbers]
            order = self.order(store.hashes(chosen))
            arranged = self.segments.arranged(order, store.lasts(chosen))
            chosen, order = chosen[arranged], order[arranged]
            for start, stop in stretches(order, PIECE_ROWS):
                some = chosen[start:stop]
                yield bucket_us, some, self._sorted(order[start:stop], self.open_in(store, some))

    def rows_of(self, pieces: SessionPieces) -> Iterator[tuple[int, SortedRows]]:
        """Pieces by bucket."""
        order = self.order(hash_keys(pieces.keys))
        for bucket_us, rows in self._by_bucket(pieces.lasts):
            arranged = rows[self.segments.arranged(order[rows], pieces.lasts[rows])]
            yield bucket_us, self._sorted(order[arranged], pieces.take(arranged))

    def chained(self, rows: SortedRows) -> SortedRows:
        """The same with pieces that touch put together: all pieces of a key are among these, or none. For any
        thread."""
        same = rows.order[1:] == rows.order[:-1]
        if not same.any():
            return rows
        several = np.zeros(len(rows), np.bool_)
        several[1:] = same
        several[:-1] |= same
        numbers = np.flatnonzero(several)
        store = SessionStore(self._layout, self._context, self._gap_us)
        pieces = self.pieces_of(rows.take(numbers).batch)
        store.merge(pieces.keys, pieces.firsts, pieces.lasts, columns=pieces.columns)
        if len(store) == len(numbers):
            return rows
        others = rows.take(np.flatnonzero(~several))
        slots = store.alive
        whole = self._sorted(self.order(store.hashes(slots)), self.open_in(store, slots))
        order = np.concatenate((others.order, whole.order))
        batch = pa.concat_batches([others.batch, whole.batch])
        return self.segments.sorted(order, np.concatenate((others.times, whole.times)), batch)

    def _sorted(self, order: Words, pieces: SessionPieces) -> SortedRows:
        columns = [*pieces.keys, pa.array(pieces.firsts), pa.array(pieces.lasts), *pieces.columns]
        return SortedRows(order, pieces.lasts, pa.RecordBatch.from_arrays(columns, schema=self.segments.batches))

    def _by_bucket(self, lasts: Ints) -> Iterator[tuple[int, Ints]]:
        """The numbers of those of each bucket."""
        if not len(lasts):
            return
        buckets = self.buckets(lasts)
        if int(buckets.min()) == int(buckets.max()):
            yield int(buckets[0]), np.arange(len(lasts))
            return
        order = np.argsort(buckets, kind="stable")
        ordered = buckets[order]
        cuts = np.flatnonzero(ordered[1:] != ordered[:-1]) + 1
        for rows in np.split(order, cuts):
            yield int(buckets[rows[0]]), rows
