"""The allocator is tidied now and then, and only where it can be."""

from __future__ import annotations

import ctypes
import platform
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from weir.runtime.task.memory import ARENAS_MAX, FREE_BYTES_MAX, TRIM_INTERVAL_MS, Allocator


def test_free_pages_go_back_once_in_an_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[Any, ...]] = []
    library = SimpleNamespace(
        malloc_trim=lambda pad: calls.append(("trim", pad)), mallopt=lambda *given: calls.append(given)
    )
    monkeypatch.setattr(ctypes, "CDLL", lambda name: library)
    monkeypatch.setattr(pa, "set_memory_pool", lambda pool: None)
    allocator = Allocator()
    assert [value for _, value in calls] == [ARENAS_MAX]
    for now_ms in (TRIM_INTERVAL_MS, TRIM_INTERVAL_MS + 1, 2 * TRIM_INTERVAL_MS, 2.5 * TRIM_INTERVAL_MS):
        allocator.tidy(now_ms)
    assert calls[1:] == [("trim", 0), ("trim", 0)]


def test_free_pages_go_back_sooner_where_there_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    trims, free_bytes = counted_trims(monkeypatch)
    allocator = Allocator()
    for now_ms, free_bytes[0] in ((1, 0), (2, FREE_BYTES_MAX - 1), (3, FREE_BYTES_MAX), (4, 0)):
        allocator.tidy(now_ms)
    assert len(trims) == 1


def test_free_memory_that_cannot_go_back_is_not_looked_at_with_each_heartbeat(monkeypatch: pytest.MonkeyPatch) -> None:
    trims, free_bytes = counted_trims(monkeypatch)
    allocator, most = Allocator(), FREE_BYTES_MAX
    found: list[int] = []
    # Free pieces between others stay free when their pages are gone: the C library counts them as before.
    for now_ms, free_bytes[0] in enumerate((9 * most, 9 * most, 9 * most, 10 * most, 10 * most, most, 2 * most), 1):
        allocator.tidy(now_ms)
        found.append(len(trims))
    assert found == [1, 1, 1, 2, 2, 2, 3]


def counted_trims(monkeypatch: pytest.MonkeyPatch) -> tuple[list[int], list[int]]:
    """A C library whose trims are counted; the first of the other list is what it says is free."""
    trims: list[int] = []
    free_bytes = [0]
    library = SimpleNamespace(
        malloc_trim=trims.append,
        mallopt=lambda *given: None,
        mallinfo2=Callable(lambda: SimpleNamespace(fordblks=free_bytes[0])),
    )
    monkeypatch.setattr(ctypes, "CDLL", lambda name: library)
    monkeypatch.setattr(pa, "set_memory_pool", lambda pool: None)
    return trims, free_bytes


class Callable:
    """A function of a C library."""

    def __init__(self, call: Any) -> None:
        self._call = call

    def __call__(self) -> Any:
        return self._call()


def test_another_c_library_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda name: SimpleNamespace())
    Allocator().tidy(1e9)


def test_it_works_here_and_arrow_uses_the_same_allocator() -> None:
    before = pa.default_memory_pool()
    try:
        Allocator().tidy(1e9)
        if platform.libc_ver()[0] == "glibc":
            assert pa.default_memory_pool().backend_name == "system"
            assert Allocator()._free_bytes() > 0
    finally:
        pa.set_memory_pool(before)
