"""State that belongs to a subtask rather than to a key: lists and broadcast maps.

Comes in: what a function declares, and the parts of old subtasks. Goes out: handles,
small tables for snapshots, and what falls to each subtask at another parallelism: a list
is dealt out or goes to all, a broadcast map is copied. Meant for few values.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from weir.errors import CheckpointError
from weir.snapshot.parts import Json, StatePart
from weir.state.declared.cells import Cells, CellsView, Layers
from weir.state.declared.container_handles import CellList, CellMap, GuardedMap
from weir.state.declared.cursor import KeyCursor
from weir.state.declared.forms import key_form
from weir.state.declared.kinds import BroadcastState, OperatorListState, OperatorState
from weir.state.declared.tables import TableLayout, shape_of
from weir.state.frozen import FrozenState, RestoredPart, RestoredState, StateWriter, read_arrow, write_tables
from weir.state.values.conversion import to_list

INDEX = pa.schema([pa.field("index", pa.int32(), nullable=False)])
"""The first column of a list's table."""

REDISTRIBUTE = "redistribute"
BROADCAST = "broadcast"
SPLIT = "split"

_KEY: Any = None
"""The one key of a state that has none."""


class OperatorStates:
    """The operator states of one function in one subtask; `handles` by attribute."""

    def __init__(self, declared: Mapping[str, OperatorState]) -> None:
        self._states = {state.name or "": _Declared(state) for state in declared.values()}
        self.handles = {attribute: self._states[state.name or ""].handle for attribute, state in declared.items()}

    @property
    def names(self) -> frozenset[str]:
        return frozenset(self._states)

    def add(self, state: OperatorState) -> CellList | CellMap:
        """One more, with a name; its handle."""
        made = self._states[state.name or ""] = _Declared(state)
        return made.handle

    def freeze(self) -> dict[str, FrozenState]:
        """Every state as it is now, by name."""
        return {name: state.freeze() for name, state in self._states.items()}

    def restore(self, states: Mapping[str, RestoredState]) -> None:
        """Take over what falls to this subtask."""
        for name, restored in states.items():
            if name not in self._states:
                known = ", ".join(sorted(self._states)) or "none"
                raise CheckpointError(
                    f"the checkpoint holds state {name!r}, which the function does not declare ({known})"
                )
            self._states[name].restore(restored)


def operator_layout(state: OperatorState) -> TableLayout:
    """The table of an operator state."""
    keys = INDEX if isinstance(state, OperatorListState) else pa.schema([])
    return TableLayout(keys, shape_of(state), keyed=False)


class _Declared:
    """One operator state: the cells of a keyed one, with a single key."""

    def __init__(self, state: OperatorState) -> None:
        self._redistribute = state.redistribute if isinstance(state, OperatorListState) else BROADCAST
        self._layout = operator_layout(state)
        self.handle = _handle(state)
        self._key = key_form(state.key_type) if isinstance(state, BroadcastState) else None

        def attach(live: Cells) -> None:
            self.handle.data = live

        self._layers = Layers(None, attach)

    def freeze(self) -> FrozenState:
        self._layers.tidy(1, lambda key: None)
        return _FrozenCells(self._layers.freeze(), self._layout, self._redistribute)

    def restore(self, restored: RestoredState) -> None:
        # Nothing expires here, so that no clock is needed.
        tables = [self._layout.adapted(table, now_ms=0) for table in restored.tables()]
        if not tables:
            return
        table = pa.concat_tables(tables)
        values = to_list(table.column(-1).combine_chunks())
        if self._key is None:
            self._layers.live[_KEY] = values
        elif values:
            keys = map(self._key, to_list(table.column(0).combine_chunks()))
            self._layers.live[_KEY] = dict(zip(keys, values))


def _handle(state: OperatorState) -> CellList | CellMap:
    cursor = KeyCursor()
    cursor.key = _KEY
    if isinstance(state, OperatorListState):
        return CellList(state, cursor, keyed=False)
    if isinstance(state, BroadcastState):
        return GuardedMap(state, cursor, keyed=False)
    raise TypeError(f"{state!r} is no operator state")


class _FrozenCells(FrozenState):
    def __init__(self, view: CellsView, layout: TableLayout, redistribute: str) -> None:
        self._view = view
        self._layout = layout
        self._redistribute = redistribute

    def tables(self) -> Iterator[pa.Table]:
        kinds = self._layout.schema.types
        held = next((values[0] for _, values in self._view.pieces() if values), None)
        if self._redistribute == BROADCAST:
            entries = held or {}
            columns = [list(entries), list(entries.values())]
        else:
            columns = [list(range(len(held or ()))), list(held or ())]
        yield pa.table(list(map(pa.array, columns, kinds)), schema=self._layout.schema)

    def write(self, out: StateWriter) -> StatePart:
        return replace(write_tables(self.tables(), out), detail={REDISTRIBUTE: self._redistribute})

    def export(self, out: StateWriter) -> StatePart:
        return self.write(out)

    def released(self) -> None:
        self._view.release()


# --- Out of a checkpoint ------------------------------------------------------------------------------


def redistribution_of(detail: Json) -> str | None:
    """How the parts of an operator state are dealt out; None: it is a keyed state."""
    return detail.get(REDISTRIBUTE) if isinstance(detail, dict) else None


@dataclass(frozen=True)
class RestoredOperatorState:
    """What falls to subtask `index` of `parallelism` of the parts that all old subtasks had put in."""

    parts: Sequence[RestoredPart]
    """By the old subtask's index."""
    redistribute: str
    index: int
    parallelism: int

    def tables(self) -> Iterator[pa.Table]:
        if self.redistribute == BROADCAST:
            yield from read_arrow(self.parts[self.index % len(self.parts)])
        elif self.redistribute == SPLIT and len(self.parts) == self.parallelism:
            # Nothing has changed, so that each keeps its own.
            yield from read_arrow(self.parts[self.index])
        else:
            yield from self._dealt()

    def _dealt(self) -> Iterator[pa.Table]:
        start = 0
        for part in self.parts:
            for table in read_arrow(part):
                positions = np.arange(start, start + table.num_rows)
                start += table.num_rows
                mine = positions % self.parallelism == self.index
                yield table.filter(pa.array(mine)) if self.redistribute == SPLIT else table

    @property
    def whole(self) -> RestoredPart | None:
        return None
