"""Jobs that lose their state when they fail and go on behind what was read: how they are drawn, and what must hold.

No row has an effect twice, whatever dies; and whatever had gone into a checkpoint before anything failed is there.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa

from tests.sim.externals import External, Row, SimSource, make_rows
from tests.sim.patching import all_of, patched
from tests.sim.stage import SimulationFailed
from tests.sim.workload import Job, SinkExpectation
from weir.ids import AttemptId, CheckpointId, Lineage
from weir.operators.base import OperatorContext
from weir.operators.sink import Sink, SinkGuarantee, SinkWriter
from weir.runtime.driver.notices import AttemptFailed, AttemptRunning, Notice
from weir.runtime.driver.reservation_desk import ReservationDesk
from weir.runtime.task.intake import ReservingIntake
from weir.runtime.task.source_subtask import SourceSubtask
from weir.runtime.task.worker import Worker
from weir.snapshot.manifest import Manifest
from weir.snapshot.parts import Json

if TYPE_CHECKING:
    from tests.sim.world import World

HOW_OFTEN = 0.7
"""Of the jobs without periodic snapshots, so many go on behind a failure; the others begin anew."""

AT_ONCE = 0.6
"""How many of their sinks show at once what they get."""


HELD_ROWS, HELD_PACE = 60, 0.3
"""How many rows a job reads that holds some of them, and how fast."""

DEATHS_MAX = 4
"""Of attempts of one run that holds rows, beside what else is drawn."""


# --- Drawing --------------------------------------------------------------------------------------------


def perhaps_at_most_once(job: Job, rng: random.Random, external: External) -> Job:
    """The same job, if it takes no periodic snapshots, perhaps at most once."""
    if job.checkpoints.mode != "none" or rng.random() >= HOW_OFTEN:
        return job
    return _at_most_once(job, rng, external)


def _at_most_once(job: Job, rng: random.Random, external: External) -> Job:
    beside = None if job.beside is None else _at_most_once(job.beside, rng, external)
    checkpoints = replace(job.checkpoints, on_restart="continue")
    is_plain = job.timed is None and not job.has_loop
    ends = list(job.ends)
    if is_plain and rng.random() < 0.7:
        # What counts rows begins anew with every failure: rows as they are tell more.
        ends = [(rng.choice(["plain", "held"]), sink) for _, sink in job.ends[:1]]
    if is_plain:
        direct = {end for end, _ in ends if end == "held" or rng.random() < AT_ONCE}
        ends = [(end, SimDirectSink(external) if end in direct else sink) for end, sink in ends]
    sources = job.sources
    if any(end == "held" for end, _ in ends):
        # A checkpoint that only commits has no state: where such follow soon, nothing is there to be brought back. And
        # there must be rows left behind one that has some.
        checkpoints = replace(checkpoints, every=rng.choice(["8ms", "80ms"]))
        first = min((row[0] for _, rows in sources for row in rows), default=None)
        if first is not None:
            sources = [(SimSource(rng, first, HELD_ROWS, 1, pace=HELD_PACE), make_rows(first, HELD_ROWS))]
    return replace(job, sources=sources, checkpoints=checkpoints, beside=beside, ends=ends)


Request: TypeAlias = "tuple[int, Callable[[Any], None]]"
"""When, in steps, and what users do."""


def holds_rows(world: World) -> bool:
    """Whether this is a job that lets rows out again if it finds state that was lost."""
    return is_at_most_once(world.job) and any(end == "held" for region in world.job.regions for end, _ in region.ends)


def moves(world: World, rng: random.Random) -> list[Request]:
    """Such jobs are asked for another parallelism: so there is a checkpoint with what they hold."""
    return [(rng.randint(10, 600), lambda users: users.rescale()) for _ in range(2)] if holds_rows(world) else []


class Deaths:
    """Tasks of such jobs die soon behind a restore, when some of what they had held has come out."""

    def __init__(self, world: World, rng: random.Random) -> None:
        self._world = world
        self._rng = rng
        self._left = DEATHS_MAX if holds_rows(world) else 0

    def noticed(self, notice: Notice) -> list[Request]:
        if not self._left or not isinstance(notice, AttemptRunning) or notice.restored is None:
            return []
        self._left -= 1
        return [(self._world.steps + self._rng.randint(20, 300), lambda users: self._kill(notice.attempt))]

    def _kill(self, attempt: AttemptId | None) -> None:
        for task in self._world.alive_tasks():
            if task.stage.attempt == attempt:
                task.die("SIGKILL")


class SimDirectSink(Sink):
    """Everybody sees at once what it gets, whatever becomes of it."""

    def __init__(self, external: External) -> None:
        self.external = external

    @property
    def guarantee(self) -> SinkGuarantee:
        return "at_least_once"

    def writer(self) -> SinkWriter:
        return SimDirectWriter(self.external)


class SimDirectWriter(SinkWriter):
    def __init__(self, external: External) -> None:
        self._external = external

    def open(self, context: OperatorContext, restored: Sequence[Json] | None) -> None:
        self._name = f"{context.uid}/{context.index}/{context.lineage}/{context.attempt}/at once"

    def write(self, batch: pa.RecordBatch) -> None:
        rows = list(zip(*(column.to_pylist() for column in batch.columns), strict=True))
        self._external.committed.setdefault(self._name, []).extend(rows)

    def prepare(self, checkpoint: CheckpointId) -> Callable[[], Json]:
        return lambda: None


# --- What must hold ---------------------------------------------------------------------------------------


class KeptRows:
    """What a run has in checkpoints before anything fails: that is there at the end."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.has_failed = False
        self.rows: list[Row] = []

    @property
    def is_wanted(self) -> bool:
        """Whether the run is of such a job."""
        return is_at_most_once(self._world.job)

    @property
    def may_have_failed(self) -> bool:
        return self.has_failed or self._world.driver_count > 1 or self._world.was_troubled

    def noticed(self, notice: Notice) -> None:
        self.has_failed = self.has_failed or isinstance(notice, AttemptFailed)

    def completed(self, checkpoint: int) -> None:
        """A checkpoint is complete."""
        if not self.is_wanted or self.may_have_failed:
            return
        with self._world.storage.quiet():
            manifest = self._world.store().read(CheckpointId(checkpoint))
        self.rows = handed_out(self._world.job, manifest)


