"""How a job goes, for people who watch it: a live table on a terminal, a line now and then elsewhere.

Comes in: a job's handle, now and then. Goes out: text on a console. Asks the handle
for its metrics and nothing else; never waits.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from weir.api.job import ENDED
from weir.runtime.driver import notices
from weir.runtime.driver.notices import Notice
from weir.runtime.job import failures
from weir.snapshot.coordinator.history import CheckpointRecord, CheckpointState
from weir.texts import MESSAGE_CHARACTERS_MAX

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.live import Live

LINE_INTERVAL_S = 2.0
"""Without a terminal: how often a line is written."""

RATE_WINDOW_S = 2.0
"""Rates are taken over about this time."""

BACKPRESSURE_SHOWN = 0.05
"""Waiting for less than this share of the time is not worth a word."""

ERROR_CHARACTERS_MAX = 400
"""Of an error that is shown above the table; it is shown whole where there is none."""


@dataclass(frozen=True)
class SourceView:
    """One source: what it has read in this attempt, how fast, and where it stands."""

    name: str
    rows: int
    rows_per_s: float
    lags: tuple[str, ...]
    """Of each subtask that has something to say."""


@dataclass(frozen=True)
class View:
    """A job at one moment."""

    name: str
    status: str
    elapsed_s: float
    attempt: int | None
    restarts: int
    sources: tuple[SourceView, ...]
    checkpoint: CheckpointRecord | None
    """The newest completed one."""
    completed: int
    backpressure: tuple[str, float] | None
    """The operator that waits most for a full output, and the share of its time."""
    waits_for: str | None = None
    """What keeps it from running."""
    restored: str | None = None
    """How much of a checkpoint is read, while it is restored."""

    @property
    def rows_per_s(self) -> float:
        return sum(source.rows_per_s for source in self.sources)


class Watch:
    """Makes views of one job; rates are those of the last few seconds."""

    def __init__(self, *, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._started_s = now_s()
        self._attempt: int | None = None
        self._before: deque[tuple[float, Mapping[str, int]]] = deque()
        self._completed: set[int] = set()

    def view(self, name: str, metrics: Mapping[str, Any]) -> View:
        now_s = self._now_s()
        attempt = metrics.get("attempt")
        operators: Sequence[Mapping[str, Any]] = metrics.get("operators", ())
        if attempt != self._attempt:
            self._attempt = attempt
            self._before.clear()  # A new attempt counts from zero.
        records: Sequence[CheckpointRecord] = metrics.get("checkpoints", ())
        done = [record for record in records if record.state is CheckpointState.COMPLETED]
        self._completed.update(record.id for record in done)
        return View(
            name=name,
            status=str(metrics.get("status", "")),
            elapsed_s=now_s - self._started_s,
            attempt=attempt,
            restarts=int(metrics.get("restarts", 0)),
            sources=self._sources([operator for operator in operators if is_source(operator)], now_s),
            checkpoint=done[-1] if done else None,
            completed=len(self._completed),
            backpressure=most_blocked(operators),
            waits_for=None if metrics.get("waits_for") is None else storage_wait_text(metrics["waits_for"]),
            restored=None if metrics.get("restoring") is None else restored_text(metrics["restoring"]),
        )

    def _sources(self, operators: Sequence[Mapping[str, Any]], now_s: float) -> tuple[SourceView, ...]:
        # Metrics come with heartbeats: a rate between two views that are closer together would flicker.
        while len(self._before) > 1 and self._before[1][0] <= now_s - RATE_WINDOW_S:
            self._before.popleft()
        rows = {str(operator["uid"]): int(operator["rows_out"]) for operator in operators}
        # Without a view before this one, nobody knows since when the rows have come.
        before_s, before = self._before[0] if self._before else (now_s, rows)
        if rows:
            self._before.append((now_s, rows))
        seconds = max(now_s - before_s, 1e-3)
        return tuple(
            SourceView(
                name=str(operator["uid"]),
                rows=rows[operator["uid"]],
                rows_per_s=(rows[operator["uid"]] - before.get(operator["uid"], rows[operator["uid"]])) / seconds,
                lags=tuple(operator.get("lag", ())),
            )
            for operator in operators
        )


def is_source(operator: Mapping[str, Any]) -> bool:
    return bool(operator["rows_in"] == 0 and operator["rows_out"] > 0)


def most_blocked(operators: Sequence[Mapping[str, Any]]) -> tuple[str, float] | None:
    worst = max(operators, key=lambda operator: operator["backpressure"], default=None)
    if worst is None or worst["backpressure"] < BACKPRESSURE_SHOWN:
        return None
    return str(worst["uid"]), float(worst["backpressure"])


# --- In words ---------------------------------------------------------------------------------------


def line_of(view: View) -> str:
    """A job in one line.

    >>> line_of(View("hot", "running", 12.3, 1, 0, (SourceView("bids", 5_000_000, 2.5e6, ()),), None, 0, None))
    'hot: running, 12 s, bids 5,000,000 rows, 2.50 M rows/s'
    """
    parts = [f"{view.name}: {view.status}", f"{view.elapsed_s:.0f} s"]
    if view.waits_for is not None:
        parts.append(f"waits for {view.waits_for}")
    if view.restored is not None:
        parts.append(f"restored {view.restored}")
    parts += [f"{source.name} {source.rows:,} rows" for source in view.sources]
    if view.rows_per_s:
        parts.append(f"{rate(view.rows_per_s)} rows/s")
    parts += [f"{source.name} at {' │ '.join(source.lags)}" for source in view.sources if source.lags]
    if view.checkpoint is not None:
        parts.append(f"checkpoint {checkpoint_text(view.checkpoint)}")
    if view.restarts:
        parts.append(restarts_text(view.restarts))
    if view.backpressure is not None:
        parts.append(f"{view.backpressure[0]} waits {view.backpressure[1]:.0%}")
    return ", ".join(parts)


def rate(per_s: float) -> str:
    """
    >>> rate(12_345_678), rate(12_345), rate(12)
    ('12.35 M', '12.3 k', '12')
    """
    if per_s >= 1e6:
        return f"{per_s / 1e6:.2f} M"
    if per_s >= 1e3:
        return f"{per_s / 1e3:.1f} k"
    return f"{per_s:.0f}"


def size(number_bytes: float) -> str:
    """
    >>> size(999), size(4_096), size(3_500_000)
    ('999 B', '4.1 kB', '3.5 MB')
    """
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if number_bytes >= factor:
            return f"{number_bytes / factor:.1f} {unit}"
    return f"{number_bytes:.0f} B"


def checkpoint_text(record: CheckpointRecord) -> str:
    return f"{record.id} ({size(record.size_bytes)} in {record.duration_ms:.0f} ms)"


def restarts_text(restarts: int) -> str:
    return f"{restarts} restart{'' if restarts == 1 else 's'}"


def storage_wait_text(wait: Mapping[str, Any]) -> str:
    """Since when storage is away; the wall clock's times, shown as the local ones."""
    since, retry = (time.strftime("%H:%M:%S", time.localtime(wait[name] / 1e3)) for name in ("since_ms", "retry_ms"))
    return f"storage, away since {since}, looks again at {retry}"


