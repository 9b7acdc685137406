"""Keyed state in Python dictionaries: the default backend.

Comes in: the current key, and values. Goes out: handles, and views of all values as they
were at a barrier, from which another thread makes tables (tables.py). Freezing
takes no longer for more keys: see declared/cells.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from weir.errors import CheckpointError, PlanError
from weir.state.declared.cells import Cells, Layers, MapCells
from weir.state.declared.changed import ChangedRows
from weir.state.declared.cursor import Key, KeyCursor
from weir.state.declared.handles import AggregatingHandle, ListHandle, MapHandle, ReducingHandle, RowHandle, ValueHandle
from weir.state.declared.kinds import AggregatingState, KeyedState, ListState, MapState, ReducingState, ValueState
from weir.state.declared.making import HeldCells, cell_default, make_handle
from weir.state.declared.tables import Shape, TableLayout, shape_of
from weir.state.declared.value_handles import CellRow
from weir.state.frozen import FrozenState, RestoredState
from weir.state.heap.forms import HeldForm, held_form
from weir.state.heap.tables import FrozenHeap, HeapTables
from weir.state.keys.codec import KeyCodec
from weir.state.place import StatePlace
from weir.state.values.conversion import to_list

RESTORE_ROWS = 65_536
"""Rows of a restored table that become Python objects at once."""


SWEEPS_PER_TTL = 4
"""How often all keys are looked at for what has expired, while a time-to-live passes: in a snapshot, by its thread."""


@dataclass
class _State:
    """One declared state."""

    layout: TableLayout
    layers: Layers
    form: HeldForm
    tables: HeapTables
    swept_ms: int

    def sweeps(self, now_ms: int) -> bool:
        """Whether the snapshot that is taken now is to look for what has expired."""
        ttl = self.layout.shape.ttl
        if ttl is None or now_ms - self.swept_ms < ttl.after_ms / SWEEPS_PER_TTL:
            return False
        self.swept_ms = now_ms
        return True


class HeapBackend:
    """Keyed state of one subtask, one dictionary per state."""

    keys_at_once = 1

    def __init__(
        self, key_schema: pa.Schema, *, max_parallelism: int, key_groups: range, place: StatePlace | None = None
    ) -> None:
        self._codec = KeyCodec(key_schema)
        self.cursor = KeyCursor(self._codec.shown)
        self._max_parallelism = max_parallelism
        self._key_groups = key_groups
        self._now_ms = (place or StatePlace()).now_ms
        self._states: dict[str, _State] = {}

    def keys(self, columns: Sequence[pa.Array]) -> list[Key]:
        return self._codec.keys(columns)

    def columns(self, keys: Sequence[Key]) -> list[pa.Array]:
        return self._codec.columns(keys)

    def shown(self, key: Key) -> Any:
        return self._codec.shown(key)

    # --- Declaring ---

    def value_state(self, descriptor: ValueState) -> ValueHandle:
        return self._handle(descriptor)  # type: ignore[no-any-return]

    def list_state(self, descriptor: ListState) -> ListHandle:
        return self._handle(descriptor)  # type: ignore[no-any-return]

    def map_state(self, descriptor: MapState) -> MapHandle:
        return self._handle(descriptor)  # type: ignore[no-any-return]

    def reducing_state(self, descriptor: ReducingState) -> ReducingHandle:
        return self._handle(descriptor)  # type: ignore[no-any-return]

    def aggregating_state(self, descriptor: AggregatingState) -> AggregatingHandle:
        return self._handle(descriptor)  # type: ignore[no-any-return]

    def held_state(self, descriptor: KeyedState) -> HeldCells:
        held = HeldCells()
        self._declare(shape_of(descriptor), held, cell_default(descriptor))
        return held

    def _handle(self, descriptor: KeyedState) -> Any:
        made = make_handle(descriptor, self.cursor, self._now_ms)
        self._declare(shape_of(descriptor), made.owner, cell_default(descriptor))
        return made.handle

    def row_state(self, name: str, schema: pa.Schema) -> RowHandle:
        def decode(array: pa.Array) -> list[Any]:
            return list(zip(*map(to_list, array.flatten())))

        handle = CellRow(schema, self.cursor)
        self._declare(Shape(name, "value", pa.struct(list(schema))), handle, None, decode)
        return handle

    def _declare(
        self, shape: Shape, owner: Any, default: Any, decode: Callable[[pa.Array], list[Any]] = to_list
    ) -> None:
        """`owner` gets the dictionary that is on top, now and after each freeze."""
        if not shape.name:
            raise PlanError("a state needs a name")
        if shape.name in self._states:
            raise PlanError(f"state {shape.name!r} is declared twice")

        def attach(live: Cells) -> None:
            owner.data = live

        layout, form = TableLayout(self._codec.schema, shape), held_form(shape, decode)
        tables = HeapTables(self._codec, layout, form, max_parallelism=self._max_parallelism)
        layers = Layers(default, attach, MapCells if form.entries else Cells, ChangedRows())
        self._states[shape.name] = _State(layout, layers, form, tables, swept_ms=self._now_ms())

    # --- Batches ---

    def begin(self, keys: Sequence[Key]) -> None:
        for state in self._states.values():
            state.layers.tidy(len(keys), lambda key, state=state: self._drop_expired(state, key))  # type: ignore[misc]

    def end(self) -> None:
        pass

    def _drop_expired(self, state: _State, key: Key) -> None:
        """A snapshot has found something expired at this key; by now it may have been touched again."""
        held = state.layers.live[key]
        if held is not state.layers.live.default:
            kept = state.form.unexpired(held, self._now_ms())
            if kept is None:
                state.layers.live.forget(key)
            elif kept is not held:
                state.layers.live[key] = kept
                for name in held.keys() - kept.keys():
                    state.layers.live.note((key, name))

    # --- Snapshots ---

    def freeze(self) -> Mapping[str, FrozenState]:
        now_ms = self._now_ms()
        return {
            name: FrozenHeap(
                state.layers.freeze(),
                state.tables,
                state.layers.confirmed,
                now_ms=now_ms,
                sweeps=state.sweeps(now_ms),
            )
            for name, state in self._states.items()
        }

    def restore(self, states: Mapping[str, RestoredState]) -> None:
        now_ms = self._now_ms()
        for name, restored in states.items():
            if name not in self._states:
                known = ", ".join(sorted(self._states)) or "none"
                raise CheckpointError(
                    f"the checkpoint holds state {name!r}, which the function does not declare ({known})"
                )
            state = self._states[name]
            for table in restored.tables():
                adapted = state.layout.adapted(table, now_ms)
                state.layout.check_groups(adapted, self._key_groups)
                self._take_over(state, adapted)
            whole = restored.whole
            if whole is not None and state.tables.format.continues(whole.part):
                state.layers.restored(whole.part)

    def _take_over(self, state: _State, table: pa.Table) -> None:
        width = 1 + len(self._codec.schema)
        for batch in table.to_batches(max_chunksize=RESTORE_ROWS):
            keys = self._codec.keys(batch.columns[1:width])
            state.form.restore(state.layers.live, keys, batch.columns[width:])

    def close(self) -> None:
        for state in self._states.values():
            state.layers.clear()
