"""State of jobs on Spark, record by record: killed while it is uploaded, restored by changed code, moved to five tasks
and back to three."""

from __future__ import annotations

import os
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import weir
from tests.conftest import poll
from tests.spark.helpers import KEYS, committed_rows, kill, notices_of, numbers, open_gate, slow_settings
from weir import connectors as io
from weir.errors import CheckpointError
from weir.runtime.driver.notices import AttemptRunning, CheckpointSucceeded
from weir.runtime.storage.opening import open_storage
from weir.runtime.storage.state_files import CheckpointFiles
from weir.runtime.storage.stores.files import LocalStorage
from weir.snapshot.manifest import decode

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into /proc")

PATIENCE_S = 120.0
ROWS = 40_000
MORE_KEYS = 1_000
HOLD = "hold"

Build = Callable[[weir.Environment, Path], None]
Submit = Callable[..., Any]


@pytest.fixture
def submit(embedded: Any, tmp_path: Path) -> Iterator[Submit]:
    """`submit(build, place)` starts a job with its checkpoints and its output below `tmp_path`/place."""
    jobs: list[Any] = []

    def start(build: Build, place: str = "job", *, parallelism: int = 2, backend: str = "heap", **more: Any) -> Any:
        directory = tmp_path / place
        directory.mkdir(exist_ok=True)
        environment = weir.Environment(
            embedded,
            parallelism=parallelism,
            checkpoints=weir.Checkpoints(every="100ms", to=str(directory / "checkpoints")),
            restart=weir.FixedDelay(20, "20ms"),
            settings=slow_settings(),
            backend=backend,  # type: ignore[arg-type]
        )
        build(environment, directory)
        jobs.append(environment.submit("stateful", **more))
        return jobs[-1]

    yield start
    for job in jobs:
        job.cancel()


def await_rows(directory: Path, count: int = 200) -> None:
    poll(lambda: len(committed_rows(directory)) > count, PATIENCE_S)


def finish(job: Any, directory: Path) -> None:
    open_gate(directory)
    assert job.wait(PATIENCE_S) == "finished"


def newest_checkpoint(directory: Path) -> Path:
    return max((directory / "checkpoints" / "stateful").glob("*/chk-*/manifest.json")).parent


# --- Killed while it uploads ------------------------------------------------------------------------------


class HeldUpCount(weir.ProcessFunction):
    """Counts by key. While the file `hold` is there, the state files of its process do not get into storage."""

    count = weir.ValueState("long", default=0)
    by_rest = weir.MapState("long", "long", default=0)

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def open(self, context: Any) -> None:
        write = LocalStorage.write
        if not hasattr(write, "directory"):
            LocalStorage.write = _held_up(write)  # type: ignore[method-assign]
        LocalStorage.write.directory = self.directory  # type: ignore[attr-defined]

    def process(self, row: Any, context: Any) -> Any:
        self.count.value += 1
        self.by_rest[row.n % 3] += 1
        yield row.key, self.count.value, sum(self.by_rest.get(rest) for rest in range(3))


def _held_up(write: Callable[..., None]) -> Callable[..., None]:
    def held_up(self: LocalStorage, path: str, data: Any) -> None:
        directory = held_up.directory  # type: ignore[attr-defined]
        if path.startswith(("chk-", "shared/")) and (directory / HOLD).exists():
            (directory / f"uploads-{os.getpid()}").touch()
            while (directory / HOLD).exists():
                threading.Event().wait(0.01)
        write(self, path, data)

    return held_up


@pytest.mark.parametrize("backend", ["heap", "rocksdb"])
def test_a_worker_that_is_killed_while_it_uploads_a_checkpoint_costs_no_row(
    submit: Submit, tmp_path: Path, backend: str
) -> None:
    directory = tmp_path / "job"

    def build(environment: weir.Environment, directory: Path) -> None:
        rows = numbers(environment, directory, ROWS).with_columns(key=pl.col("n") % MORE_KEYS, uid="more")
        counted = rows.key_by("key").process(HeldUpCount(directory), "key long, count long, rests long", uid="counted")
        counted.write(io.FileSink(directory / "out", "jsonl"), uid="out")

    job = submit(build, backend=backend)
    for victim in (0, 1):
        before = len(notices_of(job, CheckpointSucceeded))
        poll(lambda: len(notices_of(job, CheckpointSucceeded)) > before + 1 or job.error, PATIENCE_S)  # noqa: B023
        assert job.error is None
        processes = job.process_ids
        (directory / HOLD).touch()
        poll((directory / f"uploads-{processes[victim]}").exists, PATIENCE_S)
        known = newest_checkpoint(directory)
        assert kill(processes[victim])
        (directory / HOLD).unlink()
        poll(lambda: job.status == "running" and job.process_ids != processes, PATIENCE_S)  # noqa: B023
        assert notices_of(job, AttemptRunning)[-1].restored == int(known.name.removeprefix("chk-"))
    finish(job, directory)
    found = Counter((row["key"], row["count"]) for row in committed_rows(directory / "out"))
    sizes = Counter(n % MORE_KEYS for n in range(ROWS))
    assert found == Counter((key, n) for key, size in sizes.items() for n in range(1, size + 1))
    assert all(row["rests"] == row["count"] for row in committed_rows(directory / "out"))
    check_complete(newest_checkpoint(directory))


