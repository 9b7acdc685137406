"""The contract of an operator: batches in, batches out.

An `OperatorSpec` is the picklable description that the plan carries; `make()`
turns it into the `Operator` that one subtask runs. Operators see no clock, no
thread and no socket, and are called by one thread only.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TypeAlias

import pyarrow as pa

from weir.config import Settings
from weir.ids import AttemptId, Lineage, Uid
from weir.operators.calls import MakeCalls
from weir.snapshot.parts import Inline, Json, K, Position, Progress, read_as
from weir.snapshot.watermarks import END_US, NEVER_US
from weir.state.frozen import KEY_GROUP_COLUMN as KEY_GROUP_COLUMN
from weir.state.frozen import FrozenState, RestoredState
from weir.state.pieces import run_through as run_through
from weir.state.place import StatePlace

NO_LINEAGE = Lineage("0000000000")
"""Of an operator that runs by itself, without a job."""

Emit: TypeAlias = Callable[[pa.RecordBatch], None]
"""Hand a batch to whatever comes next."""

Course: TypeAlias = Generator[None, None, int | None]
"""Work in pieces. Between two of them others may run, but nothing else is asked of the operator. Returns the watermark
that goes on; None: none does."""


@dataclass(frozen=True)
class OperatorContext:
    """Where an operator instance stands."""

    job: str
    uid: Uid
    name: str
    index: int
    parallelism: int
    max_parallelism: int
    attempt: AttemptId
    lineage: Lineage = NO_LINEAGE
    """The job's life, over all its runs that resume each other."""
    place: StatePlace = field(default_factory=StatePlace)
    """Where its state lives."""
    calls: MakeCalls | None = None
    """Makes calls of async functions, for operators that need some."""
    settings: Settings = field(default_factory=Settings)
    """Of the job."""
    may_drop_state: bool = False
    """Whether the user wants it dropped what a checkpoint holds and nobody declares."""

    @property
    def key_groups(self) -> range:
        """The contiguous range of key groups that this subtask owns."""
        return key_group_range(self.index, self.parallelism, self.max_parallelism)


def key_group_range(index: int, parallelism: int, max_parallelism: int) -> range:
    """Key groups of subtask `index` of `parallelism`.

    >>> [key_group_range(i, 3, 128) for i in range(3)]
    [range(0, 43), range(43, 86), range(86, 128)]
    """
    start = (index * max_parallelism + parallelism - 1) // parallelism
    end = ((index + 1) * max_parallelism + parallelism - 1) // parallelism
    return range(start, end)


@dataclass(frozen=True)
class Frozen:
    """The synchronous part of a snapshot: cheap to make, safe to read from another thread.

    inline: what goes into the manifest itself.
    states: the states by name, to be written later in a background thread, while the
            operator goes on.
    """

    inline: Inline | None = None
    states: Mapping[str, FrozenState] = field(default_factory=dict)


@dataclass(frozen=True)
class InlinePart:
    """The position that reader `index` of `parallelism` had when the checkpoint was taken."""

    index: int
    parallelism: int
    value: Json


@dataclass(frozen=True)
class RestoredInline:
    """What subtask `index` of `parallelism` had put into the manifest."""

    index: int
    parallelism: int
    value: Inline | None


@dataclass(frozen=True)
class Restored:
    """What a checkpoint holds for this operator.

    inline: the parts of every old subtask; the operator takes what is its own now.
    states: by name, with exactly what belongs to this subtask's key groups.
    """

    inline: Sequence[RestoredInline] = ()
    states: Mapping[str, RestoredState] = field(default_factory=dict)

    def tables(self, state: str) -> Iterator[pa.Table]:
        """The tables of a state; none when the checkpoint does not hold it."""
        if state in self.states:
            yield from self.states[state].tables()

    def all_inline(self, kind: type[K]) -> list[K]:
        """What the old subtasks had put in of this kind."""
        return [value for part in self.inline if (value := read_as(part.value, kind)) is not None]

    def inline_of(self, index: int, parallelism: int, kind: type[K]) -> list[K]:
        """What this very subtask had put in, if there were as many then."""
        own = [part for part in self.inline if (part.index, part.parallelism) == (index, parallelism)]
        return replace(self, inline=own).all_inline(kind)

    def inline_for(self, index: int, parallelism: int, kind: type[K]) -> list[K]:
        """What of it falls to subtask `index` now: old subtask j goes to j modulo `parallelism`."""
        return replace(self, inline=[p for p in self.inline if p.index % parallelism == index]).all_inline(kind)

    @property
    def positions(self) -> list[InlinePart] | None:
        """To a source; None when there are none: it starts from the beginning."""
        known = [(part, read_as(part.value, Position)) for part in self.inline]
        if any(position is None and part.value is not None for part, position in known):
            return None  # It was no source; the user has said that what it held may be dropped.
        return [
            InlinePart(part.index, part.parallelism, None if position is None else position.value)
            for part, position in known
        ]

    @property
    def watermark_us(self) -> int:
        """How far event time had come, for operators that keep it in the manifest."""
        time_us = min((progress.watermark_us for progress in self.all_inline(Progress)), default=NEVER_US)
        # An input that was drained, and now goes on after all: not everything is late because of that. How far it
        # really had come those who make the watermarks know, and say it again.
        return NEVER_US if time_us == END_US else time_us


