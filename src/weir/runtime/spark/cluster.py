"""The driver's Cluster port on Spark: one barrier stage for each attempt.

Comes in: launches, orders and kills from the driver. Goes out: what tasks say and how
stages end, posted to the driver's mailbox. Holds the job's secrets and its control server.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from weir.config import Checkpoints, JobConfig
from weir.errors import SlotsMissing, WeirError
from weir.graph.plan import Plan
from weir.ids import AttemptId, TaskIndex
from weir.runtime.clock import Mailbox
from weir.runtime.driver.loop import Driver
from weir.runtime.driver.notices import WorkerDied
from weir.runtime.driver.region import slots_of
from weir.runtime.net.control import ControlServer
from weir.runtime.net.lines import RunLines
from weir.runtime.spark.deaths import known_deaths
from weir.runtime.spark.session import driver_host, task_host
from weir.runtime.spark.stage import BarrierStage
from weir.runtime.storage.checkpoints import CheckpointStore
from weir.runtime.storage.local_directory import RunDirectory, run_directory
from weir.runtime.storage.locations import location_below
from weir.runtime.task.main import TaskSpec, run_task
from weir.snapshot.messages import FromTask, TaskRegistered, ToTask

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


WORKERS_MAX = 10_000
"""Processes of tasks, dead ones included, that are remembered."""


class SparkCluster:
    """Launches attempts of one job on one Spark session."""

    def __init__(
        self,
        config: JobConfig,
        *,
        session: SparkSession,
        store: CheckpointStore,
        storage_uri: str | None,
        mailbox: Mailbox,
        notify: Callable[[WorkerDied], None] = lambda died: None,
    ) -> None:
        self.driver: Driver | None = None
        self._config = config
        self._session = session
        self._mailbox = mailbox
        self._notify = notify
        self._lineage = store.lineage
        self._storage_uri = None if storage_uri is None else location_below(storage_uri, store.lineage)
        host = driver_host(session)
        self._lines = RunLines.new(config.settings, host)
        self._stages: dict[AttemptId, BarrierStage] = {}
        self._processes: dict[tuple[AttemptId, TaskIndex], int] = {}
        self._workers: dict[tuple[str | None, int], tuple[AttemptId, TaskIndex]] = {}
        """What ran last in a process, by its host and id; the latest to have come is at the end."""
        self._had_slots = False
        self._directory = RunDirectory(
            config.settings, run_directory(config.settings, config.name, self._lines.driver.token)
        )
        self._control = ControlServer(
            host,
            lines=self._lines.driver,
            storage=store.storage if storage_uri is None else None,
            on_message=lambda message: mailbox.post(partial(self._hear, message)),
            on_lost=lambda attempt, task, reason: mailbox.post(partial(self._lost, attempt, task, reason)),
        )

    @property
    def process_ids(self) -> list[int]:
        """The Python processes of the tasks that run now, by region and task."""
        attempts = [] if self.driver is None else [region.attempt for region in self.driver.regions]
        known = sorted(self._processes)
        return [self._processes[which] for attempt in attempts for which in known if which[0] == attempt]

    def launch(self, attempt: AttemptId, plan: Plan) -> None:
        several = "" if plan.members is None or len(plan.members) == len(plan.vertices) else f", region {plan.region}"
        spec = TaskSpec(
            job=self._config.name,
            plan=plan,
            lineage=self._lineage,
            attempt=attempt,
            mode=(self._config.checkpoints or Checkpoints()).mode,
            settings=self._config.settings,
            control_address=self._control.address,
            lines=self._lines.tasks,
            storage_uri=self._storage_uri,
            may_drop_state=self._config.allow_dropped_state,
        )
        stage = BarrierStage(
            self._session,
            name=self._config.name,
            parallelism=plan.parallelism,
            task_main=task_main(spec),
            description=f"weir: {self._config.name} (attempt {attempt}{several})",
        )
        self._stages[attempt] = stage
        stage.on_done(lambda ended: self._mailbox.post(partial(self._ended, attempt, ended.error)))
        stage.start()

    def send(self, attempt: AttemptId, task: TaskIndex, message: ToTask) -> None:
        self._control.send(attempt, task, message)

    def kill(self, attempt: AttemptId) -> None:
        if stage := self._stages.get(attempt):
            stage.cancel()

    def close(self) -> None:
        """End what still runs and stop listening."""
        for stage in list(self._stages.values()):
            stage.cancel()
        self._control.close()
        self._directory.remove()

    def _hear(self, message: FromTask) -> None:
        assert self.driver is not None
        if isinstance(message, TaskRegistered) and message.attempt in self._stages:
            self._processes[message.attempt, message.task] = message.process_id
            needed = slots_of(self.driver.plan, self._config.settings)
            self._had_slots = self._had_slots or len(self._processes) == needed
            self._hear_of_deaths(message)
        self.driver.hear(message)

    def _hear_of_deaths(self, message: TaskRegistered) -> None:
        """What a new worker knows of those that died before it. Each is told once."""
        host = urlsplit(message.address).hostname
        for death in message.deaths:
            if (died := self._workers.pop((host, death.process_id), None)) is not None:
                self._notify(WorkerDied(died[0], None, died[1], death.how))
        self._workers.pop((host, message.process_id), None)
        self._workers[host, message.process_id] = message.attempt, message.task
        if len(self._workers) > WORKERS_MAX:
            del self._workers[next(iter(self._workers))]

    def _lost(self, attempt: AttemptId, task: TaskIndex, reason: str) -> None:
        assert self.driver is not None
        self.driver.task_lost(attempt, task, reason)

    def _ended(self, attempt: AttemptId, error: WeirError | None) -> None:
        assert self.driver is not None
        self._stages.pop(attempt, None)
        self._processes = {which: process for which, process in self._processes.items() if which[0] != attempt}
        # Slots that were never there are the user's to add; slots that were lost may come back, so the restart
        # strategy decides.
        fatal = isinstance(error, SlotsMissing) and not self._had_slots
        self.driver.stage_ended(attempt, None if error is None else str(error), fatal=fatal)


def task_main(spec: TaskSpec) -> Callable[[int], None]:
    """What Spark ships to its executors."""

    def main(index: int) -> None:
        run_task(spec, TaskIndex(index), task_host(urlsplit(spec.control_address).hostname), known_deaths())

    return main
