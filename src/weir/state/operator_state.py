"""State that belongs to a subtask rather than to a key: lists and broadcast maps.

Comes in: what a function declares, and the parts of old subtasks. Goes out: handles,
small tables for snapshots, and what falls to each subtask at another parallelism: a list
is dealt out or goes to all, a broadcast map is copied. Meant for few values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from weir.errors import CheckpointError
from weir.snapshot.parts import Json, StatePart
from weir.state.changes import CHANGES, FILES_MAX, ChangesFormat
from weir.state.declared.cells import NOTHING, Cells, CellsView, Layers
from weir.state.declared.changed import CHANGED_RATIO
from weir.state.declared.container_handles import CellList, CellMap, GuardedMap
from weir.state.declared.cursor import KeyCursor
from weir.state.declared.forms import key_form
from weir.state.declared.kinds import BroadcastState, OperatorListState, OperatorState
from weir.state.declared.tables import TableLayout, shape_of
from weir.state.frozen import (
    GONE_COLUMN,
    FrozenState,
    RestoredPart,
    RestoredSlice,
    RestoredState,
    StateWriter,
    reader,
    write_tables,
)
from weir.state.values.conversion import to_list

INDEX = pa.schema([pa.field("index", pa.int32(), nullable=False)])
"""The first column of a list's table."""

REDISTRIBUTE = "redistribute"
BROADCAST = "broadcast"
SPLIT = "split"

_KEY: Any = None
"""The one key of a state that has none."""

PIECE_ROWS = 5_000
"""Rows of a table that are built at once."""

Entries: TypeAlias = Mapping[Any, Any]
"""What is held, by its map key or its index."""


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
        self._schema = self._layout.schema.append(pa.field(GONE_COLUMN, pa.bool_(), nullable=False))
        self._format = ChangesFormat(self._schema, self._schema.names[:1])
        self._stored: _Stored | None = None

    def freeze(self) -> FrozenState:
        self._layers.tidy(1, lambda key: None)
        return _FrozenCells(
            self._layers.freeze(),
            self._format,
            redistribute=self._redistribute,
            stored=self._stored,
            confirmed=self._confirmed,
        )

    def _confirmed(self, stored: _Stored) -> None:
        self._stored = stored

    def restore(self, restored: RestoredState) -> None:
        # Nothing expires here, so that no clock is needed.
        tables = [self._layout.adapted(table, now_ms=0) for table in restored.tables()]
        if not tables:
            return
        table = pa.concat_tables(tables)
        values = to_list(table.column(-1).combine_chunks())
        held: Any = values
        if self._key is not None:
            held = dict(zip(map(self._key, to_list(table.column(0).combine_chunks())), values))
        if self._key is None or held:
            self._layers.live[_KEY] = held
        whole = restored.whole
        if whole is not None and self._format.continues(whole.part):
            self._stored = _Stored(whole.part, _entries(held))


def _handle(state: OperatorState) -> CellList | CellMap:
    cursor = KeyCursor()
    cursor.key = _KEY
    if isinstance(state, OperatorListState):
        return CellList(state, cursor, keyed=False)
    if isinstance(state, BroadcastState):
        return GuardedMap(state, cursor, keyed=False)
    raise TypeError(f"{state!r} is no operator state")


@dataclass(frozen=True)
class _Stored:
    """A part of a completed checkpoint, and what it holds."""

    part: StatePart
    entries: Entries

    def changed(self, now: Entries) -> tuple[Entries, list[Any]] | None:
        """What is there now and is another object than then, and what is gone; None: everything is to be written, which
        is cheaper."""
        changed = {name: value for name, value in now.items() if self.entries.get(name, NOTHING) is not value}
        gone = [name for name in self.entries if name not in now]
        if not changed and not gone:
            return changed, gone
        detail = self.part.detail
        rows = detail["rows"] - detail["whole_rows"] + len(changed) + len(gone)
        if len(self.part.files) >= FILES_MAX or rows > CHANGED_RATIO * max(detail["whole_rows"], len(now)):
            return None
        return changed, gone


