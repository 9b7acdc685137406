"""Whose turn it is in a step of the world: messages on their way, threads in the background, Spark's stages.

Comes in: the world, whose random numbers decide. Goes out: what happened to it. What a task does in its turn is
its own affair; what breaks is in `faults`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from tests.sim.ports import SimChannel
from tests.sim.stage import SimTask
from tests.sim.work import run_quietly

if TYPE_CHECKING:
    from tests.sim.world import World

SLICES_MAX, DELIVERIES_MAX = 6, 5
"""Pieces of background work, from one storage call to the next, that each process may do in a step; and messages."""

SLOWNESS = 0.2
"""How often a slow task or wire does what a fast one does at once."""


def deliver(world: World) -> None:
    """One thing that is on its way arrives: control messages and channel elements keep their order per line."""
    choices: list[tuple[Callable[..., None], Any]] = []
    for stage in world.stages.values():
        listening_ms = stage.owner.frozen_until_ms
        for task in stage.tasks:
            if task.control.to_driver and world.clock.time_ms >= max(task.heard_after_ms, listening_ms):
                choices.append((_to_driver, task))
            if task.on_the_way and task.alive:
                choices.append((_to_task, task))
        if not world.slow_wire or world.rng.random() < SLOWNESS:
            choices += [(SimChannel.deliver, channel) for _, channel in stage.remote if channel.wire]
    if choices:
        act, subject = world.rng.choice(choices)
        act(subject)


def _to_driver(task: SimTask) -> None:
    message = task.control.to_driver.popleft()
    owner = task.stage.owner
    if owner.alive:
        owner.act(lambda: owner.driver.hear(message))


def _to_task(task: SimTask) -> None:
    task.inbox.append(task.on_the_way.popleft())


def background(world: World) -> None:
    """Some threads go on, each to its next storage call; and calls take effect of which nobody knows."""
    now_ms = world.clock.time_ms
    if world.orphans and world.rng.random() < 0.3:
        call = world.orphans[world.rng.randrange(len(world.orphans))]
        if now_ms >= call.not_before_ms:
            world.orphans.remove(call)
            run_quietly(call.perform)
    processes = world.processes()
    for _ in range(world.rng.randint(1, SLICES_MAX)):
        for process in processes:
            if world.rng.random() < 0.5 and (ready := process.ready(now_ms)):
                process.go_on(world.rng.choice(ready))
    for frozen in processes:
        if frozen.frozen_until_ms > now_ms and frozen.calls and world.rng.random() < 0.1:
            call = world.rng.choice(frozen.calls)
            if now_ms >= call.not_before_ms:
                call.perform()


def stages(world: World) -> None:
    """Spark tells of tasks that are lost, kills those of doomed stages, and says when a stage is over."""
    for key, stage in list(world.stages.items()):
        owner, attempt = stage.owner, stage.attempt
        is_awake = owner.alive and world.clock.time_ms >= owner.frozen_until_ms
        if stage.lost and (is_awake or not owner.alive):
            task, reason = stage.lost.popleft()
            if owner.alive:
                owner.act(partial(owner.driver.task_lost, attempt, task, reason))
        if stage.doomed and world.rng.random() < stage.linger:
            victims = [task for task in stage.tasks if task.alive]
            if victims and world.clock.time_ms >= victims[0].frozen_until_ms:
                world.rng.choice(victims).die("killed by Spark with its stage")
        if stage.over and not stage.told and is_awake and world.rng.random() < 0.5:
            stage.told = True
            owner.act(partial(owner.driver.stage_ended, attempt, stage.error))
        if stage.gone:
            del world.stages[key]
