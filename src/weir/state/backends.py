"""The backend that a job has chosen.

Comes in: the keys of an operator, and the place where its state lives. Goes out: a
`Backend`. RocksDB is imported only where it is wanted.
"""

from __future__ import annotations

import pyarrow as pa

from weir.config import Heap, RocksDb
from weir.errors import ConfigError
from weir.state.backend import Backend
from weir.state.heap.backend import HeapBackend
from weir.state.place import StatePlace


def make_backend(key_schema: pa.Schema, *, max_parallelism: int, key_groups: range, place: StatePlace) -> Backend:
    """An empty backend for one operator of one subtask."""
    if isinstance(place.backend, Heap):
        return HeapBackend(key_schema, max_parallelism=max_parallelism, key_groups=key_groups, place=place)
    if isinstance(place.backend, RocksDb):
        from weir.state.rocks.backend import RocksBackend

        return RocksBackend(key_schema, max_parallelism=max_parallelism, key_groups=key_groups, place=place)
    raise ConfigError(f"there is no state backend {place.backend!r}")
