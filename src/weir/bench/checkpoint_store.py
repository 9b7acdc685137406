"""What storage costs a checkpoint: the latency of each call, the speed of large files, and a checkpoint of many files.

Comes in: a location. Goes out: a report, `verified` when every byte came back as it was written and of two creators
of one file the second was refused. Works in a directory of its own below the location, and removes it.
"""

from __future__ import annotations

import hashlib
import os
import time
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeVar

import pyarrow as pa

from weir.bench.harness import BenchReport
from weir.config import Size, size_bytes
from weir.runtime.ports import Storage
from weir.runtime.storage.locations import location_below, shown_location
from weir.runtime.storage.opening import open_storage, open_writable

T = TypeVar("T")

SMALL_BYTES = 1_024
MANIFEST_BYTES = 16_384
LARGE_FILES = 3
_MB = 1 << 20


@dataclass(frozen=True)
class StoreOptions:
    """What is measured."""

    to: str = field(repr=False)
    calls: int = 50
    """How often each call is made."""
    files: int = 64
    file_size: Size = "256KB"
    """A checkpoint's files, and how large each is."""
    large_size: Size = "64MB"
    threads: int = 4
    """How many files are written or read at once, as by the tasks of a job."""


@dataclass
class _Measured:
    """Milliseconds of calls by their name, and whether all came out right."""

    verified: bool = True
    calls_ms: dict[str, list[float]] = field(default_factory=dict)

    def timed(self, name: str, act: Callable[..., T], *arguments: Any) -> T:
        start = time.perf_counter()
        result = act(*arguments)
        self.calls_ms.setdefault(name, []).append((time.perf_counter() - start) * 1_000)
        return result

    def expect(self, right: bool) -> None:
        self.verified = self.verified and right

    def latencies(self) -> dict[str, Any]:
        return {
            f"{name}_{quantile}_ms": round(_quantile(values, share), 2)
            for name, values in self.calls_ms.items()
            for quantile, share in (("p50", 0.5), ("p99", 0.99))
        }


def run_checkpoint_store(options: StoreOptions) -> BenchReport:
    """Measure a location."""
    place = location_below(options.to, f"weir-bench-{uuid.uuid4().hex}")
    storage = open_writable(place, "--to: the location", open_storage)
    measured = _Measured()
    start = time.perf_counter()
    try:
        measured.expect(storage.creates_atomically)
        _small_files(storage, options, measured)
        large = _large_files(storage, options, measured)
        whole = _checkpoint(storage, options, measured)
    finally:
        storage.delete("")
    measured.expect(storage.list("") == [])
    seconds = time.perf_counter() - start
    calls = sum(map(len, measured.calls_ms.values()))
    return BenchReport(
        workload="checkpoint-store",
        events=calls,
        seconds=round(seconds, 3),
        events_per_s=round(calls / seconds, 1),
        checkpoints=1,
        verified=measured.verified,
        parallelism=options.threads,
        more={"to": shown_location(options.to), **measured.latencies(), **large, **whole},
    )


def _small_files(storage: Storage, options: StoreOptions, measured: _Measured) -> None:
    contents = {f"{number:05}": os.urandom(SMALL_BYTES) for number in range(options.calls)}
    for name, data in contents.items():
        measured.timed("write", storage.write, f"small/{name}", data)
    for name, data in contents.items():
        measured.timed("publish", storage.publish, f"small/{name}", data)
    for name, data in contents.items():
        claim = f"claims/{name}"
        measured.expect(measured.timed("create", storage.create, claim, data))
        measured.expect(not measured.timed("create_refused", storage.create, claim, os.urandom(SMALL_BYTES)))
        measured.expect(storage.read(claim).to_pybytes() == data)
    for name, data in contents.items():
        measured.expect(measured.timed("read", storage.read, f"small/{name}").to_pybytes() == data)
        measured.expect(measured.timed("list", storage.list, "small") == list(contents))
    for name, data in contents.items():
        measured.timed("move", storage.move, f"small/{name}", f"moved/{name}")
        measured.expect(storage.read(f"moved/{name}").to_pybytes() == data)
        measured.timed("delete", storage.delete, f"moved/{name}")
    measured.expect(storage.list("small") == [] and storage.list("moved") == [])


def _large_files(storage: Storage, options: StoreOptions, measured: _Measured) -> dict[str, Any]:
    large_bytes = size_bytes(options.large_size, "--large-size")
    data = pa.py_buffer(os.urandom(large_bytes))
    digest = _digest(data)
    for number in range(LARGE_FILES):
        measured.timed("large_write", storage.write, f"large/{number}", data)
    for number in range(LARGE_FILES):
        found = measured.timed("large_read", storage.read, f"large/{number}")
        measured.expect(_digest(found) == digest)
    totals = {name: sum(measured.calls_ms.pop(name)) / 1_000 for name in ("large_write", "large_read")}
    return {
        f"{name}_mb_per_s": round(LARGE_FILES * large_bytes / _MB / max(seconds, 1e-9), 1)
        for name, seconds in totals.items()
    }


def _checkpoint(storage: Storage, options: StoreOptions, measured: _Measured) -> dict[str, Any]:
    """Files of several tasks at once, then the manifest; restored; deleted."""
    contents = [os.urandom(size_bytes(options.file_size, "--file-size")) for _ in range(options.files)]
    with ThreadPoolExecutor(options.threads) as threads:
        begun = time.perf_counter()
        list(threads.map(lambda n: storage.write(f"chk/{n:06}", contents[n]), range(options.files)))
        measured.expect(storage.create("chk/manifest.json", os.urandom(MANIFEST_BYTES)))
        written = time.perf_counter()
        found = list(threads.map(lambda n: storage.read(f"chk/{n:06}"), range(options.files)))
        restored = time.perf_counter()
    measured.expect([buffer.to_pybytes() for buffer in found] == contents)
    deleting = time.perf_counter()
    storage.delete("chk")
    deleted = time.perf_counter()
    measured.expect(storage.list("chk") == [])
    return {
        "checkpoint_files": options.files,
        "checkpoint_write_ms": round((written - begun) * 1_000, 1),
        "checkpoint_restore_ms": round((restored - written) * 1_000, 1),
        "checkpoint_delete_ms": round((deleted - deleting) * 1_000, 1),
    }


def _digest(data: pa.Buffer) -> bytes:
    return hashlib.blake2b(memoryview(data)).digest()


def _quantile(values: Sequence[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]
