"""The slowest of a group of sources, and who waits for it."""

from __future__ import annotations

import pytest

from weir.errors import ProtocolViolation
from weir.ids import SubtaskId, VertexId
from weir.snapshot.watermark_groups import WatermarkGroups, limit_us
from weir.snapshot.watermarks import END_US, NEVER_US

FAST, SLOW, OTHER = (SubtaskId(VertexId(vertex), 0) for vertex in range(3))


def groups() -> WatermarkGroups:
    return WatermarkGroups({FAST: "orders", SLOW: "orders", OTHER: "clicks"})


def test_nothing_is_known_of_a_group_until_all_its_members_have_said_where_they_are() -> None:
    found = groups()
    found.reached(FAST, 500)
    found.reached(OTHER, 7)
    assert found.slowest_us == {"clicks": 7}
    found.reached(SLOW, 20)
    assert found.slowest_us == {"clicks": 7, "orders": 20}


def test_a_member_without_a_watermark_yet_is_waited_for() -> None:
    found = groups()
    found.reached(FAST, 500)
    found.reached(SLOW, NEVER_US)
    assert found.slowest_us == {"orders": NEVER_US}
    assert limit_us(NEVER_US, 1_000) == NEVER_US  # so anybody with a watermark is ahead


def test_a_member_that_is_idle_or_has_ended_is_not_waited_for_and_counts_again_when_it_resumes() -> None:
    found = groups()
    found.reached(FAST, 500)
    found.reached(SLOW, None)
    assert found.slowest_us["orders"] == 500
    found.reached(SLOW, 20)
    assert found.slowest_us["orders"] == 20


def test_where_no_member_counts_nobody_waits() -> None:
    found = groups()
    found.reached(FAST, None)
    found.reached(SLOW, None)
    assert found.slowest_us["orders"] == END_US
    assert limit_us(END_US, 1_000) == END_US


def test_members_that_begin_again_are_unknown_until_they_say_where() -> None:
    found = groups()
    found.reached(FAST, 500)
    found.reached(SLOW, 20)
    found.forget([FAST, SubtaskId(VertexId(9), 0)])
    assert found.slowest_us == {}
    found.reached(FAST, 10)
    assert found.slowest_us == {"orders": 10}


def test_the_limit_is_so_far_ahead_of_the_slowest_and_never_beyond_the_end_of_time() -> None:
    assert limit_us(20, 1_000) == 1_020
    assert limit_us(END_US - 5, 1_000) == END_US


def test_a_subtask_of_no_group_has_no_say() -> None:
    with pytest.raises(ProtocolViolation, match="is in none"):
        groups().reached(SubtaskId(VertexId(9), 0), 5)
