"""What can go wrong in a simulated run: each fault is a function of the world, drawn with the step that it falls on."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TYPE_CHECKING

from weir.errors import StorageUnavailable

if TYPE_CHECKING:
    from tests.sim.world import World

FAULT_STEPS = 1_500
"""Faults fall within the first so many steps; afterwards the job must finish."""


TAKEN_OVER_IN_DELETE = 0.1
"""How likely a driver that deletes something is overtaken then, as long as that may happen."""


def kill_task(world: World) -> None:
    if tasks := world.alive_tasks():
        world.rng.choice(tasks).die("SIGKILL")


def freeze_task(world: World) -> None:
    if tasks := world.alive_tasks():
        task = world.rng.choice(tasks)
        task.frozen_until_ms = world.clock.time_ms + world.rng.choice([3, 40, 350])
        world.log(f"{task.label} is frozen until {task.frozen_until_ms:.0f}ms")


def delay_line(world: World) -> None:
    """What a task tells its driver arrives late, perhaps when the next attempt runs."""
    if tasks := world.alive_tasks():
        task = world.rng.choice(tasks)
        task.heard_after_ms = world.clock.time_ms + world.rng.choice([5, 25, 60, 250])
        world.log(f"{task.label} is not heard until {task.heard_after_ms:.0f}ms")


def crash_driver(world: World) -> None:
    world.crash_driver(world.driver, "SIGKILL")


def second_driver(world: World) -> None:
    """The driver freezes; somebody believes that it is dead and starts another; then it thaws and goes on, perhaps when
    the other has completed checkpoints of its own, or has finished the job."""
    rng = world.rng
    completed = rng.choice([None, None, 1, 2, 4, 1_000])
    world.driver.freeze(
        world.clock.time_ms + rng.choice([0, 5, 20, 60]),
        thaws_at=None if completed is None else len(world.completed_ids) + completed,
    )
    world.log(f"{world.driver.name} freezes until {world.driver.frozen_until_ms:.0f}ms; another is started")
    world.start_driver(resume=True)


def freeze_launch(world: World) -> None:
    """Whoever has begun to start the job is frozen, and goes on when another has completed checkpoints."""
    if not world.driver.has_started:
        world.driver.freeze(0.0, thaws_at=len(world.completed_ids) + world.rng.choice([1, 1, 2]))
        world.log(f"{world.driver.name} is frozen while it is being launched")


def impatience(world: World) -> None:
    """The driver dies; the next hangs while it is being launched, and somebody who does not see that starts another."""
    world.crash_driver(world.driver, "SIGKILL")
    world.driver.freezes_in_launch = world.rng.choice([1, 3, 6, 12, 25])


def freeze_driver(world: World) -> None:
    """The driver freezes, and nobody minds."""
    world.driver.freeze(world.clock.time_ms + world.rng.choice([5, 40, 150]))
    world.log(f"{world.driver.name} freezes until {world.driver.frozen_until_ms:.0f}ms")


def cancel_job(world: World) -> None:
    """The user cancels the job, whatever it is doing, and goes on later from its last checkpoint."""
    if world.driver.has_started:
        world.log(f"{world.driver.name} is cancelled")
        world.driver.act(world.driver.driver.cancel)


def request_checkpoint(world: World) -> None:
    if world.driver.is_running:
        world.driver.act(world.driver.driver.request)


def tear_change(world: World) -> None:
    world.storage.tear = True


def reset_channel(world: World) -> None:
    stages = [stage for stage in world.stages.values() if not stage.doomed and stage.remote]
    if not stages:
        return
    stage = world.rng.choice(stages)
    id, channel = world.rng.choice(stage.remote)
    world.log(f"channel {id} of attempt {stage.attempt} is reset")
    channel.wire.clear()
    for end in (id.source, id.target):
        if stage.tasks[end].alive:
            stage.tasks[end].guard(_break_stream)


def _break_stream() -> None:
    raise StorageUnavailable("the stream to a peer broke")


def storage_trouble(world: World) -> None:
    world.storage.trouble = world.rng.choice([0.02, 0.1, 0.3])
    world.was_troubled = True


def external_trouble(world: World) -> None:
    world.external.trouble = 0.3


def calm(world: World) -> None:
    world.storage.trouble = world.external.trouble = 0.0


Fault = Callable[["World"], None]

FAULTS: list[Fault] = [
    *[kill_task] * 4,
    freeze_task,
    *[delay_line] * 2,
    *[crash_driver] * 2,
    impatience,
    second_driver,
    freeze_driver,
    cancel_job,
    *[request_checkpoint] * 2,
    tear_change,
    reset_channel,
    *[storage_trouble] * 2,
    external_trouble,
    calm,
]

AMBUSHES: list[Fault] = [
    *[kill_task] * 3,
    delay_line,
    *[crash_driver] * 2,
    impatience,
    *[second_driver] * 2,
    tear_change,
    storage_trouble,
]
"""What strikes at the worst moment: while a checkpoint is being taken, published, discarded or retired."""


def draw_faults(rng: random.Random) -> list[tuple[int, Fault]]:
    """When, in steps, and what. Some runs see none."""
    count = rng.choice([0, 1, 3, 5, 7, 10])
    # Most runs are over after some hundred steps, so most faults fall early.
    drawn = [(10 + int(rng.random() ** 2 * (FAULT_STEPS - 10)), rng.choice(FAULTS)) for _ in range(count)]
    return sorted(drawn, key=lambda fault: fault[0])


def draw_ambushes(rng: random.Random) -> list[Fault]:
    return [rng.choice(AMBUSHES) for _ in range(rng.choice([0, 1, 2, 4]))]


class Hangs:
    """Storage calls that hang for longer than anything else in the world, until their driver was overtaken perhaps."""

    def __init__(self, world: World, rng: random.Random) -> None:
        self._world = world
        self._rng = rng
        self._probability = rng.choice([0.0, 0.0, 0.002, 0.01])
        self._of_deletes = rng.choice([0.0, 0.02, 0.1])
        self._of_creates = rng.choice([0.0, 0.0, 0.05])
        """Of what a driver creates: manifests, claims."""
        self._takeovers = rng.choice([0, 0, 1, 2])
        """How often the driver is overtaken while it deletes, at most."""
        self.count = 0

    def until_ms(self, call: str) -> float:
        """When the call that is made now can take effect."""
        world, probability = self._world, self._of_deletes if call == "delete" else self._probability
        if call == "create" and world.is_drivers_call:
            probability = self._of_creates
        if world.steps >= FAULT_STEPS:
            return 0.0
        if call == "delete" and self._takeovers and world.is_drivers_call and self._rng.random() < TAKEN_OVER_IN_DELETE:
            self._takeovers -= 1
            world.ambush(second_driver)
        if not probability or self._rng.random() >= probability:
            return 0.0
        self.count += 1
        until_ms = world.clock.time_ms + self._rng.choice([10, 25, 60, 150])
        world.log(f"a {call} hangs until {until_ms:.0f}ms")
        # A good moment for a region to be lost, or for somebody to lose patience.
        if self._rng.random() < 0.3:
            world.ambush(self._rng.choice([second_driver, kill_task]) if world.job.beside is None else kill_task)
        return until_ms


class NearlyFull:
    """A disk on which what a driver creates is there, and then finds no room to be made sure of."""

    def __init__(self, world: World, seed: int) -> None:
        self._world = world
        self._rng = random.Random(f"room of {seed}")
        self._probability = self._rng.choice([0.0, 0.0, 0.0, 0.1])

    def is_behind(self, call: str) -> bool:
        world = self._world
        if not self._probability or call != "create" or not world.storage.has_rename or not world.is_drivers_call:
            return False
        return world.steps < FAULT_STEPS and self._rng.random() < self._probability
