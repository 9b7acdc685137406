"""The machine's own pauses, and the gaps of a stream that they explain."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from weir.bench.state.machine import MachinePauses
from weir.bench.state.workloads import _longest_ms


def test_an_idle_process_that_cannot_run_says_from_when_to_when(eventually: Callable[..., Any]) -> None:
    with MachinePauses() as machine:
        process = machine.processes[0]
        stopped_s = time.monotonic()
        os.kill(process, signal.SIGSTOP)
        eventually(lambda: time.monotonic() > stopped_s + 0.2)
        went_on_s = time.monotonic()
        os.kill(process, signal.SIGCONT)
    assert any(since < stopped_s + 0.1 and to > went_on_s - 0.1 for since, to in machine.spans)
    assert all(first[1] < second[0] for first, second in zip(machine.spans, machine.spans[1:]))


def test_a_gap_counts_without_the_time_in_which_the_machine_stood_still() -> None:
    ticks = [np.array([0.0, 0.1, 0.5, 0.6, 0.9, 1.0]) * 1e9, np.array([0.0, 0.25, 0.5, 0.75, 1.0]) * 1e9]
    assert _longest_ms(ticks, (0.0, 1.0), ()) == 400.0
    assert _longest_ms(ticks, (0.0, 1.0), [(0.15, 0.45)]) == 300.0
    assert _longest_ms(ticks, (0.0, 1.0), [(0.0, 0.55), (0.6, 0.9)]) == 100.0
    assert _longest_ms(ticks, (0.55, 0.95), ()) == 300.0


def test_a_task_without_a_tick_was_held_up_all_the_time() -> None:
    ticks = [np.array([0.1, 0.2]) * 1e9, np.array([], np.int64)]
    assert _longest_ms(ticks[:1], (0.0, 1.0), ()) == 800.0
    assert _longest_ms(ticks, (0.0, 1.0), ()) == 1000.0