def _entries(held: Any) -> Entries:
    """A copy of what is held: it may be changed in place later."""
    return dict(held if isinstance(held, dict) else enumerate(held or ()))


class _FrozenCells(FrozenState):
    def __init__(
        self,
        view: CellsView,
        form: ChangesFormat,
        *,
        redistribute: str,
        stored: _Stored | None,
        confirmed: Callable[[_Stored], None],
    ) -> None:
        self._view = view
        self._format = form
        self._redistribute = redistribute
        self._stored = stored
        self._confirmed = confirmed
        self._written: Entries = {}

    def tables(self) -> Iterator[pa.Table]:
        for table in self._tables(self._held(), []):
            yield table.remove_column(table.num_columns - 1)

    def write(self, out: StateWriter) -> StatePart:
        self._written = entries = self._held()
        found = None if self._stored is None else self._stored.changed(entries)
        if self._stored is None or found is None:
            part = self._format.write_whole(self._tables(entries, []), out)
            return replace(part, detail={**part.detail, REDISTRIBUTE: self._redistribute})
        return (
            self._format.write_changes(self._stored.part, self._tables(*found), out)
            if any(found)
            else (self._stored.part)
        )

    def export(self, out: StateWriter) -> StatePart:
        return replace(write_tables(self.tables(), out), detail={REDISTRIBUTE: self._redistribute})

    def confirmed(self, part: StatePart) -> None:
        self._confirmed(_Stored(part, self._written))

    def released(self) -> None:
        self._view.release()

    def _held(self) -> Entries:
        held = self._view.find(_KEY)
        return _entries(None if held is NOTHING else held)

    def _tables(self, entries: Entries, gone: Sequence[Any]) -> Iterator[pa.Table]:
        """The rows of what is there, and of what is no more; at least one table."""
        names = [*entries, *gone]
        values = [*entries.values(), *[None] * len(gone)]
        kinds = self._format.schema.types
        for start in range(0, max(len(names), 1), PIECE_ROWS):
            some = slice(start, start + PIECE_ROWS)
            are_gone = [number >= len(entries) for number in range(len(names))[some]]
            columns = zip([names[some], values[some], are_gone], kinds)
            yield pa.table([pa.array(column, kind) for column, kind in columns], schema=self._format.schema)


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
    is_own: bool = True
    """Whether they lie among the job's own checkpoints, so that later ones may refer to their files."""

    def tables(self) -> Iterator[pa.Table]:
        one = self._one
        if one is not None:
            yield from _rows_of(one)
        else:
            yield from self._dealt()

    def _dealt(self) -> Iterator[pa.Table]:
        start = 0
        for part in self.parts:
            for table in _rows_of(part):
                positions = np.arange(start, start + table.num_rows)
                start += table.num_rows
                mine = positions % self.parallelism == self.index
                yield table.filter(pa.array(mine)) if self.redistribute == SPLIT else table

    @property
    def _one(self) -> RestoredPart | None:
        """The part that holds exactly what falls to this subtask, if there is one."""
        if self.redistribute == BROADCAST:
            return self.parts[self.index % len(self.parts)]
        if self.redistribute == SPLIT and len(self.parts) == self.parallelism:
            # Nothing has changed, so that each keeps its own.
            return self.parts[self.index]
        return None

    @property
    def whole(self) -> RestoredPart | None:
        return self._one if self.is_own else None

    def slices(self) -> Sequence[RestoredSlice]:
        return ()


def _rows_of(part: RestoredPart) -> Iterator[pa.Table]:
    """The tables of one part, the elements of a list in their order."""
    tables = reader(part.part.format)(part)
    if part.part.format != CHANGES:
        yield from tables
        return
    table = pa.concat_tables(tables)
    yield table.sort_by(INDEX.names[0]) if table.schema.names[0] == INDEX.names[0] else table
