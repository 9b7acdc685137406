"""Functions with state, run by hand as the engine would run them: several subtasks, on any backend, with snapshots that
go through files and come back at another parallelism.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from tests.states import Shelf, split_by_owner
from tests.unit.operators.running import context, rows
from weir.config import StateBackend
from weir.operators.base import Emit, Operator, OperatorContext, OperatorSpec, Restored, RestoredInline, key_group_range
from weir.snapshot.parts import Inline, StatePart
from weir.state.declared.base import StateDescriptor
from weir.state.declared.kinds import AggregatingState, ListState, MapState, ReducingState, ValueState
from weir.state.frozen import RestoredPart, RestoredParts, RestoredState
from weir.state.operator_state import RestoredOperatorState, redistribution_of
from weir.state.place import StatePlace, wall_clock_ms

MAX_PARALLELISM = 128


@dataclass(frozen=True)
class Kind:
    """A kind of state by key, used to add up numbers: `add` gives the sum of all that were added at the key."""

    state: StateDescriptor
    add: Callable[[Any, int], int]


def _value(handle: Any, x: int) -> int:
    handle.value += x
    return int(handle.get())


def _list(handle: Any, x: int) -> int:
    handle.add(x)
    return sum(handle.get())


def _map(handle: Any, x: int) -> int:
    handle[x % 3] += x
    return sum(handle.values())


def _folded(handle: Any, x: int) -> int:
    handle.add(x)
    return int(handle.get())


KINDS = {
    "value": Kind(ValueState("long", default=0), _value),
    "list": Kind(ListState("long"), _list),
    "map": Kind(MapState("long", "long", default=0), _map),
    "reducing": Kind(ReducingState("long", lambda so_far, x: so_far + x), _folded),
    "aggregating": Kind(
        AggregatingState(
            "struct<sum:long>",
            create=lambda: {"sum": 0},
            add=lambda so_far, x: {"sum": so_far["sum"] + x},
            result=lambda so_far: so_far["sum"],
        ),
        _folded,
    ),
}


@dataclass(frozen=True)
class Checkpoint:
    """What the subtasks of one operator have put in."""

    parts: Sequence[Mapping[str, StatePart]]
    inline: Sequence[Inline | None]
    files: Shelf

    def restored(self, here: OperatorContext) -> Restored:
        """What falls to one subtask, as a task finds it."""
        parallelism = len(self.parts)
        own = key_group_range(here.index, here.parallelism, MAX_PARALLELISM)
        states: dict[str, RestoredState] = {}
        for name in self.parts[0]:
            held = [
                RestoredPart(part[name], key_group_range(index, parallelism, MAX_PARALLELISM), self.files)
                for index, part in enumerate(self.parts)
            ]
            redistribute = redistribution_of(held[0].part.detail)
            if redistribute is not None:
                states[name] = RestoredOperatorState(held, redistribute, here.index, here.parallelism)
                continue
            touched = [p for p in held if p.key_groups.start < own.stop and own.start < p.key_groups.stop]
            states[name] = RestoredParts(touched, own)
        return Restored([RestoredInline(i, parallelism, inline) for i, inline in enumerate(self.inline)], states)


class Subtasks:
    """All subtasks of one operator behind a hash exchange (`keys`), or without one."""

    def __init__(
        self,
        spec: OperatorSpec,
        keys: Sequence[str] | Sequence[Sequence[str]] = (),
        *,
        backend: StateBackend,
        directory: Path,
        parallelism: int,
        checkpoint: Checkpoint | None = None,
        calls: Any = None,
        now_ms: Callable[[], int] = wall_clock_ms,
    ) -> None:
        """`keys`: of the one input, or of each."""
        self._keys: Sequence[Any] = [keys] if not keys or isinstance(keys[0], str) else keys
        self.operators: list[Operator] = []
        for index in range(parallelism):
            place = StatePlace(backend, tempfile.mkdtemp(dir=directory), now_ms=now_ms)
            here = replace(context(index, parallelism, MAX_PARALLELISM, place=place), calls=calls)
            operator = spec.make()
            operator.open(here, None if checkpoint is None else checkpoint.restored(here))
            self.operators.append(operator)

    def process(self, batch: pa.RecordBatch, *, input_number: int = 0) -> list[tuple[Any, ...]]:
        """The rows that come out; without keys, batches go to the subtasks in turn."""
        emitted: list[pa.RecordBatch] = []
        self.feed(batch, emitted.append, input_number=input_number)
        return rows(emitted)

    def feed(self, batch: pa.RecordBatch, out: Emit, *, input_number: int = 0) -> None:
        count, keys = len(self.operators), self._keys[input_number]
        parts = enumerate(batch.take(list(range(i, batch.num_rows, count))) for i in range(count))
        if keys:
            parts = split_by_owner(batch, keys, parallelism=count, max_parallelism=MAX_PARALLELISM)  # type: ignore[assignment]
        for owner, part in parts:
            if input_number:
                self.operators[owner].process_from(input_number, part, out)
            else:
                self.operators[owner].process(part, out)

    def flush(self) -> list[tuple[Any, ...]]:
        """As before each marker."""
        emitted: list[pa.RecordBatch] = []
        for operator in self.operators:
            operator.flush(emitted.append)
        return rows(emitted)

    def watermark(self, time_us: int) -> list[tuple[Any, ...]]:
        emitted: list[pa.RecordBatch] = []
        for operator in self.operators:
            operator.watermark(time_us, emitted.append)
        return rows(emitted)

    def checkpoint(self, after: Checkpoint | None = None) -> Checkpoint:
        """`after`: the one that these were restored from, whose files may be referred to."""
        files, parts, inline = Shelf() if after is None else after.files, [], []
        before = len(files.content)
        for index, operator in enumerate(self.operators):
            frozen = operator.freeze()
            made = {}
            for name, state in frozen.states.items():
                files.prefix = f"{before}/{index}/{name}/"
                made[name] = state.write(files)
                state.released()
            parts.append(made)
            inline.append(frozen.inline)
        return Checkpoint(parts, inline, files)

    def close(self) -> None:
        for operator in self.operators:
            operator.close()


def known(spec: OperatorSpec, *inputs: pa.Schema) -> OperatorSpec:
    """The same once it has seen its inputs, as a plan has it."""
    spec.schema(list(inputs))
    return spec
