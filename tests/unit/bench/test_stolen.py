"""Time that a virtual machine was denied, and the gaps of a stream that it explains."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from weir.bench.state.workloads import _largest_gap_ms
from weir.bench.stolen import StolenTime


def counted(stolen: int) -> str:
    return f"cpu  351607 0 23086 174354 1269 0 536 {stolen} 0 0\ncpu0 1 0 0 0 0 0 0 0 0 0\n"


def replace(path: Path, text: str) -> None:
    fresh = path.with_suffix(".new")
    fresh.write_text(text)
    fresh.replace(path)


def test_only_spans_in_which_the_count_grew_are_touched(tmp_path: Path, eventually: Callable[..., Any]) -> None:
    counts = tmp_path / "stat"
    replace(counts, counted(5))
    before_s = time.monotonic()
    with StolenTime(counts) as stolen:
        assert not stolen.touches(before_s, time.monotonic())
        grew_s = time.monotonic()
        replace(counts, counted(9))
        eventually(lambda: stolen.touches(grew_s, time.monotonic()))
        over_s = time.monotonic()
    assert not stolen.touches(over_s, over_s + 5)


def test_where_nothing_is_counted_nothing_is_stolen(tmp_path: Path) -> None:
    with StolenTime(tmp_path / "none") as stolen:
        assert not stolen.touches(0.0, time.monotonic())


def test_the_largest_gap_is_that_of_one_subtask_and_may_leave_some_out() -> None:
    def times(*seconds: float) -> np.ndarray:
        return np.array([(second * 1e9, 1) for second in seconds], dtype=np.int64)

    found = {0: times(0.0, 1.0, 1.5, 4.0), 1: times(0.9, 1.0, 1.2)}
    assert round(_largest_gap_ms(found, 0.0, 5.0)) == 2_500
    assert round(_largest_gap_ms(found, 0.0, 2.0)) == 1_000
    assert round(_largest_gap_ms(found, 0.0, 5.0, but_for=lambda start_s, end_s: end_s > 3.0)) == 1_000
    assert _largest_gap_ms({}, 0.0, 5.0) == 0.0
