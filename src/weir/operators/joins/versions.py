"""A table that changes, by key and event time: its versions, as far as they are needed.

Comes in: rows, each a new version of its key's row from its time on. Goes out: for keys
and times, the newest version at or before. Versions are kept in sorted runs that merge
like an LSM tree; what a newer version has replaced, behind the watermark, is dropped then.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from weir.operators.base import OperatorContext, Restored
from weir.operators.joins.panes import check_restored
from weir.operators.joins.runs import RATIO
from weir.operators.joins.side import JoinSide, equal_keys, gathered
from weir.snapshot.watermarks import NEVER_US
from weir.state.columns.rows import FrozenRun, FrozenRuns
from weir.state.keys.hashing import take_rows
from weir.state.keys.xxhash64 import Ints, Words


@dataclass
class VersionRun:
    """Versions sorted by hash, then by time, then by when they came."""

    hashes: Words
    times: Ints
    batch: pa.RecordBatch
    open_until_us: int | None = None
    """Set while most of its rows were not behind the watermark when it was made: once they are, it is worth a look."""
    frozen: FrozenRun | None = field(default=None, repr=False)

    def __len__(self) -> int:
        return len(self.hashes)


@dataclass(frozen=True)
class Found:
    """Versions of one run, for some of the rows that asked."""

    rows: Ints
    versions: pa.RecordBatch


class Versions:
    """All runs of one subtask, the oldest first."""

    def __init__(self, side: JoinSide) -> None:
        self.side = side
        self._runs: list[VersionRun] = []
        self._frozen = 0

    def __len__(self) -> int:
        return sum(map(len, self._runs))

    def add(self, batch: pa.RecordBatch, *, watermark_us: int) -> None:
        """Take new versions. Rows with a null in their key are left out: they are never asked for."""
        whole = self.side.whole_keys(batch)
        if whole is not None:
            batch = take_rows(batch, np.flatnonzero(whole))
        if not batch.num_rows:
            return
        run = self._run(self.side.hashes(batch), self.side.times(batch), batch, watermark_us)
        runs, count = [*self._runs, run], len(self._runs) + 1
        while count > 1 and len(runs[count - 2]) < RATIO * sum(map(len, runs[count - 1 :])):
            count -= 1
        self._runs = [*runs[: count - 1], self._merged(runs[count - 1 :], watermark_us)]

    def drop_replaced(self, watermark_us: int) -> None:
        """Drop what newer versions have replaced in runs that were made before the watermark came by."""
        for index, run in enumerate(self._runs):
            if run.open_until_us is not None and run.open_until_us <= watermark_us:
                self._runs[index] = self._merged([run], watermark_us)
                for later in self._runs[index + 1 :]:
                    later.frozen = None  # they are written again, so that their names stay in the order of age

    def find(self, batch: pa.RecordBatch, side: JoinSide, times: Ints) -> Iterator[Found]:
        """The newest version, at or before its time, of each row's key; rows without one are in none of the answers."""
        hashes = side.hashes(batch)
        best_us = np.full(len(times), NEVER_US, np.int64)
        chosen = np.full(len(times), -1, np.int64)
        places = np.zeros(len(times), np.int64)
        for number, run in enumerate(self._runs):
            rows, positions = self._newest(run, batch, side, hashes, times)
            found_us = run.times[positions]
            # Of equal times what came last holds.
            better = np.flatnonzero(found_us >= best_us[rows])
            rows, positions = rows[better], positions[better]
            best_us[rows], chosen[rows], places[rows] = found_us[better], number, positions
        for number, run in enumerate(self._runs):
            rows = np.flatnonzero(chosen == number)
            if len(rows):
                yield Found(rows, take_rows(run.batch, places[rows]))

    def freeze(self, max_parallelism: int) -> FrozenRuns:
        for run in self._runs:
            if run.frozen is None:
                run.frozen = FrozenRun(self._frozen, run.batch)
                self._frozen += 1
        frozen = [run.frozen for run in self._runs if run.frozen is not None]
        return FrozenRuns(self.side.stored, self.side.keys, frozen, max_parallelism)

    def restore(self, state: str, restored: Restored, context: OperatorContext, *, watermark_us: int) -> None:
        """Take over tables, which come in the order of age."""
        for table in restored.tables(state):
            check_restored(table.schema, self.side.stored, context)
            for batch in table.to_batches():
                self.add(batch.select(self.side.schema.names).cast(self.side.schema), watermark_us=watermark_us)

    def _run(self, hashes: Words, times: Ints, batch: pa.RecordBatch, watermark_us: int) -> VersionRun:
        order = _by_hash_and_time(hashes, times)
        times = times[order]
        is_open = 2 * int(np.count_nonzero(times > watermark_us)) > len(times)
        return VersionRun(hashes[order], times, take_rows(batch, order), int(times.max()) if is_open else None)

    def _merged(self, runs: Sequence[VersionRun], watermark_us: int) -> VersionRun:
        """One run of several, without the versions that newer ones have replaced for every row yet to come."""
        hashes = np.concatenate([run.hashes for run in runs])
        times = np.concatenate([run.times for run in runs])
        merged = self._run(hashes, times, gathered([run.batch for run in runs]), watermark_us)
        followed = (merged.hashes[1:] == merged.hashes[:-1]) & (merged.times[1:] <= watermark_us)
        rows = np.flatnonzero(followed)
        if not len(rows):
            return merged
        keys = [take_rows(merged.batch, rows + shift) for shift in (0, 1)]
        equal = equal_keys(self.side.key_columns(keys[0]), self.side.key_columns(keys[1]))
        kept = np.ones(len(merged), np.bool_)
        kept[rows if equal is None else rows[equal]] = False
        left = np.flatnonzero(kept)
        return VersionRun(merged.hashes[left], merged.times[left], take_rows(merged.batch, left), merged.open_until_us)

    def _newest(
        self, run: VersionRun, batch: pa.RecordBatch, side: JoinSide, hashes: Words, times: Ints
    ) -> tuple[Ints, Ints]:
        """The rows that find a version in a run, and where."""
        starts = np.searchsorted(run.hashes, hashes)
        rows = np.flatnonzero(run.hashes.take(starts, mode="clip") == hashes)
        starts = starts[rows]
        stops = np.searchsorted(run.hashes, hashes[rows], side="right")
        positions = _last_until(run.times, starts, stops, times[rows]) - 1
        return self._of_same_key(run, batch, side, rows=rows, starts=starts, positions=positions)

    def _of_same_key(
        self, run: VersionRun, batch: pa.RecordBatch, side: JoinSide, *, rows: Ints, starts: Ints, positions: Ints
    ) -> tuple[Ints, Ints]:
        """Move on to older versions where another key has the same hash."""
        done: list[tuple[Ints, Ints]] = [(rows[:0], rows[:0])]
        while True:
            inside = np.flatnonzero(positions >= starts)
            rows, starts, positions = rows[inside], starts[inside], positions[inside]
            if not len(rows):
                break
            theirs = self.side.key_columns(take_rows(run.batch, positions))
            equal = equal_keys(side.key_columns(take_rows(batch, rows)), theirs)
            if equal is None:
                done.append((rows, positions))
                break
            done.append((rows[equal], positions[equal]))
            rows, starts, positions = rows[~equal], starts[~equal], positions[~equal] - 1
        return np.concatenate([found for found, _ in done]), np.concatenate([place for _, place in done])


