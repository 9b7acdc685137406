"""A rescaling is answered once: by what becomes of its checkpoint, or of the first attempts behind it."""

from __future__ import annotations

from typing import cast

import pytest

from weir.errors import JobError
from weir.graph.plan import Plan
from weir.ids import AttemptId
from weir.runtime.driver import notices
from weir.runtime.driver.notices import Notice
from weir.runtime.driver.rescaling import RescaleDesk


class PlanOf:
    def __init__(self, parallelism: int) -> None:
        self.parallelism = parallelism


TWO, THREE = cast(Plan, PlanOf(2)), cast(Plan, PlanOf(3))
ATTEMPT = AttemptId(7)


@pytest.fixture
def told() -> list[Notice]:
    return []


@pytest.fixture
def desk(told: list[Notice]) -> RescaleDesk:
    desk = RescaleDesk(told.append)
    desk.begin("wanted", THREE)
    return desk


def test_a_second_one_is_refused_while_one_is_under_way(desk: RescaleDesk) -> None:
    with pytest.raises(JobError, match="already being rescaled"):
        desk.check_free("job")
    desk.refused("wanted")
    desk.check_free("job")


def test_what_becomes_of_other_requests_is_not_its_business(desk: RescaleDesk) -> None:
    desk.refused("another")
    assert desk.committed("another", TWO, 1.0) is None
    assert desk.current is not None and desk.current.previous is None


def test_it_has_succeeded_when_all_regions_run_behind_its_checkpoint(desk: RescaleDesk, told: list[Notice]) -> None:
    desk.all_run(ATTEMPT, TWO)
    assert told == []  # The old attempt's regions: it was only asked for.
    verdict = desk.committed("wanted", TWO, 1.0)
    assert verdict is not None and verdict.plan is THREE
    desk.all_run(ATTEMPT, THREE)
    desk.all_run(ATTEMPT, THREE)
    assert told == [notices.RescaleCompleted(ATTEMPT, "wanted", 3, 2)]


def test_a_failure_before_its_checkpoint_is_none_of_the_new_parallelism(desk: RescaleDesk, told: list[Notice]) -> None:
    assert desk.failed("a worker died", ATTEMPT, 1.0) is None
    assert told == [] and desk.current is not None


def test_a_failure_of_its_first_attempts_goes_back_and_is_told_once(desk: RescaleDesk, told: list[Notice]) -> None:
    desk.committed("wanted", TWO, 1.0)
    verdict = desk.failed("too few slots", ATTEMPT, 2.0)
    assert verdict is not None and verdict.plan is TWO
    assert told == [notices.RequestFailed(ATTEMPT, "wanted", "too few slots")]
    assert desk.failed("again", ATTEMPT, 3.0) is None
