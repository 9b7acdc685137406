"""A submitted job: the driver's loop on a thread of its own, and the handle that users hold.

Comes in: requests from any thread. Goes out: answers given on the driver's thread, so
that nothing changes while they are put together.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future, wait
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote

from weir.config import JobConfig
from weir.errors import JobError, JobFailed
from weir.graph.plan import Plan, Vertex
from weir.operators.source import DriverContext, Source
from weir.runtime.clock import Mailbox, SystemClock, ThreadBackground
from weir.runtime.driver import notices, phases, verdicts
from weir.runtime.driver.loop import Driver
from weir.runtime.driver.notices import Notice
from weir.runtime.driver.region import restoring, slots_of
from weir.runtime.job.asks import Ask, AskForCheckpoint, Asks
from weir.runtime.job.failures import FailureRecord, Failures
from weir.runtime.job.rescaling import rescaled
from weir.runtime.job.service import JobService
from weir.runtime.net.lines import Lines
from weir.runtime.ports import Opener
from weir.runtime.spark.cluster import SparkCluster
from weir.runtime.spark.session import check_slots
from weir.runtime.storage import layout
from weir.runtime.storage.checkpoints import CheckpointStore
from weir.runtime.storage.locations import location_below
from weir.runtime.storage.savepoints import new_savepoint
from weir.runtime.task.metrics import operator_metrics
from weir.snapshot.coordinator.events import CheckpointRequested, Then
from weir.snapshot.coordinator.history import CheckpointRecord, CheckpointState
from weir.snapshot.coordinator.under_way import CoordinatorSettings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = TypeVar("T")

_LOG = logging.getLogger(__name__)

DRIVER_THREADS = 6
"""Storage calls that a driver makes at once, so that a delete that hangs keeps no manifest waiting."""

NOTICES_MAX = 1_000
"""Notices that a job keeps for people to read."""

GIVE_UP_TIMEOUT_S = 2.0
"""How long the end of a job waits until claims of attempts that it never started are withdrawn."""

LOOP_WAIT_MAX_MS = 1_000.0
ASK_POLL_S = 0.1
REQUEST_TIMEOUT_S = 600.0

NOT_YET_RUNNING = ("created", "starting", "stopping", "restarting")


class Job:
    """A job that was submitted; may be used from any thread."""

    def __init__(
        self,
        plan: Plan,
        config: JobConfig,
        *,
        run: str,
        session: SparkSession,
        store: CheckpointStore,
        opener: Opener,
        storage_uri: str | None,
        plan_at: Callable[[int], Plan] | None = None,
    ) -> None:
        self.name = config.name
        self.run = run
        self._plan_at = plan_at
        self._mailbox = Mailbox()
        self._ended = threading.Event()
        """Nothing of the job runs any more."""
        self._closed = threading.Event()
        """… and whoever asked for its end from elsewhere has had an answer."""
        self._service: JobService | None = None
        self._notices: deque[Notice] = deque(maxlen=NOTICES_MAX)
        self._listeners: list[Callable[[Notice], None]] = []
        self._asks = Asks(config.name)
        self._crash: BaseException | None = None
        self._session = session
        self._storage_uri = storage_uri
        self._store = store
        self._resume = config.resume
        self._settings = config.settings
        self._fed: list[Source] = []
        self._clock = clock = SystemClock()
        self._failures = Failures(config.name, clock)
        self._background = ThreadBackground(DRIVER_THREADS, self._mailbox)
        self._cluster = SparkCluster(
            config,
            session=session,
            store=store,
            storage_uri=storage_uri,
            mailbox=self._mailbox,
            notify=self._noticed,
        )
        self._driver = Driver(
            config,
            plan,
            run=run,
            clock=clock,
            background=self._background,
            cluster=self._cluster,
            store=store,
            opener=opener,
            settings=CoordinatorSettings.from_config(config.checkpoints, is_at_most_once=config.is_at_most_once),
            notify=self._noticed,
        )
        self._cluster.driver = self._driver

    def start(self) -> None:
        """Start what feeds the sources, then the driver's loop."""
        try:
            for vertex in self._driver.plan.vertices:
                if isinstance(source := vertex.operators[0].spec, Source):
                    self._fed.append(source)
                    source.on_driver_start(self._driver_context(vertex))
            self._service = JobService(self, Lines.new(self._settings), checkpoints=self._storage_uri)
        except BaseException:
            self._close()
            raise
        threading.Thread(target=self._run, name=f"weir-driver-{self.name}", daemon=True).start()

    @property
    def status(self) -> str:
        """created, starting, running, restarting, stopping; and at last finished, stopped, failed or cancelled."""
        return self._driver.status if self._crash is None else verdicts.Failed.status

    @property
    def error(self) -> BaseException | None:
        """Why the job failed, once it has."""
        if self._crash is not None:
            return self._crash
        phase = self._driver.phase
        if isinstance(phase, phases.Ended) and isinstance(phase.verdict, verdicts.Failed):
            return JobFailed(f"job {self.name!r} failed: {phase.verdict.error}")
        return None

    def wait(self, timeout: float | None = None) -> str:
        """Wait until the job has ended, or for `timeout` seconds. Raises JobFailed when it has failed."""
        if self._closed.wait(timeout) and (error := self.error) is not None:
            raise error
        return self.status

    def cancel(self) -> None:
        """End the job without committing what is not yet committed; returns when its tasks are gone."""
        self._mailbox.post(self._driver.cancel)
        self._closed.wait()

    def cancel_now(self) -> None:
        """The same for the job's own service, which is closed only when it has answered."""
        self._mailbox.post(self._driver.cancel)
        self._ended.wait()

    def trigger_checkpoint(self, timeout: float | None = 60.0) -> int:
        """Take a checkpoint now, or as soon as the job runs; its id once it is complete. TimeoutError: it may complete
        later all the same."""
        ask = self._ask(self._ask_for_checkpoint)
        wait([ask.future], timeout)
        if not ask.future.done():
            self._mailbox.post(lambda: self._asks.leave_checkpoint(ask))
            raise TimeoutError(f"job {self.name!r}: the checkpoint was not complete within {timeout} s")
        return ask.future.result()

    def savepoint(self, directory: str | None = None, timeout: float | None = REQUEST_TIMEOUT_S) -> str:
        """Take a checkpoint whose states are also written, for good, into a new directory below `directory`; its path
        once it is complete. None: below the checkpoint location, in `savepoints`."""
        place = self._place_of_savepoints(directory)
        path: str = self._await(Ask("the savepoint", lambda name: self._request(name, Then.GO_ON, place)), timeout)
        return path

    def stop(
        self, savepoint: str | bool = True, drain: bool = False, timeout: float | None = REQUEST_TIMEOUT_S
    ) -> str | None:
        """End the job behind a checkpoint that everything up to now is committed with; returns when its tasks are gone.

        savepoint: True, or the directory to put it below: the checkpoint is a savepoint, whose path is returned
        drain:     let the sources end, so that everything is flushed, as if there were no more input
        """
        place = None if savepoint is False else self._place_of_savepoints(None if savepoint is True else savepoint)
        then = Then.DRAIN if drain else Then.STOP
        ask = Ask("the stop", lambda name: self._request(name, then, place), ends_job=True, saves=place is not None)
        path: str | None = self._await(ask, timeout)
        self._ended.wait()
        return path

    def rescale(self, parallelism: int, timeout: float | None = REQUEST_TIMEOUT_S) -> None:
        """Go on at another parallelism, from a checkpoint taken for this; returns when the new tasks run. Operators
        with a parallelism of their own keep it."""
        plan = self._checked_plan(parallelism)
        self._await(Ask("the rescale", lambda name: self._driver.rescale(plan, name)), timeout)

    @property
    def parallelism(self) -> int:
        """How many tasks each region of the job has at most."""
        return self._driver.plan.parallelism

    def checkpoints(self) -> list[CheckpointRecord]:
        """The completed checkpoints among the latest, oldest first."""
        return [record for record in self.checkpoint_history() if record.state is CheckpointState.COMPLETED]

    def checkpoint_history(self) -> list[CheckpointRecord]:
        """The latest checkpoints, whatever became of them, oldest first."""
        return self._ask(lambda: self._driver.history)

    def metrics(self) -> Mapping[str, Any]:
        """Rows, bytes and backpressure per operator; restarts; checkpoints."""
        return self._ask(self._metrics)

    @property
    def failures(self) -> list[FailureRecord]:
        """The last failures of attempts, oldest first: when, why, and how the job went on."""
        return self._ask(lambda: self._failures.records)

    @property
    def notices(self) -> list[Notice]:
        """What happened so far: attempts, failures, checkpoints."""
        return list(self._notices)

    def listen(self, listener: Callable[[Notice], None]) -> None:
        """Be told of what happens; called on the driver's own thread, so be quick."""
        self._listeners.append(listener)

    @property
    def process_ids(self) -> list[int]:
        """The Python processes of the tasks that run now, by region and task."""
        return self._ask(lambda: self._cluster.process_ids)

    # --- The driver's own thread -----------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._driver.start()
            while not isinstance(self._driver.phase, phases.Ended):
                due_ms = self._driver.next_due_ms()
                wait_ms = LOOP_WAIT_MAX_MS if due_ms is None else due_ms - self._clock.now_ms()
                self._mailbox.wait(max(0.0, min(wait_ms, LOOP_WAIT_MAX_MS)))
                self._mailbox.drain()
                self._driver.tick()
        except BaseException as error:
            self._crash = error
        finally:
            self._close()

    def _close(self) -> None:
        try:
            self._store.close()  # Also when the driver has crashed.
            withdrawing = threading.Thread(target=self._give_up, name="weir-give-up", daemon=True)
            withdrawing.start()
            self._background.close()
            self._cluster.close()
            withdrawing.join(GIVE_UP_TIMEOUT_S)  # If storage is away, nobody waits for it.
            for source in self._fed:
                source.on_driver_stop()
        finally:
            if self._service is not None:
                self._service.unlist()
            self._ended.set()
            try:
                self._answer_all()
            finally:
                self._closed.set()

    def _give_up(self) -> None:
        try:
            self._store.give_up()
        except Exception as error:  # What is left of claims can only stop a driver that runs beside this one.
            _LOG.warning("job %r: claims could not be withdrawn: %s", self.name, error)

    def _answer_all(self) -> None:
        try:
            self._mailbox.drain_all()  # What tasks still say to a driver that has crashed is nothing to who asks it.
        finally:
            phase = self._driver.phase
            self._asks.job_ended(phase.verdict if isinstance(phase, phases.Ended) else None)
            if self._service is not None:
                self._service.close()

    def _driver_context(self, vertex: Vertex) -> DriverContext:
        operator = vertex.operators[0]
        kept = self._storage_uri
        for name in (self._store.lineage, layout.SOURCES, quote(operator.uid, safe="")):
            kept = None if kept is None else location_below(kept, name)
        return DriverContext(
            session=self._session,
            name=operator.name,
            parallelism=vertex.parallelism,
            slots=slots_of(self._driver.plan, self._settings),
            directory=kept,
            resume=self._resume,
            settings=self._settings,
        )

    def _noticed(self, notice: Notice) -> None:
        self._notices.append(notice)
        self._failures.hear(notice)
        self._asks.hear(notice)
        if isinstance(notice, notices.AttemptRunning):
            self._mailbox.post(self._ask_again)
        for listener in tuple(self._listeners):
            try:
                listener(notice)
            except Exception:
                # A spectator must not end the job.
                _LOG.exception("job %s: a listener raised, and is not called again", self.name)
                self._listeners.remove(listener)

    def _ask_again(self) -> None:
        """The tasks run: what was asked for meanwhile can be told to them."""
        if self._is_running:
            self._asks.runs(self._driver.request)

    @property
    def _is_running(self) -> bool:
        return self._driver.status not in NOT_YET_RUNNING

    def _await(self, ask: Ask, timeout: float | None) -> Any:
        self._ask(lambda: self._add(ask))
        wait([ask.future], timeout)
        goes_on = ask.future.done() or self._ask(lambda: self._asks.leave(ask))
        if ask.future.done():
            return ask.future.result()
        rest = "it goes on all the same" if goes_on else f"the job is {self.status}, and is not asked for it any more"
        raise TimeoutError(f"job {self.name!r}: {ask.what} was not done within {timeout} s; {rest}")

    def _add(self, ask: Ask) -> None:
        if self._ended.is_set():  # All that waited had an answer already, or are about to have one.
            raise JobError(f"job {self.name!r} is {self.status}: {ask.what} would find no job")
        self._asks.add(ask, is_running=self._is_running)

    def _request(self, name: str, then: Then, savepoints: str | None) -> None:
        place = None if savepoints is None else new_savepoint(savepoints, self.name)
        self._driver.request(CheckpointRequested(place, then, name))

    def _ask_for_checkpoint(self) -> AskForCheckpoint:
        if self._ended.is_set():  # Also when the driver has crashed, which knows nothing of that.
            raise JobError(f"job {self.name!r} is {self.status}, so it cannot take a checkpoint any more")
        ask = AskForCheckpoint(self._driver.answering_checkpoint)
        if self._is_running:
            self._driver.request()
        self._asks.add_checkpoint(ask)
        return ask

    def _place_of_savepoints(self, directory: str | None) -> str:
        if directory is None and self._storage_uri is None:
            raise JobError(
                f"job {self.name!r} keeps its checkpoints in memory: name a directory or URI for the savepoint"
            )
        return location_below(str(self._storage_uri), layout.SAVEPOINTS) if directory is None else directory

    def _checked_plan(self, parallelism: int) -> Plan:
        """The plan at another parallelism; refused before anything is stopped, where that can be known."""
        plan = rescaled(self.name, self._driver.plan, self._plan_at, parallelism)
        if self._session is not None:
            check_slots(self._session, slots_of(plan, self._settings), own=len(self.process_ids))
        return plan

    def _metrics(self) -> dict[str, Any]:
        return {
            "status": self.status,
            "attempt": self._driver.attempt,
            "restarts": self._driver.restarts,
            "operators": operator_metrics(self._driver.metrics, self._driver.plan),
            "checkpoints": self._driver.history,
            "failures": [record.public for record in self._failures.records],
            "waits_for": None if (wait := self._driver.waits_for) is None else vars(wait),
            "restoring": restoring(self._driver.regions),
        }

    def _ask(self, question: Callable[[], T]) -> T:
        """Ask on the driver's thread, so that nothing changes meanwhile; after the end, right here."""
        future: Future[T] = Future()

        def answer() -> None:
            try:
                future.set_result(question())
            except BaseException as error:
                future.set_exception(error)

        self._mailbox.post(answer)
        while not self._ended.is_set():
            wait([future], timeout=ASK_POLL_S)
            if future.done():
                return future.result()
        self._mailbox.drain_all()
        return future.result()
