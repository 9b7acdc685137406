"""collect and to_dataframe: what is run for them, without Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import weir
from tests.contract.sinks import adopted, owner
from tests.unit.api.fakes import FakeLauncher
from weir import connectors
from weir.errors import OwnershipError, PlanError
from weir.operators.source import Source, SourceReader
from weir.schema import parse_schema


class Endless(Source):
    schema = parse_schema("n long")
    bounded = False

    def reader(self) -> SourceReader:
        raise NotImplementedError


def test_collect_runs_only_what_leads_to_the_stream_and_removes_its_files(launcher: FakeLauncher) -> None:
    env = weir.Environment(name="words", checkpoints=weir.Checkpoints(every="1s", to="somewhere"))
    words = env.from_collection([("a",)], "word string", uid="in")
    words.write(connectors.Discard(), uid="other")
    before = env.plan()
    table = words.collect()
    assert [[o.uid for o in v.operators] for v in launcher.plan.vertices] == [["in", "collect-1"]]
    assert table.num_rows == 0
    assert table.schema == words.schema
    sink = launcher.plan.vertices[0].operators[-1].spec
    assert isinstance(sink, connectors.Collect)
    assert not Path(sink.path.removeprefix("file://")).exists()
    assert launcher.config.name == "words-collect"
    assert launcher.config.checkpoints == weir.Checkpoints(every="1s", to=None)
    assert env.plan() == before


def test_a_stream_may_be_collected_again(launcher: FakeLauncher) -> None:
    words = weir.Environment().from_collection([("a",)], "word string")
    assert words.collect() == words.collect()
    assert len(launcher.launched) == 2


@pytest.mark.parametrize("method", ["collect", "to_dataframe"])
def test_a_stream_without_an_end_is_not_waited_for(launcher: FakeLauncher, method: str) -> None:
    numbers = weir.Environment().read(Endless())
    with pytest.raises(PlanError, match=rf"{method} \(.*test_results.py:\d+\): the stream has no end"):
        getattr(numbers, method)()
    assert launcher.launched == []


def test_to_dataframe_writes_parquet_and_gives_an_empty_frame_its_schema(
    launcher: FakeLauncher, tmp_path: Path
) -> None:
    class Session:
        def createDataFrame(self, rows: list[Any], schema: str) -> tuple[list[Any], str]:
            return rows, schema

    env = weir.Environment(spark=Session(), parallelism=1)  # type: ignore[arg-type]
    words = env.from_collection([("a", 1)], "word string, n long")
    assert words.to_dataframe(str(tmp_path / "out")) == ([], "word string, n bigint")
    sink = launcher.plan.vertices[0].operators[-1].spec
    assert isinstance(sink, connectors.FileSink)
    assert sink.format == "parquet"
    assert launcher.config.name == "weir-job-to_dataframe"


def test_collecting_into_a_directory_of_another_job_is_refused_and_leaves_it_alone(
    launcher: FakeLauncher, tmp_path: Path
) -> None:
    adopted(connectors.FileSink(tmp_path / "out"), owner(job="another"))
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(OwnershipError):
        weir.Environment().from_collection([("a",)], "word string").collect(str(tmp_path / "out"))
    assert sorted(tmp_path.rglob("*")) == before
