"""Tables of heap state, made piece by piece in a background thread.

Comes in: a view of what one state held at a barrier, and which rows changed since what storage holds. Goes out: its
table, or that of the changes, in pieces, each sorted by key group, without what had expired by then. No piece takes
the interpreter from the stream for more than a few milliseconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from weir.snapshot.parts import StatePart
from weir.state.changes import ChangesFormat
from weir.state.declared.cells import NOTHING, CellsView
from weir.state.declared.changed import STEP_ROWS, Row
from weir.state.declared.cursor import TOUCHED_COLUMN, Key
from weir.state.declared.tables import TableLayout
from weir.state.frozen import GONE_COLUMN, FrozenState, StateWriter
from weir.state.heap.forms import HeldForm
from weir.state.keys.codec import KeyCodec
from weir.state.keys.hashing import hash_keys, key_groups
from weir.state.keys.xxhash64 import Ints

PIECE_ROWS = 5_000
"""Rows of a table that are built at once, where keys have many."""


class HeapTables:
    """The tables of one state."""

    def __init__(self, codec: KeyCodec, layout: TableLayout, form: HeldForm, *, max_parallelism: int) -> None:
        self.form = form
        self.schema = layout.schema
        self.file_schema = layout.schema.append(pa.field(GONE_COLUMN, pa.bool_(), nullable=False))
        """Of what is written: a key may be gone."""
        self._codec = codec
        self._max_parallelism = max_parallelism
        # What a row is known by: the key, and the map key.
        known_by = self.schema.names[1 : 1 + len(codec.schema) + form.entries]
        self.format = ChangesFormat(self.file_schema, known_by)

    def whole(self, keys: Sequence[Key], held: Sequence[Any], now_ms: int) -> tuple[pa.Table, list[Key]]:
        """The rows of some keys, and those keys at which something has expired."""
        # Each object is touched once, in the order in which they were stored: to look for one in memory that was not
        # used for a while takes longer than all that is done with it here. Rows are put in order as Arrow arrays.
        columns = self._codec.columns(keys)
        groups = self._groups(columns)
        expanded = self.form.expand(held, now_ms)
        if expanded.positions is not None:
            positions = np.array(expanded.positions, np.int64)
            groups, columns = groups[positions], [column.take(pa.array(positions)) for column in columns]
        columns += map(pa.array, expanded.columns, self.schema.types[1 + len(columns) :])
        return self._sorted(groups, columns, self.schema), [keys[i] for i in expanded.expired]

    def gone(self, rows: Sequence[Row]) -> pa.Table:
        """That some rows are no more."""
        columns = self._codec.columns([row[0] for row in rows] if self.form.entries else rows)
        groups = self._groups(columns)
        left = list(self.file_schema)[1 + len(columns) :]
        if self.form.entries:
            columns.append(pa.array([row[1] for row in rows], left.pop(0).type))
        for field in left:
            value = {TOUCHED_COLUMN: 0, GONE_COLUMN: True}.get(field.name)
            columns.append(pa.repeat(pa.scalar(value, field.type), len(rows)))
        return self._sorted(groups, columns, self.file_schema)

    def as_file(self, table: pa.Table) -> pa.Table:
        """Rows that are there, as they are written."""
        there = pa.repeat(pa.scalar(False), table.num_rows)
        return table.append_column(self.file_schema.field(GONE_COLUMN), there)

    def _groups(self, columns: Sequence[pa.Array]) -> npt.NDArray[np.int16]:
        # Small numbers, which NumPy sorts without comparing them.
        return key_groups(hash_keys(columns), self._max_parallelism).astype(np.int16)

    def _sorted(self, groups: npt.NDArray[np.int16], columns: Sequence[pa.Array], schema: pa.Schema) -> pa.Table:
        order: Ints = np.argsort(groups, kind="stable")
        sorted_groups = pa.array(groups[order].astype(np.int32))
        return pa.table([sorted_groups, *(column.take(pa.array(order)) for column in columns)], schema=schema)


class FrozenHeap(FrozenState):
    """One state of a heap backend at a barrier."""

    def __init__(
        self,
        view: CellsView,
        tables: HeapTables,
        confirmed: Callable[[CellsView, StatePart], None],
        *,
        now_ms: int,
        sweeps: bool,
    ) -> None:
        """`sweeps`: whether all keys are looked at for what has expired, also those that did not change."""
        self._view = view
        self._tables = tables
        self._form = tables.form
        self._confirmed = confirmed
        self._now_ms = now_ms
        self._sweeps = sweeps
        self._is_exported = False

    def tables(self) -> Iterator[pa.Table]:
        self._view.expired.clear()
        copy = self._view.copy(in_place=self._form.in_place)
        # Pieces may be empty: of those whose every key was changed again, or is gone.
        pieces = [piece for piece in copy if piece[0]]
        if not pieces:
            yield self._table([], [])
        for keys, held in pieces:
            yield from self._cut(keys, held)

    def write(self, out: StateWriter) -> StatePart:
        since, form = self._view.since, self._tables.format
        # Behind tables() there is the copy only: a single row cannot be looked up in it.
        rows = None if since is None or self._view.is_copied else since.rows(out.breathe)
        if since is None or rows is None:
            return form.write_whole(map(self._tables.as_file, self.tables()), out)
        if self._sweeps:
            self._sweep(out)
        return form.write_changes(since.base, self._changes(rows), out)

    def keep_for_export(self) -> None:
        self._is_exported = True

    def confirmed(self, part: StatePart) -> None:
        self._confirmed(self._view, part)

    def discard(self, breathe: Callable[[], None]) -> None:
        self._view.discard(breathe)

    def released(self) -> None:
        self._view.release()

    # --- What changed ---

    def _changes(self, changed: Sequence[Row]) -> Iterator[pa.Table]:
        steps = (changed[start : start + STEP_ROWS] for start in range(0, len(changed), STEP_ROWS))
        pieces: Iterable[tuple[Sequence[Row], list[Any]]] = ((rows, self._values(rows)) for rows in steps)
        if not self._form.in_place and not self._is_exported:
            # Soon, so that the layers are merged again: see CellsView.copy.
            pieces = list(pieces)
            self._view.let_go()
        for rows, held in pieces:
            gone = [i for i, value in enumerate(held) if self._is_gone(value)]
            if gone:
                yield self._tables.gone([rows[i] for i in gone])
                self._view.expired += [self._key(rows[i]) for i in gone if held[i] is not NOTHING]
                there = sorted(set(range(len(rows))).difference(gone))
                rows, held = [rows[i] for i in there], [held[i] for i in there]
            yield from map(self._tables.as_file, self._cut(list(map(self._key, rows)), held))

    def _key(self, row: Row) -> Key:
        return row[0] if self._form.entries else row

    def _values(self, rows: Sequence[Row]) -> list[Any]:
        """What each row's key holds, or of a dictionary the one entry; NOTHING where there is nothing."""
        find = self._view.find
        if not self._form.entries:
            return list(map(find, rows))
        found = []
        for key, name in rows:
            entries = find(key)
            there = entries is not NOTHING and name in entries
            found.append({name: entries[name]} if there else NOTHING)
        return found

    def _is_gone(self, held: Any) -> bool:
        return held is NOTHING or (self._form.expires and self._form.unexpired(held, self._now_ms) is None)

    def _sweep(self, out: StateWriter) -> None:
        """Find what has expired and was not touched again."""
        unexpired, now_ms = self._form.unexpired, self._now_ms
        for keys, held in self._view.pieces():
            self._view.expired += [key for key, value in zip(keys, held) if unexpired(value, now_ms) is not value]
            out.breathe()

    # --- Pieces ---

    def _cut(self, keys: list[Key], held: list[Any]) -> Iterator[pa.Table]:
        """The tables of some keys, which may have many rows each."""
        step = self._form.keys_counted_at_once or max(len(keys), 1)
        first = rows = 0
        for start in range(0, len(keys), step):
            stop = start + step
            rows += self._form.rows(held[start:stop])
            if rows >= PIECE_ROWS or stop >= len(keys):
                yield self._table(keys[first:stop], held[first:stop])
                first, rows = stop, 0

    def _table(self, keys: Sequence[Key], held: Sequence[Any]) -> pa.Table:
        table, expired = self._tables.whole(keys, held, self._now_ms)
        self._view.expired.extend(expired)
        return table
