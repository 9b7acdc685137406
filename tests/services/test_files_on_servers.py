"""Files on real servers, read by a job: a directory, one file, by ranges, with the options of the URI at its end."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import polars as pl
import pyarrow.parquet as parquet
import pytest

import weir
from tests.services.conftest import new_place
from tests.services.servers import Hdfs, Versitygw
from weir import connectors as io
from weir.runtime.storage.locations import location_below
from weir.runtime.storage.opening import open_storage

ROWS = 50_000


@pytest.mark.parametrize("kind", [pytest.param("s3", marks=pytest.mark.quick), "hdfs", "minio"])
def test_a_job_reads_files_in_splits_from_a_server(
    kind: str, servers: Callable[[str], Versitygw | Hdfs], tmp_path: Path
) -> None:
    place = new_place(servers(kind))
    frame = pl.DataFrame({"n": range(ROWS), "word": [f"word {n}" for n in range(ROWS)]})
    frame.write_csv(tmp_path / "all.csv")
    parquet.write_table(frame.to_arrow(), tmp_path / "all.parquet", row_group_size=5_000)
    storage = open_storage(place)
    storage.write("in/one.csv", (tmp_path / "all.csv").read_bytes())
    storage.write("tables/one of two.parquet", (tmp_path / "all.parquet").read_bytes())
    storage.write("tables/two of two.parquet", (tmp_path / "all.parquet").read_bytes())

    env = weir.Environment(parallelism=2)
    schema = "n long, word string"
    lines = env.read(io.Files(location_below(place, "in/one.csv"), "csv", schema, split_size=100_000), uid="lines")
    tables = env.read(io.Files(location_below(place, "tables"), "parquet", schema, split_size=100_000), uid="tables")
    found = pl.from_arrow(lines.union(tables.select("n", "word", uid="both")).collect())
    assert isinstance(found, pl.DataFrame)
    assert found.sort("n").equals(pl.concat([frame, frame, frame]).cast(found.schema).sort("n"))
