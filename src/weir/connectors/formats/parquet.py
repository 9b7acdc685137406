"""One split of a parquet file: the row groups whose middle lies in it, batch by batch.

Comes in: an open file and a split. Goes out: batches of the declared schema, with the
row, counted from the split's first, at which each begins.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa
import pyarrow.parquet as parquet

from weir.connectors.formats.exact_values import Unfit, cast_exactly, is_kin
from weir.connectors.formats.line_blocks import open_unchanged
from weir.connectors.formats.splits import Split
from weir.errors import DataError, SchemaError, StorageUnavailable
from weir.runtime.storage.stores.readable import ReadableStorage
from weir.schema import format_schema, format_type

BATCH_ROWS = 65_536
READ_BUFFER_BYTES = 1 << 20


class ParquetSplit:
    """The batches of one split from row `start_row` on."""

    def __init__(
        self, storage: ReadableStorage, split: Split, start_row: int, *, schema: pa.Schema, where: str
    ) -> None:
        self._where = where
        self._schema = schema
        self._input = open_unchanged(storage, split, where)
        with damage_named_as("parquet", where):
            self._file = _open(self._input)
        check_columns(self._file.schema_arrow, schema, where)
        self._row = start_row
        groups = self._row_groups(split)
        self._rows_before = sum(self._file.metadata.row_group(i).num_rows for i in range(groups[0] if groups else 0))
        """In the file, before the split."""
        self._batches = self._from(start_row, groups)

    def read(self) -> tuple[pa.Table, int] | None:
        """The next rows and the number of the first; None at the end."""
        with damage_named_as("parquet", self._where):
            batch = next(self._batches, None)
        if batch is None:
            return None
        row, self._row = self._row, self._row + batch.num_rows
        table = pa.Table.from_batches([batch])
        return cast_rows(table, self._schema, first_row=self._rows_before + row, where=self._where), row

    def close(self) -> None:
        self._input.close()

    def _row_groups(self, split: Split) -> list[int]:
        metadata = self._file.metadata
        return [i for i in range(metadata.num_row_groups) if split.start <= _middle(metadata.row_group(i)) < split.end]

    def _from(self, start_row: int, groups: list[int]) -> Iterator[pa.RecordBatch]:
        skip = start_row
        while groups and skip >= (rows := self._file.metadata.row_group(groups[0]).num_rows):
            skip -= rows
            groups = groups[1:]
        if not groups:
            return
        columns = self._schema.names
        for batch in self._file.iter_batches(BATCH_ROWS, row_groups=groups, columns=columns, use_threads=False):
            if skip >= batch.num_rows:
                skip -= batch.num_rows
                continue
            yield batch.slice(skip)
            skip = 0


def cast_rows(table: pa.Table, schema: pa.Schema, *, first_row: int, where: str) -> pa.Table:
    """The declared columns in the declared types; DataError with the row of the file whose value does not fit."""
    try:
        return cast_exactly(table.select(schema.names), schema)
    except Unfit as error:
        raise DataError(
            f"{where}, row {first_row + error.row} (from 0): {error}. Declare the column with the type that it has in "
            f"the file, and cast it where the job can say what is to become of such values"
        ) from error


def file_schema(storage: ReadableStorage, file: str, where: str) -> pa.Schema:
    """The columns of a parquet file."""
    with storage.open_input(file) as opened, damage_named_as("parquet", where):
        return _open(opened).schema_arrow.remove_metadata()


def check_columns(found: pa.Schema, declared: pa.Schema, where: str) -> None:
    """SchemaError when a declared column is missing in the file, there several times, or of another kind."""
    for field in declared:
        if field.name not in found.names:
            raise SchemaError(
                f"{where}: the file has no column {field.name!r}; it has ({format_schema(found)}), "
                f"and the schema is ({format_schema(declared)})"
            )
        if found.names.count(field.name) > 1:
            raise SchemaError(f"{where}: the file has column {field.name!r} more than once; rename one in the file")
        kind = found.field(field.name).type
        if not is_kin(kind, field.type):
            raise SchemaError(
                f"{where}: column {field.name!r} is {format_type(kind)} in the file, "
                f"and {format_type(field.type)} in the schema; mend the schema"
            )


def _open(opened: pa.NativeFile) -> parquet.ParquetFile:
    return parquet.ParquetFile(
        opened, pre_buffer=False, buffer_size=READ_BUFFER_BYTES, coerce_int96_timestamp_unit="us"
    )


@contextmanager
def damage_named_as(format: str, where: str) -> Iterator[None]:
    """What pyarrow says about a damaged file (an OSError without a number, if it is one), with the file's name."""
    try:
        yield
    except StorageUnavailable:
        raise
    except (pa.ArrowException, ValueError, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise DataError(
            f"{where}: cannot be read as {format}: {error}. Replace the file, or take it out of the directory"
        ) from error


def _middle(group: parquet.RowGroupMetaData) -> int:
    """The byte in the middle of a row group: it lies in exactly one split. Columns may be stored in any order."""
    columns = [group.column(i) for i in range(group.num_columns)]
    # A column without a dictionary has no offset of one.
    offsets = [(column.data_page_offset, column.dictionary_page_offset) for column in columns]
    start = min(offset for pair in offsets for offset in pair if offset is not None)
    return int(start + sum(column.total_compressed_size for column in columns) // 2)
