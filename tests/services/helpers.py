"""A job on a server's storage, what it must have committed there, and how to run it as a process that is killed.

The job is the one of tests/spark/helpers.py: rows numbered 0 to N as they are, and running counts by key. Checkpoints
and output lie below one location. What was committed is read as a stranger would: the files that begin with no "_".
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

import weir
from tests.conftest import poll
from tests.spark.helpers import KEYS, numbers, slow_settings, weight
from weir import connectors as io
from weir.runtime.storage.locations import location_below
from weir.runtime.storage.opening import open_storage

ROOT = Path(__file__).parents[2]
SCRIPT = Path(__file__).parent / "jobs" / "counting.py"
JOB = "counting"
PATIENCE_S = 180.0
"""For whatever must happen, on a machine that has other things to do."""
RESTARTS_MAX = 200
ROWS = 120_000


def build_environment(place: str, **settings: Any) -> weir.Environment:
    return weir.Environment(
        parallelism=2,
        checkpoints=weir.Checkpoints(every="300ms", to=location_below(place, "checkpoints")),
        restart=weir.FixedDelay(RESTARTS_MAX, "100ms"),
        # Two minutes for ROWS with a closed gate: drivers take long to start on a busy machine.
        settings=slow_settings(**{"batch_rows_max": 10, **settings}),
        name=JOB,
    )


def build_job(environment: weir.Environment, place: str, gate: Path, *, rows: int) -> None:
    """Plain rows to `place`/plain, running counts by key to `place`/counts; slow until the gate is opened."""
    stream = numbers(environment, gate, rows)
    stream.select("n", uid="only-n").write(io.FileSink(location_below(place, "plain"), "jsonl"), uid="plain")
    counts = stream.key_by("key").agg(count=weir.count(), total=weir.sum("n"), weights=weir.sum("weight"), uid="by-key")
    counts.write(io.FileSink(location_below(place, "counts"), "jsonl"), uid="counts")


# --- What it must have written ----------------------------------------------------------------------


def parts(place: str, sink: str) -> list[str]:
    names = open_storage(location_below(place, sink), create=False).list("")
    return [name for name in names if not name.startswith(("_", "."))]


def committed_rows(place: str, sink: str) -> Iterator[dict[str, Any]]:
    storage = open_storage(location_below(place, sink), create=False)
    for name in parts(place, sink):
        yield from map(json.loads, storage.read(name).to_pybytes().decode().splitlines())


def check_output(place: str, rows: int) -> None:
    """Every row counts exactly once: compared record by record with what the job must have committed."""
    seen = Counter(row["n"] for row in committed_rows(place, "plain"))
    lost = [n for n in range(rows) if n not in seen]
    wrong = {n: times for n, times in seen.items() if times > 1 or not 0 <= n < rows}
    assert (lost[:10], dict(list(wrong.items())[:10])) == ([], {}), f"lost {len(lost)}, wrong {len(wrong)} of {rows}"
    newest: dict[int, dict[str, Any]] = {}
    counted: set[tuple[int, int]] = set()
    for row in committed_rows(place, "counts"):
        key, count = row["key"], row["count"]
        assert (key, count) not in counted, f"key {key}: the count {count} was committed twice"
        assert row["weights"] == count * weight(key), f"key {key}: a row counted twice or not at all: {row}"
        counted.add((key, count))
        if count > newest.get(key, {"count": 0})["count"]:
            newest[key] = row
    expected = {key: range(key, rows, KEYS) for key in range(KEYS)}
    assert {key: (row["count"], row["total"]) for key, row in newest.items()} == {
        key: (len(numbers), sum(numbers)) for key, numbers in expected.items()
    }


# --- Drivers of their own ---------------------------------------------------------------------------


class Driver:
    """One driver process of the job."""

    def __init__(self, gate: Path, place: str, rows: int, log: Path) -> None:
        self._log = log
        path = os.pathsep.join([str(ROOT / "src"), str(ROOT), *filter(None, sys.path)])
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                [sys.executable, str(SCRIPT), str(gate), place, str(rows)],
                env={**os.environ, "PYTHONPATH": path},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    def await_commits(self, place: str, number: int) -> None:
        """Wait until so many parts more than now are committed."""
        before = len(parts(place, "plain"))

        def reached() -> bool:
            assert self._process.poll() is None, f"ended before its time:\n{self.output}"
            return len(parts(place, "plain")) >= before + number

        poll(reached, PATIENCE_S)

    def kill(self) -> None:
        """The driver alone; what it had started is left to find out by itself."""
        self._process.kill()
        self._process.wait()

    def wait(self) -> int:
        return self._process.wait(PATIENCE_S)

    def close(self) -> None:
        """The driver, and whatever it has started."""
        if self._process.poll() is None:
            below = psutil.Process(self._process.pid).children(recursive=True)
            self.kill()
            for process in below:
                if process.is_running():
                    process.kill()

    @property
    def output(self) -> str:
        return self._log.read_text(errors="replace")

    @property
    def ended(self) -> bool:
        return self._process.poll() is not None


StartDriver = Callable[[], Driver]


@contextmanager
def drivers(gate: Path, place: str, rows: int) -> Iterator[StartDriver]:
    """A function that starts one more driver of the job; whatever is left running is killed."""
    started: list[Driver] = []

    def start() -> Driver:
        started.append(Driver(gate, place, rows, gate / f"driver-{len(started)}.log"))
        return started[-1]

    try:
        yield start
    finally:
        for driver in started:
            driver.close()
