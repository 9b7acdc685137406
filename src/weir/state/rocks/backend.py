"""Keyed state in RocksDB: on a local disk, larger than memory if need be.

Comes in: the current key, and values. Goes out: handles, and frozen databases. Each state
has a database of its own, so that a checkpoint's part stands for itself: it can be opened,
dropped or changed without the others. They share one budget of memory.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from weir.errors import CheckpointError, PlanError
from weir.state.declared.cursor import Key
from weir.state.declared.tables import Shape, TableLayout
from weir.state.frozen import FrozenState, RestoredState
from weir.state.heap.backend import HeapBackend
from weir.state.place import StatePlace
from weir.state.rocks.cells import HeldCodec, RocksCells
from weir.state.rocks.converting import ConvertingDatabase, Evolution
from weir.state.rocks.database import Memory
from weir.state.rocks.keys import RocksKeys
from weir.state.rocks.maps import RocksMaps
from weir.state.rocks.snapshot import STAMP_BYTES, RocksLayout
from weir.state.rocks.store import RocksStore, local_place
from weir.state.rocks.values import check_value_type
from weir.state.values.conversion import to_list
from weir.state.values.evolution import EVOLVED

SWEPT_ENTRIES_LEAST = 16
SWEPT_ENTRIES_PER_KEY = 2
"""Entries that are looked at with each batch, whether they have expired."""

CONVERTED_ENTRIES_LEAST = 256
CONVERTED_ENTRIES_PER_KEY = 1
"""Entries of a restored type that are converted with each batch."""


class RocksBackend(HeapBackend):
    """Keyed state of one subtask, one database per state."""

    keys_at_once = 8_192

    def __init__(self, key_schema: pa.Schema, *, max_parallelism: int, key_groups: range, place: StatePlace) -> None:
        super().__init__(key_schema, max_parallelism=max_parallelism, key_groups=key_groups, place=place)
        self._directory, budget_bytes = local_place(place)
        self._encoded = RocksKeys(key_schema, max_parallelism)
        self.cursor.shown = self._encoded.shown
        self._begun: set[Key] = set()
        self._shown: dict[Key, Any] = {}
        """Keys of the batch as users know them, once some were asked for."""
        self._memory = Memory(budget_bytes)
        self._tables: dict[str, _Table] = {}

    def keys(self, columns: Sequence[pa.Array]) -> list[Key]:
        return self._encoded.encode(columns)

    def columns(self, keys: Sequence[Key]) -> list[pa.Array]:
        return self._encoded.decode(keys)[1]

    def shown(self, key: Key) -> Any:
        """Where one is asked for after the other, as `context.key` is for rows, those of a batch are made at once."""
        if key not in self._shown:
            some = self._begun if self._shown and key in self._begun else {key}
            self._shown.update(zip(some, self._encoded.all_shown(list(some)), strict=True))
        return self._shown[key]

    def _declare(
        self, shape: Shape, owner: Any, default: Any, decode: Callable[[pa.Array], list[Any]] = to_list
    ) -> None:
        if not shape.name:
            raise PlanError("a state needs a name")
        if shape.name in self._tables:
            raise PlanError(f"state {shape.name!r} is declared twice")
        check_value_type(shape.column_type, shape.name)
        directory = os.path.join(self._directory, str(len(self._tables)))
        layout = TableLayout(self._encoded.schema, shape)
        packed = RocksLayout(layout.schema, keys=len(layout.keys), max_parallelism=self._max_parallelism)
        table = self._tables[shape.name] = _Table(RocksStore(directory, packed, self._memory), layout)
        codec = HeldCodec(shape, decode)
        if shape.key_type is None:
            owner.data = table.cells = RocksCells(table.store.database, codec, default)
        else:
            owner.data = table.cells = RocksMaps(table.store.database, codec, shape.key_type)

    def begin(self, keys: Sequence[Key]) -> None:
        distinct = self._begun = set(keys)
        self._shown = {}
        for table in self._tables.values():
            table.cells.prefetch(distinct)
            table.sweep(SWEPT_ENTRIES_LEAST + SWEPT_ENTRIES_PER_KEY * len(keys), self._now_ms)
            table.convert(CONVERTED_ENTRIES_LEAST + CONVERTED_ENTRIES_PER_KEY * len(keys))

    def end(self) -> None:
        for table in self._tables.values():
            table.cells.write()

    def freeze(self) -> Mapping[str, FrozenState]:
        now_ms = self._now_ms()
        return {name: table.freeze(now_ms) for name, table in self._tables.items()}

    def restore(self, states: Mapping[str, RestoredState]) -> None:
        for name, restored in states.items():
            if name not in self._tables:
                known = ", ".join(sorted(self._tables)) or "none"
                raise CheckpointError(
                    f"the checkpoint holds state {name!r}, which the function does not declare ({known})"
                )
            self._tables[name].restore(restored, self._key_groups, self._now_ms())

    def close(self) -> None:
        for table in self._tables.values():
            table.store.close()


class _Table:
    """One state: its database, and what lies between it and the handles."""

    cells: RocksCells | RocksMaps

    def __init__(self, store: RocksStore, layout: TableLayout) -> None:
        self.store = store
        self._layout = layout
        self._swept = b""

    def freeze(self, now_ms: int) -> FrozenState:
        self.cells.write()
        ttl = self._layout.shape.ttl

        def alive(table: pa.Table) -> pa.Table:
            return table if ttl is None else table.filter(pc.greater(table.columns[-1], now_ms - ttl.after_ms))

        return self.store.freeze(alive)

    def sweep(self, entries_max: int, now_ms: Callable[[], int]) -> None:
        """Look at some entries, where the last call ended, and delete those that have expired."""
        ttl = self._layout.shape.ttl
        if ttl is None:
            return
        limit_ms = now_ms() - ttl.after_ms
        entries = list(islice(self.store.database.scan_from(self._swept), entries_max))
        expired = [key for key, value in entries if _touched_ms(value) <= limit_ms]
        if expired:
            self.store.database.write((), expired)
        self._swept = entries[-1][0] if len(entries) == entries_max else b""

    def convert(self, entries_max: int) -> None:
        """Convert some of the values that are still of the type that was restored."""
        if isinstance(self.store.database, ConvertingDatabase):
            self.store.database.convert(entries_max)

    def _evolution(self, old: RocksLayout) -> Evolution | None:
        """How restored values are converted one by one; None: the whole table is to be adapted at once. What users'
        functions migrate is: they know the type that was restored, and nobody after them does."""
        if self._layout.plan(old.schema) != EVOLVED:
            return None
        return Evolution.between(old, self.store.layout, self._layout.shape.default)

    def restore(self, restored: RestoredState, key_groups: range, now_ms: int) -> None:
        def adapt(table: pa.Table) -> pa.Table:
            adapted = self._layout.adapted(table, now_ms)
            self._layout.check_groups(adapted, key_groups)
            return adapted

        self.store.restore(restored, adapt=adapt, name=self._layout.shape.name, evolution=self._evolution)
        self.cells.attach(self.store.database)


def _touched_ms(value: bytes) -> int:
    return int.from_bytes(value[:STAMP_BYTES], "little", signed=True)
