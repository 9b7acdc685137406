"""Buffered rows on their way into a checkpoint.

Comes in: runs of rows as they were at a barrier. Goes out: state tables, one file for each
run; a run that a completed checkpoint holds is not written again. A key may have many
rows. Reads nothing that the stream still changes.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from weir.snapshot.parts import FileRef, StatePart
from weir.state.frozen import ARROW, FrozenState, StateWriter, encode_table
from weir.state.keys.hashing import hash_keys, key_groups, take_rows
from weir.state.keys.store import Mask

PIECE_ROWS = 65_536


class FrozenRun:
    """Rows as they were, and the file that a completed checkpoint holds of them, if one does."""

    def __init__(self, number: int, batch: pa.RecordBatch, settled: Mask | None = None) -> None:
        self.name = f"{number:012d}"
        """By age: where times are equal, what came last may matter."""
        self._batch = batch
        self._settled = settled
        self.file: FileRef | None = None
        """What the newest completed checkpoint names."""

    def table(self, schema: pa.Schema, keys: Sequence[str], max_parallelism: int) -> pa.Table:
        """Sorted by key group, and else in the order of the run."""
        groups = key_groups(hash_keys([self._batch.column(key) for key in keys]), max_parallelism)
        order = np.argsort(groups, kind="stable")
        rows = take_rows(self._batch, order)
        columns = [pa.array(groups[order].astype(np.int32))]
        columns += [rows.column(name) for name in schema.names if name in rows.schema.names]
        if self._settled is not None:
            columns.append(pa.array(self._settled[order]))
        return pa.table(columns, schema=schema)


class FrozenRuns(FrozenState):
    """All buffered rows of one side in one subtask."""

    def __init__(self, schema: pa.Schema, keys: Sequence[str], runs: Sequence[FrozenRun], max_parallelism: int) -> None:
        self._schema = schema
        self._keys = tuple(keys)
        self._runs = list(runs)
        self._max_parallelism = max_parallelism

    def tables(self) -> Iterator[pa.Table]:
        yield self._schema.empty_table()
        for run in self._runs:
            table = run.table(self._schema, self._keys, self._max_parallelism)
            for start in range(0, table.num_rows, PIECE_ROWS):
                yield table.slice(start, PIECE_ROWS)

    def write(self, out: StateWriter) -> StatePart:
        files: dict[str, FileRef] = {}
        for run in self._runs:
            if run.file is None:
                data = encode_table(run.table(self._schema, self._keys, self._max_parallelism))
                files[run.name] = out.put(f"r{run.name}", data, shared=True)
            else:
                files[run.name] = run.file
            out.breathe()
        encoded = base64.b64encode(self._schema.serialize().to_pybytes()).decode()
        return StatePart(ARROW, files, detail={"schema": encoded})

    def confirmed(self, part: StatePart) -> None:
        for run in self._runs:
            # The newest copy, also when an older checkpoint has left one: that one may be retired any time.
            run.file = part.files.get(run.name, run.file)
