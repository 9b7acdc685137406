"""What users ask for while a simulated job runs: savepoints, stops, drains, other parallelisms; and what they must get.

Laws: a savepoint that was reported can be read in full, out of its own directory alone, from then on; it is what a
single thread would have computed from the rows before it, and those are committed. One that was reported as failed
leaves nothing behind. Every request is answered, once.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from tests.sim.at_most_once import Deaths, Request, moves
from tests.sim.checkers import check_nothing_lost, check_state, committed_rows
from tests.sim.stage import SimulationFailed
from tests.sim.storage import SCHEME
from weir.errors import JobError
from weir.ids import AttemptId
from weir.runtime.driver.notices import Notice, RequestFailed, RescaleCompleted, SavepointCompleted
from weir.runtime.storage import layout
from weir.runtime.storage.state_files import CheckpointFiles
from weir.snapshot.coordinator.events import CheckpointRequested, Then
from weir.snapshot.manifest import Manifest, checksum, decode
from weir.snapshot.parts import PendingEpochs

if TYPE_CHECKING:
    from tests.sim.drivers import SimDriver
    from tests.sim.world import World

REQUEST_STEPS = 800
"""Requests fall within the first so many steps, before most jobs are over."""

BUGS = ("AssertionError", "AttributeError", "IndexError", "KeyError", "NameError", "TypeError")
"""Errors that no fault of the surroundings explains."""

SAVED = 0.75
"""How often a stop or a drain is asked for with a savepoint."""


SAVEPOINT_FORGOTTEN = 0.5
"""How often a resume does not name the savepoint that the job came from."""

ANSWERS = (SavepointCompleted, RequestFailed, RescaleCompleted)


@dataclass
class Asked:
    """One request, and what became of it."""

    name: str
    savepoint: str | None
    driver: SimDriver
    answer: Literal["done", "failed"] | None = None


class Users:
    """Those who look after one simulated run."""

    def __init__(self, world: World, rng: random.Random) -> None:
        self._world = world
        self.rng = rng
        self._requests: list[Request] = []
        self._deaths = Deaths(world, rng)
        self._ask_later(draw_requests(rng) + moves(world, rng))
        self._asked: dict[str, Asked] = {}
        self.drained: set[AttemptId] = set()
        """Attempts whose sources were told to end."""
        self.went_on_after_draining = False
        """The drain was not carried through, or its driver died before it could say so: attempts that began later read
        on, although what was open at the drain may be out already."""
        self.had_gone_on_before = False
        """The same of a life that was given up, whose savepoints are still there."""

    @property
    def savepoints(self) -> list[str]:
        """Those that were reported."""
        done = [asked for asked in self._asked.values() if asked.answer == "done"]
        return [asked.savepoint for asked in done if asked.savepoint is not None]

    def forget_savepoint(self) -> bool:
        """Whether they resume a job that was started from a savepoint without naming that again."""
        return self._world.savepoint is not None and self.rng.random() < SAVEPOINT_FORGOTTEN

    def _ask_later(self, requests: list[Request]) -> None:
        self._requests = sorted([*self._requests, *requests], key=lambda request: request[0])

    def act(self) -> None:
        """Ask for what is due, as soon as the job runs."""
        while self._requests and self._requests[0][0] <= self._world.steps:
            if not self._world.driver.is_running:
                return
            self._requests.pop(0)[1](self)

    def start_anew(self) -> None:
        """The job begins again with nothing."""
        self.had_gone_on_before = self.had_gone_on_before or self.went_on_after_draining
        self.drained.clear()
        self.went_on_after_draining = False

    def ask(self, then: Then, *, saved: bool) -> None:
        asked = self._new("savepoint" if then is Then.GO_ON else then.value, saved=saved)
        request = CheckpointRequested(asked.savepoint, then, asked.name)
        asked.driver.act(lambda: asked.driver.driver.request(request))

    def rescale(self) -> None:
        asked = self._new("rescale", saved=False)
        try:
            plan = self._world.job.plan(self.rng)
            asked.driver.act(lambda: asked.driver.driver.rescale(plan, asked.name))
        except JobError as error:
            if "already being rescaled" not in str(error):
                raise
            asked.answer = "failed"

    def _new(self, what: str, *, saved: bool) -> Asked:
        name = f"{what}-{self._world.place}-{len(self._asked)}"
        driver = self._world.driver
        asked = Asked(name, f"{SCHEME}://savepoints/{name}" if saved else None, driver)
        self._world.log(f"{driver.name} is asked for {name}")
        self._asked[name] = asked
        return asked

    # --- What they get ------------------------------------------------------------------------------------

    def noticed(self, notice: Notice) -> None:
        self._ask_later(self._deaths.noticed(notice))
        asked = self._asked.get(notice.request) if isinstance(notice, ANSWERS) else None
        if asked is None:
            return
        if asked.answer is not None:
            raise SimulationFailed(f"{asked.name} was {asked.answer}, and is answered again: {notice}")
        asked.answer = "failed" if isinstance(notice, RequestFailed) else "done"
        if any(bug in str(notice) for bug in BUGS):
            raise SimulationFailed(f"{asked.name} failed by a bug: {notice}")
        if isinstance(notice, SavepointCompleted) and asked.savepoint is not None:
            with self._world.storage.quiet():
                manifest = read_savepoint(self._world, asked.savepoint)
                self._check_committed(manifest, savepoint_files(self._world, asked.savepoint))

    def check(self) -> None:
        """The run is over."""
        for asked in [asked for asked in self._asked.values() if not asked.driver.is_forgotten]:
            if asked.answer == "done" and asked.savepoint is not None:
                read_savepoint(self._world, asked.savepoint)
            elif asked.answer == "failed" and asked.savepoint is not None and self._is_tidy(asked):
                root = f"{_path(asked.savepoint)}/"
                files = _files_of(self._world, asked.savepoint)
                if left := [name for name in files if f"{root}{name}" not in self._world.came_late]:
                    raise SimulationFailed(f"{asked.name} failed, and left {sorted(left)}")
            elif asked.answer is None and asked.savepoint is not None and asked.driver.ended:
                raise SimulationFailed(f"{asked.name} was never answered by {asked.driver.name}")

    def _is_tidy(self, asked: Asked) -> bool:
        """Storage has refused nothing, and whoever wrote to it left in good order."""
        return asked.driver.ended is not None and not asked.driver.was_broken and not self._world.was_troubled

    def _check_committed(self, manifest: Manifest, files: CheckpointFiles) -> None:
        if self._world.kept.is_wanted and self._world.kept.may_have_failed:
            return
        for expectation in self._world.job.expectations(self._world.job.rows_read(manifest, files)):
            if expectation.kind in ("final", "conserved", "held"):
                continue  # its windows may not be complete yet, or what is held not be out
            check_nothing_lost(expectation, committed_rows(self._world, expectation))


def read_savepoint(world: World, place: str) -> Manifest:
    """Everything that is to be said of one savepoint by itself."""
    files = _files_of(world, place)
    if layout.MANIFEST not in files:
        raise SimulationFailed(f"{place} has no manifest")
    manifest = decode(files[layout.MANIFEST])
    for file in manifest.files:
        data = files.get(file.path)
        if data is None or len(data) != file.length_bytes or checksum(data) != file.checksum:
            raise SimulationFailed(f"{place} refers to {file.path}, which is not in it or altered")
    parts = [part for operator in manifest.operators.values() for part in operator.parts]
    if any(isinstance(part.inline, PendingEpochs) for part in parts):
        raise SimulationFailed(f"{place} names epochs that are still to be committed")
    if world.job.checkpoints.mode != "at_least_once" and not world.kept.is_wanted:
        storage = savepoint_files(world, place)
        check_state(world, manifest, storage, world.job.rows_read(manifest, storage))
    return manifest


def savepoint_files(world: World, place: str) -> CheckpointFiles:
    return CheckpointFiles(world.storage.below(_path(place)))


def _files_of(world: World, place: str) -> dict[str, bytes]:
    root = f"{_path(place)}/"
    return {name[len(root) :]: data for name, data in world.storage.files.items() if name.startswith(root)}


def _path(place: str) -> str:
    return place.split("://")[1]


# --- Drawing --------------------------------------------------------------------------------------------


def save(users: Users) -> None:
    users.ask(Then.GO_ON, saved=True)


def stop(users: Users) -> None:
    users.ask(Then.STOP, saved=users.rng.random() < SAVED)


def drain(users: Users) -> None:
    users.ask(Then.DRAIN, saved=users.rng.random() < SAVED)


REQUESTS: list[Callable[[Users], None]] = [*[save] * 4, *[stop] * 2, *[drain] * 2, *[Users.rescale] * 2]


def draw_requests(rng: random.Random) -> list[tuple[int, Callable[[Users], None]]]:
    """When, in steps, and what. Half of the runs see none."""
    count = rng.choice([0, 0, 0, 1, 2, 3])
    drawn = [(10 + int(rng.random() * REQUEST_STEPS), rng.choice(REQUESTS)) for _ in range(count)]
    return sorted(drawn, key=lambda request: request[0])
