"""What people see of a running job."""

from __future__ import annotations

import io
import logging
import time
from collections import deque
from typing import Any

import pytest
from rich.console import Console

from weir.cli.progress import ProgressView, Watch, line_of, notice_text, says_failures, table_of
from weir.ids import AttemptId, CheckpointId, TaskIndex
from weir.runtime.driver.notices import (
    AttemptFailed,
    AttemptRunning,
    CheckpointAborted,
    CheckpointSucceeded,
    Notice,
    StorageAwaited,
    StorageWait,
    WorkerDied,
)
from weir.snapshot.coordinator.history import CheckpointRecord, CheckpointState
from weir.snapshot.coordinator.orders import AbortReason


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def operator(uid: str, rows_in: int, rows_out: int, **more: Any) -> dict[str, Any]:
    return {"uid": uid, "rows_in": rows_in, "rows_out": rows_out, "backpressure": 0.0, **more}


def metrics(rows: int, *, attempt: int = 1, checkpoints: Any = (), **more: Any) -> dict[str, Any]:
    operators = [operator("bids", 0, rows, lag=["row 7"]), operator("out", rows, 0)]
    return {"status": "running", "attempt": attempt, "restarts": attempt - 1, "operators": operators} | {
        "checkpoints": list(checkpoints),
        **more,
    }


def completed(number: int) -> CheckpointRecord:
    return CheckpointRecord(
        CheckpointId(number),
        AttemptId(1),
        0.0,
        state=CheckpointState.COMPLETED,
        duration_ms=12.0,
        size_bytes=2_000_000,
    )


def test_a_rate_is_taken_over_the_last_seconds_not_between_two_heartbeats() -> None:
    clock = Clock()
    watch = Watch(now_s=clock)
    rates = []
    for step in range(40):
        clock.now_s += 0.1
        heard = step // 5 * 500  # heartbeats come every half second
        rates.append(watch.view("job", metrics(1_000 + heard)).rows_per_s)
    assert rates[0] == 0.0
    assert all(750 <= rate <= 1_250 for rate in rates[20:])


def test_a_new_attempt_counts_from_zero() -> None:
    clock = Clock()
    watch = Watch(now_s=clock)
    watch.view("job", metrics(1_000_000))
    clock.now_s += 1
    assert watch.view("job", metrics(10, attempt=2)).rows_per_s == 0.0
    clock.now_s += 1
    assert watch.view("job", metrics(510, attempt=2)).rows_per_s == 500.0


def test_checkpoints_that_the_history_has_forgotten_are_still_counted() -> None:
    watch = Watch(now_s=Clock())
    watch.view("job", metrics(1, checkpoints=[completed(1), completed(2)]))
    view = watch.view("job", metrics(1, checkpoints=[completed(3)]))
    assert view.completed == 3
    assert view.checkpoint is not None and view.checkpoint.id == 3


def test_a_line_tells_rows_position_checkpoint_restarts_and_who_waits() -> None:
    operators = [operator("bids", 0, 5_000, lag=["row 7", "row 9"]), operator("hot", 5_000, 10)]
    operators[0]["backpressure"] = 0.5
    given = metrics(5_000, attempt=2, checkpoints=[completed(4)], operators=operators)
    line = line_of(Watch(now_s=Clock()).view("job", given))
    assert line == (
        "job: running, 0 s, bids 5,000 rows, bids at row 7 │ row 9, checkpoint 4 (2.0 MB in 12 ms), 1 restart, "
        "bids waits 50%"
    )


def test_the_table_tells_the_same() -> None:
    console = Console(width=120, file=io.StringIO(), force_terminal=False)
    console.print(table_of(Watch(now_s=Clock()).view("job", metrics(5_000, checkpoints=[completed(4)]))))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "5,000 rows" in text and "row 7" in text
    assert "1 complete, newest: 4 (2.0 MB in 12 ms)" in text


def test_failures_recoveries_and_aborted_checkpoints_are_worth_a_line_and_completed_ones_are_not() -> None:
    one, two = AttemptId(1), AttemptId(2)
    failed = notice_text(AttemptFailed(one, None, "a worker died", restarts=True))
    assert failed == "attempt 1 failed, restarting: a worker died"
    assert notice_text(AttemptFailed(one, None, "a worker died", restarts=False)) is None
    died = notice_text(WorkerDied(one, None, TaskIndex(1), "its process was killed by SIGKILL"))
    assert died == "attempt 1, task 1: its process was killed by SIGKILL"
    runs = notice_text(AttemptRunning(two, None, CheckpointId(5), None, 1_234))
    assert runs == "attempt 2 runs from checkpoint 5, 1.2 s after the failure"
    assert notice_text(AttemptRunning(one, None, None, None, None)) is None
    aborted = notice_text(CheckpointAborted(one, CheckpointId(3), AbortReason.TIMED_OUT, ""))
    assert aborted == "checkpoint 3 was aborted: timed out"
    assert notice_text(CheckpointSucceeded(one, CheckpointId(3))) is None


