"""Panes in memory: the accumulators of keys by stretch of event time.

Comes in: rows or accumulators with the pane of each. Goes out: the keys and accumulators
of panes. A pane with many keys is a group of its own, which goes as a whole; small ones
share a group, so that a batch over thousands of panes is still a few calls.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from weir.operators.aggregates.layout import AggregateLayout
from weir.operators.aggregates.state import Accumulators
from weir.operators.base import OperatorContext
from weir.state.keys.index import KeyIndex
from weir.state.keys.xxhash64 import Ints, Words

OWN_ROWS_MIN = 4_096
"""A pane that begins with so many rows in one batch gets a group of its own."""

SHARED_SLOTS_MAX = 65_536
"""A group that is shared takes no more panes with so many slots."""

COMPACTED_SLOTS_MIN = 8_192
"""Below so many slots it does not matter how many are of panes that are gone."""

_KEY_BITS = 32


class PaneGroup:
    """The accumulators of one pane, or of many. A slot is one key in one pane."""

    def __init__(
        self,
        layout: AggregateLayout,
        context: OperatorContext,
        *,
        step_us: int,
        only_us: int | None = None,
        room: int = 0,
    ) -> None:
        """`only_us`: its one pane; None: it is shared. `room`: for so many slots, which takes no memory until it is
        used."""
        self._step_us = step_us
        self.only_us = only_us
        self.accumulators = Accumulators(layout, context)
        if room:
            self.accumulators.make_room(room)
        self._index = KeyIndex(layout.key_schema)
        self._pairs = KeyIndex(pa.schema([("pair", pa.int64())]))
        """Of a shared group: slots of pane and key."""
        self._panes: list[int] = [] if only_us is None else [only_us]
        self._numbers: dict[int, int] = {pane_us: number for number, pane_us in enumerate(self._panes)}
        self._gone: set[int] = set()

    def __len__(self) -> int:
        return len(self._pairs) if self.only_us is None else len(self._index)

    @property
    def panes(self) -> Ints:
        """Those that are not gone, in no order."""
        return np.array([pane_us for pane_us in self._panes if pane_us not in self._gone], np.int64)

    def find(self, keys: Sequence[pa.Array], panes: Ints | int) -> Ints:
        """The slot of each row, for accumulators that are merged now."""
        slots = self._index.slots(keys)
        if self.only_us is not None:
            return slots
        slots += self._pane_numbers(panes) << _KEY_BITS
        return self._pairs.slots([pa.array(slots)])

    def panes_of(self, slots: Ints) -> Ints:
        if self.only_us is not None:
            return np.full(len(slots), self.only_us, np.int64)
        panes: Ints = np.array(self._panes, np.int64)[self._codes(slots) >> _KEY_BITS]
        return panes

    def keys_of(self, slots: Ints) -> list[pa.Array]:
        return self._index.keys(self._numbers_of(slots))

    def hashes_of(self, slots: Ints) -> Words:
        return self._index.hashes[self._numbers_of(slots)]

    def _numbers_of(self, slots: Ints) -> Ints:
        return slots if self.only_us is not None else self._codes(slots) & ((1 << _KEY_BITS) - 1)

    def slots_of(self, panes: Ints | None = None) -> Ints:
        """The slots of some panes; None: of all that are not gone."""
        everything: Ints = np.arange(len(self))
        if self.only_us is not None:
            return everything if panes is None or self.only_us in panes else everything[:0]
        if panes is None:
            if not self._gone:
                return everything
            panes = self.panes
        wanted = np.zeros(len(self._panes), np.bool_)
        wanted[[self._numbers[pane] for pane in panes.tolist() if self._holds(pane)]] = True
        return np.flatnonzero(wanted[self._codes(everything) >> _KEY_BITS])

    def _holds(self, pane_us: int) -> bool:
        return pane_us in self._numbers and pane_us not in self._gone

    def drop(self, pane_us: int) -> None:
        self._gone.add(pane_us)

    @property
    def is_empty(self) -> bool:
        return len(self._gone) == len(self._panes)

    @property
    def size_bytes(self) -> int:
        """What it takes in memory, about."""
        return self._index.size_bytes + self._pairs.size_bytes + self.accumulators.size_bytes

    def _codes(self, slots: Ints) -> Ints:
        codes: Ints = self._pairs.keys(slots)[0].to_numpy()
        return codes

    def _pane_numbers(self, panes: Ints | int) -> Ints:
        if isinstance(panes, int):
            return np.array([self._number(panes)])
        present, of_row = distinct_panes(panes, self._step_us)
        return np.array([self._number(pane) for pane in present.tolist()], np.int64)[of_row]

    def _number(self, pane_us: int) -> int:
        number = self._numbers.get(pane_us)
        if number is None:
            number = self._numbers[pane_us] = len(self._panes)
            self._panes.append(pane_us)
        return number


class PaneStore:
    """The panes of one subtask."""

    def __init__(self, layout: AggregateLayout, context: OperatorContext, step_us: int, *, room: int = 0) -> None:
        """`step_us`: panes are multiples of this apart. `room`: for so many slots of the first large pane: to grow to
        them would hold up the stream."""
        self._layout = layout
        self._context = context
        self._step_us = step_us
        self._width = len(layout.keys)
        self._room = room
        self.clear()

    def clear(self) -> None:
        self._of_pane: dict[int, PaneGroup] = {}
        self.groups: list[PaneGroup] = []
        self._shared: PaneGroup | None = None

    def __len__(self) -> int:
        """Slots, with those of panes that are gone."""
        return sum(map(len, self.groups))

    @property
    def panes(self) -> Ints:
        """All panes, in order."""
        return np.array(sorted(self._of_pane), np.int64)

    def holds(self, pane_us: int) -> bool:
        return pane_us in self._of_pane

    def add_rows(self, batch: pa.RecordBatch, panes: Ints) -> list[tuple[PaneGroup, Ints]]:
        """Take rows of the user. Which slots of which groups they have changed."""
        touched = []
        for group, part, of_rows in self._split(batch, panes):
            keys = [part.column(key) for key in self._layout.keys]
            slots = group.find(keys, of_rows)
            group.accumulators.add_rows(part, slots, count=len(group))
            touched.append((group, slots))
        self._cut_shared()
        return touched

    def combine_rows(self, batch: pa.RecordBatch, panes: Ints) -> bool:
        """Take rows of the user before they are sent on, unless some have to be seen one by one: whether it did."""
        parts = list(self._split(batch, panes))
        if not all(group.accumulators.can_combine(part) for group, part, _ in parts):
            return False
        for group, part, of_rows in parts:
            slots = group.find([part.column(key) for key in self._layout.keys], of_rows)
            group.accumulators.add_rows(part, slots, count=len(group))
        self._cut_shared()
        return True

    def merge(self, batch: pa.RecordBatch, panes: Ints) -> list[tuple[PaneGroup, Ints]]:
        """Take keys and accumulators. Which slots of which groups they have changed."""
        touched = []
        for group, part, of_rows in self._split(batch, panes):
            keys = part.columns[: self._width]
            slots = group.find(keys, of_rows)
            group.accumulators.merge(part.columns[self._width :], slots, count=len(group))
            touched.append((group, slots))
        self._cut_shared()
        return touched

    def drop(self, panes: Ints) -> None:
        """Forget panes."""
        concerned = {}
        for pane_us in panes.tolist():
            group = self._of_pane.pop(pane_us)
            group.drop(pane_us)
            concerned[id(group)] = group
        for group in concerned.values():
            if group.is_empty:
                self._let_go(group)
            elif len(group) > COMPACTED_SLOTS_MIN and 2 * len(group.slots_of()) < len(group):
                self._move(group, group.panes, self._new_group())

    @property
    def slots_of_largest(self) -> int:
        """In the pane that has most of them, among the large ones."""
        return max((len(group) for group in self.groups if group.only_us is not None), default=0)

    @property
    def size_bytes(self) -> int:
        """What all panes take in memory, about."""
        return sum(group.size_bytes for group in self.groups)

    def _split(self, batch: pa.RecordBatch, panes: Ints) -> Iterator[tuple[PaneGroup, pa.RecordBatch, Ints | int]]:
        """The rows of each group, in their order, and their panes."""
        if int(panes.min()) == int(panes.max()):
            pane_us = int(panes[0])
            yield self._group(pane_us, batch.num_rows), batch, pane_us
        else:
            present, of_row = distinct_panes(panes, self._step_us)
            counts = np.bincount(of_row, minlength=len(present)).tolist()
            groups = [self._group(pane, count) for pane, count in zip(present.tolist(), counts, strict=True)]
            numbers = {id(group): i for i, group in enumerate({id(group): group for group in groups}.values())}
            if len(numbers) == 1:
                yield groups[0], batch, panes
            else:
                group_of_row = np.array([numbers[id(group)] for group in groups])[of_row]
                by_number = {numbers[id(group)]: group for group in groups}
                for number, group in by_number.items():
                    rows = np.flatnonzero(group_of_row == number)
                    yield group, batch.take(pa.array(rows)), panes[rows]

    def _group(self, pane_us: int, rows: int) -> PaneGroup:
        group = self._of_pane.get(pane_us)
        if group is not None:
            return group
        if rows >= OWN_ROWS_MIN:
            group = self._new_group(pane_us)
        else:
            if self._shared is None or len(self._shared) >= SHARED_SLOTS_MAX:
                self._shared = self._new_group()
            group = self._shared
        self._of_pane[pane_us] = group
        return group

    def _new_group(self, only_us: int | None = None) -> PaneGroup:
        room = 0
        if only_us is not None:
            room, self._room = self._room, 0
        group = PaneGroup(self._layout, self._context, step_us=self._step_us, only_us=only_us, room=room)
        self.groups.append(group)
        return group

    def _let_go(self, group: PaneGroup) -> None:
        self.groups = [other for other in self.groups if other is not group]
        if group is self._shared:
            self._shared = None

    def _cut_shared(self) -> None:
        """Panes that have become large leave a group that is full."""
        group = self._shared
        if group is None or len(group) < SHARED_SLOTS_MAX:
            return
        self._shared = None
        panes, counts = np.unique(group.panes_of(group.slots_of()), return_counts=True)
        for pane_us in panes[counts >= OWN_ROWS_MIN].tolist():
            self._move(group, np.array([pane_us]), self._new_group(pane_us))

    def _move(self, group: PaneGroup, panes: Ints, target: PaneGroup) -> None:
        slots = group.slots_of(panes)
        into = target.find(group.keys_of(slots), group.panes_of(slots))
        group.accumulators.pour(slots, target.accumulators, into, count=len(target))
        for pane_us in panes.tolist():
            self._of_pane[pane_us] = target
            group.drop(pane_us)
        if self._shared is group:
            self._shared = target
        if group.is_empty:
            self._let_go(group)


def distinct_panes(panes: Ints, step_us: int) -> tuple[Ints, Ints]:
    """The panes that occur, in order, and for each row which of them is its own. They are multiples of a step apart."""
    first_us = int(panes.min())
    count = (int(panes.max()) - first_us) // step_us + 1
    if count > 4 * len(panes):
        present, of_row = np.unique(panes, return_inverse=True)
        return present, of_row
    numbers = (panes - first_us) // step_us
    used = np.zeros(count, np.bool_)
    used[numbers] = True
    return np.flatnonzero(used) * step_us + first_us, (np.cumsum(used) - 1)[numbers]
