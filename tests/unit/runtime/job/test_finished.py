"""A resume of a job that had finished: it ends at once, without Spark; every other job goes on."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from tests.unit.runtime.fakes import Pass, Script, Shelf, operator, plan_of
from tests.unit.runtime.job.test_asks import Submit, plan_at
from tests.unit.runtime.job.test_asks import submit as submit
from tests.unit.runtime.job.test_handle import WITHIN_S, reach
from weir.api.job import JobHandle
from weir.cli.progress import ProgressView
from weir.config import Checkpoints, JobConfig
from weir.errors import JobError
from weir.graph.plan import Forward, Plan
from weir.ids import CheckpointId
from weir.operators.sink import SinkOwner
from weir.operators.source import Source
from weir.runtime.driver.notices import HadFinished
from weir.runtime.job import launch
from weir.runtime.job.finished import HandleOfFinished
from weir.runtime.job.handle import Job
from weir.snapshot.records import seal


class SparkStarts(Exception):
    """Somebody wants a session."""


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Any]:
    """Start the job again as its user does; SparkStarts when it does not end at once."""

    def refuse(slots: int, name: str) -> Any:
        raise SparkStarts

    def again(plan: Plan | None = None, **more: Any) -> Any:
        config = JobConfig("job", Checkpoints(every=None, to=str(tmp_path / "checkpoints")), resume=True)
        return launch.submit(plan or plan_at(2), replace(config, **more))

    monkeypatch.setattr(launch, "embedded_session", refuse)
    return again


@pytest.fixture
def finished(submit: Submit, eventually: Callable[..., Any]) -> Job:
    """A job that has read its input to the end, with checkpoint 2."""
    job = submit()
    job.trigger_checkpoint(WITHIN_S)
    reach(job, "running", eventually).finish()
    assert job.wait(WITHIN_S) == "finished"
    return job


def files_in(directory: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in sorted(directory.rglob("*")) if path.is_file()}


def test_a_finished_job_that_is_resumed_ends_at_once_and_changes_nothing(
    finished: Job, start: Callable[..., Any], tmp_path: Path
) -> None:
    before = files_in(tmp_path)
    handle: JobHandle = start()
    assert isinstance(handle, HandleOfFinished)
    assert (handle.name, handle.status, handle.wait(), handle.error) == ("job", "finished", "finished", None)
    assert [(record.id, record.final) for record in handle.checkpoints()] == [(2, True)]
    metrics = handle.metrics()
    assert metrics.keys() == finished.metrics().keys() and metrics["status"] == "finished"
    assert [operator["rows_out"] for operator in metrics["operators"]] == [0, 0, 0]
    handle.cancel()
    for ask in (handle.trigger_checkpoint, handle.savepoint, handle.stop, lambda: handle.rescale(3)):
        with pytest.raises(JobError, match="'job' is finished"):
            ask()
    assert files_in(tmp_path) == before


def test_who_watches_it_is_told_in_one_line(finished: Job, start: Callable[..., Any]) -> None:
    handle = start()
    assert handle.notices == [HadFinished(None, CheckpointId(2))]
    out = io.StringIO()
    ProgressView(Console(file=out, width=200))(handle)
    assert out.getvalue() == "job had finished already, with checkpoint 2: nothing is left to do\n"


def test_a_finished_job_may_be_resumed_at_another_parallelism_or_named_after_its_savepoint(
    finished: Job, start: Callable[..., Any], tmp_path: Path
) -> None:
    assert isinstance(start(plan_at(3)), HandleOfFinished)
    (place,) = (tmp_path / "checkpoints" / "job").glob("*/chk-0000000002")
    assert isinstance(start(from_savepoint=str(place)), HandleOfFinished)


@pytest.mark.parametrize("end", ["drained", "stopped", "cancelled"])
def test_a_job_whose_input_was_not_at_its_end_goes_on(submit: Submit, start: Callable[..., Any], end: str) -> None:
    job = submit()
    job.trigger_checkpoint(WITHIN_S)
    if end == "cancelled":
        job.cancel()
    else:
        job.stop(False, drain=end == "drained", timeout=WITHIN_S)
    with pytest.raises(SparkStarts):
        start()


def test_what_an_earlier_version_has_noted_is_no_proof(
    finished: Job, start: Callable[..., Any], tmp_path: Path
) -> None:
    (note,) = (tmp_path / "checkpoints").rglob("*.finished")
    note.write_bytes(seal({"run": finished.run}))
    with pytest.raises(SparkStarts):
        start()
    note.write_bytes(b"torn")
    with pytest.raises(SparkStarts):
        start()


def test_a_user_who_goes_back_or_does_not_resume_starts_it(finished: Job, start: Callable[..., Any]) -> None:
    for config in ({"back_to": CheckpointId(2)}, {"resume": False}):
        with pytest.raises(SparkStarts):
            start(**config)


class Endless(Script):
    @property
    def bounded(self) -> bool:
        return False


class Grown(Script):
    """Nobody can tell but a reader."""

    def is_read_to_end(self, positions: Sequence[Any]) -> bool:
        return Source.is_read_to_end(self, positions)


class Another(Script):
    """It does not understand the positions of the source that was there."""

    def is_read_to_end(self, positions: Sequence[Any]) -> bool:
        raise KeyError("splits")


SOURCES = {"an endless source": Endless, "a source that may have more": Grown, "another source": Another}


class Ahead(Shelf):
    """It has committed later checkpoints than those that are there."""

    def committed_up_to(self, owner: SinkOwner) -> CheckpointId:
        return CheckpointId(3)


@pytest.mark.parametrize("change", ["a source more", *SOURCES, "a sink more", "a sink that is ahead"])
def test_a_job_that_has_more_to_read_or_to_write_by_now_goes_on(
    finished: Job, start: Callable[..., Any], change: str
) -> None:
    source = SOURCES.get(change, Script)()
    chains = [
        (2, [operator("source", source), operator("op", Pass())]),
        (2, [operator("sink", Ahead() if change == "a sink that is ahead" else Shelf())]),
    ]
    edges = [(0, 1, Forward())]
    if change == "a source more":
        chains += [(2, [operator("new", Script())]), (2, [operator("new-sink", Shelf())])]
        edges += [(2, 3, Forward())]
    elif change == "a sink more":
        chains += [(2, [operator("new-sink", Shelf())])]
        edges += [(0, 2, Forward())]
    with pytest.raises(SparkStarts):
        start(plan_of(*chains, edges=edges))
