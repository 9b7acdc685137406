"""What people do about the drivers of a simulated job that have ended, or were not even started: those that were
overtaken are let go, one that found what came late is helped, and when none is left another is started.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.sim import faults
from tests.sim.drivers import SimDriver
from tests.sim.stage import SimulationFailed
from weir.errors import OwnershipError, StorageUnavailable
from weir.runtime.driver import phases
from weir.runtime.driver.verdicts import Cancelled, Failed, Finished, Stopped

if TYPE_CHECKING:
    from tests.sim.world import World

OVERTAKEN = ("taken over", "missing although the manifest", "earlier run", "by somebody else", "is gone: its ")
CAME_LATE = ("has checkpoints here", "had completed", "notes of commits")
"""What a driver says that is not alone, and ends; and one that finds what somebody has written late."""


def replace_drivers(world: World) -> None:
    """Of several drivers at most one goes on. One that was overtaken may fail; when none is left, start another."""
    for driver in list(world.drivers):
        if driver.refused is not None:
            _refused(world, driver, driver.refused)
            continue
        ended = driver.reported
        if ended is None or isinstance(ended.verdict, Finished):
            continue
        if isinstance(ended.verdict, Stopped) and driver is world.driver and not driver.is_forgotten:
            world.stopped = driver
            for other in [d for d in world.drivers if d is not driver and not d.is_forgotten]:
                world.bury(other)  # Whoever has a job stopped also kills the starts of it that hang.
            return
        if not driver.is_forgotten and world.hands.bring_back_again():
            world.bury(driver)
            continue
        is_left = isinstance(ended.verdict, Cancelled | Stopped)
        # Of one that nobody knows of, all may be gone that it needs.
        if not is_left and not driver.is_forgotten and not _was_overtaken(world, ended):
            if world.hands.has_removed:
                world.hands.was_refused()
            elif driver.may_miss and "is gone" in _error_of(ended):
                pass
            elif not _came_late(world, _error_of(ended)) and not (
                driver.goes_back and world.hands.go_back_elsewhere(_error_of(ended))
            ):
                raise SimulationFailed(f"{driver.name} ended as {ended}")
        world.bury(driver)
    if all(driver.is_forgotten for driver in world.drivers):
        world.start_driver(resume=True)


def _refused(world: World, driver: SimDriver, error: Exception) -> None:
    """A job that was not even started: if storage was in trouble, somebody tries again. A driver that was frozen
    meanwhile may find that another has begun."""
    is_trouble = isinstance(error, StorageUnavailable) or isinstance(error.__cause__, StorageUnavailable)
    is_beaten = world.driver_count > 1 and isinstance(error, OwnershipError)
    if not is_trouble and world.hands.has_removed:
        world.hands.was_refused()
    elif is_beaten and any(d.has_launched and not d.is_forgotten and not d.is_gone for d in world.drivers):
        pass  # Nobody touches what that one writes.
    elif not (is_trouble or _came_late(world, str(error)) or is_beaten):
        raise SimulationFailed(f"{driver.name} was refused: {error!r}") from error
    world.refusals += 1
    if is_trouble and world.rng.random() < 0.3:
        faults.calm(world)
    world.bury(driver)


def _came_late(world: World, error: str) -> bool:
    """Whether somebody who was forgotten has written where users had deleted everything; then they do so again."""
    is_late = world.hands.started_anew and (any(text in error for text in CAME_LATE) or world.hands.finds_given_up())
    if is_late:
        world.hands.delete_again()
    return is_late


def _error_of(ended: phases.Ended) -> str:
    return ended.verdict.error if isinstance(ended.verdict, Failed) else ""


def _was_overtaken(world: World, ended: phases.Ended) -> bool:
    if world.driver_count == 1:
        return False
    return any(text in _error_of(ended) for text in OVERTAKEN)