def check_complete(checkpoint: Path) -> None:
    """Every file that the checkpoint names is there, with the length and checksum that it says."""
    files = CheckpointFiles(open_storage(str(checkpoint.parent)))
    for file in decode((checkpoint / "manifest.json").read_bytes()).files:
        files.read(file)


# --- Changed code -----------------------------------------------------------------------------------------


class FirstChain(weir.ProcessFunction):
    """Each row with the one before it of the same key."""

    count = weir.ValueState("int", default=0)
    last = weir.ValueState("string", default="row -1")

    def process(self, row: Any, context: Any) -> Any:
        previous = int(self.last.value.removeprefix("row "))
        self.count.value += 1
        self.last.value = f"row {row.n}"
        yield row.key, self.count.value, row.n, previous


class SecondChain(weir.ProcessFunction):
    """The same with a wider count, and the number of the last row instead of its name."""

    count = weir.ValueState("long", default=0)
    last = weir.ValueState("long", default=-1, migrate=lambda name: int(name.removeprefix("row ")))

    def process(self, row: Any, context: Any) -> Any:
        previous = self.last.value
        self.count.value += 1
        self.last.value = row.n
        yield row.key, self.count.value, row.n, previous


def chain_job(chain: weir.ProcessFunction) -> Build:
    def build(environment: weir.Environment, directory: Path) -> None:
        rows = numbers(environment, directory, ROWS)
        chained = rows.key_by("key").process(chain, "key long, count long, n long, previous long", uid="chain")
        chained.write(io.FileSink(directory / "chain", "jsonl"), uid="chain-out")
        if isinstance(chain, FirstChain):
            digits = rows.with_columns(digit=pl.col("n") % 10, uid="digit").key_by("digit")
            digits.agg(count=weir.count(), uid="digits").write(io.Discard(), uid="digits-out")
        else:
            tops = rows.key_by("key").agg(top=weir.max("n"), rows=weir.count(), uid="tops")
            tops.write(io.FileSink(directory / "tops", "jsonl"), uid="tops-out")

    return build


@pytest.mark.parametrize(("before", "after"), [("heap", "rocksdb"), ("rocksdb", "heap")])
def test_changed_code_goes_on_from_a_savepoint_with_state_widened_migrated_added_and_dropped(
    submit: Submit, tmp_path: Path, before: str, after: str
) -> None:
    first = submit(chain_job(FirstChain()), "first", backend=before)
    await_rows(tmp_path / "first" / "chain")
    path = first.stop(str(tmp_path / "mine"), timeout=PATIENCE_S)
    with pytest.raises(CheckpointError, match=r"(?s)digits aggregate: dropped.*allow_dropped_state"):
        submit(chain_job(SecondChain()), "refused", backend=after, from_savepoint=path)
    second = submit(
        chain_job(SecondChain()), "second", backend=after, from_savepoint=path, parallelism=3, allow_dropped_state=True
    )
    finish(second, tmp_path / "second")
    old, new = (committed_rows(tmp_path / place / "chain") for place in ("first", "second"))
    assert old and new
    check_chain([*old, *new])
    tops = {row["key"]: row for row in committed_rows(tmp_path / "second" / "tops")}
    for key, top in tops.items():
        mine = [row["n"] for row in new if row["key"] == key]
        assert (top["top"], top["rows"]) == (max(mine), len(mine)), "what was added begins with the savepoint"