def test_whoever_watches_an_outage_sees_since_when_it_lasts_and_what_was_found() -> None:
    wait = StorageWait("connection refused", 10**12, 10**12 + 30_000)
    since, retry = (time.strftime("%H:%M:%S", time.localtime(s)) for s in (1e9, 1e9 + 30))
    text = f"waits for storage, away since {since}, looks again at {retry}"
    assert notice_text(StorageAwaited(None, None, wait)) == f"{text}: connection refused"
    view = Watch(now_s=Clock()).view("job", metrics(5_000) | {"waits_for": vars(wait)})
    assert text in line_of(view)
    console = Console(width=120, file=io.StringIO(), force_terminal=False)
    console.print(table_of(view))
    assert f"away since {since}" in console.file.getvalue()  # type: ignore[attr-defined]


def test_whoever_watches_a_restore_sees_how_much_of_it_is_read() -> None:
    found = {"restoring": {"read_bytes": 1_500_000_000, "of_bytes": 2_000_000_000}}
    view = Watch(now_s=Clock()).view("job", metrics(0) | found)
    assert "restored 1.5 GB of 2.0 GB (75%)" in line_of(view)
    console = Console(width=120, file=io.StringIO(), force_terminal=False)
    console.print(table_of(view))
    assert "1.5 GB of 2.0 GB" in console.file.getvalue()  # type: ignore[attr-defined]


class Handle:
    name = "job"
    status = "running"

    def __init__(self) -> None:
        self.notices: list[Notice] = []
        self.rows = 0

    def metrics(self) -> dict[str, Any]:
        return metrics(self.rows, status=self.status)


def test_without_a_terminal_there_is_a_line_now_and_then_and_one_at_the_end() -> None:
    clock, out = Clock(), io.StringIO()
    progress = ProgressView(Console(file=out, width=200), line_interval_s=2.0, now_s=clock)
    handle = Handle()
    for _ in range(8):
        clock.now_s += 0.5
        progress(handle)
    assert len(out.getvalue().splitlines()) == 2
    handle.notices.append(AttemptFailed(AttemptId(1), None, "a worker died", True))
    progress(handle)
    progress(handle)
    assert out.getvalue().count("a worker died") == 1
    handle.status = "finished"
    progress(handle)
    assert out.getvalue().splitlines()[-1].startswith("job: finished")


def test_what_happens_is_told_also_when_the_handle_has_forgotten_what_happened_before() -> None:
    out = io.StringIO()
    progress, handle = ProgressView(Console(file=out, width=200)), Handle()
    kept = deque[Notice](maxlen=10)
    for attempt in range(1, 50):
        if attempt not in (20, 21):  # nobody has looked for a while
            handle.notices = list(kept)
            progress(handle)
        kept.append(CheckpointSucceeded(AttemptId(attempt), CheckpointId(attempt)))
        kept.append(AttemptFailed(AttemptId(attempt), None, "a worker died", True))
    assert [line.split()[1] for line in out.getvalue().splitlines() if "died" in line] == [str(n) for n in range(1, 49)]


def test_on_a_terminal_the_table_is_drawn_and_left_at_the_end() -> None:
    out = io.StringIO()
    progress = ProgressView(Console(file=out, width=100, force_terminal=True, legacy_windows=False))
    handle = Handle()
    handle.rows = 12_345
    progress(handle)
    handle.status = "finished"
    progress(handle)
    progress.close()
    assert "12,345 rows" in out.getvalue()
    assert "\x1b[?25h" in out.getvalue(), "the cursor is shown again"


def test_failures_are_not_written_twice_where_the_progress_says_them_and_a_log_of_the_users_own_has_them(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    log = logging.getLogger("weir.runtime.job.failures")
    with says_failures():
        log.warning("said by the progress")
    log.warning("said by the log")
    assert capsys.readouterr().err == "said by the log\n"
    lines: list[str] = []
    own = logging.Handler()
    own.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    monkeypatch.setattr(logging.getLogger(), "handlers", [own])
    with says_failures():
        log.warning("said by both")
    assert lines == ["said by both"]
