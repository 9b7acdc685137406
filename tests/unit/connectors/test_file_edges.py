"""Files at the edges: outages while they are read, and lines and records that are not what their format says."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from tests.contract.sinks import context
from tests.contract.sources import as_table, drain, numbered_rows
from weir.connectors import Files
from weir.connectors.encode import encode
from weir.errors import StorageUnavailable
from weir.operators.source import SourceReader
from weir.runtime.ranged_reads import ranged_file
from weir.runtime.storage import MemoryStorage, register_scheme


def reader_of(source: Files) -> SourceReader:
    source.validate("in")
    reader = source.reader()
    reader.open(context(), None)
    return reader


# --- Outages ----------------------------------------------------------------------------------------


class Remote(MemoryStorage):
    """Files that are read in parts, until it is away."""

    is_away = False

    def open_input(self, path: str) -> pa.NativeFile:
        data = self.read(path)

        def fetch(start: int, end: int) -> bytes:
            if self.is_away:
                raise StorageUnavailable("connection reset")
            return bytes(data[start:end])

        return ranged_file(fetch, data.size)


@pytest.mark.parametrize("format", ["parquet", "arrow", "jsonl"])
def test_an_outage_in_the_middle_of_a_file_is_no_damage(format: Any) -> None:
    table = as_table(numbered_rows(50_000))
    data = encode(table.to_batches(max_chunksize=10_000), format)
    storage = Remote(1 << 24)
    storage.write(f"a.{format}", data)
    register_scheme("away", lambda uri: storage)
    reader = reader_of(Files("away://somewhere", schema=table.schema, split_size=data.size // 2))
    assert reader.poll(10) is not None
    storage.is_away = True
    with pytest.raises(StorageUnavailable, match="connection reset"):
        drain(reader, 10_000)
    if format != "jsonl":
        with pytest.raises(StorageUnavailable, match="connection reset"):
            assert Files("away://somewhere").schema
