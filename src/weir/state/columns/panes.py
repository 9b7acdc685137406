"""Panes on their way into a checkpoint.

Comes in: the keys and accumulators of panes as they were at a barrier. Goes out: state
tables, one file for each pane; a pane that has not changed since a completed checkpoint
is not written again. Reads nothing that the stream still changes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from weir.snapshot.parts import FileRef, StatePart
from weir.state.frozen import ARROW, FrozenState, StateWriter, encode_table
from weir.state.keys.hashing import key_groups
from weir.state.keys.index import FrozenKeys
from weir.state.keys.xxhash64 import Ints

PIECE_ROWS = 65_536


class FrozenPane:
    """One pane as it was, and the file that a completed checkpoint holds of it, if one does.

    name:    of the file, unique among the panes of a subtask; letters and digits
    columns: what is stored besides the keys, one row for each key, or for each of `numbers`
    numbers: by row: which of the keys is its own
    """

    def __init__(
        self, name: str, keys: FrozenKeys, columns: Sequence[pa.Array], *, numbers: Ints | None = None
    ) -> None:
        self.name = name
        self._keys = keys
        self._columns = list(columns)
        self._numbers = numbers
        self.file: FileRef | None = None
        """What the newest completed checkpoint names."""

    def __len__(self) -> int:
        return len(self._keys) if self._numbers is None else len(self._numbers)

    def table(self, schema: pa.Schema, max_parallelism: int) -> pa.Table:
        """Sorted by key group."""
        numbers = self._numbers
        hashes = self._keys.hashes
        groups = key_groups(hashes if numbers is None else hashes[numbers], max_parallelism)
        order = np.argsort(groups, kind="stable")
        columns = [
            pa.array(groups[order].astype(np.int32)),
            *self._keys.keys(order if numbers is None else numbers[order]),
            *(array.take(pa.array(order)) for array in self._columns),
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
            if pane.file is None:
                table = pane.table(self._schema, self._max_parallelism)
                files[pane.name] = out.put(pane.name, encode_table(table), shared=True)
            else:
                files[pane.name] = pane.file
            out.breathe()
        return StatePart(PANES, files)

    def confirmed(self, part: StatePart) -> None:
        for pane in self._panes:
            # The newest copy, also when an older checkpoint has left one: that one may be retired any time.
            pane.file = part.files.get(pane.name, pane.file)


PANES = ARROW
"""Each file is a sorted table of its own, and no key of a pane is in two of them."""
