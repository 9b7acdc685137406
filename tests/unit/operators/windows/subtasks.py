"""Both halves of an aggregate over windows or sessions by hand: rows in, results out, with a restore wherever a test
wants one, at another parallelism if need be."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow as pa

from tests.states import Shelf, split_by_owner
from tests.unit.operators.running import context, on_disk
from weir.operators.base import Frozen, Restored, RestoredInline
from weir.operators.windows.aggregate import PartialWindowAggregate, WindowAggregate
from weir.operators.windows.sessions.aggregate import SessionAggregate
from weir.operators.windows.sessions.partial import PartialSessionAggregate
from weir.snapshot.parts import StatePart
from weir.state.frozen import RestoredPart, RestoredParts

SCHEMA = pa.schema([("key", pa.string()), ("value", pa.int64()), ("ts", pa.timestamp("us"))])

Row: TypeAlias = "tuple[str | None, int | None, int]"
Result: TypeAlias = "tuple[Any, ...]"
"""The key, the bounds of the window, and values."""
Spec: TypeAlias = "WindowAggregate | SessionAggregate"


def batch_of(rows: Sequence[Row]) -> pa.RecordBatch:
    columns = list(zip(*rows, strict=True))
    return pa.RecordBatch.from_arrays([pa.array(c, f.type) for c, f in zip(columns, SCHEMA)], schema=SCHEMA)


class Subtasks:
    """All subtasks of the second half, as the engine would run them, and one of the first if there is one."""

    def __init__(self, spec: Spec, parallelism: int, *, directory: Path | None, before: Subtasks | None = None) -> None:
        spec.schema([SCHEMA if spec.late is not None else spec.combined])
        self.spec, self.parallelism, self.directory = spec, parallelism, directory
        (self.state,) = spec.states
        self.operators: list[Any] = []
        half = PartialSessionAggregate if isinstance(spec, SessionAggregate) else PartialWindowAggregate
        self.half = half(spec.of).make()
        self.half.open(context(), None)
        self.late: list[pa.RecordBatch] = [] if before is None else before.late
        self.shelf = Shelf() if before is None else before.shelf
        old = [] if before is None else before.freeze()
        parts = [self.written(index, frozen) for index, frozen in enumerate(old)]
        for index in range(parallelism):
            operator, here = spec.make(), context(index, parallelism, place=self._place())
            restored = None
            if before is not None:
                inline = [RestoredInline(i, len(old), frozen.inline) for i, frozen in enumerate(old)]
                groups = [context(i, len(old)).key_groups for i in range(len(old))]
                mine = [
                    RestoredPart(part, held, self.shelf)
                    for part, held in zip(parts, groups, strict=True)
                    if held.start < here.key_groups.stop and here.key_groups.start < held.stop
                ]
                restored = Restored(inline, {self.state: RestoredParts(mine, here.key_groups)})
            operator.sides = {"late": self.late.append}
            operator.open(here, restored)
            self.operators.append(operator)

    def _place(self) -> Any:
        return None if self.directory is None else on_disk(str(self.directory), memory="20KB")

    def written(self, index: int, frozen: Frozen) -> StatePart:
        self.shelf.prefix = f"{len(self.shelf.content)}-{index}-"
        return frozen.states[self.state].write(self.shelf)

    def process(self, rows: Sequence[Row]) -> list[Result]:
        batches = [batch_of(rows)]
        if self.spec.late is None:
            found: list[pa.RecordBatch] = []
            passes = len(rows) % 3 == 0  # else they are combined
            self.half._rows_to_pass = len(rows) if passes else 0
            for start in range(0, len(rows), 5):
                self.half.process(batches[0].slice(start, 5), found.append)
            self.half.flush(found.append)
            batches = [pa.concat_batches(found)] if passes else found  # as the engine does
        return self._emitted(
            [
                (lambda out, owner=owner, part=part: self.operators[owner].process(part, out))
                for batch in batches
                for owner, part in split_by_owner(batch, ["key"], self.parallelism, 128)
            ]
        )

    def flush(self) -> list[Result]:
        return self._emitted([lambda out, o=o: o.flush(out) for o in self.operators])

    def watermark(self, time_us: int) -> list[Result]:
        return self._emitted([lambda out, o=o: o.watermark(time_us, out) for o in self.operators])

    def freeze(self) -> list[Frozen]:
        return [operator.freeze() for operator in self.operators]

    @property
    def rows_late(self) -> int:
        return sum(operator.rows_late for operator in self.operators)

    def _emitted(self, calls: Sequence[Callable[[Any], Any]]) -> list[Result]:
        found: list[Result] = []
        for call in calls:
            batches: list[pa.RecordBatch] = []
            call(batches.append)
            found += [result_of(row) for batch in batches for row in batch.to_pylist()]
        return found


def result_of(row: dict[str, Any]) -> Result:
    start, end = (pa.scalar(row[name], pa.timestamp("us")).value for name in ("window_start", "window_end"))
    values = (repr(value) if isinstance(value, list) else value for value in list(row.values())[3:])
    return (row["key"], start, end, *values)


def best_of(values: Sequence[int | None]) -> str:
    """What `top` gives where rows are equal, of some values as they arrived."""
    return repr([{"value": value} for value in values[:2]])
