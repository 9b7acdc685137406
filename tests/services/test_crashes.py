"""Jobs whose checkpoints and output lie on real servers, while workers, drivers and the servers themselves are killed.

What was committed is compared record by record with what must be there.
"""

from __future__ import annotations

import random
import secrets
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import poll
from tests.services.conftest import new_place, started
from tests.services.helpers import JOB, PATIENCE_S, ROWS, build_environment, build_job, check_output, drivers, parts
from tests.services.servers import Hdfs, Versitygw
from tests.spark.helpers import kill, notices_of, open_gate
from weir.runtime.driver.notices import AttemptFailed, AttemptRunning, CheckpointAborted, CheckpointSucceeded

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into /proc")

Servers = Callable[[str], "Versitygw | Hdfs"]


@pytest.fixture
def dice() -> random.Random:
    seed = secrets.randbelow(1 << 31)
    print(f"seed {seed}")
    return random.Random(seed)


QUICK = pytest.mark.quick
ON_BOTH = pytest.mark.parametrize("place", [pytest.param("s3", marks=QUICK), "hdfs"], indirect=True)
QUICK_ON_BOTH = pytest.mark.parametrize(
    "place", [pytest.param("s3", marks=QUICK), pytest.param("hdfs", marks=QUICK)], indirect=True
)


@pytest.fixture
def place(request: pytest.FixtureRequest, servers: Servers) -> str:
    return new_place(servers(request.param))


def completed(job: Any) -> int:
    return len(notices_of(job, CheckpointSucceeded))


def await_checkpoints(job: Any, number: int) -> None:
    before = completed(job)
    poll(lambda: completed(job) >= before + number or job.error, PATIENCE_S)
    assert job.error is None, job.error


@ON_BOTH
def test_workers_are_killed_and_every_row_counts_once(place: str, tmp_path: Path, dice: random.Random) -> None:
    env = build_environment(place)
    build_job(env, place, tmp_path, rows=ROWS)
    job: Any = env.submit(JOB)
    kills = 0
    while kills < 4:
        await_checkpoints(job, 1)
        job.wait(dice.uniform(0.0, 0.5))
        kills += bool(job.process_ids) and kill(dice.choice(job.process_ids))
    open_gate(tmp_path)
    assert job.wait(PATIENCE_S) == "finished"
    assert job.metrics()["restarts"] >= 2
    assert [n for n in notices_of(job, AttemptRunning) if n.restored is not None]
    check_output(place, ROWS)


@QUICK_ON_BOTH
def test_a_driver_is_killed_and_its_successors_go_on(place: str, tmp_path: Path) -> None:
    with drivers(tmp_path, place, ROWS) as start:
        for _ in range(2):
            driver = start()
            driver.await_commits(place, 4)
            driver.kill()
        assert parts(place, "plain")
        # At once, while processes of the run before may linger.
        open_gate(tmp_path)
        last = start()
        assert last.wait() == 0, last.output
    check_output(place, ROWS)


@ON_BOTH
def test_two_drivers_race_to_take_over_and_one_of_them_does_the_work(place: str, tmp_path: Path) -> None:
    with drivers(tmp_path, place, ROWS) as start:
        first = start()
        first.await_commits(place, 2)
        racing = [first, start(), start()]
        poll(lambda: sum(driver.ended for driver in racing) >= 2, PATIENCE_S)
        (winner,) = [driver for driver in racing if not driver.ended]
        winner.await_commits(place, 2)
        open_gate(tmp_path)
        assert winner.wait() == 0, winner.output
        for driver in racing:
            if driver is not winner:
                assert driver.wait() != 0 and "another driver has taken over" in driver.output, driver.output
    check_output(place, ROWS)


@pytest.fixture
def own_s3(tmp_path: Path) -> Iterator[Versitygw]:
    """A server for one test, which may kill it."""
    server = started(Versitygw(tmp_path / "s3"))
    assert isinstance(server, Versitygw)
    yield server
    server.stop()


@pytest.mark.quick
def test_the_store_is_killed_and_comes_back(own_s3: Versitygw, tmp_path: Path) -> None:
    place = new_place(own_s3)
    env = build_environment(place, storage_retries_max=2, storage_retry_delay="50ms")
    build_job(env, place, tmp_path, rows=ROWS)
    job: Any = env.submit(JOB)
    for _ in range(2):
        await_checkpoints(job, 2)
        troubles = len(notices_of(job, AttemptFailed)) + len(notices_of(job, CheckpointAborted))
        own_s3.kill()
        poll(
            lambda before=troubles: (
                len(notices_of(job, AttemptFailed)) + len(notices_of(job, CheckpointAborted)) > before
            ),
            PATIENCE_S,
        )
        own_s3.start()
    await_checkpoints(job, 1)
    open_gate(tmp_path)
    assert job.wait(PATIENCE_S) == "finished"
    check_output(place, ROWS)


def test_a_short_outage_of_the_store_fails_nothing(own_s3: Versitygw, tmp_path: Path) -> None:
    """The pauses between tries are longer than the outage."""
    place = new_place(own_s3)
    env = build_environment(place, storage_retries_max=30, storage_retry_delay_max="500ms")
    build_job(env, place, tmp_path, rows=ROWS)
    job: Any = env.submit(JOB)
    for _ in range(3):
        await_checkpoints(job, 1)
        own_s3.kill()
        job.wait(1.0)  # for three checkpoints
        own_s3.start()
    open_gate(tmp_path)
    assert job.wait(PATIENCE_S) == "finished"
    assert notices_of(job, AttemptFailed) == []
    check_output(place, ROWS)