def is_at_most_once(job: Job) -> bool:
    return job.checkpoints.mode == "none" and job.checkpoints.on_restart == "continue"


def handed_out(job: Job, manifest: Manifest) -> list[Row]:
    """By the positions in a checkpoint, in all regions without a loop."""
    regions = [region for region in job.regions if not region.has_loop]
    return [row for region in regions for row in region.handed_out(manifest)]


def check_at_most_once(world: World, committed: Callable[[SinkExpectation], list[tuple[Any, ...]]]) -> None:
    """Of what all the rows come to, nothing is there twice; of those that were kept, nothing is missing."""
    job, lineage = world.job, world.store().lineage
    needed = {expectation.uid: expectation for expectation in job.expectations(world.kept.rows)}
    for expectation in job.expectations(job.rows):
        if expectation.kind not in ("exact", "held"):
            continue
        is_direct = isinstance(expectation.sink, SimDirectSink)
        # What users have deleted, old tasks may go on to fill.
        shown = at_once(world.external, expectation.uid, lineage) if is_direct else committed(expectation)
        found, wanted = Counter(shown), Counter(expectation.rows)
        is_loop = expectation.uid.endswith("looped")
        if is_loop:
            # How often a row went round depends on state that may be lost; that it comes out once does not.
            found, wanted = Counter((row[0],) for row in found.elements()), Counter((row[0],) for row in wanted)
        if extra := found - wanted:
            raise SimulationFailed(f"sink {expectation.uid}: counted twice: {sorted(extra.elements())[:5]}")
        if is_loop or expectation.kind == "held":
            continue  # What was still inside is lost, and nothing says what that was.
        if lost := Counter(needed[expectation.uid].rows) - found:
            raise SimulationFailed(f"sink {expectation.uid}: lost although kept: {sorted(lost.elements())[:5]}")


def at_once(external: External, uid: str, lineage: Lineage) -> list[tuple[Any, ...]]:
    """What a sink has shown in one life of the job."""
    names = [name for name in external.committed if name.startswith(f"{uid}/") and f"/{lineage}/" in name]
    return [row for name in names for row in external.committed[name]]


# --- Broken on purpose --------------------------------------------------------------------------------------


def rows_go_on_before_they_are_noted() -> AbstractContextManager[None]:
    """Readers tell how far they are, and do not wait for the word that this is noted."""

    def put(self: ReservingIntake, rows: Any) -> None:
        self._held_bytes += rows.batch.nbytes
        self._free.append(rows)
        if not self._awaits_answer:
            self._reserve()

    return patched(ReservingIntake, "put", put)


def what_is_noted_is_forgotten_by_the_next_driver() -> AbstractContextManager[None]:
    """A driver begins where the last checkpoint says, though rows behind that went on before the one before it died."""
    original = ReservationDesk.beginning

    def beginning(self: ReservationDesk, claim: Any) -> Any:
        return original(self, replace(claim, reserved=replace(claim.reserved, attempt=0)))

    return patched(ReservationDesk, "beginning", beginning)


def barrier_overtakes_what_was_read() -> AbstractContextManager[None]:
    """A checkpoint's position is behind rows that wait in their source: after a stop they are gone, and in no sink."""
    return all_of(
        patched(ReservingIntake, "is_settled", property(lambda self: not self._awaits_answer or bool(self._read))),
        patched(SourceSubtask, "_is_closing", property(_is_closing_when_empty)),
    )


def _is_closing_when_empty(self: SourceSubtask) -> bool:
    intake: Any = self._intake
    is_empty = not isinstance(intake, ReservingIntake) or not (intake._free or intake._told or intake._read)
    return is_empty and (self._draining or self._is_read_to_end)


def state_is_brought_back_at_most_once() -> AbstractContextManager[None]:
    """A restart finds the state of the last checkpoint that has some, though rows behind it have gone on: what that
    state has let out since, it lets out again."""
    original = Worker.open

    def open(self: Worker, beginning: Any) -> None:
        original(self, replace(beginning, loses_state=False))

    return patched(Worker, "open", open)


AT_MOST_ONCE_VARIANTS = (
    state_is_brought_back_at_most_once,
    rows_go_on_before_they_are_noted,
    what_is_noted_is_forgotten_by_the_next_driver,
    barrier_overtakes_what_was_read,
)
