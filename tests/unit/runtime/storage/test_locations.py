"""Opening storage by location, its errors, and what is special about each implementation."""

from __future__ import annotations

import errno
import os
import pickle
import re
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from weir.config import Checkpoints, JobConfig
from weir.connectors import Collect, Files, FileSink
from weir.errors import ConfigError, JobError, ProtocolViolation, StorageFull, StorageUnavailable
from weir.runtime.job import launch
from weir.runtime.storage.locations import absolute_location, location_below, place_of, scheme_of
from weir.runtime.storage.opening import check_writable, open_storage, open_writable
from weir.runtime.storage.savepoints import origin_at
from weir.runtime.storage.stores import files as storage_files
from weir.runtime.storage.stores import renames as local_names
from weir.runtime.storage.stores.files import LocalStorage
from weir.runtime.storage.stores.hdfs import HdfsStorage
from weir.runtime.storage.stores.memory import MemoryStorage


def test_an_unknown_scheme_is_refused_by_name_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"'foo' is not known.*file://, s3://, gs://.*hdfs://"):
        open_storage("foo://bucket/x")


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


def test_nothing_is_made_when_not_asked_to(tmp_path: Path) -> None:
    storage = open_storage(tmp_path / "nothing", create=False)
    assert storage.list("") == []
    assert not (tmp_path / "nothing").exists()


