"""Where keyed state lives in the tasks: frozen, and checked when made."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from weir.config.units import Bytes, Size, parse_units


@dataclass(frozen=True)
class Heap:
    """State lives in the memory of the Python processes: the fastest, as long as it fits."""


@dataclass(frozen=True)
class RocksDb:
    """State lives in RocksDB on a local disk, and may be larger than memory."""

    memory_max: Size = "512MB"
    """Most memory that the databases of one task take together, for what was written and read last."""

    directory: str | None = None
    """A local directory for them; None: one below the directory for temporary files."""

    memory_max_bytes = Bytes("memory_max")

    def __post_init__(self) -> None:
        parse_units(self)


StateBackend: TypeAlias = "Heap | RocksDb"

HEAP = Heap()
BACKENDS: dict[str, StateBackend] = {"heap": HEAP, "rocksdb": RocksDb()}
