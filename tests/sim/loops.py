"""Cyclic jobs for the simulation: rows with a counter that go round until it is zero, and what must be so at any cut.

A row that is on its way round is in the log of a checkpoint, with what is left of its counter: so it is known which
rows have come out by then, and how often every key was seen in the loop.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import polars as pl

import weir
from tests.sim.externals import SCHEMA, Row
from tests.sim.patching import patched
from weir.ids import Uid
from weir.operators.base import OperatorContext, Restored
from weir.operators.loop import LoopHeadOperator
from weir.operators.sink import Sink
from weir.runtime.storage.state_files import CheckpointFiles
from weir.snapshot.coordinator import machine as coordinator_module
from weir.snapshot.coordinator.loops import empty_loops
from weir.snapshot.loop_log import LoopLog, RowsReturned
from weir.snapshot.manifest import Manifest
from weir.state.frozen import RestoredPart, reader

ROUNDS = 6
"""Rows go round less often than this."""


class Round(weir.ProcessFunction):
    """Counts what it sees, and takes one from the counter."""

    count = weir.ValueState("long", default=0)
    total = weir.ValueState("long", default=0)

    def process(self, row: Any, context: Any) -> Any:
        self.count.set(self.count.get() + 1)
        self.total.set(self.total.get() + row.value)
        return [(row.id, row.key, row.value - 1)]


def loop(stream: Any, sink: Sink, prefix: str) -> None:
    """The end of a job."""

    def step(rows: Any) -> Any:
        seen = rows.key_by("key").process(Round(), SCHEMA, uid=f"{prefix}round")
        again = seen.filter(pl.col("value") > 0, uid=f"{prefix}again")
        return again, seen.filter(pl.col("value") <= 0, uid=f"{prefix}left")

    start = stream.with_columns(value=pl.col("value") % ROUNDS, uid=f"{prefix}start")
    start.iterate(step, uid=f"{prefix}loop").write(sink, uid=f"{prefix}looped")


def rows_out(rows: Sequence[Row]) -> list[Row]:
    """What comes out in the end."""
    return [(id, key, min(value % ROUNDS - 1, 0)) for id, key, value in rows]


def rows_inside(manifest: Manifest, prefix: str, files: CheckpointFiles) -> dict[int, int]:
    """The rows in the log of a checkpoint: id to what is left of the counter."""
    inside: dict[int, int] = {}
    for part in manifest.operators[Uid(f"{prefix}loop")].parts:
        for state in part.states.values():
            for table in reader(state.format)(RestoredPart(state, range(0), files)):
                inside.update(zip(table["id"].to_pylist(), table["value"].to_pylist(), strict=True))
    return inside


def state_of(rows: Sequence[Row], inside: dict[int, int]) -> dict[int, tuple[int, int]]:
    """What the loop has seen when these rows were read, and those inside are on their way: key to count and sum."""
    state: dict[int, tuple[int, int]] = {}
    for id, key, value in rows:
        start = value % ROUNDS
        for counter in range(start, min(start - 1, 0), -1):
            if counter > inside.get(id, -1):
                count, total = state.get(key, (0, 0))
                state[key] = (count + 1, total + counter)
    return state


# --- Broken engines -------------------------------------------------------------------------------------


def back_edge_is_not_logged() -> AbstractContextManager[None]:
    """What comes back while the barrier goes round is in no log."""
    return patched(LoopLog, "handlers", {**LoopLog.handlers, RowsReturned: lambda self, event: []})


def log_is_replayed_twice() -> AbstractContextManager[None]:
    """Every row of the log goes round once more than it should."""
    original = LoopHeadOperator.open

    def open(self: LoopHeadOperator, context: OperatorContext, restored: Restored | None) -> None:
        original(self, context, restored)
        self.replayed *= 2

    return patched(LoopHeadOperator, "open", open)


def loop_ends_although_it_is_not_empty() -> AbstractContextManager[None]:
    """Once the input has ended, nobody looks at what goes round."""

    def found(loops: Any, said: Any, finished: Any) -> Any:
        return empty_loops([replace(loop, members=frozenset()) for loop in loops], said, finished)

    return patched(coordinator_module, "empty_loops", found)


LOOP_VARIANTS = (back_edge_is_not_logged, log_is_replayed_twice, loop_ends_although_it_is_not_empty)
