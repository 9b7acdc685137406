"""One split of an Arrow IPC file: the record batches that fall to it.

Comes in: an open file and a split. Goes out: batches of the declared schema, with the
row, counted from the split's first, at which each begins. The n batches of a file count
as equally long: batch i belongs to the split that holds the middle of the i-th part.
"""

from __future__ import annotations

import pyarrow as pa

from weir.connectors.formats.line_blocks import open_unchanged
from weir.connectors.formats.parquet import cast_rows, check_columns, damage_named_as
from weir.connectors.formats.splits import Split
from weir.errors import DataError
from weir.runtime.storage.stores.readable import ReadableStorage


class ArrowSplit:
    """The batches of one split from row `start_row` on."""

    def __init__(
        self, storage: ReadableStorage, split: Split, start_row: int, *, schema: pa.Schema, where: str
    ) -> None:
        self._where = where
        self._schema = schema
        self._input = open_unchanged(storage, split, where)
        with damage_named_as("arrow", where):
            self._file = pa.ipc.open_file(self._input)
        check_columns(self._file.schema, schema, where)
        self._numbers = _batches_of(split, self._file.num_record_batches)
        self._row = 0
        self._start_row = start_row

    def read(self) -> tuple[pa.Table, int] | None:
        """The next rows and the number of the first; None at the end."""
        while self._numbers:
            number, self._numbers = self._numbers[0], self._numbers[1:]
            with damage_named_as("arrow", self._where):
                batch = self._file.get_batch(number)
                batch.validate(full=True)
            row, self._row = self._row, self._row + batch.num_rows
            if self._row <= self._start_row:
                continue
            left_out = max(self._start_row - row, 0)
            table = pa.Table.from_batches([batch.slice(left_out)])
            try:
                return cast_rows(table, self._schema, first_row=row + left_out, where=self._where), row + left_out
            except DataError:
                # Only now does it matter where in the file that is.
                first_row = self._count_rows(number) + left_out
                return cast_rows(table, self._schema, first_row=first_row, where=self._where), row + left_out
        return None

    def close(self) -> None:
        self._input.close()

    def _count_rows(self, end: int) -> int:
        with damage_named_as("arrow", self._where):
            return sum(self._file.get_batch(number).num_rows for number in range(end))


def arrow_schema_of(storage: ReadableStorage, file: str, where: str) -> pa.Schema:
    """The columns of an Arrow file."""
    with storage.open_input(file) as opened, damage_named_as("arrow", where):
        return pa.ipc.open_file(opened).schema.remove_metadata()


def _batches_of(split: Split, count: int) -> range:
    """The numbers of the batches whose place falls into a split; they follow each other."""
    places = [(2 * number + 1) * split.file_bytes // (2 * count) for number in range(count)]
    inside = [number for number, place in enumerate(places) if split.start <= place < split.end]
    return range(inside[0], inside[-1] + 1) if inside else range(0)
