"""Sessions that meet; and those that go on with another gap, or another lateness, than they began with."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import polars as pl
import pytest

import weir
from tests.unit.operators.windows.sessions.test_runs import Subtasks, spec_of
from weir.operators.windows.sessions import store
from weir.snapshot.watermarks import END_US
from weir.state.keys.index import KeyIndex


def test_a_session_that_begins_where_two_others_meet_takes_nothing_over_from_them() -> None:
    text = pl.col("value").cast(pl.String)
    aggregates = {"n": weir.count(), "first": weir.first("value"), "low": weir.min(text), "high": weir.max(text)}
    subtasks = Subtasks(spec_of(aggregates=aggregates), 1, directory=None)
    subtasks.process([("a", 1, 0), ("a", 9, 15)])
    subtasks.process([("a", 3, 8), ("b", 5, 5)])
    assert set(subtasks.watermark(END_US)) == {("a", 0, 25, 3, 1, "1", "9"), ("b", 5, 15, 1, 5, "5", "5")}


def test_behind_a_snapshot_there_is_room_for_as_many_sessions_and_nothing_is_copied_to_grow(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    subtasks = Subtasks(spec_of(aggregates={"n": weir.count()}), 1, directory=None)
    rows = [(f"key {number}", 1, 0) for number in range(5_000)]
    subtasks.process(rows)
    subtasks.freeze()
    grown: list[int] = []
    grow, grow_index = store._grown, KeyIndex._grow
    with monkeypatch.context() as patch:
        patch.setattr(store, "_grown", lambda array, size: (grown.append(size), grow(array, size))[1])
        patch.setattr(
            KeyIndex, "_grow", lambda index, count, old: (grown.append(count), grow_index(index, count, old))[1]
        )
        for start in range(0, len(rows), 500):  # the first half has an index of its own, for these few
            subtasks.process([(key, 1, 5) for key, *_ in rows[start : start + 500]])
    assert not [size for size in grown if size > 2_048]
    assert Counter(subtasks.watermark(END_US)) == Counter((key, 0, 15, 2) for key, *_ in rows)


def test_keys_that_are_looked_for_behind_a_snapshot_are_not_added_to_what_it_is_writing() -> None:
    subtasks = Subtasks(spec_of(aggregates={"n": weir.count()}), 1, directory=None)
    subtasks.process([(f"key {number}", 1, 100) for number in range(100)])
    (frozen,) = subtasks.freeze()
    (operator,) = subtasks.operators
    (head,) = operator._runs._heads
    for number in range(50):
        subtasks.process([(f"other {number}", 1, 50 + number // 2)])
    assert len(subtasks.watermark(100)) == 50
    assert head._store.remembered == 100
    assert subtasks.written(0, frozen).files
    assert len(subtasks.watermark(END_US)) == 100


@pytest.mark.parametrize("place", ["heap", "disk"])
@pytest.mark.parametrize(
    ("before", "after"),
    [((3_600, 0), (60, 0)), ((60, 0), (3_600, 0)), ((60, 3_600), (60, 0)), ((60, 0), (60, 3_600))],
)
def test_with_another_gap_or_lateness_sessions_go_on(
    before: tuple[int, int], after: tuple[int, int], place: str, tmp_path: Path
) -> None:
    """Buckets are of another length then: what lies in those of before must neither be passed over nor waited for."""
    old, new = (spec_of(gap_us=gap * 1_000_000, lateness_us=late * 1_000_000) for gap, late in (before, after))
    directory = tmp_path if place == "disk" else None
    first = Subtasks(old, 1, directory=directory)
    first.process([(str(number), 1, number * 10_000_000) for number in range(100)])
    second = Subtasks(new, 1, directory=directory, before=first)
    found = [*second.watermark(500_000_000), *second.watermark(END_US)]
    gap_us = after[0] * 1_000_000
    expected = {(str(n), n * 10_000_000, n * 10_000_000 + gap_us, 1, 1, 1) for n in range(100)}
    assert len(found) == 100
    assert set(found) == expected


@pytest.mark.parametrize(
    ("before", "after", "comes_out"),
    [((3_600, 0), (60, 0), True), ((60, 3_600), (60, 0), False), ((60, 3_600), (120, 0), False)],
)
def test_with_another_gap_a_session_comes_out_once_and_does_not_stay(
    before: tuple[int, int], after: tuple[int, int], comes_out: bool
) -> None:
    """It has come out, or not, by the gap of before."""
    old, new = (spec_of(gap_us=gap * 1_000_000, lateness_us=late * 1_000_000) for gap, late in (before, after))
    first = Subtasks(old, 1, directory=None)
    first.process([("a", 1, 100_000_000)])
    assert bool(first.watermark(200_000_000)) is not comes_out
    second = Subtasks(new, 1, directory=None, before=first)
    assert bool(second.watermark(210_000_000)) is comes_out
    assert not second.watermark(END_US)
    assert second.operators[0]._runs.is_empty
    assert not len(second.operators[0]._store)