def check_chain(rows: list[dict[str, Any]]) -> None:
    """Every number once; and within a key each row names the one before it, across all restarts and versions."""
    assert Counter(row["n"] for row in rows) == Counter(range(ROWS))
    for key in range(KEYS):
        mine = sorted((row for row in rows if row["key"] == key), key=lambda row: row["count"])
        assert [row["count"] for row in mine] == list(range(1, len(mine) + 1))
        assert [row["previous"] for row in mine] == [-1, *(row["n"] for row in mine[:-1])], f"key {key}"


# --- Two, five, three -------------------------------------------------------------------------------------


class Labelled:
    """Rows with a label that is known from another stream only, and how many there were."""

    labels = weir.BroadcastState("long", "string", default="none yet")
    counted = weir.OperatorListState("long")

    def __call__(self, row: Any) -> Any:
        if row.label is not None:
            self.labels[row.n] = row.label
            return []
        self.counted.set([sum(self.counted.get()) + 1])
        return [(row.n, self.labels[row.n % 3])]


def states_of_every_kind(environment: weir.Environment, directory: Path) -> None:
    rows = numbers(environment, directory, ROWS).with_columns(key=pl.col("n") % MORE_KEYS, uid="more")
    rows.key_by("key").agg(count=weir.count(), total=weir.sum("n"), uid="sums").write(
        io.FileSink(directory / "sums", "jsonl"), uid="sums-out"
    )
    states = {"rests": weir.MapState("long", "long", default=0), "seen": weir.ListState("long")}
    remembered = rows.key_by("key").process(_remember, "key long, n long", state=states, uid="rests")
    remembered.write(io.Discard(), uid="no-out")
    names = [(rest, f"label {rest}") for rest in range(3)]
    labels = environment.from_collection(names, "n long, label string", uid="labels", parallelism=1)
    plain = rows.select("n", label=pl.lit(None, pl.String), uid="plain")
    labelled = labels.broadcast().union(plain).flat_map(Labelled(), "n long, label string", uid="labelled")
    labelled.write(io.FileSink(directory / "labelled", "jsonl"), uid="labelled-out")


def _remember(row: Any, state: Any) -> tuple[int, int]:
    state.rests[row.n % 3] = state.rests.get(row.n % 3) + 1
    state.seen.add(row.n)
    return row.key, row.n


@pytest.mark.parametrize("backend", ["heap", "rocksdb"])
def test_from_two_tasks_to_five_to_three_every_state_moves_whole(
    submit: Submit, embedded: Any, tmp_path: Path, backend: str
) -> None:
    path: str | None = None
    for place, parallelism in (("1", 2), ("2", 5)):
        job = submit(states_of_every_kind, place, parallelism=parallelism, backend=backend, from_savepoint=path)
        await_rows(tmp_path / place / "labelled")
        assert len(job.process_ids) == parallelism
        path = job.stop(str(tmp_path / "mine"), timeout=PATIENCE_S)
    job = submit(states_of_every_kind, "3", parallelism=3, backend=backend, from_savepoint=path)
    finish(job, tmp_path / "3")

    rows = [row for place in "123" for row in committed_rows(tmp_path / place / "labelled")]
    assert Counter(row["n"] for row in rows) == Counter(range(ROWS))
    moved = [row for place in "23" for row in committed_rows(tmp_path / place / "labelled")]
    assert moved and all(row["label"] == f"label {row['n'] % 3}" for row in moved), "every copy knows every label"
    newest: dict[int, tuple[int, int]] = {}
    for row in (row for place in "123" for row in committed_rows(tmp_path / place / "sums")):
        assert row["count"] > newest.get(row["key"], (0, 0))[0], f"key {row['key']}: lost or repeated"
        newest[row["key"]] = row["count"], row["total"]
    numbers_of = {key: range(key, ROWS, MORE_KEYS) for key in range(MORE_KEYS)}
    assert newest == {key: (len(mine), sum(mine)) for key, mine in numbers_of.items()}

    checkpoint = newest_checkpoint(tmp_path / "3")
    seen = weir.state.read(embedded, checkpoint, uid="rests", state="seen").collect()
    assert {row.key: sorted(row.value) for row in seen} == {key: list(mine) for key, mine in numbers_of.items()}
    rests = weir.state.read(embedded, checkpoint, uid="rests", state="rests").collect()
    assert {(row.key, row.map_key): row.value for row in rests} == Counter(
        (key, n % 3) for key, mine in numbers_of.items() for n in mine
    )
    counted = weir.state.read(embedded, checkpoint, uid="labelled", state="counted").collect()
    assert sum(row.value for row in counted) == ROWS and len(counted) == 3