class Operator:
    """One subtask's instance of an operator. The defaults are those of a stateless one."""

    sides: Mapping[str, Emit] = MappingProxyType({})
    """Side outputs by tag, those that somebody reads; set before `open`."""

    rows_late = 0
    """Rows that came too late and were left out."""

    def open(self, context: OperatorContext, restored: Restored | None) -> None:
        """Get ready. `restored` is None on a fresh start."""

    def process(self, batch: pa.RecordBatch, out: Emit) -> None:
        """Take one batch; emit any number of batches."""
        raise NotImplementedError(type(self).__name__)

    def process_from(self, input_number: int, batch: pa.RecordBatch, out: Emit) -> None:
        """Take one batch of one of several inputs, which differ in meaning. Only the first of a chain has more than
        one."""
        self.process(batch, out)

    def watermark(self, time_us: int, out: Emit) -> int | None:
        """Event time has come this far, in microseconds. Emit what is due. Returns the watermark that goes on; None:
        none does."""
        return time_us

    def advance(self, time_us: int, out: Emit) -> Course:
        """The same in pieces, as far as it pays to cut it up."""
        return self.watermark(time_us, out)
        yield  # never: it is one

    @property
    def wake_ms(self) -> float | None:
        """When, by the wall clock, `tick` is wanted; None: not at all."""
        return None

    def tick(self, now_ms: float, out: Emit) -> None:
        """The wall clock shows at least `wake_ms`. Emit what is due."""

    def ticking(self, now_ms: float, out: Emit) -> Course:
        """The same in pieces."""
        self.tick(now_ms, out)
        return None
        yield  # never: it is one

    def flush(self, out: Emit) -> None:
        """Emit what was held back to merge it with later rows. Called when idle, on time-out, before each marker."""

    def flushing(self, out: Emit) -> Course:
        """The same in pieces, as far as it pays to cut it up."""
        self.flush(out)
        return None
        yield  # never: it is one

    def end(self, out: Emit) -> None:
        """No more rows will come. May be called again after a restore: what it emits must follow from the state."""

    def ending(self, out: Emit) -> Course:
        """The same in pieces."""
        self.end(out)
        return None
        yield  # never: it is one

    def freeze(self) -> Frozen:
        """The synchronous part of a snapshot."""
        return Frozen()

    def close(self) -> None:
        """Release what is held. Called exactly once, also after a failure."""


class PiecewiseOperator(Operator):
    """An operator for which time may set off more at once than can be held, or than others can wait for; or rows do,
    by what is to be done behind them."""

    _left_to_do: Course | None = None

    def tending(self) -> Course | None:
        """What is left to do behind the rows that have come, if anything is: before more come, or with these."""
        left, self._left_to_do = self._left_to_do, None
        return left

    def _leave(self, course: Course) -> None:
        """This is to be done behind the rows that have just come."""
        self._catch_up()
        self._left_to_do = course

    def _catch_up(self) -> None:
        run_through(self._catching_up())

    def _catching_up(self) -> Course:
        if (left := self.tending()) is not None:
            yield from left
        return None

    def flushing(self, out: Emit) -> Course:
        self.flush(out)
        yield from self._catching_up()
        return None

    def advance(self, time_us: int, out: Emit) -> Course:
        raise NotImplementedError(type(self).__name__)

    def ticking(self, now_ms: float, out: Emit) -> Course:
        return None
        yield

    def ending(self, out: Emit) -> Course:
        return None
        yield

    def watermark(self, time_us: int, out: Emit) -> int | None:
        return run_through(self.advance(time_us, out))

    def tick(self, now_ms: float, out: Emit) -> None:
        run_through(self.ticking(now_ms, out))

    def end(self, out: Emit) -> None:
        run_through(self.ending(out))


class WaitingOperator(Operator):
    """An operator that waits for others: what comes of its rows is emitted by `tick`, later."""

    @property
    def is_full(self) -> bool:
        """No more rows for now."""
        raise NotImplementedError

    @property
    def is_waiting(self) -> bool:
        """Whether something is still to come of what went in. The input does not end before."""
        raise NotImplementedError

    def released(self) -> int | None:
        """A watermark that `watermark` had held back, and that goes on now. Asked behind each tick."""
        raise NotImplementedError


class OperatorSpec(ABC):
    """A picklable description of an operator."""

    @abstractmethod
    def schema(self, inputs: Sequence[pa.Schema]) -> pa.Schema:
        """The schema of what comes out, or SchemaError."""

    @abstractmethod
    def make(self) -> Operator:
        """A fresh instance for one subtask."""

    def kept_as(self, column: str, schema: pa.Schema) -> str | None:
        """Under which name a column of the input comes out as it was; None: not at all. Of functions nobody can tell:
        there, a column of the same name counts as the same."""
        return column

    def hashed_as(self, keys: Sequence[str]) -> str | None:
        """The column of what comes out in which the hash of these key columns stands, in this order; None: in none."""
        return None

    def sides(self, inputs: Sequence[pa.Schema]) -> Mapping[str, pa.Schema]:
        """The schemas of its side outputs, by tag."""
        return {}

    @property
    def states(self) -> tuple[str, ...]:
        """The names of the state tables that its instances freeze and restore."""
        return ()

    @property
    def declares_in_open(self) -> bool:
        """Whether its instances may declare more states when they are opened, which nobody knows before."""
        return False

    def verdict(self, state: str, stored: pa.Schema) -> str:
        """What becomes of one of its states that a checkpoint holds in tables of this schema: "same", "evolved" or
        "migrated"; or else the reason why it cannot be restored."""
        return "same"

    def dropped(self, state: str, stored: Callable[[], pa.Schema]) -> tuple[str, ...]:
        """The values in one of its states that would be lost, since the operator does not keep them any more.
        `stored`: reads the schema of the tables that the checkpoint holds."""
        return ()
