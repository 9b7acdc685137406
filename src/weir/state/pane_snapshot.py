"""Panes on their way into a checkpoint.

Comes in: the keys and accumulators of panes as they were at a barrier. Goes out: state
tables, one file for each pane; a pane that has not changed since a completed checkpoint
is not written again. Reads nothing that the stream still changes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from weir.snapshot.messages import FileRef, StatePart
from weir.state.frozen import ARROW, FrozenState, StateWriter, encode_table
from weir.state.hashing import key_groups
from weir.state.key_index import FrozenKeys

PIECE_ROWS = 65_536


class FrozenPane:
    """One pane as it was, and the file that a completed checkpoint holds of it, if one does."""

    def __init__(self, pane_us: int, keys: FrozenKeys, accumulators: Sequence[pa.Array]) -> None:
        self.pane_us = pane_us
        self._keys = keys
        self._accumulators = list(accumulators)
        self.file: FileRef | None = None
        """Set when the checkpoint is complete that it was written for."""

    def __len__(self) -> int:
        return len(self._keys)

    def table(self, schema: pa.Schema, max_parallelism: int) -> pa.Table:
        """Sorted by key group."""
        groups = key_groups(self._keys.hashes, max_parallelism)
        order = np.argsort(groups, kind="stable")
        columns = [
            pa.array(groups[order].astype(np.int32)),
            *self._keys.keys(order),
            pa.array(np.full(len(order), self.pane_us, np.int64)),
            *(array.take(pa.array(order)) for array in self._accumulators),
        ]
        return pa.table(columns, schema=schema)


class FrozenPanes(FrozenState):
    """All panes of one subtask."""

    def __init__(self, schema: pa.Schema, panes: Sequence[FrozenPane], max_parallelism: int) -> None:
        self._schema = schema
        self._panes = list(panes)
        self._max_parallelism = max_parallelism

    def tables(self) -> Iterator[pa.Table]:
        """One sorted table: the panes' rows are merged by key group."""
        tables = [pane.table(self._schema, self._max_parallelism) for pane in self._panes if len(pane)]
        whole = pa.concat_tables([self._schema.empty_table(), *tables])
        groups = whole.column(0).to_numpy()
        if len(tables) > 1:
            whole = whole.take(pa.array(np.argsort(groups, kind="stable")))
        for start in range(0, max(1, whole.num_rows), PIECE_ROWS):
            yield whole.slice(start, PIECE_ROWS)

    def write(self, out: StateWriter) -> StatePart:
        files: dict[str, FileRef] = {}
        for pane in self._panes:
            name = str(pane.pane_us)
            if pane.file is None:
                table = pane.table(self._schema, self._max_parallelism)
                files[name] = out.put(f"p{pane.pane_us % (1 << 64):x}", encode_table(table), shared=True)
            else:
                files[name] = pane.file
            out.breathe()
        return StatePart(PANES, files)

    def confirmed(self, part: StatePart) -> None:
        for pane in self._panes:
            if pane.file is None:
                pane.file = part.files.get(str(pane.pane_us))


PANES = ARROW
"""Each file is a sorted table of its own, and no key of a pane is in two of them."""
