"""Rows on which a function fails are told to the driver, and do not lie in Spark's event log afterwards."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import weir
from weir import connectors as io
from weir.errors import JobFailed
from weir.runtime.spark.session import recommended_settings, stop_embedded

CANARY = "cAnArY"


@pytest.fixture
def logged(tmp_path: Path) -> Iterator[Any]:
    """A user's own Spark that writes an event log."""
    from pyspark.sql import SparkSession

    stop_embedded()
    os.environ["PYSPARK_PYTHON"] = sys.executable
    (tmp_path / "events").mkdir()
    settings = {
        **recommended_settings(),
        "spark.master": "local[2]",
        "spark.eventLog.enabled": "true",
        "spark.eventLog.compress": "false",
        "spark.eventLog.dir": (tmp_path / "events").as_uri(),
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "OFF",
    }
    session = SparkSession.builder.config(map=settings).getOrCreate()
    yield session
    session.stop()


class Fails:
    """A user's function that says which row it did not like."""

    def __call__(self, row: Any) -> Any:
        raise ValueError(f"no such customer: {row.name}")


@pytest.mark.parametrize("show_rows", [True, False])
def test_a_failing_row_is_told_to_the_driver_only(logged: Any, tmp_path: Path, show_rows: bool) -> None:
    env = weir.Environment(logged, parallelism=2, restart=weir.NoRestart(), settings=weir.Settings(show_rows=show_rows))
    names = env.from_collection([(CANARY,)], "name string", uid="names").map(Fails(), "name string", uid="fails")
    names.write(io.FileSink(tmp_path / "out", "jsonl"), uid="out")
    with pytest.raises(JobFailed) as caught:
        env.run("fails")
    assert (CANARY in str(caught.value)) is show_rows
    assert "fails" in str(caught.value) and "ValueError" in str(caught.value)
    logged.stop()
    written = b"".join(path.read_bytes() for path in (tmp_path / "events").rglob("*") if path.is_file())
    assert b"was told to the job" in written
    assert CANARY.encode() not in written
