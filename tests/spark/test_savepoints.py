"""Savepoints, stops, drains and rescales of jobs on Spark: what was committed, record by record."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from typer.testing import CliRunner

import weir
from tests.conftest import poll
from tests.spark.helpers import (
    KEYS,
    build_job,
    check_counts,
    check_output,
    check_plain,
    committed_rows,
    numbers,
    open_gate,
    slow_settings,
)
from weir import connectors as io
from weir.cli.main import application
from weir.errors import CheckpointError, OwnershipError, PlanError, SlotsMissing
from weir.runtime.spark.session import slots

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into /proc")

PATIENCE_S = 120.0
ROWS = 60_000

Build = Callable[[weir.Environment, Path], None]
Submit = Callable[..., Any]


def first_version(environment: weir.Environment, directory: Path) -> None:
    """The keyed job, and a count by last digit that the next version does without."""
    build_job(environment, directory, rows=ROWS)
    digits = numbers(environment, directory, ROWS, uid="more-numbers").with_columns(digit=pl.col("n") % 10, uid="digit")
    counts = digits.key_by("digit").agg(count=weir.count(), uid="by-digit")
    counts.write(io.FileSink(directory / "digits", "jsonl"), uid="digits")


def second_version(environment: weir.Environment, directory: Path) -> None:
    """Without the count by digit, and with the largest number so far by key, which the first version did not have."""
    build_job(environment, directory, rows=ROWS)
    largest = numbers(environment, directory, ROWS, uid="new-numbers").key_by("key").agg(top=weir.max("n"), uid="tops")
    largest.write(io.FileSink(directory / "tops", "jsonl"), uid="tops-out")


def whole_job(environment: weir.Environment, directory: Path) -> None:
    build_job(environment, directory, rows=ROWS)


def endless_job(environment: weir.Environment, directory: Path) -> None:
    build_job(environment, directory, rows=None)


@pytest.fixture
def submit(embedded: Any, tmp_path: Path) -> Iterator[Submit]:
    """`submit(build, place)` starts a job with its checkpoints and its output below `tmp_path`/place."""
    jobs: list[Any] = []

    def start(
        build: Build,
        place: str = "job",
        *,
        name: str = "saved",
        parallelism: int = 2,
        backend: str = "heap",
        **options: Any,
    ) -> Any:
        directory = tmp_path / place
        directory.mkdir(exist_ok=True)
        environment = weir.Environment(
            embedded,
            parallelism=parallelism,
            checkpoints=weir.Checkpoints(every="100ms", to=str(directory / "checkpoints")),
            settings=slow_settings(),
            backend=backend,  # type: ignore[arg-type]
        )
        build(environment, directory)
        jobs.append(environment.submit(name, **options))
        return jobs[-1]

    yield start
    for job in jobs:
        job.cancel()


def await_output(directory: Path) -> None:
    poll(lambda: len(committed_rows(directory / "counts")) > 100, PATIENCE_S)


def finish(job: Any, directory: Path) -> None:
    open_gate(directory)
    assert job.wait(PATIENCE_S) == "finished"


def test_a_stopped_job_goes_on_from_its_savepoint_with_an_operator_added_and_one_removed(
    submit: Submit, tmp_path: Path
) -> None:
    directory = tmp_path / "job"
    first = submit(first_version)
    await_output(directory)
    path = first.stop(timeout=PATIENCE_S)
    assert first.wait() == "stopped"
    assert 0 < len(committed_rows(directory / "plain")) < ROWS
    with pytest.raises(CheckpointError, match="allow_dropped_state"):
        submit(second_version, from_savepoint=path)
    # In the same place: nothing has come after the savepoint, so the run goes on where the first one ended.
    second = submit(second_version, from_savepoint=path, allow_dropped_state=True)
    finish(second, directory)
    check_output(directory, ROWS)
    tops = {row["key"]: row["top"] for row in committed_rows(directory / "tops")}
    assert tops == {key: max(range(key, ROWS, KEYS)) for key in range(KEYS)}


def test_two_runs_start_from_one_savepoint_and_the_job_itself_goes_on(submit: Submit, tmp_path: Path) -> None:
    job = submit(whole_job)
    await_output(tmp_path / "job")
    path = job.savepoint(str(tmp_path / "savepoints"), PATIENCE_S)
    poll(lambda: job.checkpoints()[-1].savepoint is None, PATIENCE_S)
    finish(job, tmp_path / "job")
    check_output(tmp_path / "job", ROWS)
    with pytest.raises(OwnershipError, match="earlier run"):
        submit(whole_job, from_savepoint=path)
    runs = [submit(whole_job, f"run-{n}", name=f"run-{n}", parallelism=n, from_savepoint=path) for n in (1, 2)]
    seen = []
    for n, run in enumerate(runs, 1):
        finish(run, tmp_path / f"run-{n}")
        seen.append(sorted(row["n"] for row in committed_rows(tmp_path / f"run-{n}" / "plain")))
        newest = {row["key"]: row for row in committed_rows(tmp_path / f"run-{n}" / "counts")}
        for key, row in newest.items():
            assert (row["count"], row["total"]) == (len(range(key, ROWS, KEYS)), sum(range(key, ROWS, KEYS))), key
    assert seen[0] == seen[1], "both read on from the same row"
    before = set(range(ROWS)) - set(seen[0])
    assert before and len(seen[0]) == len(set(seen[0]))


def test_a_drained_job_has_flushed_and_committed_everything_that_it_read(submit: Submit, tmp_path: Path) -> None:
    directory = tmp_path / "job"
    job = submit(endless_job)
    await_output(directory)
    path = job.stop(drain=True, timeout=PATIENCE_S)
    assert job.wait() == "finished" and path is not None and (Path(path) / "manifest.json").exists()
    plain = [row["n"] for row in committed_rows(directory / "plain")]
    assert len(plain) == len(set(plain))
    counted = {row["key"]: row["count"] for row in committed_rows(directory / "counts")}
    assert counted == dict(Counter(n % KEYS for n in plain)), "both branches have seen the same rows, to the last"


def test_a_job_is_rescaled_in_place_and_every_row_counts_once(submit: Submit, tmp_path: Path) -> None:
    directory = tmp_path / "job"
    job = submit(whole_job)
    await_output(directory)
    with pytest.raises(PlanError, match="from 1 to 128"):
        job.rescale(129)
    with pytest.raises(SlotsMissing):
        job.rescale((slots(job._session) or 0) + 1)
    job.rescale(3, PATIENCE_S)
    assert job.status == "running" and len(job.process_ids) == 3
    job.trigger_checkpoint(PATIENCE_S)
    job.rescale(1, PATIENCE_S)
    assert len(job.process_ids) == 1
    assert job.metrics()["restarts"] == 0
    finish(job, directory)
    check_plain(directory / "plain", ROWS)
    check_counts(directory / "counts", ROWS)


def process_job(environment: weir.Environment, directory: Path) -> None:
    """Counts and sums by key in a function's own state of several kinds."""

    def count(row: Any, state: Any) -> tuple[int, int, int]:
        state.count.value += 1
        state.by_rest[row.n % 3] = state.by_rest.get(row.n % 3, 0) + row.n
        return row.key, state.count.value, sum(state.by_rest.values())

    states = {"count": weir.ValueState("long", default=0), "by_rest": weir.MapState("long", "long")}
    counted = (
        numbers(environment, directory, ROWS)
        .key_by("key")
        .process(count, "key long, count long, total long", state=states, uid="by-key")
    )
    counted.write(io.FileSink(directory / "counts", "jsonl"), uid="counts")


