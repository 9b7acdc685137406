"""Storage in memory: its limit."""

from __future__ import annotations

import pytest

from weir.errors import StorageFull
from weir.runtime.storage.stores.memory import MemoryStorage


def test_memory_refuses_what_goes_beyond_its_limit_and_keeps_what_it_has() -> None:
    storage = MemoryStorage(10)
    storage.write("a", b"12345678")
    with pytest.raises(StorageFull, match="limit of 10"):
        storage.write("b", b"123")
    storage.write("a", b"1234567890")
    storage.delete("a")
    storage.write("b", b"123")
    assert storage.list("") == ["b"]
