"""One suite for every implementation of the Storage port: what ports.py promises holds everywhere.

The same suite runs against real servers in tests/services.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest
from obstore.store import MemoryStore

from tests.contract.lying_storage import LyingStorage
from tests.contract.storage_contract import Opened, StorageContract
from weir.runtime.storage.locations import Below, MemoryStorage, open_storage, readable
from weir.runtime.storage.stores.objects import ObjectStorage
from weir.runtime.storage.stores.retry import Patience, PatientStorage

MEMORY_BYTES = 1 << 26
ENOUGH = Patience(retries_max=60, initial_ms=1, maximum_ms=1)


def _local(directory: Path) -> Opened:
    return lambda: open_storage(directory / "root")


def _uri(directory: Path) -> Opened:
    return lambda: open_storage((directory / "with space").as_uri())


def _memory(directory: Path) -> Opened:
    storage = MemoryStorage(MEMORY_BYTES)
    return lambda: storage


def _below(directory: Path) -> Opened:
    storage = MemoryStorage(MEMORY_BYTES)
    return lambda: Below(storage, "deeper")


def _objects(directory: Path) -> Opened:
    store = MemoryStore()
    return lambda: ObjectStorage(store, "some/directory", location="memory://bucket/some/directory")


def _patient(directory: Path) -> Opened:
    storage = MemoryStorage(MEMORY_BYTES)
    return lambda: PatientStorage(storage, Patience())


IMPLEMENTATIONS: dict[str, Callable[[Path], Opened]] = {
    "local": _local,
    "file URI": _uri,
    "memory": _memory,
    "directory of another": _below,
    "object store": _objects,
    "asked again": _patient,
}


class TestStorages(StorageContract):
    @pytest.fixture(params=IMPLEMENTATIONS)
    def opened(self, request: pytest.FixtureRequest, tmp_path: Path) -> Opened:
        make: Callable[[Path], Opened] = IMPLEMENTATIONS[request.param]
        return make(tmp_path)


class TestLyingStorageThatIsAskedAgain(StorageContract):
    """No answer can be trusted, and yet each promise holds. Ten seeds of each."""

    @pytest.fixture
    def race_rounds(self) -> int:
        return 100

    @pytest.fixture(params=range(10), ids=lambda seed: f"seed {seed}")
    def opened(self, request: pytest.FixtureRequest) -> Opened:
        seed = int(request.param)
        storage = LyingStorage(MEMORY_BYTES, seed)
        draws = random.Random(seed)
        return lambda: PatientStorage(storage, ENOUGH, pause_s=lambda seconds: None, draw=draws.random)


def test_a_storage_with_the_bare_port_is_readable_too() -> None:
    storage = MemoryStorage(1 << 20)

    class Bare:
        write, read, list = storage.write, storage.read, storage.list

    able = readable(Bare())  # type: ignore[arg-type]
    able.write("dir/file", b"0123")
    able.write("dir/sub/file", b"x")
    assert able.sizes("dir") == {"file": 4}
    assert able.open_input("dir/file").read() == b"0123"
    assert able.is_file("dir/file") and able.is_directory("dir") and not able.is_directory("x")
