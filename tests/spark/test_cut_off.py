"""Tasks that a black hole cuts off from their driver end themselves in a named time, and their slots are free again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import weir
from tests.conftest import poll
from tests.spark.conftest import EMBEDDED_PARALLELISM, alive
from tests.spark.helpers import build_job, check_output, notices_of, open_gate, slow_settings
from tests.unit.runtime.proxy import Proxy
from weir import connectors as io
from weir.runtime.driver.notices import AttemptRunning
from weir.runtime.net.control import ControlServer
from weir.runtime.spark import cluster as spark_cluster
from weir.runtime.spark.session import busy_slots

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into /proc")

LINE_TIMEOUT_S = 2.0
SLACK_S = 8.0
"""For two busy cores: to leave, to tell Spark, to start again."""

PATIENT = {"stop_timeout": "10m", "launch_timeout": "5m", "heartbeat_timeout": "10m"}
"""Nobody but the tasks themselves can end them in time."""


class Doors:
    """The control servers of jobs, each behind a proxy of its own."""

    def __init__(self) -> None:
        self.proxies: list[Proxy] = []

    def open(self, *arguments: Any, **options: Any) -> ControlServer:
        server = ControlServer(*arguments, **options)
        self.proxies.append(Proxy(server.address))
        server.address = self.proxies[-1].address
        return server

    def swallow(self) -> None:
        """Those who are connected are lost; who comes later is not."""
        for proxy in self.proxies:
            proxy.swallow()


@pytest.fixture
def doors(monkeypatch: pytest.MonkeyPatch) -> Iterator[Doors]:
    made = Doors()
    monkeypatch.setattr(spark_cluster, "ControlServer", made.open)
    yield made
    for proxy in made.proxies:
        proxy.close()


def environment(embedded: Any, directory: Path, parallelism: int, **settings: Any) -> weir.Environment:
    return weir.Environment(
        parallelism=parallelism,
        spark=embedded,
        checkpoints=weir.Checkpoints(every="200ms", to=str(directory / "checkpoints")),
        restart=weir.FixedDelay(3, "100ms"),
        settings=slow_settings(ping_interval="200ms", line_timeout=f"{LINE_TIMEOUT_S}s", **PATIENT, **settings),
    )


def test_tasks_cut_off_by_a_black_hole_free_their_slots_and_the_job_goes_on(
    embedded: Any, doors: Doors, tmp_path: Path
) -> None:
    env = environment(embedded, tmp_path, EMBEDDED_PARALLELISM)
    build_job(env, tmp_path, rows=60_000)
    job = env.submit("cut-off")
    poll(lambda: len(job.checkpoints()) >= 2, within_s=60)
    doors.swallow()
    started_s = time.monotonic()
    poll(lambda: len(notices_of(job, AttemptRunning)) == 2, within_s=2 * LINE_TIMEOUT_S + SLACK_S)
    # There is no room for both attempts: the second runs in the slots of the first.
    assert time.monotonic() - started_s >= LINE_TIMEOUT_S * 0.8
    open_gate(tmp_path)
    assert job.wait(120) == "finished"
    check_output(tmp_path, 60_000)


class Hangs:
    """A user's function that does not come back."""

    def __call__(self, row: Any) -> Any:
        threading.Event().wait(600)
        return (row.n,)


def test_a_task_that_hangs_in_a_users_function_when_its_driver_is_lost_ends_with_its_process(
    embedded: Any, doors: Doors, tmp_path: Path
) -> None:
    env = environment(embedded, tmp_path, 1)
    env.from_collection([(1,)], "n long", uid="one").map(Hangs(), "n long", uid="hangs").write(
        io.FileSink(tmp_path / "out", "jsonl"), uid="out"
    )
    job = env.submit("hangs")
    (process_id,) = poll(lambda: job.process_ids, within_s=60)
    poll(lambda: job.status == "running", within_s=60)
    doors.swallow()
    poll(lambda: not alive(process_id), within_s=2 * LINE_TIMEOUT_S + SLACK_S)
    poll(lambda: busy_slots(embedded) <= 1, within_s=SLACK_S)
    job.cancel()


# --- A frozen driver ----------------------------------------------------------------------------------------

DRIVER = """
import sys
from pathlib import Path
from tests.spark.test_cut_off import environment
from tests.spark.helpers import build_job
directory = Path(sys.argv[1])
env = environment(None, directory, 2)
build_job(env, directory, rows=40_000)
job = env.submit("frozen")
job.listen(lambda notice: print(type(notice).__name__, *job._cluster.process_ids, flush=True))
print(job.wait(), flush=True)
"""


def test_the_tasks_of_a_frozen_driver_end_themselves_and_it_goes_on_when_it_thaws(tmp_path: Path) -> None:
    driver = subprocess.Popen(
        [sys.executable, "-c", DRIVER, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert driver.stdout is not None
        heard = (line.split() for line in driver.stdout)
        workers = next([int(word) for word in words[1:]] for words in heard if words[0] == "CheckpointSucceeded")
        assert len(workers) == 2 and all(alive(worker) for worker in workers)
        driver.send_signal(signal.SIGSTOP)
        poll(lambda: not any(alive(worker) for worker in workers), within_s=2 * LINE_TIMEOUT_S + SLACK_S)
        driver.send_signal(signal.SIGCONT)
        open_gate(tmp_path)
        kinds = [words[0] for words in heard]
        assert kinds[-1] == "finished" and "AttemptFailed" in kinds
    finally:
        driver.send_signal(signal.SIGCONT)
        driver.kill()
        driver.communicate()
    check_output(tmp_path, 40_000)
