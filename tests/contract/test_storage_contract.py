"""One suite for every implementation of the Storage port: what ports.py promises holds everywhere."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.fs as arrow_fs
import pytest

from weir.runtime.ports import Storage
from weir.runtime.storage import Below, MemoryStorage, open_storage, readable
from weir.runtime.storage_files import ArrowStorage


class _ObjectStore(ArrowStorage):
    """The object-store side of ArrowStorage, without a network."""

    def __init__(self) -> None:
        super().__init__(arrow_fs._MockFileSystem(), "bucket/root", location="mock://bucket/root")
        self._is_object_store = True

    def _make_parent(self, target: str) -> None:
        self._fs.create_dir(target.rpartition("/")[0], recursive=True)


def _local(directory: Path) -> Storage:
    return open_storage(directory / "root")


def _uri(directory: Path) -> Storage:
    return open_storage((directory / "with space").as_uri())


def _arrow(directory: Path) -> Storage:
    return ArrowStorage(arrow_fs.LocalFileSystem(), str(directory / "root"), location="arrow")


IMPLEMENTATIONS: dict[str, Callable[[Path], Storage]] = {
    "local": _local,
    "file URI": _uri,
    "pyarrow": _arrow,
    "object store": lambda _: _ObjectStore(),
    "memory": lambda _: MemoryStorage(1 << 20),
    "directory of another": lambda _: Below(MemoryStorage(1 << 20), "deeper"),
}


@pytest.fixture(params=IMPLEMENTATIONS)
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    return IMPLEMENTATIONS[request.param](tmp_path)


def test_what_was_written_is_read_back(storage: Storage) -> None:
    storage.write("a/b/data", pa.py_buffer(b"one"))
    storage.write("empty", b"")
    assert storage.read("a/b/data").to_pybytes() == b"one"
    assert storage.read("empty").to_pybytes() == b""


def test_publish_replaces_the_whole_content(storage: Storage) -> None:
    storage.publish("dir/latest", b"a long first version")
    storage.publish("dir/latest", b"short")
    assert storage.read("dir/latest").to_pybytes() == b"short"
    assert storage.list("dir") == ["latest"]


def test_create_succeeds_once_and_then_changes_nothing(storage: Storage) -> None:
    assert storage.create("owner", b"first") is True
    assert storage.create("owner", b"second") is False
    assert storage.read("owner").to_pybytes() == b"first"
    assert storage.list("") == ["owner"]


def test_a_missing_file_is_a_file_not_found_error(storage: Storage) -> None:
    with pytest.raises(FileNotFoundError):
        storage.read("nothing")
    with pytest.raises(FileNotFoundError):
        storage.read("no/such/file")
    with pytest.raises(FileNotFoundError):
        storage.move("nothing", "elsewhere")
    assert storage.list("") == []


def test_list_names_files_and_directories_directly_below(storage: Storage) -> None:
    for path in ("one", "dir/two", "dir/sub/three"):
        storage.write(path, b"x")
    assert sorted(storage.list("")) == ["dir", "one"]
    assert sorted(storage.list("dir")) == ["sub", "two"]
    assert storage.list("no such directory") == []


def test_delete_takes_files_and_whole_directories_and_minds_nothing_missing(storage: Storage) -> None:
    for path in ("one", "dir/two", "dir/sub/three", "direct"):
        storage.write(path, b"x")
    storage.delete("dir")
    storage.delete("one")
    storage.delete("one")
    storage.delete("dir/never/was")
    assert storage.list("") == ["direct"]
    with pytest.raises(FileNotFoundError):
        storage.read("dir/sub/three")


def test_move_takes_the_file_to_its_new_place_and_nowhere_else(storage: Storage) -> None:
    storage.write("pending/part", b"rows")
    storage.move("pending/part", "done/part")
    assert storage.read("done/part").to_pybytes() == b"rows"
    assert storage.list("pending") == []
    with pytest.raises(FileNotFoundError):
        storage.move("pending/part", "done/part")
    assert storage.read("done/part").to_pybytes() == b"rows"


def test_move_never_replaces_another_file(storage: Storage) -> None:
    storage.write("old", b"old")
    storage.write("new", b"new")
    with pytest.raises(FileExistsError):
        storage.move("new", "old")
    assert storage.read("old").to_pybytes() == b"old"
    assert storage.read("new").to_pybytes() == b"new"


def test_a_move_that_was_cut_off_is_completed_by_the_next(storage: Storage) -> None:
    storage.write("pending/part", b"rows")
    storage.write("part", b"rows")
    storage.move("pending/part", "part")
    assert storage.read("part").to_pybytes() == b"rows"
    assert storage.list("pending") == []


def test_prune_removes_only_what_is_empty(storage: Storage) -> None:
    for path in ("full/one", "empty/one"):
        storage.write(path, b"x")
    storage.delete("empty/one")
    for path in ("full", "empty", "never was", "full/one"):
        storage.prune(path)
    assert storage.list("") == ["full"]
    assert storage.list("full") == ["one"]


def test_sizes_and_parts_of_files_can_be_read(storage: Storage) -> None:
    storage.write("dir/file", b"0123456789")
    storage.write("dir/sub/other", b"x")
    able = readable(storage)
    assert able.sizes("dir") == {"file": 10}
    assert able.sizes("nowhere") == {}
    with able.open_input("dir/file") as file:
        file.seek(4)
        assert file.read(3) == b"456"
    assert able.is_file("dir/file") and not able.is_file("dir") and not able.is_file("dir/nothing")
    assert able.is_directory("dir") and not able.is_directory("dir/file") and not able.is_directory("nowhere")
    with pytest.raises(FileNotFoundError):
        able.open_input("dir/nothing")


def test_only_one_of_many_creators_wins(storage: Storage) -> None:
    if isinstance(storage, ArrowStorage):
        pytest.skip("documented: create looks first and then writes")
    won: list[int] = []
    start = threading.Barrier(8)

    def create(number: int) -> None:
        start.wait()
        if storage.create("owner", str(number).encode()):
            won.append(number)

    threads = [threading.Thread(target=create, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1
    assert storage.read("owner").to_pybytes() == str(won[0]).encode()


def test_a_storage_with_the_bare_port_is_readable_too(storage: Storage) -> None:
    class Bare:
        write, read, list = storage.write, storage.read, storage.list

    if isinstance(storage, MemoryStorage):
        able = readable(Bare())  # type: ignore[arg-type]
        able.write("dir/file", b"0123")
        able.write("dir/sub/file", b"x")
        assert able.sizes("dir") == {"file": 4}
        assert able.open_input("dir/file").read() == b"0123"
        assert able.is_file("dir/file") and able.is_directory("dir") and not able.is_directory("x")