def test_a_file_where_a_directory_is_needed_names_the_path(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(StorageUnavailable, match=r"file where a directory is needed.*file"):
        open_storage(tmp_path / "file" / "below")
    with pytest.raises(JobError, match=r"checkpoints of 'job' at '.*below' cannot be written"):
        open_writable(str(tmp_path / "file" / "below"), "checkpoints of 'job'", open_storage)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_no_room_is_storage_full_and_leaves_no_half_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    storage = LocalStorage(str(tmp_path))

    def full(_descriptor: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(storage_files.os, "fsync", full)
    for call in (storage.write, storage.publish, storage.create):
        with pytest.raises(StorageFull, match="part"):
            call("part", b"data")
    assert os.listdir(tmp_path) == []


def test_an_unwritable_location_is_a_job_error_that_names_it_and_the_cause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = LocalStorage(str(tmp_path))

    def denied(_descriptor: int) -> None:
        raise PermissionError(errno.EACCES, "denied by test")

    with monkeypatch.context() as patch:
        patch.setattr(storage_files.os, "fsync", denied)
        with pytest.raises(JobError, match=r"checkpoint location /x cannot be written: .*denied by test"):
            check_writable(storage, "checkpoint location /x")
    check_writable(storage, "checkpoint location /x")
    assert os.listdir(tmp_path) == []


def test_everything_is_synced_before_it_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The order of system calls is what makes a crash harmless."""
    calls: list[str] = []
    real_sync, real_replace, real_rename = os.fsync, os.replace, storage_files.rename_exclusively

    def synced(descriptor: int) -> None:
        calls.append("sync " + ("directory" if os.path.isdir(f"/proc/self/fd/{descriptor}") else "file"))
        real_sync(descriptor)

    def replaced(source: str, target: str) -> None:
        calls.append("rename")
        real_replace(source, target)

    def renamed(source: str, target: str) -> None:
        calls.append("rename")
        real_rename(source, target)

    storage = LocalStorage(str(tmp_path))
    monkeypatch.setattr(storage_files.os, "fsync", synced)
    monkeypatch.setattr(storage_files.os, "replace", replaced)
    monkeypatch.setattr(storage_files, "rename_exclusively", renamed)
    storage.write("a", b"1")
    assert calls == ["sync file", "sync directory"]
    calls.clear()
    storage.publish("b", b"1")
    assert calls == ["sync file", "rename", "sync directory"]
    calls.clear()
    storage.move("a", "c")
    assert calls == ["rename", "sync directory"]
    calls.clear()
    for _ in range(2):  # the second time on behalf of the first, which may have been cut off in the middle
        assert storage.create("d", b"1")
        assert calls == ["sync file", "rename", "sync directory"]
        calls.clear()
    storage.write("new/deep/a", b"1")
    assert calls == ["sync directory", "sync directory", "sync file", "sync directory"]


def _refused(*_: object) -> None:
    raise PermissionError(errno.EPERM, "not supported here")


@pytest.mark.parametrize("lacking", ["hard links", "exclusive rename"])
def test_create_is_whole_or_not_at_all_also_where_the_file_system_lacks_one_way(
    lacking: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if lacking == "hard links":
        monkeypatch.setattr(local_names.os, "link", _refused)
    else:
        monkeypatch.setattr(local_names, "_system_call", lambda: None)
    storage = LocalStorage(str(tmp_path))
    assert storage.creates_atomically
    assert storage.create("owner", b"1")
    assert not storage.create("owner", b"2")
    assert os.listdir(tmp_path) == ["owner"]


def test_a_file_system_that_can_only_replace_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_names.os, "link", _refused)
    monkeypatch.setattr(local_names, "_system_call", lambda: None)
    storage = LocalStorage(str(tmp_path))
    assert not storage.creates_atomically
    with pytest.raises(StorageUnavailable):
        storage.create("owner", b"1")
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("call", ["write", "publish", "create"])
@pytest.mark.parametrize("times", [1, 1000])
def test_a_directory_that_somebody_prunes_before_the_file_is_in_it_is_made_again(
    call: str, times: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage, make, prunings = LocalStorage(str(tmp_path)), storage_files._make_directories, iter(range(times))

    def pruned(path: str) -> None:
        make(path)
        if path.endswith("pending") and next(prunings, None) is not None:
            storage.prune("pending")

    monkeypatch.setattr(storage_files, "_make_directories", pruned)
    if times == 1:
        getattr(storage, call)("pending/part", b"1")
        assert storage.list("pending") == ["part"]
    else:
        with pytest.raises(StorageUnavailable, match="taken away again and again"):
            getattr(storage, call)("pending/part", b"1")


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE, errno.EACCES])
def test_a_disk_that_does_not_answer_is_not_taken_for_an_empty_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    storage = LocalStorage(str(tmp_path))
    with monkeypatch.context() as patch:
        patch.setattr(storage_files.os, "stat", fail)
        for look in (storage.is_file, storage.is_directory):
            with pytest.raises(StorageUnavailable, match=str(tmp_path)):
                look("")
    assert storage.is_directory("") and not storage.is_file("")


def test_a_half_written_temporary_file_is_never_listed(tmp_path: Path) -> None:
    storage = LocalStorage(str(tmp_path))
    (tmp_path / f"{storage_files.TEMPORARY}abc").write_bytes(b"half")
    assert storage.list("") == []
    assert storage.sizes("") == {}


def test_what_a_dead_writer_left_keeps_no_directory_and_what_a_live_one_writes_does(tmp_path: Path) -> None:
    storage = LocalStorage(str(tmp_path))
    for name in ("dead", "alive"):
        (tmp_path / name).mkdir()
        (tmp_path / name / f"{storage_files.TEMPORARY}abc").write_bytes(b"half")
    long_ago = time.time() - 2 * storage_files.ABANDONED_AFTER_S
    os.utime(tmp_path / "dead" / f"{storage_files.TEMPORARY}abc", (long_ago, long_ago))
    for name in ("dead", "alive"):
        storage.prune(name)
    assert storage.list("") == ["alive"]
    assert os.listdir(tmp_path / "alive") == [f"{storage_files.TEMPORARY}abc"]


class OneHdfsDirectory:
    """As much of HDFS's client as is asked for when a directory is removed."""

    def __init__(self, modified_ms: dict[str, float]) -> None:
        self.modified_ms = modified_ms
        self.deleted: list[str] = []

    def get_file_info(self, path: str) -> SimpleNamespace:
        return SimpleNamespace(isdir=True)

    def list_status(self, path: str, recursive: bool) -> Iterator[SimpleNamespace]:
        for name, modified_ms in self.modified_ms.items():
            yield SimpleNamespace(path=f"{path}/{name}", isdir=False, modification_time=modified_ms)

    def delete(self, path: str, recursive: bool) -> None:
        assert not recursive
        self.deleted.append(path)


def test_hdfs_too_removes_what_dead_writers_left_and_nothing_else() -> None:
    dead, alive = f"{storage_files.TEMPORARY}dead", f"{storage_files.TEMPORARY}alive"
    client: Any = OneHdfsDirectory({dead: 0, alive: time.time() * 1_000, "mine": 0})
    HdfsStorage(client, "/base", location="hdfs://base").prune("chk")
    assert client.deleted == [f"/base/chk/{dead}", "/base/chk"]


def test_a_file_that_vanishes_while_its_directory_is_listed_takes_no_other_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b", "c"):
        (tmp_path / name).write_bytes(b"12")

    class LastLook(list[os.DirEntry[str]]):
        """The entries of a directory as they were before a file was taken away."""

        def __enter__(self) -> LastLook:
            (tmp_path / "b").unlink(missing_ok=True)
            return self

        def __exit__(self, *error: object) -> None: ...

    scan = os.scandir
    monkeypatch.setattr(os, "scandir", lambda path: LastLook(scan(path)))
    storage = LocalStorage(str(tmp_path))
    assert storage.sizes("") == {"a": 2, "c": 2}
    assert sorted(storage.details("")) == ["a", "c"]
    assert storage.sizes("nowhere") == storage.details("nowhere") == {}


def test_memory_refuses_what_goes_beyond_its_limit_and_keeps_what_it_has() -> None:
    storage = MemoryStorage(10)
    storage.write("a", b"12345678")
    with pytest.raises(StorageFull, match="limit of 10"):
        storage.write("b", b"123")
    storage.write("a", b"1234567890")
    assert storage.used_bytes == 10
    storage.delete("a")
    storage.write("b", b"123")
    assert storage.list("") == ["b"]


def test_paths_cannot_leave_the_directory(tmp_path: Path) -> None:
    for storage in (LocalStorage(str(tmp_path)), MemoryStorage(100)):
        for path in ("../x", "/etc/x", "a/../../x"):
            with pytest.raises(ProtocolViolation):
                storage.write(path, b"")


def test_storage_errors_survive_pickling() -> None:
    error = pickle.loads(pickle.dumps(StorageFull("no room", path="x")))
    assert isinstance(error, StorageFull) and str(error) == "no room"


def test_a_move_whose_directory_could_not_be_synced_is_synced_by_the_next_try(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage, synced = LocalStorage(os.fspath(tmp_path)), []
    storage.write("pending/part", b"rows")

    def sync(directory: str) -> None:
        synced.append(directory)
        if len(synced) == 1:
            raise OSError(errno.EIO, "the disk does not answer")

    monkeypatch.setattr("weir.runtime.storage.stores.files._sync_directory", sync)
    with pytest.raises(StorageUnavailable):
        storage.move("pending/part", "part")
    with pytest.raises(FileNotFoundError):
        storage.move("pending/part", "part")
    assert synced == [os.fspath(tmp_path)] * 2
