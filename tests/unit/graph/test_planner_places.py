"""Two sinks never write to one place."""

from __future__ import annotations

from pathlib import Path

import pytest

import weir
from weir.connectors import Collect, Discard, FileSink, Stdout
from weir.connectors.files.sink import FileFormat
from weir.errors import PlanError
from weir.operators.sink import Sink
from weir.runtime.storage.locations import place_of


def written(*sinks: Sink) -> str:
    env = weir.Environment(parallelism=1)
    rows = env.from_collection([(1,)], "n long", uid="in")
    for number, sink in enumerate(sinks):
        rows.write(sink, uid=f"out-{number}")
    return env.explain()


@pytest.mark.parametrize("format", ["parquet", "jsonl"])
def test_two_sinks_in_one_directory_are_refused_whatever_they_write(tmp_path: Path, format: FileFormat) -> None:
    with pytest.raises(PlanError, match=r"'out-0' .*FileSink.* and 'out-1' .* the same directory; give each its own"):
        written(FileSink(tmp_path / "a"), FileSink(tmp_path / "a", format))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("{}/a", "{}/a/"),
        ("{}/a", "file://{}/a"),
        ("{}/a", "{}/b/../a"),
        ("{}/a", "{}/link/a"),
        ("s3://bucket/a", "s3://bucket//a/?region=eu-west-1"),
        ("gs://bucket/a%20b", "gcs://bucket/a b"),
    ],
)
def test_a_directory_is_the_same_however_it_is_written(tmp_path: Path, one: str, other: str) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    with pytest.raises(PlanError, match="the same directory"):
        written(FileSink(one.format(tmp_path)), FileSink(other.format(tmp_path)))


def test_a_directory_inside_of_another_is_refused_too(tmp_path: Path) -> None:
    for sinks in ((FileSink(tmp_path), FileSink(tmp_path / "a")), (Collect(tmp_path / "b"), FileSink(tmp_path))):
        with pytest.raises(PlanError, match="one lies inside of the other"):
            written(*sinks)


def test_sinks_side_by_side_and_those_without_a_place_are_allowed(tmp_path: Path) -> None:
    sinks = (FileSink(tmp_path / "a"), FileSink(tmp_path / "ab"), Collect(), Collect(), Discard(), Discard(), Stdout())
    assert "out-6" in written(*sinks)
    assert place_of("s3://one/a") != place_of("s3://two/a") != place_of("gs://two/a")


@pytest.mark.parametrize("uid", [".", "..", "..."])
def test_a_uid_of_dots_is_refused(uid: str) -> None:
    env = weir.Environment(parallelism=1)
    env.from_collection([(1,)], "n long", uid="in").write(Discard(), uid=f"a{uid}")
    with pytest.raises(PlanError, match="uid is nothing but dots"):
        env.from_collection([(1,)], "n long", uid=uid)
