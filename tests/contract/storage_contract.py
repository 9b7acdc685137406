"""What ports.py promises of a Storage, as tests that every implementation inherits.

A subclass gives the fixture `opened`: a function that opens the same, at first empty, place anew with each call.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

import pyarrow as pa
import pytest

from weir.runtime.ports import Storage
from weir.runtime.storage.stores.readable import ReadableStorage

Opened = Callable[[], Storage]
WRITERS = 16


class StorageContract:
    """Each test runs on an empty place."""

    @pytest.fixture
    def race_rounds(self) -> int:
        return 25

    @pytest.fixture
    def storage(self, opened: Opened) -> Storage:
        return opened()

    def test_what_was_written_is_read_back(self, storage: Storage) -> None:
        storage.write("a/b/data", pa.py_buffer(b"one"))
        storage.write("empty", b"")
        assert storage.read("a/b/data").to_pybytes() == b"one"
        assert storage.read("empty").to_pybytes() == b""

    def test_writing_again_replaces_the_content(self, storage: Storage) -> None:
        storage.write("data", b"half of a")
        storage.write("data", b"whole")
        assert storage.read("data").to_pybytes() == b"whole"

    def test_a_file_of_many_parts_is_read_back_and_moved(self, storage: Storage, large: bytes) -> None:
        storage.write("pending/large", pa.py_buffer(large))
        assert storage.read("pending/large").to_pybytes() == large
        storage.move("pending/large", "large")
        assert storage.read("large").to_pybytes() == large
        storage.write("pending/large", pa.py_buffer(large[:-1] + bytes([large[-1] ^ 1])))
        with pytest.raises(FileExistsError):
            storage.move("pending/large", "large")
        storage.write("pending/large", pa.py_buffer(large))
        storage.move("pending/large", "large")
        assert storage.list("pending") == []

    def test_publish_replaces_the_whole_content(self, storage: Storage) -> None:
        storage.publish("dir/latest", b"a long first version")
        storage.publish("dir/latest", b"short")
        assert storage.read("dir/latest").to_pybytes() == b"short"
        assert storage.list("dir") == ["latest"]

    def test_create_succeeds_once_and_then_changes_nothing(self, storage: Storage) -> None:
        assert storage.create("owner", b"first") is True
        assert storage.create("owner", b"second") is False
        assert storage.read("owner").to_pybytes() == b"first"
        assert storage.list("") == ["owner"]

    def test_create_succeeds_again_where_its_own_content_is(self, storage: Storage) -> None:
        """Whoever got no reply asks once more, and must not take its own work for somebody else's."""
        assert storage.create("dir/owner", b"mine") is True
        assert storage.create("dir/owner", b"mine") is True
        assert storage.create("dir/owner", b"mine, too") is False
        storage.delete("dir/owner")
        assert storage.create("dir/owner", b"") is True
        assert storage.create("dir/owner", b"") is True
        assert storage.create("dir/owner", b"theirs") is False

    def test_every_implementation_says_that_it_creates_atomically(self, storage: Storage) -> None:
        assert storage.creates_atomically
        assert storage.list("") == []

    def test_of_sixteen_creators_one_wins_in_every_round(self, opened: Opened, race_rounds: int) -> None:
        storages = [opened() for _ in range(WRITERS)]
        for number in range(race_rounds):
            winners = _race(storages, f"claims/{number:04}")
            assert len(winners) == 1
            assert storages[0].read(f"claims/{number:04}").to_pybytes() == winners[0]

    def test_of_sixteen_movers_to_one_name_one_wins(self, opened: Opened) -> None:
        storages = [opened() for _ in range(WRITERS)]
        for writer, storage in enumerate(storages):
            storage.write(f"pending/{writer}", str(writer).encode())
        won: list[int] = []

        def move(writer: int) -> None:
            try:
                storages[writer].move(f"pending/{writer}", "part")
            except FileExistsError:
                return
            won.append(writer)

        _together(move)
        assert len(won) == 1
        assert storages[0].read("part").to_pybytes() == str(won[0]).encode()
        assert sorted(storages[0].list("pending")) == sorted({str(n) for n in range(WRITERS)} - {str(won[0])})

    def test_a_missing_file_is_a_file_not_found_error(self, storage: Storage) -> None:
        with pytest.raises(FileNotFoundError):
            storage.read("nothing")
        with pytest.raises(FileNotFoundError):
            storage.read("no/such/file")
        with pytest.raises(FileNotFoundError):
            storage.move("nothing", "elsewhere")
        assert storage.list("") == []

    def test_list_names_files_and_directories_directly_below(self, storage: Storage) -> None:
        for path in ("one", "dir/two", "dir/sub/three"):
            storage.write(path, b"x")
        assert storage.list("") == ["dir", "one"]
        assert storage.list("dir") == ["sub", "two"]
        assert storage.list("no such directory") == []

    def test_names_may_hold_odd_characters(self, storage: Storage) -> None:
        names = sorted(["with space", "per%20cent%", "plus+and=", "ünïcode", "a#b?c", "[x]{y}~", "semi;comma,@!$&'()"])
        for name in names:
            storage.write(f"dir of {name}/{name}", name.encode())
        assert storage.list("") == sorted(f"dir of {name}" for name in names)
        for name in names:
            assert storage.list(f"dir of {name}") == [name]
            assert storage.read(f"dir of {name}/{name}").to_pybytes() == name.encode()
            storage.delete(f"dir of {name}/{name}")

    def test_delete_takes_files_and_whole_directories_and_minds_nothing_missing(self, storage: Storage) -> None:
        for path in ("one", "dir/two", "dir/sub/three", "direct"):
            storage.write(path, b"x")
        storage.delete("dir")
        storage.delete("one")
        storage.delete("one")
        storage.delete("dir/never/was")
        assert storage.list("") == ["direct"]
        with pytest.raises(FileNotFoundError):
            storage.read("dir/sub/three")

    def test_several_may_delete_one_directory_at_once(self, opened: Opened) -> None:
        storages = [opened() for _ in range(WRITERS)]
        for number in range(60):
            storages[0].write(f"dir/{number % 7}/{number}", b"x")
        _together(lambda writer: storages[writer].delete("dir"))
        assert storages[0].list("dir") == []

    def test_move_takes_the_file_to_its_new_place_and_nowhere_else(self, storage: Storage) -> None:
        storage.write("pending/part", b"rows")
        storage.move("pending/part", "done/part")
        assert storage.read("done/part").to_pybytes() == b"rows"
        assert storage.list("pending") == []
        with pytest.raises(FileNotFoundError):
            storage.move("pending/part", "done/part")
        assert storage.read("done/part").to_pybytes() == b"rows"

    def test_an_empty_file_is_moved_too(self, storage: Storage) -> None:
        storage.write("pending/part", b"")
        storage.move("pending/part", "part")
        assert storage.read("part").to_pybytes() == b""

    def test_move_never_replaces_another_file(self, storage: Storage) -> None:
        storage.write("old", b"old")
        storage.write("new", b"new")
        with pytest.raises(FileExistsError):
            storage.move("new", "old")
        assert storage.read("old").to_pybytes() == b"old"
        assert storage.read("new").to_pybytes() == b"new"

    def test_a_move_that_was_cut_off_is_completed_by_the_next(self, storage: Storage) -> None:
        storage.write("pending/part", b"rows")
        storage.write("part", b"rows")
        storage.move("pending/part", "part")
        assert storage.read("part").to_pybytes() == b"rows"
        assert storage.list("pending") == []

    def test_a_file_is_a_directory_with_nothing_in_it(self, storage: Storage) -> None:
        storage.write("dir/file", b"x")
        assert storage.list("dir/file") == []

    def test_prune_removes_only_what_is_empty(self, storage: Storage) -> None:
        for path in ("full/one", "empty/one"):
            storage.write(path, b"x")
        storage.delete("empty/one")
        for path in ("full", "empty", "never was", "full/one"):
            storage.prune(path)
        assert storage.list("") == ["full"]
        assert storage.list("full") == ["one"]

    @pytest.fixture
    def large(self) -> bytes:
        return os.urandom(1 << 20) * 12


