"""When loops are empty, and when to look: the coordinator's part in the end of cycles.

Comes in: the loops of the job, which subtasks have finished, and what the subtasks said
of themselves with a checkpoint. Goes out: which loops that checkpoint has found empty.
Part of the coordinator; never touches anything else.

Laws:
  1. A loop is empty when, for one and the same checkpoint, all who send rows into it had
     finished, the inputs of its heads had ended, their logs are empty, and nobody in it
     waits for what is still to come.
  2. An empty loop's heads end its event time first: timers and windows in it may send rows
     round once more. A later checkpoint that finds it empty behind that ends it.
  3. Once its input has ended, a loop that has not gets checkpoints, asked for or not.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Set
from dataclasses import dataclass

from weir.ids import SubtaskId, VertexId
from weir.snapshot.coordinator.events import Loop
from weir.snapshot.messages import SnapshotTaken

ROUND_PAUSE_MIN_MS = 10.0
"""How long to wait before a loop is looked at again that was not empty; then twice as long each time."""


@dataclass(frozen=True)
class EmptyLoops:
    """What a checkpoint has found, by the vertices of the heads."""

    time_over: tuple[VertexId, ...] = ()
    """Event time may end in them."""
    ended: tuple[VertexId, ...] = ()
    """It has, and they are empty all the same: nothing will ever come round again."""


def empty_loops(loops: Iterable[Loop], said: Collection[SnapshotTaken], finished: Set[SubtaskId]) -> EmptyLoops:
    """What all subtasks, in their parts of one checkpoint, say of the loops together. `finished`: those that had when
    it began, so that their barriers came behind their last rows."""
    in_flight = {taken.subtask for taken in said if taken.in_flight}
    inputs_ended = {taken.subtask for taken in said if taken.inputs_ended}
    time_ended = {taken.subtask for taken in said if taken.time_ended}
    fed = [loop for loop in loops if loop.feeders <= finished and loop.heads <= inputs_ended]
    empty = [loop for loop in fed if not loop.members & in_flight]
    ended = [loop for loop in empty if loop.heads <= time_ended]
    return EmptyLoops(tuple(loop.head for loop in empty if loop not in ended), tuple(loop.head for loop in ended))


class LoopRounds:
    """When the loops of a run want a checkpoint of their own."""

    def __init__(self) -> None:
        self._loops: dict[VertexId, Loop] = {}
        self._due_ms = 0.0
        self._pause_ms = 0.0

    def started(self, loops: Iterable[Loop]) -> None:
        """Loops of an attempt that runs now."""
        self._loops.update({loop.head: loop for loop in loops})
        self._due_ms = self._pause_ms = 0.0

    def open_loops(self, finished: Set[SubtaskId]) -> list[Loop]:
        """Those that have not ended."""
        return [loop for loop in self._loops.values() if not loop.heads <= finished]

    def due_ms(self, finished: Set[SubtaskId]) -> float | None:
        """When the next round should begin; None: no loop waits for its end."""
        waits = any(loop.feeders <= finished for loop in self.open_loops(finished))
        return self._due_ms if waits else None

    def looked(self, now_ms: float, *, found: EmptyLoops, finished: Set[SubtaskId], pause_max_ms: float) -> None:
        """A checkpoint has ended, in whatever way."""
        if self.due_ms(finished) is None:
            return
        if found.time_over:
            self._pause_ms = 0.0  # the next one may be the last
        else:
            self._pause_ms = min(max(2 * self._pause_ms, ROUND_PAUSE_MIN_MS), pause_max_ms)
        self._due_ms = now_ms + self._pause_ms
