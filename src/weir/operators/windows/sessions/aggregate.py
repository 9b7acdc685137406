"""Aggregates over sessions: the second half, behind the exchange.

Comes in: pieces of sessions, or rows, and watermarks. Goes out: a session when the watermark
is so far behind its last row that none can follow. Then it is gone.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa

from weir.errors import CheckpointError, ProtocolViolation
from weir.operators.aggregates.layout import check_same_columns
from weir.operators.aggregates.numbering import RowNumbers
from weir.operators.aggregates.state import in_batches
from weir.operators.base import Course, Emit, Frozen, OperatorContext, PiecewiseOperator, Restored
from weir.operators.user_code import operator_label
from weir.operators.windows.definition import shown
from weir.operators.windows.sessions.heads import Asked
from weir.operators.windows.sessions.partial import SessionSpec
from weir.operators.windows.sessions.pieces import FIRST, LAST, PieceLayout, SessionPieces, gap_of, stored_schema
from weir.operators.windows.sessions.runs import Sealing, SessionRuns, Step
from weir.operators.windows.sessions.store import SessionStore
from weir.snapshot.parts import Progress
from weir.snapshot.watermarks import NEVER_US
from weir.state.columns.segments.shelf import ShelfBudget
from weir.state.frozen import KEY_GROUP_COLUMN
from weir.state.keys.xxhash64 import Ints
from weir.state.pieces import run_through

STATE = "sessions"
"""The name of the state table."""

HEAD_SHARE = 0.5
"""Of the memory for rows that are in no file yet, for the newest sessions. The rest is for those that were sealed."""

HEAD_SESSIONS_MAX = 131_072
"""On disk, sessions that are in memory at most, those that are over included: to grow to more, or to sort them, would
hold up the stream."""

MOVED_SESSIONS_MAX = 65_536
"""So many are moved at once, to leave the room behind that others took."""


@dataclass(frozen=True, eq=False)
class SessionAggregate(SessionSpec):
    """Pieces of sessions to sessions; `lateness_us` and `late` as for WindowAggregate."""

    lateness_us: int = 0
    late: str | None = None

    def schema(self, inputs: Sequence[pa.Schema]) -> pa.Schema:
        expected = self.combined if self.late is None else self.of.input_schema
        check_same_columns(expected, inputs, "the second half of a session window")
        return self.of.output

    def sides(self, inputs: Sequence[pa.Schema]) -> Mapping[str, pa.Schema]:
        return {} if self.late is None else {self.late: shown(self.of.input_schema)}

    @cached_property
    def stored(self) -> pa.Schema:
        """The state table."""
        return stored_schema(self.of.layout)

    def make(self) -> SessionAggregateOperator:
        return SessionAggregateOperator(self)

    @property
    def states(self) -> tuple[str, ...]:
        return (STATE,)

    def verdict(self, state: str, stored: pa.Schema) -> str:
        plain = pa.schema([field for field in stored if field.name not in (FIRST, LAST)])
        if len(plain) != len(stored) - 2:
            return "it is not the state of a session window; give the operator another uid"
        return self.of.layout.refusal(plain) or ("same" if stored.names == self.stored.names else "evolved")


class SessionAggregateOperator(PiecewiseOperator):
    """Holds the sessions that are open, or whose lateness has not passed.

    The newest are in a store, the head. A snapshot, or want of memory, seals it: its sessions go into segments, and a
    key's next row begins a new piece in an empty head. When a session is over as far as one piece knows, that piece
    comes back into the head, where all pieces of one session become one again. A piece elsewhere that the session
    goes on in is only noted, as the time until which it does: it comes back itself when that is over.
    """

    def __init__(self, spec: SessionAggregate) -> None:
        self._spec = spec
        self._watermark_us = NEVER_US
        self._out_us = NEVER_US
        """Sessions whose last row is at most here have come out."""
        self._left_us = NEVER_US
        """Those up to here may have been kept for a lateness that is not allowed any more."""
        self._changed: list[Ints] = []
        """Sessions that rows were added to since the last flush, where some were ended already."""
        self.rows_late = 0

    def open(self, context: OperatorContext, restored: Restored | None) -> None:
        self._context = context
        layout, gap_us = self._spec.of.layout, self._spec.gap_us
        self._layout = PieceLayout(layout, context, gap_us=gap_us, kept_us=gap_us + self._spec.lateness_us)
        self._budget = ShelfBudget(context.place)
        self._runs = SessionRuns(self._layout, self._budget, name=STATE, gap_us=gap_us)
        self._store = SessionStore(layout, context, gap_us)
        self._numbers = RowNumbers(layout, restored)
        if restored is None:
            return
        self._watermark_us = restored.watermark_us
        own = restored.inline_for(context.index, context.parallelism, Progress)
        self.rows_late = sum(progress.rows_late for progress in own)
        self._out_us = self._ended_us(0)
        if STATE in restored.states and not self._runs.restore(restored.states[STATE]):
            for table in restored.tables(STATE):
                self._take_over(table)
                if (old_gap_us := gap_of(table.schema)) is not None:
                    self._out_us = max(NEVER_US, self._watermark_us - old_gap_us)
            self._left_us = self._out_us
            self._runs.settle()

    def process(self, batch: pa.RecordBatch, out: Emit) -> None:
        self._catch_up()
        if not batch.num_rows:
            return
        if self._spec.late is not None:
            firsts = lasts = self._spec.of.times_of(batch, self._context)
            slots = self._store.add_rows(self._numbers.of_rows(batch), lasts)
        else:
            batch = self._numbers.of_accumulators(batch)
            columns, width = batch.columns, 2 + len(self._spec.of.keys)
            firsts, lasts = columns[0].to_numpy(), columns[1].to_numpy()
            slots = self._store.merge(columns[2:width], firsts, lasts, columns=columns[width:])
        earliest_us = int(lasts.min())
        if earliest_us <= self._ended_us(self._spec.lateness_us):
            self._leave_out(batch, slots)
        elif self._spec.lateness_us and earliest_us <= self._ended_us(0):
            self._changed.append(slots)
        self._leave(self._tending(batch.num_rows))

    def _tending(self, rows: int) -> Course:
        yield from self._runs.tending(rows)
        yield from self._making_room()
        return None

    def advance(self, time_us: int, out: Emit) -> Course:
        yield from self._catching_up()
        self._watermark_us = max(self._watermark_us, time_us)
        ended_us = self._ended_us(0)
        self._runs.adopt()
        yield from self._end_sessions(self._out_us, ended_us, out)
        self._out_us = max(self._out_us, ended_us)
        if self._spec.lateness_us:
            yield from self._forget_sessions(self._ended_us(self._spec.lateness_us))
        elif self._left_us > NEVER_US:
            yield from self._forget_sessions(min(self._left_us, ended_us))
            if self._left_us <= ended_us:
                self._left_us = NEVER_US
        self._tidy()
        yield from self._making_room()
        return time_us

    def flush(self, out: Emit) -> None:
        """Emit again what late rows have changed."""
        if not self._changed:
            return
        changed, self._changed = self._store.still_alive(np.concatenate(self._changed)), []
        changed = run_through(self._whole(changed, self._ended_us(0)))
        for slots in in_batches(changed[self._store.lasts(changed) <= self._ended_us(0)]):
            self._emit(slots, out)

    def freeze(self) -> Frozen:
        self._catch_up()
        if self._changed:
            raise ProtocolViolation(f"{operator_label(self._context)}: a snapshot without a flush before it")
        self._runs.adopt(wait=True)  # as a rule it is made long since
        self._seal()
        return Frozen(
            Progress(self._watermark_us, self.rows_late, rows_numbered=self._numbers.numbered),
            {STATE: self._runs.freeze()},
        )

    # --- Sessions end ---

    def _ended_us(self, lateness_us: int) -> int:
        """Where a session's last row is at most here, so much lateness has passed since its end."""
        return max(NEVER_US, self._watermark_us - self._spec.gap_us - lateness_us)

    def _end_sessions(self, before_us: int, ended_us: int, out: Emit) -> Course:
        """Emit the sessions that end in between."""
        for step in self._steps(before_us, ended_us):
            yield
            if step is None:
                continue
            self._put_back(step.pieces)
            yield
            yield from self._whole(self._due(step), step.until_us)
            due = self._due(step)
            for slots in in_batches(due[np.argsort(self._store.lasts(due), kind="stable")]):
                self._emit(slots, out)
                yield
            if not self._spec.lateness_us:
                self._store.remove(due)
            yield from self._making_room()
        return None

    def _forget_sessions(self, gone_us: int) -> Course:
        """Forget sessions that late rows can no longer change."""
        for step in self._steps(NEVER_US, gone_us):
            yield
            if step is None:
                continue
            self._put_back(step.pieces)
            yield
            yield from self._whole(self._due(step), NEVER_US)
            if len(due := self._due(step)):
                self._store.remove(due)
                yield
            yield from self._making_room()
        return None

    def _steps(self, after_us: int, until_us: int) -> Iterator[Step | None]:
        """What ends in between, a bounded part at a time as far as times differ; with pauses."""
        for last_us in [*self._runs.cuts(self._lasts_between(after_us, until_us), after_us, until_us), until_us]:
            yield from self._runs.steps(after_us, last_us, self._seal_for_good)
            after_us = last_us

    def _lasts_between(self, after_us: int, until_us: int) -> Ints:
        lasts = self._store.lasts(self._store.ended_by(until_us))
        return lasts[lasts > after_us]

    def _due(self, step: Step) -> Ints:
        """The sessions of a step."""
        slots = self._store.ended_by(step.until_us)
        slots = slots[self._store.lasts(slots) > step.after_us]
        if step.has_all_keys:
            return slots
        order = self._layout.order(self._store.hashes(slots))
        return slots[(order >= np.uint64(step.low)) & (order <= np.uint64(step.high))]

    def _whole(self, slots: Ints, ended_us: int) -> Generator[None, None, Ints]:
        """Sessions with all that touches them and lies elsewhere: pieces that are over come back, and until when the
        others go on is noted. The sessions that they, and those, have become. Looked for piece by piece."""
        become = [slots]
        while len(slots) and not self._runs.is_empty:
            found = yield from self._runs.touching(self._asked(slots), ended_us)
            for rows, lasts in zip(found.rows, found.lasts, strict=True):
                self._store.extend(slots[rows], lasts)
            if not found.pieces:
                break
            slots = self._put_back(SessionPieces.joined(found.pieces))
            become.append(slots)
            yield
        return slots if len(become) == 1 else self._store.still_alive(np.concatenate(become))

    def _asked(self, slots: Ints) -> Asked:
        store = self._store
        times = store.starts(slots), store.lasts(slots)
        return Asked(store.numbers(slots), store.keys(slots), store.hashes(slots), *times, store.numbers_of)

    def _put_back(self, pieces: SessionPieces | None) -> Ints:
        """Take pieces back into the head; the session of each."""
        if pieces is None or not len(pieces):
            return np.empty(0, np.int64)
        return self._store.merge(pieces.keys, pieces.firsts, pieces.lasts, columns=pieces.columns)

    def _leave_out(self, batch: pa.RecordBatch, slots: Ints) -> None:
        """Remove sessions that are nothing but late rows. One that was there before is not: its end is further on."""
        store, gone_us = self._store, self._ended_us(self._spec.lateness_us)
        become = run_through(self._whole(store.ended_by(gone_us), self._ended_us(0)))
        late = store.ended_by(gone_us)
        if self._spec.late is None:
            self.rows_late += int(store.accumulators.read_of(self._spec.of.rows_at, late).to_numpy().sum())
        else:
            part = batch.filter(pa.array(np.isin(slots, late)))
            self.rows_late += part.num_rows
            if part.num_rows and (side := self.sides.get(self._spec.late)) is not None:
                side(part.select(shown(self._spec.of.input_schema).names))
        kept = slots[~np.isin(slots, late)]
        if self._spec.lateness_us:
            self._changed += [some for some in (kept, become) if len(some)]
        store.remove(late)

    def _emit(self, slots: Ints, out: Emit) -> None:
        store, of = self._store, self._spec.of
        ends = store.lasts(slots) + self._spec.gap_us
        out(of.result(store.keys(slots), store.starts(slots), ends, values=store.accumulators.values(slots)))

    # --- Where sessions lie ---

    def _tidy(self) -> None:
        """Leave a head behind whose sessions are mostly gone: to move many others would hold up the stream."""
        if not self._store.is_mostly_dead:
            return
        is_large = len(self._store) > MOVED_SESSIONS_MAX
        if is_large and self._budget.directory is None and self._runs.has_room and not self._changed:
            self._retire()
        else:
            self._store.compact()

    def _making_room(self) -> Course:
        """Nobody holds slots now, but for those that have changed: seal the head, if it has become too large."""
        if self._budget.directory is None or self._changed:
            return None
        is_large = self._store.slots > HEAD_SESSIONS_MAX
        if is_large or self._store.size_bytes > self._budget.held_bytes_max * HEAD_SHARE:
            self._seal()
            yield from self._runs.making()
            self._runs.adopt(wait=True)
            yield from self._budget.settling()
        return None

    def _seal(self) -> None:
        """Begin a new head, if there is one."""
        if len(self._store):
            self._retire()
        self._runs.seal()

    def _retire(self) -> None:
        retired = self._store
        self._runs.retire(retired)
        if self._budget.directory is None:
            self._store = retired.successor()
        else:  # where room would count as memory that is in use
            self._store = SessionStore(self._spec.of.layout, self._context, self._spec.gap_us)

    def _seal_for_good(self) -> Sealing:
        """The same, and put its sessions into segments now; whether there were any that were not there yet."""
        self._seal()
        yield from self._runs.making()
        was_one = self._runs.adopt(wait=True)
        yield from self._budget.settling()
        return was_one

    def _take_over(self, table: pa.Table) -> None:
        if (verdict := self._spec.verdict(STATE, table.schema)) not in ("same", "evolved"):
            raise CheckpointError(f"{operator_label(self._context)}: the checkpoint's state does not fit: {verdict}")
        table = self._spec.of.layout.with_arrivals(table, FIRST)
        table = table.select(self._spec.stored.names).cast(self._spec.stored).drop_columns([KEY_GROUP_COLUMN])
        for batch in table.to_batches():
            if batch.num_rows:
                self._runs.take_over(self._layout.pieces_of(batch))
