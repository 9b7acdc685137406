"""The rows of one side of a join that may still be needed, by panes of time.

Comes in: batches. Goes out: sorted runs of rows by pane, for whoever matches them, and
state tables. Behind its time a pane is gone as a whole. Emits nothing by itself.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from weir.errors import CheckpointError
from weir.operators.base import OperatorContext, Restored
from weir.operators.joins.runs import RATIO, RunLayout, SortedRun, merge_runs
from weir.operators.joins.side import SETTLED, JoinSide
from weir.operators.user_code import operator_label
from weir.operators.windows.event_time import TimeWindows
from weir.state.columns.rows import FrozenRun, FrozenRuns
from weir.state.frozen import KEY_GROUP_COLUMN
from weir.state.keys.hashing import take_rows
from weir.state.keys.xxhash64 import Ints


class RunPanes:
    """The runs of one side.

    keeps_nulls: whether rows are kept that have a null in their key; they have no partner, but may come out alone
    settles:     whether it is kept of each row if it has come out already
    """

    def __init__(
        self, side: JoinSide, panes: TimeWindows, *, is_left: bool, keeps_nulls: bool, settles: bool = False
    ) -> None:
        self.side = side
        self.layout = RunLayout.of(side, panes.pane_us_max, is_left=is_left, settles=settles)
        self._windows = panes
        self._keeps_nulls = keeps_nulls
        self._panes: dict[int, list[SortedRun]] = {}
        self._frozen = 0
        """How many runs were ever frozen."""

    def __len__(self) -> int:
        return sum(len(run) for runs in self._panes.values() for run in runs)

    def __iter__(self) -> Iterator[int]:
        """The starts of the panes that have rows."""
        return iter(list(self._panes))

    def runs_of(self, batch: pa.RecordBatch) -> list[SortedRun]:
        """New rows as runs, one for each pane; they are not kept yet."""
        whole = None if self._keeps_nulls else self.side.whole_keys(batch)
        if whole is not None:
            batch = take_rows(batch, np.flatnonzero(whole))
        if not batch.num_rows:
            return []
        times = self.side.times(batch)
        panes = self._windows.panes(times)
        if int(panes.min()) == int(panes.max()):
            return [self.layout.run(batch, times, pane_us=int(panes[0]))]
        parts = _by_pane(panes)
        return [self.layout.run(take_rows(batch, rows), times[rows], pane_us=pane_us) for pane_us, rows in parts]

    def add(self, runs: Sequence[SortedRun]) -> None:
        for run in runs:
            self._panes.setdefault(run.pane_us, []).append(run)

    def merge(self, runs: Sequence[SortedRun]) -> None:
        """Merge what was added lately with what was there, where that is due."""
        for pane_us in {run.pane_us for run in runs}:
            held = self._panes[pane_us]
            count = len(held)
            while count > 1 and len(held[count - 2]) < RATIO * sum(map(len, held[count - 1 :])):
                count -= 1
            if count < len(held):
                held[count - 1 :] = [merge_runs(held[count - 1 :])]

    def at(self, pane_us: int) -> Sequence[SortedRun]:
        """The runs of a pane."""
        return self._panes.get(pane_us, ())

    def between(self, first_us: int, last_us: int) -> Iterator[SortedRun]:
        """The runs that have rows of these times, both included."""
        for pane_us, runs in self._panes.items():
            if pane_us <= last_us and first_us < pane_us + self._windows.pane_us_max:
                yield from (run for run in runs if run.first_us <= last_us and first_us <= run.last_us)

    def drop_before(self, time_us: int) -> None:
        """Forget the panes whose rows are all from before this time."""
        for pane_us, runs in list(self._panes.items()):
            if max(run.last_us for run in runs) < time_us:
                del self._panes[pane_us]

    def replace(self, pane_us: int, runs: Sequence[SortedRun]) -> None:
        """Keep these runs of a pane only."""
        if runs:
            self._panes[pane_us] = list(runs)
        else:
            self._panes.pop(pane_us, None)

    def freeze(self, max_parallelism: int) -> FrozenRuns:
        frozen = []
        for runs in self._panes.values():
            for run in runs:
                if run.frozen is None:
                    flags = None if run.settled is None else run.settled.copy()
                    run.frozen = FrozenRun(self._frozen, run.batch, flags)
                    self._frozen += 1
                frozen.append(run.frozen)
        return FrozenRuns(self._stored, self.side.keys, frozen, max_parallelism)

    def restore(self, state: str, restored: Restored, context: OperatorContext) -> None:
        """Take over tables."""
        for table in restored.tables(state):
            check_restored(table.schema, self._stored, context)
            for batch in table.to_batches():
                self._take_over(batch)

    def _take_over(self, batch: pa.RecordBatch) -> None:
        if not batch.num_rows:
            return
        rows = batch.select(self.side.schema.names).cast(self.side.schema)
        times = self.side.times(rows)
        flags = batch.column(SETTLED).to_numpy(zero_copy_only=False) if self.layout.settles else None
        for pane_us, picked in _by_pane(self._windows.panes(times)):
            settled = None if flags is None else flags[picked]
            run = self.layout.run(take_rows(rows, picked), times[picked], pane_us=pane_us, settled=settled)
            self.add([run])
            self.merge([run])

    @property
    def _stored(self) -> pa.Schema:
        return self.side.settling if self.layout.settles else self.side.stored


def _by_pane(panes: Ints) -> Iterator[tuple[int, Ints]]:
    """The numbers of the rows of each pane, in their order."""
    order = np.argsort(panes, kind="stable")
    ordered = panes[order]
    bounds = [0, *(np.flatnonzero(ordered[1:] != ordered[:-1]) + 1).tolist(), len(ordered)]
    for start, stop in itertools.pairwise(bounds):
        yield int(ordered[start]), order[start:stop]


def check_restored(found: pa.Schema, stored: pa.Schema, context: OperatorContext) -> None:
    """CheckpointError when a table of a checkpoint is not what the join keeps."""
    if (verdict := rows_verdict(found, stored)) != "same":
        raise CheckpointError(f"{operator_label(context)}: the checkpoint's state does not fit: {verdict}")


def rows_verdict(found: pa.Schema, stored: pa.Schema) -> str:
    """Whether a table of buffered rows can be restored: "same", or else why not."""
    ours = {field.name: field.type for field in stored if field.name != KEY_GROUP_COLUMN}
    theirs = {field.name: field.type for field in found if field.name != KEY_GROUP_COLUMN}
    if ours == theirs:
        return "same"
    changed = sorted({*ours.items()} ^ {*theirs.items()}, key=lambda item: item[0])
    name = changed[0][0]
    return (
        f"the rows that wait to be joined have {name!r} as {theirs.get(name, 'nothing')} in the checkpoint and as "
        f"{ours.get(name, 'nothing')} in the job; give the join another uid to start afresh"
    )
