"""Snapshots of state that lies in slots: frozen at once, read later, only what changed is written.

Comes in: which slots are about to change, and a function that reads slots. Goes out:
frozen states. Freezing copies nothing: whoever changes a slot that a frozen state still
stands for first saves what was there. One lock keeps readers and writers apart; it is
held for a batch, or for a piece of a table.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from weir.snapshot.parts import StatePart
from weir.state.changes import FILES_MAX, UNCONFIRMED_MAX, ChangesFormat
from weir.state.columns.growing import grown
from weir.state.frozen import GONE_COLUMN, FrozenState, RestoredState, StateWriter
from weir.state.keys.hashing import key_groups
from weir.state.keys.index import FrozenKeys
from weir.state.keys.store import Mask
from weir.state.keys.xxhash64 import Ints

PIECE_ROWS = 16_384
"""Rows that are read at once, with the lock held."""

WHOLE_ROWS_MIN = 65_536
"""A state so small is written anew rather than in many files."""

WHOLE_RATIO = 1.5
"""Rows in the files of a state, for each of its keys, before it is written anew."""

_TIER_RATIO = 4

CHUNK_ROWS_MAX = 65_536
"""Saved rows are put together up to so many: a stream that has to wait for more would notice."""

ReadSlots = Callable[[Ints], "list[pa.Array]"]


class SlotChanges:
    """What changed since what is stored, and who still reads what was."""

    def __init__(self, schema: pa.Schema, *, keys: int, max_parallelism: int, read: ReadSlots) -> None:
        """`schema`: of the state table; `keys`: how many key columns it has; `read`: the value columns of slots."""
        self.schema = schema
        self.format = ChangesFormat(schema, schema.names[1 : 1 + keys])
        self.max_parallelism = max_parallelism
        self.read = read
        self.lock = threading.RLock()
        self._dirty: npt.NDArray[np.bool_] = np.zeros(1_024, np.bool_)
        self._base: StatePart | None = None
        self._unconfirmed: list[tuple[int, Mask]] = []
        """Numbers of freezes since the base, and what changed before each since the one before."""
        self._number = 0
        self._reading: list[FrozenSlots] = []

    @contextmanager
    def changing(self, slots: Ints, count: int) -> Iterator[None]:
        """Around a change of these slots; there are `count` by now. The new ones need not be saved for anyone."""
        with self.lock:
            self._dirty = grown(self._dirty, count, False)
            self._dirty[slots] = True
            for frozen in self._reading:
                frozen.save(slots)
            yield

    def freeze(self, keys: FrozenKeys) -> FrozenSlots:
        """The state as it is now."""
        self._number += 1
        self._unconfirmed.append((self._number, self._dirty[: len(keys)].copy()))
        self._dirty[: len(keys)] = False
        if len(self._unconfirmed) > UNCONFIRMED_MAX:
            # The older one loses its number: if it is confirmed all the same, too much is written, never too little.
            (_, first), (number, second), *rest = self._unconfirmed
            self._unconfirmed = [(number, _any([first, second], len(second))), *rest]
        frozen = FrozenSlots(self, keys, self._number, self._since_base(len(keys)))
        self._reading.append(frozen)
        return frozen

    def restored(self, state: RestoredState) -> None:
        """The slots that there are now are exactly what this state holds: build on its part, if that can be."""
        whole = state.whole
        if whole is None or not self.format.continues(whole.part):
            return
        self._base = whole.part
        self._dirty[:] = False
        self._unconfirmed = []

    def confirmed(self, number: int, part: StatePart) -> None:
        self._base = part
        self._unconfirmed = [(other, slots) for other, slots in self._unconfirmed if other > number]

    def released(self, frozen: FrozenSlots) -> None:
        with self.lock:
            self._reading.remove(frozen)

    def _since_base(self, count: int) -> tuple[StatePart, Mask] | None:
        """What to build on and which slots changed since; None: write everything."""
        base = self._base
        if base is None:
            return None
        changed = _any([slots for _, slots in self._unconfirmed], count)
        some = int(np.count_nonzero(changed))
        rows = base.detail["rows"] + some
        if some and (len(base.files) >= FILES_MAX or rows > max(WHOLE_RATIO * count, WHOLE_ROWS_MIN)):
            return None
        return base, changed


def _any(masks: Sequence[Mask], count: int) -> Mask:
    """Of so many slots those that are in one of the masks, of which the older are shorter."""
    found = np.zeros(count, np.bool_)
    for mask in masks:
        found[: len(mask)] |= mask
    return found


class FrozenSlots(FrozenState):
    """The slots as they were."""

    def __init__(self, changes: SlotChanges, keys: FrozenKeys, number: int, since: tuple[StatePart, Mask] | None):
        self._changes = changes
        self._keys = keys
        self._number = number
        self._since = since
        self._saved = _Saved(len(keys))

    def save(self, slots: Ints) -> None:
        """Keep what is in these slots, which are about to change. With the lock held."""
        mine = self._saved.missing(slots)
        if len(mine):
            self._saved.add(mine, self._changes.read(mine))

    def tables(self) -> Iterator[pa.Table]:
        gone = self._changes.schema.get_field_index(GONE_COLUMN)
        for table in self._pieces(None):
            if gone >= 0:
                table = table.filter(pc.invert(table.column(gone))).remove_column(gone)
            yield table

    def write(self, out: StateWriter) -> StatePart:
        if self._since is None:
            return self._changes.format.write_whole(self._pieces(None), out)
        base, changed = self._since[0], np.flatnonzero(self._since[1])
        return self._changes.format.write_changes(base, self._pieces(changed), out) if len(changed) else base

    def confirmed(self, part: StatePart) -> None:
        self._changes.confirmed(self._number, part)

    def released(self) -> None:
        self._changes.released(self)

    def _pieces(self, slots: Ints | None) -> Iterator[pa.Table]:
        """These slots, or all, sorted by key group."""
        schema = self._changes.schema
        hashes = self._keys.hashes if slots is None else self._keys.hashes[slots]
        groups = key_groups(hashes, self._changes.max_parallelism).astype(np.uint16)
        order = np.argsort(groups, kind="stable")
        for start in range(0, max(len(order), 1), PIECE_ROWS):
            rows = order[start : start + PIECE_ROWS]
            piece = rows if slots is None else slots[rows]
            columns = [pa.array(groups[rows].astype(np.int32)), *self._keys.keys(piece), *self._read(piece)]
            yield pa.Table.from_arrays(columns, schema=schema)

    def _read(self, slots: Ints) -> list[pa.Array]:
        with self._changes.lock:
            positions = self._saved.positions(slots)
            fresh = np.flatnonzero(positions < 0)
            if len(fresh) == len(slots):
                return self._changes.read(slots)
            live = self._changes.read(slots[fresh])
            old = np.flatnonzero(positions >= 0)
            kept = self._saved.take(positions[old])
        back = pa.array(np.argsort(np.concatenate((fresh, old)), kind="stable"))
        return [pa.concat_arrays([now, then]).take(back) for now, then in zip(live, kept, strict=True)]


class _Saved:
    """What was in slots before they changed."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._at: npt.NDArray[np.int32] = np.zeros(count, np.int32)
        """One more than the row among those saved, or 0. The zeros cost nothing until they are touched."""
        self._rows = 0
        self._chunks: list[list[pa.Array]] = []

    def missing(self, slots: Ints) -> Ints:
        """Of these slots those that were there and are not saved yet, each once."""
        mine: Ints = slots[slots < self._count]
        mine = mine[self._at[mine] == 0]
        if len(mine) > 1:
            self._at[mine] = np.arange(1, len(mine) + 1)
            mine = mine[self._at[mine] == np.arange(1, len(mine) + 1)]
            self._at[mine] = 0
        return mine

    def add(self, slots: Ints, columns: Sequence[pa.Array]) -> None:
        self._at[slots] = np.arange(self._rows + 1, self._rows + 1 + len(slots))
        self._rows += len(slots)
        self._chunks.append(list(columns))
        while len(self._chunks) > 1 and self._are_small(*self._chunks[-2:]):
            last, before = self._chunks.pop(), self._chunks.pop()
            self._chunks.append([pa.concat_arrays([a, b]) for a, b in zip(before, last, strict=True)])

    @staticmethod
    def _are_small(before: list[pa.Array], last: list[pa.Array]) -> bool:
        rows, more = len(before[0]), len(last[0])
        return rows < _TIER_RATIO * more and rows + more <= CHUNK_ROWS_MAX

    def positions(self, slots: Ints) -> Ints:
        """Where the slots are saved, or -1."""
        positions: Ints = self._at[slots].astype(np.int64) - 1
        return positions

    def take(self, positions: Ints) -> list[pa.Array]:
        ends = np.cumsum([len(chunk[0]) for chunk in self._chunks])
        of = np.searchsorted(ends, positions, side="right")
        starts = np.concatenate(([0], ends[:-1]))
        parts: list[list[pa.Array]] = []
        order: list[Ints] = []
        for number in np.unique(of):
            rows = np.flatnonzero(of == number)
            taken = pa.array(positions[rows] - starts[number])
            parts.append([column.take(taken) for column in self._chunks[number]])
            order.append(rows)
        back = pa.array(np.argsort(np.concatenate(order), kind="stable"))
        return [pa.concat_arrays(list(columns)).take(back) for columns in zip(*parts, strict=True)]
