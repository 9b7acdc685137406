"""What the file sink has committed is an ordinary table for Spark, while the job still runs."""

from __future__ import annotations

from datetime import datetime, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.contract.sinks import adopted, context, grant, owner
from weir.connectors import FileSink
from weir.ids import CheckpointId
from weir.schema import parse_schema

DDL = "n bigint, word string, at timestamp, price decimal(10,2)"
AT = datetime(2024, 5, 6, 7, 8, 9, 10, tzinfo=timezone.utc)
ROWS: list[tuple[Any, ...]] = [(1, "one", AT, Decimal("1.50")), (2, None, None, None)]


@pytest.mark.parametrize("format", ["parquet", "jsonl", "csv"])
def test_spark_reads_exactly_the_committed_rows(embedded: Any, tmp_path: Path, format: str) -> None:
    sink = FileSink(tmp_path / "out", format)  # type: ignore[arg-type]
    adopted(sink, owner())
    writer = sink.writer()
    writer.open(context(), None)
    schema = parse_schema(DDL)
    for rows in (ROWS, [(3, "three", AT, Decimal("3.00"))]):
        writer.write(pa.RecordBatch.from_pylist([dict(zip(schema.names, row, strict=True)) for row in rows], schema))
        committable = writer.prepare(CheckpointId(1))()
        if rows is ROWS:
            writer.commit(grant(1), [committable])
    reader = embedded.read.schema(DDL) if format != "parquet" else embedded.read
    path = str(tmp_path / "out")
    frame = {
        "parquet": lambda: reader.parquet(path),
        "jsonl": lambda: reader.json(path),
        "csv": lambda: reader.option("header", True).csv(path),
    }[format]()
    found = [tuple(row) for row in frame.selectExpr("n", "word", "unix_micros(at)", "price").orderBy("n").collect()]
    assert found == [(1, "one", round(AT.timestamp() * 1_000_000), Decimal("1.50")), (2, None, None, None)]
