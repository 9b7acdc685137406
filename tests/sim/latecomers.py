"""Tasks of a run that its users have given up, and that still run: each goes on at the worst moment.

Frozen in the middle of writing a part, a task goes on right after another run has written the one that differs from it
by the lineage alone; else when so many checkpoints of that run are complete, or after a while.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tests.sim.faults import FAULT_STEPS
from tests.sim.stage import SimTask
from tests.sim.work import Call
from weir.connectors.files.part_names import PartName

if TYPE_CHECKING:
    from tests.sim.world import World

PATIENCE_STEPS = 150
"""So long users wait with giving up for somebody to be in the middle of a part."""


@dataclass
class _Sleeper:
    task: SimTask
    thaw_at: int
    call: Call | None
    """The part that it is writing."""


class Latecomers:
    """Those of one simulated run."""

    def __init__(self, world: World, rng: random.Random) -> None:
        self._world = world
        self._rng = rng
        self._sleepers: list[_Sleeper] = []

    def is_good_moment(self, due_steps: int) -> bool:
        """Whether somebody is writing a part, or nobody can wait for that any longer."""
        is_late = self._world.steps > due_steps + PATIENCE_STEPS
        return is_late or any(_part_of(task) is not None for task in self._world.alive_tasks())

    def freeze(self, thaw_at: int) -> None:
        for task in self._world.alive_tasks():
            part = _part_of(task)
            if part is not None:
                part.not_before_ms = math.inf
            if part is not None or self._rng.random() < 0.5:
                self._sleepers.append(_Sleeper(task, thaw_at, part))
                task.frozen_until_ms = math.inf
            else:
                task.frozen_until_ms = self._world.clock.time_ms + self._rng.choice([0, 20, 40])

    def act(self) -> None:
        """Let those go on whose time has come."""
        is_over, completed = self._world.steps >= FAULT_STEPS, len(self._world.completed_ids)
        for sleeper in [s for s in self._sleepers if is_over or (s.call is None and completed >= s.thaw_at)]:
            self._thaw(sleeper)

    def written(self, names: Iterable[str]) -> None:
        """Somebody has written these."""
        if any(sleeper.call is not None for sleeper in self._sleepers):
            keys = {key for name in names if (key := _without_lineage(name)) is not None}
            for sleeper in list(self._sleepers):
                if sleeper.call is not None and _without_lineage(sleeper.call.path) in keys:
                    self._thaw(sleeper)

    def _thaw(self, sleeper: _Sleeper) -> None:
        self._sleepers.remove(sleeper)
        sleeper.task.frozen_until_ms = 0.0
        if sleeper.call is not None:
            self._world.log(f"{sleeper.task.label} goes on with {sleeper.call.path}")
            sleeper.call.not_before_ms = 0.0
            if sleeper.task.alive:
                sleeper.call.perform()


def _part_of(task: SimTask) -> Call | None:
    """The call that writes a part, if the task is in it."""
    return next((call for call in task.calls if call.name == "write" and _without_lineage(call.path)), None)


def _without_lineage(path: str) -> PartName | None:
    part = PartName.parse(path.rpartition("/")[2]) if "/pending/" in path else None
    return None if part is None else replace(part, lineage="")