def test_state_moves_from_heap_to_rocksdb_and_back_by_savepoints_at_other_parallelisms(
    submit: Submit, tmp_path: Path
) -> None:
    path: str | None = None
    for place, backend, parallelism in (("1", "heap", 2), ("2", "rocksdb", 3)):
        job = submit(process_job, place, backend=backend, parallelism=parallelism, from_savepoint=path)
        await_output(tmp_path / place)
        path = job.stop(str(tmp_path / "mine"), timeout=PATIENCE_S)
    finish(submit(process_job, "3", backend="heap", parallelism=1, from_savepoint=path), tmp_path / "3")
    seen: dict[int, list[int]] = {key: [] for key in range(KEYS)}
    for row in (row for place in "123" for row in committed_rows(tmp_path / place / "counts")):
        seen[row["key"]].append(row["count"])
    for key, counts in seen.items():
        assert sorted(counts) == list(range(1, len(range(key, ROWS, KEYS)) + 1)), f"key {key}: lost or repeated"
    newest = {row["key"]: row["total"] for row in committed_rows(tmp_path / "3" / "counts")}
    assert newest == {key: sum(range(key, ROWS, KEYS)) for key in range(KEYS)}


# --- From the command line --------------------------------------------------------------------------------


def command(*arguments: str) -> Any:
    result = CliRunner().invoke(application(), [*arguments, "--json"])
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


def test_a_running_job_is_looked_after_from_the_command_line(submit: Submit, tmp_path: Path) -> None:
    directory = tmp_path / "job"
    job = submit(whole_job, name="looked after")
    await_output(directory)
    assert [entry["name"] for entry in command("list") if entry["status"] == "running"] == ["looked after"]
    found = command("status", "looked after")
    assert found["parallelism"] == 2 and {"numbers", "by-key"} <= {operator["uid"] for operator in found["operators"]}
    path = command("savepoint", "looked after", str(tmp_path / "mine"))["savepoint"]
    assert path in [record["savepoint"] for record in command("checkpoints", "looked after")]
    assert command("rescale", "looked after", "1") == {"job": "looked after", "parallelism": 1}
    stopped = command("stop", "looked after")
    assert stopped["status"] == job.wait(PATIENCE_S) == "stopped"
    assert CliRunner().invoke(application(), ["cancel", "looked after"]).exit_code == 1
    finish(submit(whole_job, name="looked after", from_savepoint=stopped["savepoint"]), directory)
    check_output(directory, ROWS)


def test_a_script_starts_from_a_savepoint_into_another_directory(submit: Submit, tmp_path: Path) -> None:
    job = submit(whole_job)
    await_output(tmp_path / "job")
    path = job.stop(str(tmp_path / "mine"), timeout=PATIENCE_S)
    other = tmp_path / "other"
    other.mkdir()
    open_gate(other)
    script = Path(__file__).parent / "jobs" / "counting.py"
    result = CliRunner().invoke(application(), ["run", str(script), "--from", str(path), "--", str(other), str(ROWS)])
    assert result.exit_code == 0, result.output
    seen = Counter(row["n"] for place in ("job", "other") for row in committed_rows(tmp_path / place / "plain"))
    assert seen == Counter(range(ROWS)), "what the first run committed and what the second did are all rows, once"
    newest = {row["key"]: row["count"] for row in committed_rows(other / "counts")}
    assert newest == {key: len(range(key, ROWS, KEYS)) for key in range(KEYS)}
