"""Rescales of a submitted job, with tasks that do as they are told instead of Spark."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.unit.runtime.fakes import Script
from tests.unit.runtime.job.test_asks import Deployed, Submit
from tests.unit.runtime.job.test_asks import submit as submit
from tests.unit.runtime.job.test_asks_again import Asking
from tests.unit.runtime.job.test_handle import WITHIN_S, ObedientCluster, reach
from weir.config import FixedDelay, NoRestart
from weir.errors import JobError, PlanError
from weir.runtime.job import handle as job_module


def test_a_job_is_rescaled_in_place_from_a_checkpoint_taken_for_it(
    submit: Submit, monkeypatch: pytest.MonkeyPatch
) -> None:
    deployed = Deployed(monkeypatch)
    job = submit()
    job.rescale(3, WITHIN_S)
    cluster = ObedientCluster.latest
    assert cluster.launched == [2, 3] and job.parallelism == 3 and job.status == "running"
    assert deployed.orders == [(None, None), (1, None)]
    assert job.metrics()["restarts"] == 0, "that is no failure"
    job.rescale(1, WITHIN_S)
    assert cluster.launched == [2, 3, 1]
    assert job.trigger_checkpoint(WITHIN_S) == 3
    cluster.finish()
    assert job.wait(WITHIN_S) == "finished"


def test_a_job_that_does_not_get_its_new_slots_goes_back_to_its_old_parallelism(
    submit: Submit, eventually: Callable[..., Any]
) -> None:
    job = submit(NoRestart())
    cluster = reach(job, "running", eventually)
    cluster.slots = 2
    with pytest.raises(JobError, match="the rescale failed: there are 2 slots"):
        job.rescale(4, WITHIN_S)
    eventually(lambda: job.status == "running", within_s=WITHIN_S)
    assert cluster.launched == [2, 4, 2] and job.parallelism == 2
    assert job.trigger_checkpoint(WITHIN_S) == 2


def test_a_rescale_whose_attempt_fails_is_made_again_on_the_next_one(
    submit: Submit, eventually: Callable[..., Any]
) -> None:
    job = submit(FixedDelay(attempts=5, delay="1ms"))
    cluster = reach(job, "running", eventually)
    cluster.answers_snapshots = False
    asking = Asking(lambda: job.rescale(3, WITHIN_S))
    eventually(lambda: job.checkpoint_history(), within_s=WITHIN_S)
    with pytest.raises(JobError, match="already being rescaled"):
        job.rescale(4, WITHIN_S)
    cluster.answers_snapshots = True
    cluster.fail("killed")
    assert asking.answer() is None
    assert cluster.launched == [2, 2, 3] and job.parallelism == 3


def test_a_rescale_may_count_on_the_slots_that_the_job_itself_holds(
    submit: Submit, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[int, int]] = []
    monkeypatch.setattr(job_module, "check_slots", lambda session, needed, *, own=0: asked.append((needed, own)))
    job = submit()
    job._session = object()  # type: ignore[assignment]
    job.rescale(3, WITHIN_S)
    assert asked == [(3, 2)]


def test_a_parallelism_above_the_maximum_is_refused_before_anything_happens(submit: Submit) -> None:
    job = submit()
    with pytest.raises(PlanError, match="above 8"):
        job.rescale(9, WITHIN_S)
    assert job.checkpoint_history() == []


def test_a_source_that_the_driver_feeds_cannot_change_its_parallelism_in_place(
    submit: Submit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Script, "on_driver_start", lambda self, driver: None)
    job = submit()
    with pytest.raises(JobError, match="'the source' is fed by the driver, for 2 readers"):
        job.rescale(3, WITHIN_S)
    job.rescale(2, WITHIN_S)
