"""Slots in memory as a window on rows in a database: which to load, which to write back, when to begin anew.

Comes in: which slots change. Goes out: rows that the database has for new keys, and
writes. The slots themselves belong to the caller.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from weir.config import RocksDb
from weir.operators.base import OperatorContext
from weir.state.columns.growing import grown
from weir.state.frozen import FrozenState, RestoredState
from weir.state.keys.xxhash64 import Ints

DIRTY_SLOTS_MAX = 65_536
"""Changed slots, before they are written; what is still to be written at a barrier holds up the stream."""

BYTES_PER_SLOT = 256
"""What a slot is taken to need, keys and index included."""

SLOTS_MAX_LEAST = 16_384

SWEPT_ROWS_LEAST = 16
SWEPT_ROWS_SHARE = 8
"""With each batch, so many rows of the database are looked at, and one more for so many rows that come in."""

Keep: TypeAlias = "Callable[[pa.Table], pa.Table]"
Mask: TypeAlias = "npt.NDArray[np.bool_] | None"


class SlotStore:
    """The database behind the slots of one table."""

    def __init__(self, schema: pa.Schema, *, keys: int, context: OperatorContext) -> None:
        from weir.state.rocks.rows import RocksRows

        self._rows = RocksRows(schema, keys=keys, max_parallelism=context.max_parallelism, place=context.place)
        self._slots_max = max(self._rows.rows_budget_bytes // BYTES_PER_SLOT, SLOTS_MAX_LEAST)
        self._dirty: npt.NDArray[np.bool_] = np.zeros(1_024, np.bool_)
        self._dirty_count = 0

    @property
    def must_write(self) -> bool:
        return self._dirty_count > DIRTY_SLOTS_MAX

    def is_full(self, count: int) -> bool:
        """Whether so many slots are too many: then write, forget them all, and begin anew."""
        return count > self._slots_max

    def load(self, keys: Sequence[pa.Array]) -> tuple[Ints, list[pa.Array]]:
        """Which of these keys the database knows, and the values of those."""
        return self._rows.get(keys)

    def changed(self, slots: Ints, count: int) -> None:
        """These slots differ from the database; there are `count` by now."""
        self._dirty = grown(self._dirty, count, False)
        before = int(np.count_nonzero(self._dirty[slots]))
        self._dirty[slots] = True
        # Rows of one slot are counted more than once here: too early is no harm.
        self._dirty_count += len(slots) - before

    def write(self, read: Callable[[Ints], tuple[Sequence[pa.Array], Sequence[pa.Array]]], gone: Mask = None) -> None:
        """Write what changed. `read`: keys and values of slots; `gone`: the slots that hold nothing any more."""
        dirty = np.flatnonzero(self._dirty)
        if gone is not None and len(dirty):
            forgotten = dirty[gone[dirty]]
            dirty = dirty[~gone[dirty]]
            if len(forgotten):
                self._rows.delete(read(forgotten)[0])
        for start in range(0, len(dirty), DIRTY_SLOTS_MAX):
            keys, values = read(dirty[start : start + DIRTY_SLOTS_MAX])
            self._rows.put(keys, values)
        self._dirty[:] = False
        self._dirty_count = 0

    def sweep(self, rows: int, expired: Callable[[pa.Array], npt.NDArray[np.bool_]]) -> None:
        """Look at some rows of the database, in proportion to those that come in, and delete what has expired.
        `expired`: of the last column, which."""
        self._rows.sweep(SWEPT_ROWS_LEAST + rows // SWEPT_ROWS_SHARE, expired)

    def freeze(self, keep: Keep = lambda table: table) -> FrozenState:
        """What the database holds; write first. `keep`: leaves rows out of tables."""
        return self._rows.freeze(keep)

    def restore(self, state: RestoredState, keep: Keep = lambda table: table) -> None:
        self._rows.restore(state, keep)

    def close(self) -> None:
        self._rows.close()


def store_for(schema: pa.Schema, *, keys: int, context: OperatorContext) -> SlotStore | None:
    """The database behind an operator's slots, if the job keeps its state in one."""
    if not isinstance(context.place.backend, RocksDb):
        return None
    return SlotStore(schema, keys=keys, context=context)
