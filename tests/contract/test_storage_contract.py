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
from tests.contract.storage_contract import Opened, ReadableStorageContract, StorageContract
from weir.runtime.storage.below import Below
from weir.runtime.storage.opening import open_storage
from weir.runtime.storage.stores.memory import MemoryStorage
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
    "object store": _objects,
    "asked again": _patient,
}


class TestStorages(ReadableStorageContract):
    @pytest.fixture(params=IMPLEMENTATIONS)
    def opened(self, request: pytest.FixtureRequest, tmp_path: Path) -> Opened:
        make: Callable[[Path], Opened] = IMPLEMENTATIONS[request.param]
        return make(tmp_path)


class TestADirectoryOfAnother(StorageContract):
    @pytest.fixture
    def opened(self) -> Opened:
        storage = MemoryStorage(MEMORY_BYTES)
        return lambda: Below(storage, "deeper")


class TestLyingStorageThatIsAskedAgain(ReadableStorageContract):
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
