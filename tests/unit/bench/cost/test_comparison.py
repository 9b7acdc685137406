"""What a checkpoint costs is read off probes: their gaps, and how long a row waits that is due at any time."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from weir.bench.cost import comparison
from weir.bench.cost.comparison import METHODS, Cost, add_to_csv, longest_ms, p99_ms, plot_of, read_csv
from weir.bench.state.valve import OPEN

MS = 1_000_000
COST = Cost(
    state_mb=10,
    method="aligned",
    rows_per_s=900,
    rows_per_s_without=1_000,
    share=0.9,
    checkpoint_s=1.5,
    pause_ms=30.0,
    pause_without_ms=20.0,
    p99_full_ms=50.0,
    p99_full_without_ms=40.0,
    p99_ms=7.5,
    p99_without_ms=5.0,
    wrong=0,
)


def arrivals(*pairs: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
    made, came = np.array(pairs).T * MS
    return made, came


def test_the_longest_pause_is_that_of_one_task_within_the_time() -> None:
    steady = arrivals(*((n, n + 1) for n in range(0, 1_000, 10)))
    halted = arrivals(*((n, n + 1) for n in [*range(0, 300, 10), *range(700, 1_000, 10)]))
    assert longest_ms([steady], (0.0, 1.0)) == 10.0
    assert longest_ms([steady, halted], (0.0, 1.0)) == 410.0
    assert longest_ms([steady, halted], (0.72, 1.0)) == 10.0


def test_rows_that_a_source_did_not_make_while_it_stood_still_have_waited_too() -> None:
    steady = arrivals(*((n, n + 2) for n in range(1_100)))
    assert p99_ms([steady], (0.0, 1.0)) == 2.0
    halted = arrivals(*((n, n + 2) for n in [*range(300), *range(700, 1_100)]))
    assert p99_ms([halted], (0.0, 1.0)) == pytest.approx(392, abs=1)


def test_a_probe_that_is_overtaken_counts_by_who_comes_first() -> None:
    made, came = arrivals(*((n, n + 2) for n in range(1_100)))
    came[100:200] += 500 * MS
    assert p99_ms([(made, came)], (0.0, 1.0)) == pytest.approx(92, abs=1)


def test_measurements_in_pieces_are_put_together(tmp_path: Path) -> None:
    path = tmp_path / "cost.csv"
    add_to_csv(replace(COST, state_mb=1_000), path)
    add_to_csv(COST, path)
    add_to_csv(replace(COST, method="halting"), path)
    add_to_csv(replace(COST, pause_ms=31.0), path)
    found = [(cost.state_mb, cost.method, cost.pause_ms) for cost in read_csv(path)]
    assert found == [(10, "halting", 30.0), (10, "aligned", 31.0), (1_000, "aligned", 30.0)]


def test_what_was_not_measured_has_no_bar() -> None:
    plot = plot_of([COST, replace(COST, method="halting", pause_ms=4_321.0), replace(COST, state_mb=1_000)])
    assert plot.count("<rect") == 1 + 3 * 3 + 2, "the ground, a bar for each value, and the two names"
    assert "4,321" in plot and "1,000 MB" in plot and "nan" not in plot


class Recorded:
    """A job that notes what is asked of it."""

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.handle = self

    def let(self, *, bulk: int = OPEN, probes: int = OPEN) -> None:
        self.asked.append((bulk > 0, probes > 0))

    def checkpoint(self) -> None:
        self.asked.append("checkpoint")

    def wait(self, seconds: float) -> None:
        """No time passes."""


@pytest.mark.parametrize("method", METHODS)
def test_to_halt_is_to_let_no_row_through_until_the_checkpoint_is_complete(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(comparison, "CHECKPOINTS", 1)
    job: Any = Recorded()
    with_them, without, _ = comparison._watched(job, method, bulk=OPEN)
    halted = [(False, False)] if method == "halting" else []
    assert job.asked == [(True, True), *halted, "checkpoint", (True, True)]
    assert without[1] == with_them[0]
