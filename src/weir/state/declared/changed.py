"""Which rows of a heap state have changed since what storage holds of it.

Comes in: each row that a handle has changed, by what it is known by: its key, or its key and its map key. Goes out:
with each freeze, what to build on and what changed since; or that everything must be written. A freeze takes no longer
for more rows. Nothing is noted before there is a freeze that later ones could build on.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, TypeAlias

from weir.snapshot.parts import StatePart
from weir.state.changes import FILES_MAX, UNCONFIRMED_MAX
from weir.state.declared.untracked import untrack

Row: TypeAlias = Any
"""What a row is known by: a key, or a key and a map key."""

IGNORED: Callable[[Row], None] = deque[Row](maxlen=0).append
"""Takes note of nothing, as quickly as that can be done."""

LIST_ROWS = 32_768
"""Rows in one list: to free a longer one would hold up the stream."""

SET_ROWS = 131_072
"""Rows in one set. To make room in a larger one would hold up the stream; in two sets a row may be twice."""

LISTED_ROWS_LEAST = 65_536
"""Rows are just listed until there are so many, or half as many as the state has; from then on each is noted once."""

STEP_ROWS = 1_000
"""Rows that are taken at once. The loop cannot have the interpreter back before that is done."""

CHANGED_RATIO = 0.5
"""Rows in the files with changes, for each row of the state, before it is written anew."""

_SEEN_SETS = 64

Lot: TypeAlias = "list[Row] | set[Row]"


@dataclass(frozen=True)
class Since:
    """What a snapshot may build on, and what changed since."""

    base: StatePart
    lots: Sequence[Lot]
    state_rows: int

    def rows(self, breathe: Callable[[], None]) -> list[Row] | None:
        """The rows that changed, each once; None: everything is to be written, which is cheaper."""
        detail = self.base.detail
        left = CHANGED_RATIO * max(detail["whole_rows"], self.state_rows) - (detail["rows"] - detail["whole_rows"])
        seen: list[set[Row]] = [set() for _ in range(_SEEN_SETS)]
        found: list[Row] = []
        for lot in self.lots:
            rows = iter(lot)
            while piece := dict.fromkeys(islice(rows, STEP_ROWS)):
                for row in piece:
                    known = seen[hash(row) % _SEEN_SETS]
                    if row not in known:
                        known.add(row)
                        found.append(row)
                if len(found) > left or len(self.base.files) >= FILES_MAX:
                    return None
                breathe()
        return found


class ChangedRows:
    """What one state notes. `note` is called with each row that changes; it is another function after `freeze`,
    `restored` and `tidy`."""

    def __init__(self) -> None:
        self.note = IGNORED
        self._base: StatePart | None = None
        self._lots: list[Lot] | None = None
        """Since the last freeze; None: anything may have changed. The last one is being noted in."""
        self._unconfirmed: list[tuple[int, list[Lot] | None]] = []
        """Numbers of freezes since the base, and what changed before each since the one before."""
        self._number = 0
        self._retired: deque[Lot] = deque()

    def freeze(self, rows: int) -> tuple[int, Since | None]:
        """The number of this freeze, and what its snapshot may be built on; None: everything must be written. `rows`:
        about how many there are."""
        self._number += 1
        self._unconfirmed.append((self._number, self._lots))
        if len(self._unconfirmed) > UNCONFIRMED_MAX:
            # The older one loses its number: if it is confirmed all the same, too much is written, never too little.
            (_, first), (number, second), *rest = self._unconfirmed
            self._unconfirmed = [(number, self._together(first, second, rows)), *rest]
        self._start()
        return self._number, self._since_base(rows)

    def restored(self, part: StatePart) -> None:
        """What there is now is exactly what this part holds."""
        self._base = part
        self._unconfirmed = []
        self._start()

    def confirmed(self, number: int, part: StatePart) -> None:
        """A completed checkpoint holds the part that was written of this freeze."""
        self._base = part
        for other, lots in self._unconfirmed:
            if other <= number:
                self._retired.extend(lots or ())
        self._unconfirmed = [(other, lots) for other, lots in self._unconfirmed if other > number]

    def tidy(self, rows: int) -> None:
        """Called with each batch, when nothing is being changed. `rows`: about how many there are."""
        if self._retired:
            self._retired.popleft()
        if not self._lots:
            return
        if len(self._lots[-1]) >= LIST_ROWS:
            self._add_list()
        if sum(map(len, self._lots)) > _listed_max(rows):
            self._note_once(rows)

    def _together(self, first: list[Lot] | None, second: list[Lot] | None, rows: int) -> list[Lot] | None:
        """What changed before two freezes; None when that is too much to be kept for as long as no checkpoint
        completes."""
        lots = [*(first or ()), *(second or ())]
        if first is not None and second is not None and sum(map(len, lots)) <= _listed_max(rows):
            return lots
        self._retired.extend(lots)
        return None

    def _start(self) -> None:
        self._lots = []
        self._add_list()

    def _add_list(self) -> None:
        listed: list[Row] = []
        untrack(listed)
        self._lots = [*(self._lots or ()), listed]
        self.note = listed.append

    def _note_once(self, rows: int) -> None:
        """Put the oldest list into a set."""
        assert self._lots is not None
        sets = [lot for lot in self._lots if isinstance(lot, set)]
        if sum(map(len, sets)) > CHANGED_RATIO * rows:
            # The next snapshot writes everything anyway.
            self._retired.extend(self._lots)
            self._lots, self.note = None, IGNORED
            return
        lists = [lot for lot in self._lots if isinstance(lot, list)]
        if len(lists) < 2:
            return
        if not sets or len(sets[-1]) >= SET_ROWS:
            sets.append(set())
        sets[-1].update(lists[0])
        untrack(sets[-1])
        self._retired.append(lists[0])
        self._lots = [*sets, *lists[1:]]

    def _since_base(self, rows: int) -> Since | None:
        if self._base is None:
            return None
        found: list[Lot] = []
        for _, lots in self._unconfirmed:
            if lots is None:
                return None
            found += [lot for lot in lots if lot]
        return Since(self._base, found, rows)


def _listed_max(rows: int) -> float:
    """So many rows are listed, of a state that has about so many."""
    return max(LISTED_ROWS_LEAST, CHANGED_RATIO * rows)
