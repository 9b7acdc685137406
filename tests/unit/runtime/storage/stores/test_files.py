"""Local files as storage: what is synced when, what others see of half a change, and its errors."""

from __future__ import annotations

import errno
import os
import pickle
import time
from pathlib import Path

import pytest

from weir.errors import ProtocolViolation, StorageFull, StorageUnavailable
from weir.runtime.storage.stores import files as storage_files
from weir.runtime.storage.stores import renames as local_names
from weir.runtime.storage.stores.files import LocalStorage
from weir.runtime.storage.stores.memory import MemoryStorage


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
