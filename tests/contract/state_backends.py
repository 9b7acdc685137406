"""The state backends that the contract suites run against, each with a clock of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa

from tests.states import as_restored, table_of
from weir.config import Heap, RocksDb, StateBackend
from weir.state.backend import Backend, declare
from weir.state.backends import make_backend
from weir.state.declared.kinds import KeyedState
from weir.state.place import StatePlace

MAX_PARALLELISM = 128
KEYS = pa.schema([("k", pa.int64())])


def backends() -> dict[str, StateBackend]:
    """Every backend, as a job chooses it."""
    return {"heap": Heap(), "rocksdb": RocksDb("32MB")}


class Maker:
    """Makes empty backends of one kind. The clock stands at `now_ms` until a test moves it."""

    def __init__(self, choice: StateBackend, directory: Path) -> None:
        self._choice = choice
        self._directory = directory
        self._made = 0
        self.now_ms = 1_000_000

    def __call__(self, schema: pa.Schema = KEYS, groups: range = range(MAX_PARALLELISM)) -> Backend:
        self._made += 1
        place = StatePlace(self._choice, str(self._directory / str(self._made)), now_ms=lambda: self.now_ms)
        return make_backend(schema, max_parallelism=MAX_PARALLELISM, key_groups=groups, place=place)


class At:
    """A backend with one state, at any key."""

    def __init__(self, backend: Backend, state: KeyedState) -> None:
        self.backend = backend
        self.handle = declare(backend, state.named("s"))

    def __call__(self, key: int = 1) -> Any:
        self.backend.cursor.key = self.backend.keys([pa.array([key])])[0]
        return self.handle

    def table(self) -> pa.Table:
        frozen = self.backend.freeze()["s"]
        table = table_of(frozen)
        frozen.released()
        return table


def moved(make: Maker, at: At, state: KeyedState) -> At:
    """The same state in a new backend, which has restored it; perhaps declared anew."""
    again = At(make(), state)
    again.backend.restore(as_restored({"s": [at.table()]}))
    return again
