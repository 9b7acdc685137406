"""The handle of each kind of keyed state, on cells that somebody else holds.

Comes in: a declared state, where it stands, and a clock. Goes out: its handle, and whose
`data` the cells are to become. Backends make handles on all their keys, others on a copy
of what one key has. Holds nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from weir.errors import PlanError
from weir.state.declared.cells import NOTHING
from weir.state.declared.container_handles import CellList, CellMap, TimedCellList, TimedCellMap
from weir.state.declared.cursor import KeyCursor
from weir.state.declared.kinds import AggregatingState, KeyedState, ListState, MapState, ReducingState, ValueState
from weir.state.declared.value_handles import (
    CellData,
    CellInteger,
    CellNested,
    CellValue,
    HeldAggregating,
    HeldReducing,
    HeldValue,
    holder_of,
)
from weir.state.values.conversion import copier


class HeldCells:
    """What a state holds at each key, for those who make handles of their own."""

    data: CellData


@dataclass(frozen=True)
class MadeHandle:
    """A handle; it works once `owner.data` is there."""

    handle: Any
    owner: Any


def make_handle(state: KeyedState, cursor: KeyCursor, now_ms: Callable[[], int]) -> MadeHandle:
    """The handle of a state of any keyed kind."""
    if isinstance(state, ListState):
        timed = state.ttl is not None
        handle: Any = TimedCellList(state, cursor, now_ms) if timed else CellList(state, cursor)
        return MadeHandle(handle, handle)
    if isinstance(state, MapState):
        timed = state.ttl is not None
        handle = TimedCellMap(state, cursor, now_ms) if timed else CellMap(state, cursor)
        return MadeHandle(handle, handle)
    if isinstance(state, ValueState) and _is_plain(state):
        handle = _plain_kind(state.type)(state, cursor)
        return MadeHandle(handle, handle)
    holder = holder_of(state, cursor, now_ms)
    if isinstance(state, ValueState):
        return MadeHandle(HeldValue(state, cursor, holder), holder)
    if isinstance(state, ReducingState):
        return MadeHandle(HeldReducing(state, cursor, holder), holder)
    if isinstance(state, AggregatingState):
        return MadeHandle(HeldAggregating(state, cursor, holder), holder)
    raise PlanError(f"{state!r} is no keyed state")


def cell_default(state: KeyedState) -> Any:
    """What the cells of such a handle have where a key has nothing."""
    if isinstance(state, (ListState, MapState)):
        return None
    return state.default if isinstance(state, ValueState) and _is_plain(state) else NOTHING


def _is_plain(state: ValueState) -> bool:
    return not state.pickled and state.ttl is None


def _plain_kind(kind: pa.DataType) -> type[CellValue]:
    if pa.types.is_integer(kind):
        return CellInteger
    return CellValue if copier(kind) is None else CellNested
