"""Spark sessions for tests. A process holds one at a time: asking for one kind stops the other."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import poll
from weir.runtime.spark.session import SPARE_SLOTS, embedded_session, recommended_settings, slots, stop_embedded
from weir.runtime.spark.stage import BarrierStage

PARALLELISM = 2
EMBEDDED_PARALLELISM = 3
"""With the spare slots there is room for a job of five tasks."""


@pytest.fixture(scope="module")
def embedded() -> Any:
    """The embedded Spark; it lives on for the next module."""
    session = embedded_session(EMBEDDED_PARALLELISM, "tests")
    if (slots(session) or 0) < EMBEDDED_PARALLELISM + SPARE_SLOTS:
        stop_embedded()  # A smaller one of a module before.
        session = embedded_session(EMBEDDED_PARALLELISM, "tests")
    return session


@pytest.fixture(scope="module")
def local_cluster() -> Iterator[Any]:
    """A user's own Spark with two executors of one core each: real JVMs, which may be killed."""
    from pyspark.sql import SparkSession

    stop_embedded()
    settings = {
        **recommended_settings(),
        "spark.master": "local-cluster[2,1,1024]",
        "spark.app.name": "tests",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "OFF",
    }
    os.environ["PYSPARK_PYTHON"] = sys.executable
    session = SparkSession.builder.config(map=settings).getOrCreate()
    yield session
    session.stop()


def pytest_sessionfinish() -> None:
    stop_embedded()


class LongTasks:
    """A stage whose tasks write down their process ids, then wait to be told to leave."""

    def __init__(self, session: Any, directory: Path, parallelism: int = PARALLELISM) -> None:
        directory.mkdir()
        self._directory = directory
        self.stage = BarrierStage(
            session,
            name="long",
            parallelism=parallelism,
            task_main=_long_task(str(directory)),
            description="long tasks",
        )
        self.stage.start()
        self.process_ids = [self._process_id(index) for index in range(parallelism)]

    def leave(self) -> None:
        (self._directory / "leave").touch()

    def _process_id(self, index: int) -> int:
        path = self._directory / str(index)
        poll(lambda: path.exists() or self.stage.done.is_set(), within_s=60)
        assert self.stage.error is None, self.stage.error
        return int(path.read_text())


def _long_task(directory: str) -> Callable[[int], None]:
    def main(index: int) -> None:
        import os
        import threading

        with open(f"{directory}/{index}.new", "w") as file:
            file.write(str(os.getpid()))
        os.rename(f"{directory}/{index}.new", f"{directory}/{index}")
        while not os.path.exists(f"{directory}/leave"):
            threading.Event().wait(0.01)

    return main


@pytest.fixture
def long_tasks(tmp_path: Path) -> Iterator[Callable[..., LongTasks]]:
    """`long_tasks(session)` starts two tasks that stay; whatever a test leaves running is cancelled."""
    started: list[LongTasks] = []

    def start(session: Any, parallelism: int = PARALLELISM) -> LongTasks:
        started.append(LongTasks(session, tmp_path / f"stage-{len(started)}", parallelism))
        return started[-1]

    yield start
    for tasks in started:
        tasks.leave()
        for process_id in tasks.process_ids:
            if alive(process_id):
                os.kill(process_id, signal.SIGCONT)
        tasks.stage.cancel()
        assert tasks.stage.wait(30)


def alive(process_id: int) -> bool:
    """Whether a process runs; one that has ended and waits for its parent does not count."""
    try:
        state = Path(f"/proc/{process_id}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return False
    return state not in "ZX"
