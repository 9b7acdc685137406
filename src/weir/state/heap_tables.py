"""Tables of heap state, made piece by piece in a background thread.

Comes in: a view of what one state held at a barrier. Goes out: its table in pieces, sorted
by key group over all of them, without what had expired by then. No piece takes the
interpreter from the stream for more than a few milliseconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from weir.snapshot.messages import StatePart
from weir.state.backend import Key
from weir.state.cells import PIECE_KEYS, View
from weir.state.frozen import FrozenState, StateWriter, write_tables
from weir.state.hashing import hash_keys, key_groups
from weir.state.held_forms import HeldForm
from weir.state.key_codec import KeyCodec
from weir.state.tables import TableLayout

PIECE_ROWS = 10_000
"""Rows of a table that are built at once."""


class FrozenHeap(FrozenState):
    """One state of a heap backend at a barrier."""

    def __init__(
        self, view: View, codec: KeyCodec, *, layout: TableLayout, form: HeldForm, max_parallelism: int, now_ms: int
    ) -> None:
        self._view = view
        self._codec = codec
        self._layout = layout
        self._form = form
        self._max_parallelism = max_parallelism
        self._now_ms = now_ms

    def tables(self) -> Iterator[pa.Table]:
        return self._tables(lambda: None)

    def write(self, out: StateWriter) -> StatePart:
        return write_tables(self._tables(out.breathe), out)

    def export(self, out: StateWriter) -> StatePart:
        return self.write(out)

    def discard(self, breathe: Callable[[], None]) -> None:
        self._view.discard(breathe)

    def released(self) -> None:
        self._view.release()

    def _tables(self, breathe: Callable[[], None]) -> Iterator[pa.Table]:
        self._view.expired.clear()
        all_keys, all_values = self._view.copy(breathe, in_place=self._form.in_place)
        groups = self._groups(all_keys, breathe)
        order = np.argsort(groups, kind="stable")
        step = self._form.keys_at_once or PIECE_ROWS
        keys: list[Key] = []
        held: list[Any] = []
        first = rows = 0
        for start in range(0, len(order), step):
            some = order[start : start + step].tolist()
            values = list(map(all_values.__getitem__, some))
            keys += map(all_keys.__getitem__, some)
            held += values
            rows += self._form.rows(values)
            if rows >= PIECE_ROWS:
                yield self._table(keys, groups[order[first : start + step]], held)
                keys, held, first, rows = [], [], start + step, 0
        if keys or not first:
            yield self._table(keys, groups[order[first:]], held)

    def _groups(self, keys: list[Key], breathe: Callable[[], None]) -> npt.NDArray[np.int16]:
        """The key group of each key."""
        groups = np.empty(len(keys), np.int16)
        for start in range(0, len(keys), PIECE_KEYS):
            columns = self._codec.columns(keys[start : start + PIECE_KEYS])
            groups[start : start + PIECE_KEYS] = key_groups(hash_keys(columns), self._max_parallelism)
            breathe()
        return groups

    def _table(self, keys: Sequence[Key], groups: npt.NDArray[np.int16], held: Sequence[Any]) -> pa.Table:
        schema = self._layout.schema
        front = [pa.array(groups.astype(np.int32)), *self._codec.columns(keys)]
        expanded = self._form.expand(held, self._now_ms)
        if expanded.positions is not None:
            positions = pa.array(expanded.positions, pa.int32())
            front = [column.take(positions) for column in front]
        self._view.expired.extend(keys[i] for i in expanded.expired)
        kinds = [field.type for field in schema][len(front) :]
        return pa.table([*front, *map(pa.array, expanded.columns, kinds)], schema=schema)
