"""Rows that the driver has at hand, as a source.

Comes in: Python rows or a table. Goes out: their batches, split over the subtasks
by ranges that do not depend on the parallelism, so that positions survive a change of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa

from weir.connectors.formats.rows import table_of_rows
from weir.errors import CheckpointError
from weir.operators.base import InlinePart, OperatorContext
from weir.operators.source import Source, SourceReader
from weir.schema import parse_schema
from weir.snapshot.parts import Json

SPLITS_MAX = 128


class Collection(Source):
    """A bounded source of rows: tuples, dicts, scalars (one column), a pyarrow Table or a Polars DataFrame.

    schema: DDL ("a long, b string") or a pyarrow schema; may be left out for dicts, scalars and tables

    >>> Collection([("a", 1), ("b", 2)], "word string, n long").schema.names
    ['word', 'n']
    """

    def __init__(self, rows: Iterable[Any], schema: str | pa.Schema | None = None) -> None:
        table = table_of_rows(rows, None if schema is None else parse_schema(schema))
        self._table = table.combine_chunks()

    def __repr__(self) -> str:
        return f"Collection({self._table.num_rows} rows)"

    @property
    def schema(self) -> pa.Schema:
        return self._table.schema

    @property
    def bounded(self) -> bool:
        return True

    def is_read_to_end(self, positions: Sequence[Json]) -> bool:
        """Not, where the rows are others by now: that is the reader's to refuse."""
        rows = self._table.num_rows
        bounds = _bounds(rows)
        ends = {str(split): row for split, row in enumerate(bounds[1:])}
        found = {split: row for position in positions for split, row in position["next"].items()}
        return found == ends and all(position["rows"] == rows for position in positions)

    def reader(self) -> SourceReader:
        return _CollectionReader(self._table)


class _CollectionReader(SourceReader):
    """Split s of S holds rows s·n/S to (s+1)·n/S and belongs to subtask s modulo the parallelism."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table
        self._bounds = _bounds(table.num_rows)

    def open(self, context: OperatorContext, restored: Sequence[InlinePart] | None) -> None:
        own = range(context.index, len(self._bounds) - 1, context.parallelism)
        self._next = {split: self._bounds[split] for split in own}
        for part in restored or ():
            if part.value is None:
                continue
            if part.value["rows"] != self._table.num_rows:
                raise CheckpointError(
                    f"source {context.name!r} (uid {context.uid!r}): the collection had {part.value['rows']} rows when "
                    f"the checkpoint was taken and has {self._table.num_rows} now; resume with the same rows"
                )
            self._next.update({int(s): row for s, row in part.value["next"].items() if int(s) in self._next})
        self._unread = [split for split in own if self._next[split] < self._bounds[split + 1]]

    def poll(self, rows_max: int) -> pa.RecordBatch | None:
        slices: list[pa.Table] = []
        left = rows_max
        while left and self._unread:
            split = self._unread[0]
            start, end = self._next[split], self._bounds[split + 1]
            count = min(left, end - start)
            slices.append(self._table.slice(start, count))
            self._next[split] = start + count
            left -= count
            if start + count == end:
                self._unread.pop(0)
        if not slices:
            return None
        merged = pa.concat_tables(slices).combine_chunks()
        return merged.to_batches()[0]

    @property
    def finished(self) -> bool:
        return not self._unread

    def position(self) -> Json:
        return {"rows": self._table.num_rows, "next": {str(split): row for split, row in self._next.items()}}

    @property
    def lag(self) -> str | None:
        left = sum(self._bounds[split + 1] - self._next[split] for split in self._unread)
        return f"{left} rows left"


def _bounds(rows: int) -> list[int]:
    """Where each split begins, and the last one ends."""
    splits = min(SPLITS_MAX, rows)
    return [split * rows // splits for split in range(splits)] + [rows] if splits else [0]
