"""A driver that is killed, with everything that it had in memory, and started again from what is in storage."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import psutil
import pytest

from tests.conftest import poll
from tests.spark.helpers import check_output, committed_rows, completed_checkpoints, open_gate, part_bytes

pytestmark = [
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into /proc"),
    pytest.mark.slow,
]

ROOT = Path(__file__).parents[2]
SCRIPT = Path(__file__).parent / "jobs" / "counting.py"
WITH_PYTHON = [sys.executable, str(SCRIPT)]
WITH_WEIR = [sys.executable, "-c", "from weir.cli.main import main; main()", "run", "--no-progress", str(SCRIPT)]
ROWS = 300_000
PATIENCE_S = 120.0


class Run:
    """One driver process."""

    def __init__(self, command: Sequence[str], log: Path, temporary: Path | None) -> None:
        self._log = log
        more = {} if temporary is None else {"TMPDIR": str(temporary)}
        path = os.pathsep.join([str(ROOT / "src"), str(ROOT), *filter(None, sys.path)])
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                command, env={**os.environ, "PYTHONPATH": path, **more}, stdout=output, stderr=subprocess.STDOUT
            )

    def await_checkpoints(self, directory: Path, number: int) -> None:
        """Wait until so many checkpoints have been completed since now."""
        before = max(completed_checkpoints(directory / "checkpoints", "counting"), default=0)

        def reached() -> bool:
            assert self._process.poll() is None, f"ended before its time:\n{self.output}"
            return max(completed_checkpoints(directory / "checkpoints", "counting"), default=0) >= before + number

        poll(reached, PATIENCE_S)

    def kill(self, *, with_children: bool = False) -> list[psutil.Process]:
        """Kill the driver alone; what it had started is left to find out by itself. Or all at once."""
        orphans: list[psutil.Process] = psutil.Process(self._process.pid).children(recursive=True)
        for process in orphans if with_children else ():
            process.suspend()  # so that none of them notices and tidies up
        self._process.kill()
        for process in orphans if with_children else ():
            process.kill()
        self._process.wait()
        return orphans

    def wait(self) -> int:
        return self._process.wait(PATIENCE_S)

    def close(self) -> None:
        if self._process.poll() is None:
            self.kill()

    @property
    def output(self) -> str:
        return self._log.read_text()


Start = Callable[..., Run]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """`start(command, *arguments)` runs a driver; whatever a test leaves running is killed."""
    runs: list[Run] = []

    def start(command: Sequence[str], *arguments: str, temporary: Path | None = None) -> Run:
        log = tmp_path / f"run-{len(runs)}.log"
        runs.append(Run([*command, *arguments], log, temporary))
        return runs[-1]

    yield start
    for run in runs:
        run.close()


def test_a_driver_killed_twice_goes_on_each_time_at_another_parallelism_and_refuses_to_start_over(
    start: Start, tmp_path: Path
) -> None:
    job = tmp_path / "job"
    job.mkdir()
    script = [str(job), str(ROWS)]
    # The same command starts a job and goes on with it: what a supervisor would run.
    first = start(WITH_PYTHON, *script, "--resume")
    first.await_checkpoints(job, 4)
    orphans = first.kill()

    poll(lambda: not any(process.is_running() for process in orphans), PATIENCE_S)
    before = part_bytes(job)
    over = start(WITH_WEIR, "--", *script)
    assert over.wait() != 0
    assert "counting" in over.output and "--resume" in over.output and "Traceback" not in over.output, over.output
    assert part_bytes(job) == before, "a run that is refused must change nothing"

    second = start(WITH_WEIR, "--resume", "--parallelism", "3", "--", *script)
    second.await_checkpoints(job, 4)
    second.kill()
    assert 0 < len(committed_rows(job / "plain")) < ROWS

    # At once, while processes of the run before may linger.
    open_gate(job)
    third = start(WITH_PYTHON, *script, "--resume")
    assert third.wait() == 0, third.output
    assert "finished" in third.output
    check_output(job, ROWS)


def test_what_killed_drivers_and_workers_leave_on_the_local_disk_goes_with_the_next_start(
    start: Start, tmp_path: Path
) -> None:
    job, temporary = tmp_path / "job", tmp_path / "temporary"
    job.mkdir()
    temporary.mkdir()
    local = job / "local"
    script = [str(job), str(ROWS), "--resume", "--rocksdb"]
    kept: set[Path] = set()
    for _ in range(2):
        run = start(WITH_PYTHON, *script, temporary=temporary)
        run.await_checkpoints(job, 2)
        here = {path.parent for path in local.glob("weir-*/*/*-0-[01]")}
        assert len(here) == 1 and not here & kept, "the directory of this run, and of no other"
        kept |= here
        for process in run.kill(with_children=True):
            process.wait(PATIENCE_S)
        assert [path for path in local.rglob("*") if path.is_file()], "killed processes remove nothing"
    open_gate(job)
    last = start(WITH_PYTHON, *script, temporary=temporary)
    assert last.wait() == 0, last.output
    check_output(job, ROWS)
    assert list(local.glob("weir-*/*")) == []
    left = [path for path in temporary.glob("weir-*/*") if path.is_dir()]
    assert left == [], "the embedded Spark's own files are gone, too"