def restored_text(found: Mapping[str, int]) -> str:
    """
    >>> restored_text({"read_bytes": 1_200_000_000, "of_bytes": 4_000_000_000})
    '1.2 GB of 4.0 GB (30%)'
    """
    read_bytes, of_bytes = found["read_bytes"], found["of_bytes"]
    return f"{size(read_bytes)} of {size(of_bytes)} ({read_bytes / max(of_bytes, 1):.0%})"


def notice_text(notice: Notice, characters_max: int = ERROR_CHARACTERS_MAX) -> str | None:
    """What a notice says to people; None when the table, or the error at the end, says it already."""
    if isinstance(notice, notices.AttemptFailed) and notice.restarts:
        error = notice.error.strip()
        short = error if len(error) <= characters_max else f"…{error[-characters_max:]}"
        return f"attempt {notice.attempt} failed, restarting: {short}"
    if isinstance(notice, notices.WorkerDied):
        return f"attempt {notice.attempt}, task {notice.task}: {notice.how}"
    if isinstance(notice, notices.AttemptRunning) and notice.recovery_ms is not None:
        came_from = f"checkpoint {notice.restored}" if notice.restored else "the beginning"
        return f"attempt {notice.attempt} runs from {came_from}, {notice.recovery_ms / 1e3:.1f} s after the failure"
    if isinstance(notice, notices.StorageAwaited):
        return f"waits for {storage_wait_text(vars(notice.wait))}: {notice.wait.error}"
    if isinstance(notice, notices.CheckpointAborted):
        return f"checkpoint {notice.checkpoint} was aborted: {notice.why}"
    return None