def _by_hash_and_time(hashes: Words, times: Ints) -> Ints:
    """The same as np.lexsort((times, hashes)), which takes longer where runs that are sorted follow each other."""
    order = np.argsort(hashes, kind="stable")
    ordered, timed = hashes[order], times[order]
    begins = ordered[1:] != ordered[:-1]
    wrong = np.flatnonzero(~begins & (timed[1:] < timed[:-1]))
    if len(wrong):
        groups = np.concatenate((np.zeros(1, np.int64), np.cumsum(begins)))
        flagged = np.zeros(int(groups[-1]) + 1, np.bool_)
        flagged[groups[wrong]] = True
        places = np.flatnonzero(flagged[groups])
        rows = order[places]
        order[places] = rows[np.lexsort((times[rows], hashes[rows]))]
    return order


def _last_until(times: Ints, starts: Ints, stops: Ints, until: Ints) -> Ints:
    """For each stretch of ascending times: where the first is that is later than `until`."""
    first, stop = starts.copy(), stops.copy()
    for _ in range(int((stop - first).max(initial=0)).bit_length()):
        middle = (first + stop) >> 1
        inside = first < stop
        earlier = inside & (times.take(middle, mode="clip") <= until)
        first = np.where(earlier, middle + 1, first)
        stop = np.where(inside & ~earlier, middle, stop)
    return first
