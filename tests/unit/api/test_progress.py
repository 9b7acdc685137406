"""Waiting for a job: what is shown, and what an interrupt or a failure does."""

from __future__ import annotations

import io

import pytest

from tests.unit.api.fakes import FakeHandle
from weir.api.job import JobHandle, JobResult
from weir.api.progress import Line, wait_with_progress
from weir.errors import JobFailed


def test_a_function_is_called_until_the_job_has_ended_and_once_more() -> None:
    seen: list[str] = []
    handle = FakeHandle(["created", "running", "finished"])
    wait_with_progress(handle, lambda job: seen.append(job.status))
    assert seen == ["created", "running", "finished"]


def test_without_progress_the_job_is_waited_for_once() -> None:
    waits: list[None] = []
    handle = FakeHandle(["created", "running", "finished"])
    handle.on_wait = lambda: waits.append(None)
    wait_with_progress(handle, False)
    assert handle.status == "finished"
    assert len(waits) == 1


def test_a_failure_is_shown_and_raised() -> None:
    seen: list[str] = []
    handle = FakeHandle(["running", "failed"], error=JobFailed("job 'job' failed: the disk is full"))
    with pytest.raises(JobFailed, match="disk is full"):
        wait_with_progress(handle, lambda job: seen.append(job.status))
    assert seen == ["running", "failed"]


def test_an_interrupt_cancels_the_job_and_goes_on() -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    handle = FakeHandle(["running", "finished"])
    handle.on_wait = interrupt
    with pytest.raises(KeyboardInterrupt):
        wait_with_progress(handle, False)
    assert handle.cancelled


def test_the_line_counts_rows_of_sources_only_and_their_rate_since_the_line_before() -> None:
    times_s = iter([0.0, 0.0, 2.0])
    out = io.StringIO()
    line = Line(out, ["in"], now_s=lambda: next(times_s))
    handle = FakeHandle(["running", "finished"])
    line(handle)
    handle.wait()
    line(handle)
    assert out.getvalue().split("\r")[1:] == [
        "job: running, 0 rows read",
        "job: finished, 1,000 rows read, 500 rows/s, checkpoint 7\n",
    ]


def test_a_shorter_line_covers_the_longer_one_before() -> None:
    out = io.StringIO()
    line = Line(out, [], now_s=lambda: 0.0)
    line(FakeHandle(["restarting"]))
    line(FakeHandle(["running"]))
    first, second = out.getvalue().split("\r")[1:]
    assert len(second) == len(first)


def test_the_fake_is_a_handle_and_a_result_reads_well() -> None:
    handle: JobHandle = FakeHandle(["finished"])
    handle.wait()
    result = JobResult("words", handle.status, 1.25, tuple(handle.checkpoints()))
    assert str(result) == "words: finished after 1.2 s, 1 checkpoint"