# --- On a console -----------------------------------------------------------------------------------


def table_of(view: View) -> RenderableType:
    """The live table."""
    from rich.markup import escape
    from rich.panel import Panel
    from rich.table import Table

    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim")
    table.add_column()
    if view.waits_for is not None:
        table.add_row("waits for", f"[yellow]{escape(view.waits_for)}[/]")
    if view.restored is not None:
        table.add_row("restored", view.restored)
    table.add_row("events/s", f"[bold]{rate(view.rows_per_s)}[/]")
    for source in view.sources:
        table.add_row(escape(source.name), f"{source.rows:,} rows")
        for index, lag in enumerate(source.lags):
            table.add_row("" if index else "  at", escape(lag))
    newest = checkpoint_text(view.checkpoint) if view.checkpoint else "none yet"
    table.add_row("checkpoints", f"{view.completed} complete, newest: {newest}")
    waits = f"{view.backpressure[0]} waits {view.backpressure[1]:.0%} of its time" if view.backpressure else "none"
    table.add_row("backpressure", escape(waits))
    if view.restarts:
        table.add_row("restarts", f"[yellow]{view.restarts}[/]")
    title = f"[bold]{escape(view.name)}[/] {view.status}, {view.elapsed_s:.0f} s"
    return Panel(table, title=title, title_align="left", border_style="blue", expand=False)


@contextmanager
def says_failures() -> Iterator[None]:
    """Meanwhile failures are shown by the progress of their job: the log does not write them to standard error as well.
    A log that somebody has set up hears of them all the same."""
    log, silent = logging.getLogger(failures.__name__), logging.NullHandler()
    log.addHandler(silent)
    try:
        yield
    finally:
        log.removeHandler(silent)


class ProgressView:
    """Call it with a handle now and then; it shows how the job goes."""

    def __init__(
        self,
        console: Console,
        *,
        live: bool | None = None,
        line_interval_s: float = LINE_INTERVAL_S,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._console = console
        self._is_live = console.is_terminal if live is None else live
        self._line_interval_s = line_interval_s
        self._now_s = now_s
        self._live: Live | None = None
        self._line_due_s = 0.0
        self._seen: Notice | None = None
        """The last one that was told, or passed over."""
        self._begin()

    def __call__(self, handle: Any) -> None:
        for notice in self._not_yet_seen(getattr(handle, "notices", ())):
            if text := notice_text(notice, ERROR_CHARACTERS_MAX if self._is_live else MESSAGE_CHARACTERS_MAX):
                self.say(text, style="yellow")
            elif isinstance(notice, notices.HadFinished):
                self.say(
                    f"{handle.name} had finished already, with checkpoint {notice.checkpoint}: nothing is left to do"
                )
                return
        ended = handle.status in ENDED
        view = self._watch.view(handle.name, handle.metrics())
        if self._is_live:
            self._show(view)
        elif ended or self._now_s() >= self._line_due_s:
            self._line_due_s = self._now_s() + self._line_interval_s
            self._console.print(line_of(view), markup=False, highlight=False, soft_wrap=True)
        if ended:
            self.close()
            self._begin()

    def say(self, text: str, style: str = "") -> None:
        """A line that stays, above the table."""
        self._console.print(text, style=style, markup=False, highlight=False, soft_wrap=True)

    def close(self) -> None:
        """Leave the last table as it is."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _not_yet_seen(self, notices: Iterable[Notice]) -> list[Notice]:
        """Those behind the last one that was seen. A handle keeps the latest only, so their number tells nothing."""
        found = list(notices)
        seen = next((number for number in reversed(range(len(found))) if found[number] is self._seen), -1)
        self._seen = found[-1] if found else self._seen
        return found[seen + 1 :]

    def _begin(self) -> None:
        self._watch = Watch(now_s=self._now_s)
        self._seen = None
        self._line_due_s = 0.0

    def _show(self, view: View) -> None:
        from rich.live import Live

        if self._live is None:
            self._live = Live(console=self._console, refresh_per_second=4, transient=False)
            self._live.start()
        self._live.update(table_of(view), refresh=True)
