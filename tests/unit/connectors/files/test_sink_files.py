"""What the files of the file sink hold, which types a format can hold, and how parts are named and cut."""

from __future__ import annotations

import base64
import json
from datetime import date, datetime, timezone
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

from tests.contract.sinks import adopted, context, grant, owner, pending, read_numbers, rows
from weir.connectors import FileSink
from weir.connectors.files.part_names import PartName
from weir.connectors.formats.encode import encode
from weir.connectors.names import name_of
from weir.errors import (
    ConfigError,
    SchemaError,
)
from weir.ids import CheckpointId


def test_wrong_settings_are_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="'orc' is not one of jsonl, csv, parquet"):
        FileSink(tmp_path, "orc")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="roll_rows"):
        FileSink(tmp_path, roll_rows=0)


@pytest.mark.parametrize(
    ("format", "kind", "part"),
    [
        ("csv", pa.list_(pa.int64()), "no nested values"),
        ("csv", pa.binary(), "csv is text"),
        ("jsonl", pa.struct([("x", pa.binary())]), "binary inside"),
        ("jsonl", pa.map_(pa.int64(), pa.int64()), "keys"),
    ],
)
def test_a_column_that_the_format_cannot_hold_is_refused_when_the_job_is_built(
    tmp_path: Path, format: str, kind: pa.DataType, part: str
) -> None:
    with pytest.raises(SchemaError, match=rf"'out'.*'c'.*{part}"):
        FileSink(tmp_path, format).check(pa.schema([("c", kind)]), "out")  # type: ignore[arg-type]


def test_large_epochs_go_to_the_disk_before_they_end(tmp_path: Path) -> None:
    sink = FileSink(tmp_path, "jsonl", roll_bytes=rows(1, 2).nbytes)
    adopted(sink, owner(job="job", resume=False))
    writer = sink.writer()
    writer.open(context(), None)
    for number in range(5):
        writer.write(rows(number))
    assert len(pending(tmp_path)) == 2
    assert read_numbers(tmp_path, "jsonl") == []
    committable = writer.prepare(CheckpointId(1))()
    assert len(committable["parts"]) == 3
    writer.commit(grant(1), [committable])
    assert read_numbers(tmp_path, "jsonl") == [0, 1, 2, 3, 4]


def test_every_type_has_a_plain_form_in_jsonl_and_csv() -> None:
    moment = datetime(2024, 5, 6, 7, 8, 9, 10, tzinfo=timezone.utc)
    table = pa.table(
        {
            "moment": pa.array([moment, None], pa.timestamp("us", "UTC")),
            "day": [date(2024, 5, 6), None],
            "price": pa.array([Decimal("1.50"), None], pa.decimal128(10, 2)),
            "text": ['say "hi",\nplease', ""],
            "yes": [True, None],
        }
    )
    lines = encode(table.to_batches(), "jsonl").to_pybytes().decode().splitlines()
    first = json.loads(lines[0])
    assert datetime.fromisoformat(first["moment"]) == moment
    assert (first["day"], first["price"], first["text"]) == ("2024-05-06", "1.50", 'say "hi",\nplease')
    assert json.loads(lines[1]) == {"moment": None, "day": None, "price": None, "text": "", "yes": None}
    csv = encode(table.to_batches(), "csv").to_pybytes().decode()
    assert csv == (
        'moment,day,price,text,yes\n2024-05-06T07:08:09.000010Z,2024-05-06,1.50,"say ""hi"",\nplease",true\n,,,"",\n'
    )
    binary = pa.table({"b": [b"\xff\x00", None]})
    encoded = [json.loads(line)["b"] for line in encode(binary.to_batches(), "jsonl").to_pybytes().splitlines()]
    assert encoded == [base64.b64encode(b"\xff\x00").decode(), None]


def test_parquet_keeps_every_type(tmp_path: Path) -> None:
    kinds = {"t": pa.timestamp("us", "UTC"), "l": pa.list_(pa.int32()), "m": pa.map_(pa.string(), pa.int64())}
    table = pa.table({name: pa.array([None], kind) for name, kind in kinds.items()})
    assert parquet.read_schema(pa.BufferReader(encode(table.to_batches(), "parquet"))) == table.schema


def test_part_names_parse_back_whatever_the_uid() -> None:
    for uid in ("out", "a-1-2-3", "ünï/cödé", "part-x-1-1-1-1.csv"):
        name = PartName(
            lineage="abcdef0123", uid=name_of(uid), subtask=7, attempt=3, epoch=12, number=0, kind="parquet"
        )
        assert PartName.parse(str(name)) == name
        assert "/" not in str(name)
    assert name_of("a/b") != name_of("a_b")
    assert PartName.parse("part-00000-abc.snappy.parquet") is None
