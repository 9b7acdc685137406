"""What users do to storage with their own hands, beside the job or while it is down; and what the job must make of it.

Laws: what is committed may be compacted, moved or deleted by its readers, and the job resumes all the same. When its
checkpoints are gone, or the newest of them is, and output is there, it is refused; when they are put back, it goes on.
Going back to an older checkpoint is done when it is asked for, and loses nothing; so is going forth again, and going on
from a backup. `weir fsck` finds nothing damaged beside a job that runs, and its repairs take nothing that is needed. A
start from the beginning, where everything was deleted, is not disturbed by what is left of the run before.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from tests.sim.compaction import compact, parts_of
from tests.sim.faults import FAULT_STEPS
from tests.sim.latecomers import Latecomers
from tests.sim.stage import SimulationFailed
from tests.sim.work import Process, Work
from weir.connectors import FileSink
from weir.ids import CheckpointId
from weir.runtime.driver.notices import AttemptRunning, Notice
from weir.runtime.storage import layout
from weir.runtime.storage.attempts import current_lineage
from weir.runtime.storage.fsck import examined, repair

if TYPE_CHECKING:
    from tests.sim.world import World

FORGOTTEN = 0.5
"""How often users who start anew forget to kill what still runs."""

BROKEN_OFF = 0.4
"""How often a start that goes back dies when it has copied what it goes back to."""

TAKEN_CARE_OF = 0.5
"""How often those who do nothing else tidy up, back up, or go back and forth."""

ACT_STEPS = 1_200
"""Acts fall within the first so many steps."""


class Program(Process):
    """What users run beside the job."""

    def main_ended(self, work: Work) -> None:
        if isinstance(work.result, Exception):
            raise work.result


class Hands:
    """Those of the users of one simulated run."""

    def __init__(self, world: World, rng: random.Random) -> None:
        self.rng = rng
        self.program = Program(1)
        """What they run beside the job."""
        self.program.is_lucky = True
        self.went_back = False
        """What was committed behind an older checkpoint may come twice."""
        self.started_anew = False
        self._world = world
        self._acts = draw_acts(rng)
        self._removed: dict[str, bytes] = {}
        """What is to be put back, once the job was refused."""
        self._oldest: CheckpointId | None = None
        """While it is away: no attempt may restore anything older; None: nothing at all."""
        self._files = 0
        self._touched = 0
        """How often they have changed what the job alone may change."""
        self._given_up: set[str] = set()
        """Lineages that they have deleted, and have not gone on with since."""
        self.latecomers = Latecomers(world, rng)
        self.has_brought_back = False
        self.back_to: CheckpointId | None = None
        """What they want to go on from, as long as nobody has: what else is there may not be restored."""
        self._backup: dict[str, bytes] = {}
        """What the checkpoint directory was, at a moment."""

    @property
    def has_removed(self) -> bool:
        return bool(self._removed)

    def act(self) -> None:
        """Do what is due, as soon as it can be done."""
        self.latecomers.act()
        if self._acts and self._acts[0][0] <= self._world.steps < FAULT_STEPS and self._acts[0][1](self):
            self._acts.pop(0)

    def rest(self) -> None:
        """The job is over: they touch nothing more."""
        self._acts = []

    def finish(self) -> None:
        """Whoever looks at the output waits until they are done."""
        if (main := self.program.main) is not None:
            main.go_to_the_end()
            self.program.main = None
            self.program.main_ended(main)

    def noticed(self, notice: Notice) -> None:
        """An attempt that runs while something was taken away must not have fallen back."""
        if not isinstance(notice, AttemptRunning) or not self._removed:
            return
        restored = notice.restored
        if self._oldest is None or restored is None or restored < self._oldest:
            raise SimulationFailed(f"the job goes on from {restored}, although what it should go on from is gone")

    def goes_on_with(self, lineage: str) -> None:
        """A driver that they know of runs it. If one that they had forgotten was the first to begin where everything
        was deleted, a resume goes on with its job: what that commits is theirs, and did not come late."""
        self._given_up.discard(lineage)

    def was_refused(self) -> None:
        """They put back what they had taken away."""
        self._world.log("what was taken away is put back")
        for name, data in self._removed.items():
            if name not in self._world.storage.files:
                self._world.storage.put(name, data)
        for driver in self._world.drivers:
            driver.may_miss = True
        self._removed, self._oldest = {}, None

    # --- What they do --------------------------------------------------------------------------------------

    def compact(self) -> bool:
        """Read committed parts, write them into one file of their own, beside them or elsewhere, and delete them."""
        if self.program.main is not None or not self._world.watch.has_committed:
            return False
        with self._world.storage.quiet():
            sinks = [s for s in self._world.sinks if isinstance(s, FileSink) and parts_of(self._world, s)]
        if not sinks:
            return False
        sink = self.rng.choice(sinks)
        self._files += 1
        self.program.main = Work(lambda: compact(self._world, sink, self._files, rng=self.rng), owner=self.program)
        return True

    def lose_checkpoints(self) -> bool:
        """The checkpoint directory is lost, the output is not, but may have been moved; the job is resumed."""
        world = self._world
        root, out = f"{world.place}/sim/", f"{world.place}/out/"
        has_output = any(name.startswith(out) and "/commits/" in name for name in world.storage.files)
        if not has_output or self._removed or self.program.main is not None:
            return False
        self._take_away([name for name in world.storage.files if name.startswith(root)], "all checkpoints")
        world.start_driver(resume=True)
        return True

    def remove_newest_manifest(self) -> bool:
        """The newest manifest is deleted by hand; the job is resumed."""
        world = self._world
        if self._removed or not world.completed_ids:
            return False
        with world.storage.quiet():
            store = world.store()
            newest = store.listing().newest
        if newest is None or newest not in world.completed_ids:
            return False
        self._take_away([f"{world.place}/sim/{store.lineage}/{layout.manifest_path(newest)}"], f"manifest {newest}")
        self._oldest = newest
        world.start_driver(resume=True)
        return True

    def go_back(self) -> bool:
        """The job is killed, and resumed from an older checkpoint, or from a newer one when it had gone back before."""
        world = self._world
        if self._removed or not world.completed_ids or (back_to := self._any_checkpoint()) is None:
            return False
        world.kill_drivers(f"users go back to {back_to}")
        world.start_driver(resume=True, back_to=back_to)
        return True

    def go_back_elsewhere(self, error: str) -> bool:
        """What they had named was retired by a delete that was on its way when they looked: they name another."""
        if "to go back to; there are: chk-" not in error or (back_to := self._any_checkpoint()) is None:
            return False
        self._world.log(f"users go back to {back_to} instead")
        self.back_to = self.back_to and back_to
        self._world.start_driver(resume=True, back_to=back_to)
        return True

    def _any_checkpoint(self) -> CheckpointId | None:
        with self._world.storage.quiet():
            listing = self._world.store().listing()
        there = [e.checkpoint for e in listing.published if e.checkpoint in self._world.completed_ids]
        choices = sorted({*listing.valid, *there})
        return self.rng.choice(choices) if choices else None

    def tidy_up(self) -> bool:
        """They run weir fsck --repair beside the job."""
        world = self._world
        if self.program.main is not None or self._removed or not world.completed_ids:
            return False
        self.program.main = Work(self._tidy_up, owner=self.program)
        return True

    def _tidy_up(self) -> None:
        touched = self._touched
        report = examined(self._world.job_storage)
        if not report.is_whole and self._touched == touched:
            damage = [*report.problems, *(p for checked in report.checkpoints for p in checked.problems)]
            raise SimulationFailed(f"weir fsck finds damage where there is none: {damage[:3]}")
        removed = repair(self._world.job_storage, report)
        self._world.log(f"weir fsck --repair has removed {removed} of {len(report.leftovers)}")

    def back_up(self) -> bool:
        """They take a copy of the checkpoint directory."""
        if self._removed or not self._world.completed_ids:
            return False
        root = f"{self._world.place}/sim/"
        self._backup = {name: data for name, data in self._world.storage.files.items() if name.startswith(root)}
        self._world.log("users back up the checkpoints")
        return True

    def bring_back(self) -> bool:
        """The checkpoint directory is lost, and they go on from their copy of it. What ran there may still do so,
        frozen for a while: nobody knows of it."""
        world = self._world
        if self._removed or self.program.main is not None:
            return False
        if not self._backup or not all(isinstance(sink, FileSink) for sink in world.sinks):
            return True
        if self.rng.random() < FORGOTTEN:
            world.log("users bring their backup back, and forget what still runs")
            world.forget_drivers(thaw_at=len(world.completed_ids) + self.rng.randrange(3))
        else:
            world.kill_everything("users bring their backup back")
        world.forget_ids()
        self.has_brought_back = True
        self._touched += 1
        root = f"{world.place}/sim/"
        world.storage.remove([name for name in world.storage.files if name.startswith(root)])
        for name, data in self._backup.items():
            world.storage.put(name, data)
        world.newest_completed = None
        world.users.drained.clear()
        world.watch.forget()
        with world.storage.quiet():
            self.back_to = world.store().listing().newest
        if self.back_to is None:
            raise SimulationFailed("a backup of completed checkpoints has none")
        world.start_driver(resume=True)
        return True

    def bring_back_again(self) -> bool:
        """A delete that was on its way has met what they had brought back: whoever wanted to copy it was refused."""
        lost = [name for name in self._backup if name not in self._world.storage.files]
        if self.back_to is None or not lost:
            return False
        self._world.log(f"users bring back {len(lost)} files again")
        for name in lost:
            self._world.storage.put(name, self._backup[name])
        self._world.watch.forget()
        return True

    def breaks_off(self) -> bool:
        """Whether the start that goes back dies before it counts."""
        return self.rng.random() < BROKEN_OFF

    def gone_back(self) -> None:
        """The start of an attempt that was asked to go back is noted."""
        self.went_back = True
        self.back_to = None
        self._world.newest_completed = None

    def start_anew(self) -> bool:
        """Checkpoints and output are deleted, and the job is started from the beginning. Tasks may have survived, and
        so may a driver that nobody knows of."""
        world = self._world
        if self._removed or self.program.main is not None or world.savepoint is not None:
            return False
        if not self.latecomers.is_good_moment(self._acts[0][0]):
            return False
        self._given_up |= {driver.store.lineage for driver in world.drivers if driver.has_started}
        self._given_up |= {part for name in world.storage.files for part in name.split("/") if layout.is_lineage(part)}
        # Best when the others are about to give out the ids that these have next.
        thaw_at = max(0, self.rng.choice([0, 1, *[len(world.completed_ids)] * 4]) - self.rng.randrange(2))
        if self.rng.random() < FORGOTTEN:
            world.log("users start anew, and forget what still runs")
            world.forget_drivers(thaw_at=thaw_at)
        else:
            world.kill_drivers("users start anew")
        self.latecomers.freeze(thaw_at)
        roots = tuple(f"{world.place}/{below}/" for below in ("sim", "out", "archive"))
        world.storage.remove([name for name in world.storage.files if name.startswith(roots)])
        world.external.clear()
        world.users.start_anew()
        world.watch.start_anew()
        world.completed_ids, world.newest_completed, self.went_back = [], None, False
        world.ids_since_backup.clear()
        world.launched.clear()
        self._backup, self.back_to = {}, None
        self._touched += 1
        self.started_anew = True
        world.start_driver(resume=False)
        return True

    def finds_given_up(self) -> bool:
        """Whether a resume would go on with what they had deleted."""
        with self._world.storage.quiet():
            return current_lineage(self._world.job_storage) in self._given_up

    def delete_again(self) -> None:
        """What somebody who was not killed has written late, where everything was deleted. If that runs the job by now,
        and has output, they go on with it."""
        if (lineage := self._running_of_others()) is not None:
            self._world.log(f"users go on with lineage {lineage}, which somebody has begun whom they had forgotten")
            self.goes_on_with(lineage)
            return
        files, root, out = self._world.storage.files, f"{self._world.place}/sim/", f"{self._world.place}/out/"
        self._world.log("users delete what came late")
        late = [
            name for name in files if name.startswith(out) and any(f"/_weir/{life}/" in name for life in self._given_up)
        ]
        self._world.storage.remove([*late, *(name for name in files if name.startswith(root))])
        self._world.watch.forget()

    def _running_of_others(self) -> str | None:
        """The lineage that they had given up, if it has a checkpoint to go on from, and output."""
        out = f"{self._world.place}/out/"
        with self._world.storage.quiet():
            lineage = current_lineage(self._world.job_storage)
            if lineage is None or lineage not in self._given_up:
                return None
            listing = self._world.store().listing()
        parts = [name for name in self._world.storage.files if name.startswith(out) and "/_weir/" not in name]
        has_output = any(lineage in name for name in parts)
        return lineage if has_output and listing.newest is not None and listing.missing is None else None

    def _take_away(self, names: list[str], what: str) -> None:
        world = self._world
        world.kill_drivers(f"users take away {what}")
        self._touched += 1
        self._removed = {name: world.storage.files[name] for name in names if name in world.storage.files}
        world.storage.remove(names)
        world.watch.forget()


def draw_acts(rng: random.Random) -> list[tuple[int, Callable[[Hands], bool]]]:
    """When, in steps, and what. Most runs see none but a compaction or two."""
    kinds: Sequence[Callable[[Hands], bool]]
    kinds = rng.choice([[], [], [Hands.compact] * 4, [Hands.compact], ACTS, ACTS])
    count = rng.randint(1, 3) if kinds else 0
    drawn = [(50 + int(rng.random() ** 2 * ACT_STEPS), rng.choice(kinds)) for _ in range(count)]
    if not drawn and rng.random() < TAKEN_CARE_OF:
        steps = sorted(50 + int(rng.random() ** 2 * ACT_STEPS) for _ in range(3))
        return list(zip(steps, rng.choice(CARE), strict=False))
    return sorted(drawn, key=lambda act: act[0])


ACTS: list[Callable[[Hands], bool]] = [
    *[Hands.compact] * 2,
    Hands.lose_checkpoints,
    *[Hands.remove_newest_manifest] * 2,
    Hands.go_back,
    *[Hands.start_anew] * 2,
]

CARE: list[list[Callable[[Hands], bool]]] = [
    [Hands.tidy_up],
    [Hands.tidy_up, Hands.tidy_up, Hands.go_back],
    [Hands.back_up, Hands.bring_back],
    [Hands.go_back, Hands.go_back],
]
"""What they do one after the other, in some of the runs in which they do nothing else."""
