"""The format "changes": a whole table, and tables of rows that replace those before them.

Comes in: tables of all rows of a state, or of those that changed since a part that a completed checkpoint holds. Goes
out: parts, and their tables again. Files up to `detail["whole"]` are the first, without a key twice; in the rest, and
in what they replace, the last row of a key counts. Rows with `__gone` are no rows. Knows nothing of how changes are
found.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from weir.snapshot.parts import StatePart
from weir.state.frozen import GONE_COLUMN, RestoredPart, StateWriter, decode_table, put_tables
from weir.state.keys.index import KeyIndex

CHANGES = "changes"

FILES_MAX = 64
"""A state in more files than this is written anew."""

UNCONFIRMED_MAX = 8
"""Snapshots without an answer whose changes are told apart; those of older ones are put together."""


class ChangesFormat:
    """How one state is written: its rows, and by which columns they are known again."""

    def __init__(self, schema: pa.Schema, keys: Sequence[str]) -> None:
        """`schema`: of the state table, at its end GONE_COLUMN if rows can be forgotten."""
        self.schema = schema
        self.code = base64.b64encode(schema.serialize().to_pybytes()).decode()
        """The schema, for comparison: a part of another one cannot be built on."""
        self._keys = list(keys)

    def continues(self, part: StatePart) -> bool:
        """Whether changes can be written on top of a part."""
        return part.format == CHANGES and bool(part.detail["schema"] == self.code)

    def write_whole(self, tables: Iterable[pa.Table], out: StateWriter) -> StatePart:
        """All rows, in files that later parts may name."""
        counted = _Counted(tables)
        files = put_tables(counted, out, shared=True)
        detail = {
            "whole": len(files),
            "rows": counted.rows,
            "whole_rows": counted.rows,
            "keys": self._keys,
            "schema": self.code,
        }
        return StatePart(CHANGES, files, detail)

    def write_changes(self, base: StatePart, tables: Iterable[pa.Table], out: StateWriter) -> StatePart:
        """The rows that replace some of the base's, in files on top of its own."""
        counted = _Counted(tables)
        files = put_tables(counted, out, shared=True, first=len(base.files))
        if not files:
            return base
        detail = {**base.detail, "rows": base.detail["rows"] + counted.rows}
        return replace(base, files={**base.files, **files}, detail=detail)


class _Counted:
    """Tables, and how many rows they had."""

    def __init__(self, tables: Iterable[pa.Table]) -> None:
        self._tables = tables
        self.rows = 0

    def __iter__(self) -> Iterator[pa.Table]:
        for table in self._tables:
            self.rows += table.num_rows
            yield table


def read_changes(part: RestoredPart) -> Iterator[pa.Table]:
    """The tables of the format: no key twice, each sorted by key group. The newest come first, so that of those that
    they replace no more is in memory than their keys."""
    files, detail = part.part.files, part.part.detail
    names = sorted(files)
    seen: _Seen | None = None
    for name in reversed(names):
        table = decode_table(part.files.read(files[name]), files[name].path)
        if len(names) > detail["whole"]:
            seen = seen or _Seen(table.schema, detail["keys"])
            table = seen.newest(table)
        yield _without_gone(table)


class _Seen:
    """The keys of the tables so far."""

    def __init__(self, schema: pa.Schema, keys: Sequence[str]) -> None:
        self._keys = keys
        self._index = KeyIndex(pa.schema([schema.field(name) for name in keys]))

    def newest(self, table: pa.Table) -> pa.Table:
        """The rows whose keys no table before had; of several with the same key the last. Each batch of them stays
        sorted as it was."""
        batches = [self._newest(batch) for batch in reversed(table.to_batches())]
        return pa.Table.from_batches(batches, table.schema)

    def _newest(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        before = len(self._index)
        slots = self._index.slots([batch.column(name) for name in self._keys])
        rows = np.flatnonzero(slots >= before)
        last: npt.NDArray[Any] = np.zeros(len(self._index) - before, np.int64)
        last[slots[rows] - before] = rows
        return batch if len(last) == batch.num_rows else batch.take(pa.array(np.sort(last)))


def _without_gone(table: pa.Table) -> pa.Table:
    column = table.schema.get_field_index(GONE_COLUMN)
    return table if column < 0 else table.filter(pc.invert(table.column(column))).remove_column(column)
