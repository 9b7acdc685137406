"""Tables of heap state, made piece by piece in a background thread.

Comes in: a view of what one state held at a barrier. Goes out: its table in pieces, sorted
by key group over all of them, without what had expired by then. No piece takes the
interpreter from the stream for more than a few milliseconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from weir.snapshot.messages import StatePart
from weir.state.backend import Key
from weir.state.cells import View
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

    def released(self) -> None:
        self._view.release()

    def _tables(self, breathe: Callable[[], None]) -> Iterator[pa.Table]:
        self._view.expired.clear()
        keys: list[Key] = []
        groups: list[int] = []
        held: list[Any] = []
        rows = 0
        made = False
        for group, some in self._by_group(breathe):
            values = self._view.values(some)
            keys += some
            groups += [group] * len(some)
            held += values
            rows += self._form.rows(values)
            if rows >= PIECE_ROWS:
                yield self._table(keys, groups, held)
                keys, groups, held, rows, made = [], [], [], 0, True
        if keys or not made:
            yield self._table(keys, groups, held)

    def _by_group(self, breathe: Callable[[], None]) -> Iterator[tuple[int, list[Key]]]:
        """All keys by key group, a few at a time."""
        buckets: dict[int, list[Key]] = {}
        for keys in self._view.key_pieces():
            self._sort_into(buckets, keys)
            breathe()
        step = self._form.keys_at_once or PIECE_ROWS
        for group in sorted(buckets):
            keys = buckets.pop(group)
            for start in range(0, len(keys), step):
                yield group, keys[start : start + step]

    def _sort_into(self, buckets: dict[int, list[Key]], keys: list[Key]) -> None:
        groups = key_groups(hash_keys(self._codec.columns(keys)), self._max_parallelism)
        order = np.argsort(groups, kind="stable")
        ordered = groups[order]
        starts = np.flatnonzero(np.diff(ordered, prepend=-1))
        found = ordered[starts].tolist()
        keys = [keys[i] for i in order.tolist()]
        for group, start, stop in zip(found, starts.tolist(), [*starts[1:].tolist(), len(keys)]):
            buckets.setdefault(group, []).extend(keys[start:stop])

    def _table(self, keys: Sequence[Key], groups: Sequence[int], held: Sequence[Any]) -> pa.Table:
        schema = self._layout.schema
        front = [pa.array(groups, pa.int32()), *self._codec.columns(keys)]
        expanded = self._form.expand(held, self._now_ms)
        if expanded.positions is not None:
            positions = pa.array(expanded.positions, pa.int32())
            front = [column.take(positions) for column in front]
        self._view.expired.extend(keys[i] for i in expanded.expired)
        kinds = [field.type for field in schema][len(front) :]
        return pa.table([*front, *map(pa.array, expanded.columns, kinds)], schema=schema)
