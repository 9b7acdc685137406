"""The embedded session and the barrier stage on a real Spark: start, end, kill, freeze, cancel, errors, slots."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.conftest import poll
from tests.spark.conftest import EMBEDDED_PARALLELISM, LongTasks, alive
from weir.errors import ConfigError, PlanError, SlotsMissing, TaskLost
from weir.runtime.spark import stage as stage_module
from weir.runtime.spark.session import (
    LOOPBACK,
    SPARE_SLOTS,
    check_slots,
    driver_host,
    embedded_session,
    slots,
    slots_message,
)
from weir.runtime.spark.stage import BarrierStage

Start = Callable[..., LongTasks]

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into /proc")


def run(session: Any, task_main: Callable[[int], None], parallelism: int = 2) -> BarrierStage:
    stage = BarrierStage(session, name="test", parallelism=parallelism, task_main=task_main)
    stage.start()
    assert stage.wait(60)
    return stage


def write_index(directory: Path) -> Callable[[int], None]:
    def main(index: int) -> None:
        import os
        import sys

        from weir.runtime.spark.session import task_host

        report = {
            "host": task_host("127.0.0.1"),
            "process": os.getpid(),
            "polars_threads": os.environ.get("POLARS_MAX_THREADS"),
            "preloaded": "polars" in sys.modules,
            "python": sys.executable,
        }
        with open(directory / str(index), "w") as file:
            file.write(json.dumps(report))

    return main


# --- A stage's life ---------------------------------------------------------------------------------


def test_every_index_runs_once_and_the_stage_ends_cleanly(embedded: Any, tmp_path: Path) -> None:
    ended: list[BarrierStage] = []
    stage = BarrierStage(embedded, name="indices", parallelism=2, task_main=write_index(tmp_path))
    stage.on_done(ended.append)
    stage.start()
    assert stage.wait(60) and stage.error is None
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "1"]
    reports = [json.loads((tmp_path / name).read_text()) for name in "01"]
    assert reports[0]["process"] != reports[1]["process"]
    for report in reports:
        assert report["host"] == driver_host(embedded) == LOOPBACK
        assert report["python"] == sys.executable
        assert report["polars_threads"] == "1" and report["preloaded"]
    poll(lambda: ended == [stage])
    stage.on_done(ended.append)
    assert ended == [stage, stage]


def test_the_job_shows_under_its_name_in_sparks_ui(embedded: Any, long_tasks: Start) -> None:
    long_tasks(embedded)
    context = embedded.sparkContext
    url = f"{context.uiWebUrl}/api/v1/applications/{context.applicationId}/jobs?status=running"
    with urllib.request.urlopen(url, timeout=10) as answer:
        jobs = json.load(answer)
    assert [job["description"] for job in jobs] == ["long tasks"]


def test_a_batch_query_beside_a_running_stage_does_not_hang(embedded: Any, long_tasks: Start) -> None:
    long_tasks(embedded)
    assert embedded.range(1_000).selectExpr("sum(id)").collect()[0][0] == 499_500


def test_modules_that_only_the_driver_has_on_its_path_are_found_by_tasks(
    embedded: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "only_here_module.py").write_text("ANSWER = 42\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    import only_here_module  # type: ignore[import-not-found]

    def main(index: int) -> None:
        assert only_here_module.ANSWER == 42

    assert run(embedded, main).error is None


def test_pandas_is_not_needed(embedded: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stage_module.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr("pyspark.sql.pandas.functions.pandas_udf", None)
    assert run(embedded, write_index(tmp_path)).error is None
    assert len(list(tmp_path.iterdir())) == 2


# --- How it ends badly --------------------------------------------------------------------------------


def test_a_killed_worker_fails_the_stage_at_once_and_the_next_stage_starts(embedded: Any, long_tasks: Start) -> None:
    tasks = long_tasks(embedded)
    killed_s = time.monotonic()
    os.kill(tasks.process_ids[1], signal.SIGKILL)
    assert tasks.stage.wait(10)
    assert time.monotonic() - killed_s < 2.0
    assert isinstance(tasks.stage.error, TaskLost)
    assert str(tasks.stage.error).startswith("Task 1: A Python worker died")
    started_s = time.monotonic()
    again = long_tasks(embedded)
    assert time.monotonic() - started_s < 5.0
    again.leave()
    assert again.stage.wait(10) and again.stage.error is None


def test_a_task_that_raises_shows_its_own_traceback_and_no_java(embedded: Any) -> None:
    def main(index: int) -> None:
        if index == 1:
            raise ValueError("no such auction: 17")
        threading.Event().wait(30)

    error = run(embedded, main).error
    assert isinstance(error, TaskLost)
    assert str(error).startswith("Task 1: Traceback")
    assert str(error).rstrip().endswith("ValueError: no such auction: 17")
    assert "\tat " not in str(error) and "SparkException" not in str(error)


@pytest.mark.parametrize("frozen", [False, True], ids=["running", "frozen"])
def test_cancel_ends_the_stage_and_its_processes(embedded: Any, long_tasks: Start, frozen: bool) -> None:
    tasks = long_tasks(embedded)
    if frozen:
        os.kill(tasks.process_ids[0], signal.SIGSTOP)
    tasks.stage.cancel()
    assert tasks.stage.wait(5)
    assert isinstance(tasks.stage.error, TaskLost) and "cancelled" in str(tasks.stage.error)
    poll(lambda: not any(alive(process_id) for process_id in tasks.process_ids), within_s=10)


def test_a_stage_cancelled_before_spark_has_it_never_runs(embedded: Any, tmp_path: Path) -> None:
    stage = BarrierStage(embedded, name="early", parallelism=2, task_main=write_index(tmp_path))
    stage.cancel()
    stage.start()
    assert stage.wait(10) and "cancelled" in str(stage.error)
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_pickled_is_refused_before_anything_starts(embedded: Any) -> None:
    def main(index: int) -> None:
        print(embedded)

    with pytest.raises(PlanError, match="must not hold a SparkSession"):
        BarrierStage(embedded, name="bad", parallelism=2, task_main=main)


# --- Slots ------------------------------------------------------------------------------------------


def test_too_few_slots_is_an_error_that_counts_them(embedded: Any) -> None:
    there = slots(embedded)
    assert there == max(EMBEDDED_PARALLELISM, os.cpu_count() or 1) + SPARE_SLOTS
    check_slots(embedded, there)
    with pytest.raises(SlotsMissing, match=f"needs {there + 3} task slots at once; Spark has {there}: 3 missing"):
        check_slots(embedded, there + 3)
    assert isinstance(run(embedded, lambda index: None, parallelism=there + 1).error, SlotsMissing)


def test_slots_that_others_hold_are_counted_too(embedded: Any, long_tasks: Start) -> None:
    long_tasks(embedded)
    there = slots(embedded)
    expected = f"Spark has {there}, of which 2 are taken by other work: 2 missing"
    poll(lambda: expected in slots_message(embedded, there, there))


def test_the_embedded_session_is_the_same_one_while_it_has_the_room(embedded: Any) -> None:
    assert embedded_session(1, "another") is embedded
    with pytest.raises(ConfigError, match=r"has \d+ slots, and the job 'large' needs 99"):
        embedded_session(99, "large")


def test_others_on_the_machine_can_neither_enter_the_embedded_spark_nor_end_its_jobs(embedded: Any) -> None:
    settings = embedded.sparkContext.getConf()
    assert settings.get("spark.authenticate") == "true" and settings.get("spark.authenticate.secret") is None
    assert settings.get("spark.ui.killEnabled") == "false"
    java = [process for process in psutil.Process().children() if "java" in process.name()]
    listening = [(c.laddr, p) for p in java for c in p.net_connections("inet") if c.status == psutil.CONN_LISTEN]
    strange = [(place, p.cmdline()[-3:]) for place, p in listening if place.ip.removeprefix("::ffff:") != LOOPBACK]
    assert listening and strange == [], strange


# --- A process of its own -----------------------------------------------------------------------------

STAYS = """
from weir.runtime.spark.session import embedded_session
from weir.runtime.spark.stage import BarrierStage
import os, time
def main(index):
    print("a user's own line", index, flush=True)
    open(os.path.join({directory!r}, str(os.getpid())), "w").close()
    time.sleep(600)
