"""Locations as users write them: what means the same place, and what means none."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from weir.config import Checkpoints, JobConfig
from weir.connectors import Collect, Files, FileSink
from weir.errors import ConfigError
from weir.runtime.job import launch
from weir.runtime.storage.locations import absolute_location, location_below, place_of, scheme_of
from weir.runtime.storage.opening import open_storage
from weir.runtime.storage.savepoints import origin_at


def test_a_relative_path_means_the_same_place_wherever_it_is_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    location = absolute_location("out/")
    monkeypatch.chdir("/")
    open_storage(location).write("x", b"1")
    assert (tmp_path / "out" / "x").read_bytes() == b"1"


def test_an_empty_location_is_refused() -> None:
    with pytest.raises(ConfigError, match="empty"):
        open_storage(" ")


@pytest.mark.parametrize("location", ["s3://", "s3:///", "gs://?region=eu", "file://", "file:///", "hdfs:///"])
def test_a_scheme_alone_is_no_location(location: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for use in (absolute_location, open_storage, place_of, lambda text: location_below(text, "job")):
        with pytest.raises(ConfigError, match="names no place"):
            use(location)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("location", "expected"),
    [
        (" s3://bucket/x", "white space"),
        ("\ts3://bucket/x", "white space"),
        ("s3://bucket/x\n", "white space"),
        ("out ", "white space"),
        ("s3:/bucket/x", "did you mean 's3://bucket/x'"),
        ("s3:bucket/x", "did you mean 's3://bucket/x'"),
        ("s3:/key:secret@bucket/x", "did you mean 's3://…@bucket/x'"),
        ("hdfs:/node/x", "did you mean 'hdfs:///node/x'"),
        ("abfss:/box@account/x", "did you mean 'abfss://box@account/x'"),
        ("my-store:/bucket/x", "did you mean 'my-store://bucket/x'"),
        ("file:out", "did you mean 'file:///out'"),
    ],
)
def test_what_is_nearly_a_uri_is_refused_and_no_directory_of_that_name(
    location: str, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for use in (absolute_location, open_storage, place_of, lambda text: location_below(text, "job"), origin_at):
        with pytest.raises(ConfigError, match=re.escape(expected)) as caught:
            use(location)
        assert "secret" not in str(caught.value)
    for made in (FileSink, Collect, lambda text: Files(text, schema="a long", format="jsonl")):
        with pytest.raises(ConfigError, match=re.escape(expected)):
            made(location)
    with pytest.raises(ConfigError, match=re.escape(expected)):
        Files("in", schema="a long", on_error="side_file", side_file=location)
    with pytest.raises(ConfigError, match=re.escape(expected)):
        launch._storage(JobConfig("job", Checkpoints(to=location)), open_storage)
    assert os.listdir(tmp_path) == []


def test_what_hadoop_writes_for_a_local_path_is_that_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert absolute_location(f"file:{tmp_path}/a%20b c/") == f"{tmp_path}/a%20b c"
    assert absolute_location(f"FILE:{tmp_path}/x") == f"{tmp_path}/x"
    assert absolute_location("c:/x") == f"{tmp_path}/c:/x"
    assert absolute_location("./s3:/x") == f"{tmp_path}/s3:/x"
    assert location_below(f"{tmp_path}", "a job ") == absolute_location(f"{tmp_path}/a job ") == f"{tmp_path}/a job "
    assert absolute_location("12:30/x") == f"{tmp_path}/12:30/x"
    assert absolute_location("run-12:30/x") == f"{tmp_path}/run-12:30/x"


def test_a_file_uri_names_no_host(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"'checkpoints' would be a host.*file:///directory"):
        open_storage("file://checkpoints/x", create=False)
    open_storage(f"file://localhost{tmp_path}").write("x", b"1")
    assert (tmp_path / "x").exists()


@pytest.mark.parametrize("scheme", ["my-s3", "s3+x", "S3.y", "s3a"])
def test_whatever_may_be_a_scheme_is_taken_for_one(
    scheme: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert scheme_of(f"{scheme}://bucket/x") == scheme.lower()
    with pytest.raises(ConfigError, match="is not known"):
        open_storage(f"{scheme}://bucket/x")
    assert [scheme_of(path) for path in ("./a://b", "/a://b", "a:/b", "1a://b", "a b://c")] == [None] * 5


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("s3://key:secret@bucket/out", "s3://bucket/out/"),
        ("s3://key:p@ss@bucket/out", "S3://bucket/out?region=eu"),
        ("hdfs://user@host:8020/out", "hdfs://host:8020/out"),
        ("abfss://box:key@account/out", "abfs://box@account/out"),
    ],
)
def test_who_opens_a_place_does_not_make_it_another(one: str, other: str) -> None:
    assert place_of(one) == place_of(other)
    assert place_of("abfs://box@account/out") != place_of("abfs://other@account/out")
