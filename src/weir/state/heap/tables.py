"""Tables of heap state, made piece by piece in a background thread.

Comes in: a view of what one state held at a barrier. Goes out: its table in pieces, each
sorted by key group, without what had expired by then. No piece takes the interpreter
from the stream for more than a few milliseconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from weir.state.declared.cells import CellsView
from weir.state.declared.cursor import Key
from weir.state.declared.tables import TableLayout
from weir.state.frozen import FrozenState
from weir.state.heap.forms import HeldForm
from weir.state.keys.codec import KeyCodec
from weir.state.keys.hashing import hash_keys, key_groups

PIECE_ROWS = 5_000
"""Rows of a table that are built at once, where keys have many."""


class FrozenHeap(FrozenState):
    """One state of a heap backend at a barrier."""

    def __init__(
        self,
        view: CellsView,
        codec: KeyCodec,
        *,
        layout: TableLayout,
        form: HeldForm,
        max_parallelism: int,
        now_ms: int,
    ) -> None:
        self._view = view
        self._codec = codec
        self._layout = layout
        self._form = form
        self._max_parallelism = max_parallelism
        self._now_ms = now_ms

    def tables(self) -> Iterator[pa.Table]:
        self._view.expired.clear()
        copy = self._view.copy(in_place=self._form.in_place)
        # Pieces may be empty: of those whose every key was changed again, or is gone.
        pieces = [piece for piece in copy if piece[0]]
        if not pieces:
            yield self._table([], [])
        for keys, held in pieces:
            if self._form.keys_counted_at_once is None:
                yield self._table(keys, held)
            else:
                yield from self._cut(keys, held, self._form.keys_counted_at_once)

    def discard(self, breathe: Callable[[], None]) -> None:
        self._view.discard(breathe)

    def released(self) -> None:
        self._view.release()

    def _cut(self, keys: list[Key], held: list[Any], step: int) -> Iterator[pa.Table]:
        """The same for keys that may have many rows each."""
        first = rows = 0
        for start in range(0, len(keys), step):
            stop = start + step
            rows += self._form.rows(held[start:stop])
            if rows >= PIECE_ROWS or stop >= len(keys):
                yield self._table(keys[first:stop], held[first:stop])
                first, rows = stop, 0

    def _table(self, keys: Sequence[Key], held: Sequence[Any]) -> pa.Table:
        # Each object is touched once, in the order in which they were stored: to look for one in memory that was not
        # used for a while takes longer than all that is done with it here. Rows are put in order as Arrow arrays.
        schema = self._layout.schema
        columns = self._codec.columns(keys)
        # Small numbers, which NumPy sorts without comparing them.
        groups = key_groups(hash_keys(columns), self._max_parallelism).astype(np.int16)
        expanded = self._form.expand(held, self._now_ms)
        if expanded.positions is not None:
            positions = np.array(expanded.positions, np.int64)
            groups, columns = groups[positions], [column.take(pa.array(positions)) for column in columns]
        self._view.expired.extend(keys[i] for i in expanded.expired)
        kinds = [field.type for field in schema][1 + len(columns) :]
        columns += map(pa.array, expanded.columns, kinds)
        order = np.argsort(groups, kind="stable")
        sorted_groups = pa.array(groups[order].astype(np.int32))
        return pa.table([sorted_groups, *(column.take(pa.array(order)) for column in columns)], schema=schema)