stage = BarrierStage(embedded_session(1), name="quiet", parallelism=1, task_main=main)
stage.start()
stage.wait()
"""


def test_the_embedded_spark_says_nothing_but_what_tasks_print_and_goes_when_its_driver_is_killed(
    tmp_path: Path,
) -> None:
    driver = subprocess.Popen(
        [sys.executable, "-c", STAYS.format(directory=str(tmp_path))],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        (path,) = poll(lambda: list(tmp_path.iterdir()), within_s=100)
        java = subprocess.run(["ps", "-o", "pid=", "--ppid", str(driver.pid)], capture_output=True, text=True)
        processes = [int(path.name), *map(int, java.stdout.split())]
        assert len(processes) == 2 and all(alive(process) for process in processes)
    finally:
        driver.kill()
        written, complained = driver.communicate()
    assert (written, complained) == ("", "a user's own line 0\n")
    poll(lambda: not any(alive(process) for process in processes), within_s=20)


AFTER_ANOTHER = """
import os, psutil
from pyspark.sql import SparkSession
SparkSession.builder.master("local[1]").getOrCreate().stop()
from weir.runtime.spark.session import embedded_session
assert embedded_session(1).range(3).count() == 3
java = [process for process in psutil.Process().children() if "java" in process.name()]
places = [c.laddr for p in java for c in p.net_connections("inet") if c.status == psutil.CONN_LISTEN]
print([place for place in places if "127.0.0.1" not in place.ip])
"""


def test_an_embedded_spark_in_a_jvm_that_a_user_has_started_keeps_to_loopback_too() -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    environment.pop("SPARK_LOCAL_IP", None)
    run = subprocess.run([sys.executable, "-c", AFTER_ANOTHER], env=environment, capture_output=True, text=True)
    assert run.stdout.strip() == "[]", run.stdout + run.stderr