def _race(storages: list[Storage], path: str) -> list[bytes]:
    """What each of those wrote that were told that they had created the file."""
    winners: list[bytes] = []

    def create(writer: int) -> None:
        mine = f"writer {writer} of {path}".encode()
        if storages[writer].create(path, mine):
            winners.append(mine)

    _together(create)
    return winners


class ReadableStorageContract(StorageContract):
    """What must hold besides of one that reads parts of files."""

    @pytest.fixture
    def readable(self, opened: Callable[[], ReadableStorage]) -> ReadableStorage:
        return opened()

    def test_below_a_file_there_is_nothing(self, readable: ReadableStorage) -> None:
        readable.write("dir/file", b"x")
        assert not readable.is_file("dir/file/below") and not readable.is_directory("dir/file/below")
        for look in (readable.read, readable.detail, readable.open_input):
            with pytest.raises(FileNotFoundError):
                look("dir/file/below")

    def test_a_file_has_no_sizes_of_what_is_in_it(self, readable: ReadableStorage) -> None:
        readable.write("dir/file", b"x")
        assert readable.sizes("dir/file") == {}

    def test_sizes_and_parts_of_files_can_be_read(self, readable: ReadableStorage) -> None:
        readable.write("dir/file", b"0123456789")
        readable.write("dir/sub/other", b"x")
        assert readable.sizes("dir") == {"file": 10}
        assert readable.sizes("nowhere") == {}
        with readable.open_input("dir/file") as file:
            assert file.size() == 10
            file.seek(4)
            assert file.read(3) == b"456"
            assert file.read(10) == b"789"
            assert file.read(10) == b""
        assert readable.is_file("dir/file") and not readable.is_file("dir") and not readable.is_file("dir/nothing")
        assert (
            readable.is_directory("dir")
            and not readable.is_directory("dir/file")
            and not readable.is_directory("nowhere")
        )
        with pytest.raises(FileNotFoundError):
            readable.open_input("dir/nothing")

    def test_a_large_file_is_read_in_pieces(self, readable: ReadableStorage, large: bytes) -> None:
        readable.write("large", pa.py_buffer(large))
        middle = len(large) // 2
        with readable.open_input("large") as file:
            file.seek(middle)
            assert file.read(5) == large[middle : middle + 5]
            assert file.read(3 << 20) == large[middle + 5 : middle + 5 + (3 << 20)]
            file.seek(len(large) - 3)
            assert file.read() == large[-3:]


def _together(act: Callable[[int], None]) -> None:
    """Run `act` for each writer, in threads that start at once; raise what any of them raised."""
    start = threading.Barrier(WRITERS)
    errors: list[BaseException] = []

    def run(writer: int) -> None:
        start.wait()
        try:
            act(writer)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(writer,)) for writer in range(WRITERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
