"""Draws the pictures of docs/time.md from real runs: `python scripts/draw_time.py`.

Comes in: nothing but the small streams below. Goes out: docs/time-*.svg, the same bytes every
time. Rows arrive one by one, `weir.testing.run_local` runs the job, and what is drawn is what it
put out, with the time by its own clock at which it did.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
from canvas import BANDS, BLUE, GREEN, GRID, ORANGE, RED, SOFT, Canvas

import weir
from weir.operators.base import InlinePart, OperatorContext
from weir.operators.source import Source, SourceReader
from weir.snapshot.parts import Json
from weir.testing import run_local

DOCS = Path(__file__).parents[1] / "docs"
NOON = datetime(2026, 1, 1, 12, tzinfo=timezone.utc)
SCHEMA = pa.schema([("key", pa.string()), ("n", pa.int64()), ("ts", pa.timestamp("us", "UTC"))])
STEP_MS = 40
"""From one row of a source to its next, by the clock of the run."""


# --- Runs -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class OneByOne(Source):
    """Rows that arrive one at a time, each with the second at which it happened."""

    seconds: tuple[float, ...]
    wait_ms: int = STEP_MS
    schema = SCHEMA  # type: ignore[assignment]
    bounded = True  # type: ignore[assignment]

    def reader(self) -> SourceReader:
        return OneByOneReader(self)


class OneByOneReader(SourceReader):
    def __init__(self, source: OneByOne) -> None:
        self._source = source
        self._next, self._rests = 0, False

    def open(self, context: OperatorContext, restored: Sequence[InlinePart] | None) -> None:
        """From the beginning."""

    def poll(self, rows_max: int) -> pa.RecordBatch | None:
        self._rests = not self._rests
        if not self._rests or self.finished:
            return None
        second, self._next = self._source.seconds[self._next], self._next + 1
        columns: list[list[Any]] = [["a"], [self._next], [NOON + timedelta(seconds=second)]]
        arrays = [pa.array(column, field.type) for column, field in zip(columns, SCHEMA, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)

    @property
    def finished(self) -> bool:
        return self._next == len(self._source.seconds)

    @property
    def wait_ms(self) -> float:
        return self._source.wait_ms

    def position(self) -> Json:
        return self._next


class Seen(weir.ProcessFunction):
    """When each row came by, with its event time and the watermark so far."""

    columns = "n long, at_ms long, second double, watermark double"

    def process(self, row: Any, context: Any) -> Any:
        at_ms = round(context.now.timestamp() * 1_000)
        watermark = None if context.watermark is None else seconds(context.watermark)
        yield row.n, at_ms, seconds(row.ts), watermark


def seconds(time: datetime) -> float:
    return (time.replace(tzinfo=timezone.utc) - NOON).total_seconds()


def environment() -> weir.Environment:
    return weir.Environment(parallelism=1, settings=weir.Settings(watermark_interval="1ms"))


def run(build: Callable[[weir.Environment], dict[str, weir.Stream]]) -> dict[str, list[dict[str, Any]]]:
    """Run a job; what came out of each stream, and when."""
    env = environment()
    for uid, stream in build(env).items():
        stream.print(uid=uid)
    found = run_local(env)
    return {uid: table.to_pylist() for uid, table in found.tables.items()}


def seen(stream: weir.Stream, uid: str) -> weir.Stream:
    return stream.key_by("key").process(Seen(), Seen.columns, uid=uid)


class Passed(weir.ProcessFunction):
    """When each result came by."""

    columns = "start double, end double, rows long, at_ms long"

    def process(self, row: Any, context: Any) -> Any:
        yield seconds(row.window_start), seconds(row.window_end), row.rows, round(context.now.timestamp() * 1_000)


def passed(stream: weir.Stream, uid: str) -> weir.Stream:
    return stream.key_by("key").process(Passed(), Passed.columns, uid=uid)


def clock(second: float) -> str:
    return (NOON + timedelta(seconds=second)).strftime("%H:%M:%S")


# --- Watermarks and lateness: event time to the right, arrival downwards ------------------------------------


@dataclass(frozen=True)
class Frame:
    """Where event time (seconds) and arrival (steps) are on the canvas."""

    last_second: float
    steps: int
    left: float = 92
    top: float = 74
    per_second: float = 11.5
    per_step: float = 30

    def x(self, second: float) -> float:
        return self.left + max(-3.0, min(second, self.last_second + 1)) * self.per_second

    def y(self, step: float) -> float:
        return self.top + 22 + step * self.per_step

    @property
    def bottom(self) -> float:
        return self.y(self.steps) + 4

    @property
    def right(self) -> float:
        return self.x(self.last_second)


def step_of(at_ms: int, first_ms: int) -> float:
    return (at_ms - first_ms) / STEP_MS


def grid(canvas: Canvas, frame: Frame, every: int, *, banded: bool) -> None:
    for i, second in enumerate(range(0, int(frame.last_second), every)):
        if banded:
            width = min(every, frame.last_second - second) * frame.per_second
            canvas.box(frame.x(second), frame.top, width, frame.bottom - frame.top, fill=BANDS[i % 2])
    for second in range(0, int(frame.last_second) + 1, every):
        canvas.line([(frame.x(second), frame.top), (frame.x(second), frame.bottom)], GRID)
        canvas.text(frame.x(second), frame.top - 8, clock(second), color=SOFT, at="middle", size=11)
    canvas.text(frame.left, frame.top - 28, "event time: when it happened →", color=SOFT)
    canvas.text(16, frame.y(0) + 4, "arrival", color=SOFT)
    canvas.text(16, frame.y(0) + 20, "↓", color=SOFT)


def watermark_line(canvas: Canvas, frame: Frame, rows: Sequence[dict[str, Any]], disorder: float) -> None:
    """The staircase of what the watermark was behind each row: what the next row met."""
    marks = [row["watermark"] for row in rows[1:]]
    marks.append(max(row["second"] for row in rows) - disorder)  # nothing came by behind the last row to meet it
    points = [(frame.x(marks[0]), frame.y(0) + 10)]
    for i, mark in enumerate(marks):
        points += [(frame.x(mark), frame.y(i) + 10), (frame.x(mark), frame.y(i + 1) + 10)]
    canvas.line(points, ORANGE, width=2.5)


def draw_watermarks() -> str:
    arrived = (1, 4, 3, 8, 6, 12, 11, 17, 15, 22, 13, 24, 29, 27, 33)
    disorder = 5

    def build(env: weir.Environment) -> dict[str, weir.Stream]:
        rows = env.read(OneByOne(arrived), watermark=weir.bounded_disorder("ts", f"{disorder}s"), uid="rows")
        return {"seen": seen(rows, "seen-rows")}

    rows = run(build)["seen"]
    frame = Frame(36, len(rows))
    canvas = Canvas(640, int(frame.bottom) + 60, "A watermark follows the rows, five seconds behind the latest")
    canvas.text(16, 24, "The watermark follows the latest row, five seconds behind", bold=True, size=15)
    grid(canvas, frame, 6, banded=False)
    watermark_line(canvas, frame, rows, disorder)
    for i, row in enumerate(rows):
        late = row["watermark"] is not None and row["second"] < row["watermark"]
        canvas.dot(frame.x(row["second"]), frame.y(i), RED if late else BLUE)
        if late:
            canvas.text(frame.x(row["second"]) - 10, frame.y(i) + 4, "late", color=RED, at="end", bold=True)
    legend(
        canvas,
        frame.bottom + 30,
        [(BLUE, "row", True), (RED, "row behind the watermark", True), (ORANGE, "watermark", False)],
    )
    return canvas.done()


def legend(canvas: Canvas, y: float, entries: Sequence[tuple[str, str, bool]], x: float = 92) -> None:
    for color, words, is_dot in entries:
        if is_dot:
            canvas.dot(x, y - 4, color)
        else:
            canvas.line([(x - 8, y - 4), (x + 8, y - 4)], color, width=2.5)
        canvas.text(x + 14, y, words, color=SOFT)
        x += 44 + 7.0 * len(words)


def draw_lateness() -> str:
    arrived = (2, 7, 11, 9, 14, 17, 8, 21, 5, 25, 3, 31)
    disorder, size = 3, 10

    def build(env: weir.Environment) -> dict[str, weir.Stream]:
        rows = env.read(OneByOne(arrived), watermark=weir.bounded_disorder("ts", f"{disorder}s"), uid="rows")
        windows = rows.key_by("key").window(weir.tumbling(f"{size}s"), lateness="10s", late="too late")
        sums = windows.agg(rows=weir.count(), uid="windows")
        return {
            "seen": seen(rows, "seen-rows"),
            "out": passed(sums, "seen-out"),
            "late": seen(sums.side("too late"), "seen-late"),
        }

    found = run(build)
    rows, results = found["seen"], found["out"]
    too_late = {row["n"] for row in found["late"]}
    first_ms = rows[0]["at_ms"]
    frame = Frame(35, len(rows) + 1, per_second=15, per_step=32)
    canvas = Canvas(640, int(frame.bottom) + 60, "Windows of ten seconds, with ten seconds of allowed lateness")
    canvas.text(16, 24, "Windows of ten seconds, with ten seconds of allowed lateness", bold=True, size=15)
    grid(canvas, frame, size, banded=True)
    watermark_line(canvas, frame, rows, disorder)
    for i, row in enumerate(rows):
        color = RED if row["n"] in too_late else BLUE
        is_late = row["watermark"] is not None and row["second"] < row["watermark"]
        canvas.dot(frame.x(row["second"]), frame.y(i), color, hollow=is_late and row["n"] not in too_late)
        if row["n"] in too_late:
            canvas.text(frame.x(row["second"]) + 11, frame.y(i) + 4, "too late", color=RED, bold=True)
    for number, result in enumerate(results):
        again = any(other["start"] == result["start"] for other in results[:number])
        at_end = result["end"] > max(arrived) - disorder  # no watermark but that of the end has passed it
        step = len(rows) if at_end else int(step_of(result["at_ms"], first_ms))
        x, y = frame.x(result["start"]) + 6, frame.y(step) + 8
        canvas.box(x, y, 62, 17, fill="white" if again else GREEN, line=GREEN, round_=4)
        words = f"{result['rows']} row{'s' * (result['rows'] != 1)}"
        canvas.text(x + 31, y + 13, words, color=GREEN if again else "white", at="middle", size=12, bold=True)
    y = frame.y(len(rows)) + 2
    canvas.line([(frame.left, y), (frame.right, y)], SOFT, dashes="4 4")
    canvas.text(16, y + 4, "end of input", color=SOFT, size=12)
    y = frame.bottom + 30
    canvas.dot(92, y - 4, BLUE)
    canvas.text(104, y, "in time", color=SOFT)
    canvas.dot(172, y - 4, BLUE, hollow=True)
    canvas.text(184, y, "late, but allowed", color=SOFT)
    canvas.line([(302, y - 4), (318, y - 4)], ORANGE, width=2.5)
    canvas.text(324, y, "watermark", color=SOFT)
    canvas.box(404, y - 13, 30, 17, fill=GREEN, line=GREEN, round_=4)
    canvas.text(440, y, "result", color=SOFT)
    canvas.box(492, y - 13, 30, 17, fill="white", line=GREEN, round_=4)
    canvas.text(528, y, "refinement", color=SOFT)
    return canvas.done()


# --- Kinds of windows ---------------------------------------------------------------------------------------


def first_to_last(rows: Any, window: Any) -> Any:
    """For windows without bounds: those of their rows."""
    times = [seconds(time) for time in rows["ts"]]
    return window.key, min(times), max(times), len(times)


def draw_windows() -> str:
    happened = (2, 5, 7, 16, 19, 21, 24, 41, 44, 45, 52, 56)
    bounds = "key string, start double, end double, rows long"

    def bounded(rows: Any, window: Any) -> Any:
        return window.key, seconds(window.start), seconds(window.end), len(rows)

    def build(env: weir.Environment) -> dict[str, weir.Stream]:
        keyed = env.read(OneByOne(happened), watermark=weir.monotonic("ts"), uid="rows").key_by("key")
        kinds = {
            "tumbling": (weir.tumbling("20s"), bounded),
            "sliding": (weir.sliding("20s", "10s"), bounded),
            "session": (weir.session("10s"), bounded),
            "count": (weir.count_window(4), first_to_last),
        }
        return {uid: keyed.window(kind).process(of, bounds, uid=f"{uid}-window") for uid, (kind, of) in kinds.items()}

    found = run(build)
    left, per_second, y = 240.0, 5.6, 66.0
    canvas = Canvas(640, 340, "The same rows in windows of four kinds")
    canvas.text(16, 24, "The same rows in windows of four kinds", bold=True, size=15)
    for second in range(0, 61, 10):
        x = left + second * per_second
        canvas.line([(x, y), (x, 330)], GRID)
        canvas.text(x, y - 8, clock(second), color=SOFT, at="middle", size=11)
    canvas.text(16, y + 24, "rows of one key", color=SOFT)
    for second in happened:
        canvas.dot(left + second * per_second, y + 20, BLUE)
    y += 48
    words = {
        "tumbling": 'tumbling("20s")',
        "sliding": 'sliding("20s", "10s")',
        "session": 'session("10s")',
        "count": "count_window(4)",
    }
    for uid, name in words.items():
        lanes = 2 if uid == "sliding" else 1
        canvas.text(16, y + 20, name, bold=True, size=12)
        for number, window in enumerate(sorted(found[uid], key=lambda window: window["start"])):
            start, end = left + window["start"] * per_second, left + window["end"] * per_second
            low, high = max(start, left - 62), min(end, left + 66 * per_second)
            pad = 6 if uid == "count" else 1
            top = y + (number % lanes) * 30
            canvas.box(low + 1 - pad, top, high - low - 2 + 2 * pad, 26, fill=BANDS[0], line=BLUE, round_=5)
            canvas.text((low + high) / 2, top + 18, str(window["rows"]), color=BLUE, at="middle", bold=True)
        y += 30 * lanes + 20
    return canvas.done()


# --- Alignment ------------------------------------------------------------------------------------------------


def draw_alignment() -> str:
    fast = OneByOne(tuple(range(0, 120, 3)), wait_ms=10)
    slow = OneByOne(tuple(range(0, 120, 3)), wait_ms=40)

    def build(aligned: bool) -> Callable[[weir.Environment], dict[str, weir.Stream]]:
        def streams(env: weir.Environment) -> dict[str, weir.Stream]:
            strategy = weir.monotonic("ts")
            strategy = strategy.aligned("both", drift="15s") if aligned else strategy
            return {
                name: seen(env.read(source, watermark=strategy, uid=f"{name}-rows"), f"{name}-seen")
                for name, source in (("fast", fast), ("slow", slow))
            }

        return streams

    canvas = Canvas(640, 310, "How far two sources have come, without and with alignment")
    canvas.text(16, 24, "How far two sources have come in event time", bold=True, size=15)
    for panel, (aligned, title) in enumerate([(False, "each for itself"), (True, 'aligned("both", drift="15s")')]):
        found = run(build(aligned))
        left, top, width, height = 56.0 + 300 * panel, 62.0, 250.0, 200.0
        last_ms = max(row["at_ms"] for row in found["slow"])
        canvas.text(left, top - 10, title, color=SOFT)
        for second in (0, 30, 60, 90, 120):
            y = top + height - second / 120 * height
            canvas.line([(left, y), (left + width, y)], GRID)
            canvas.text(left - 8, y + 4, f"12:0{second // 60}:{second % 60:02d}"[3:], color=SOFT, at="end", size=11)
        for name, color in (("slow", ORANGE), ("fast", BLUE)):
            points = [
                (left + row["at_ms"] / last_ms * width, top + height - row["second"] / 120 * height)
                for row in found[name]
            ]
            canvas.line(points, color, width=2.5)
        canvas.text(left + width, top + height + 22, "time by the clock →", color=SOFT, at="end", size=11)
    legend(canvas, 300, [(BLUE, "fast source", False), (ORANGE, "slow source", False)], x=70)
    return canvas.done()


PICTURES: dict[str, Callable[[], str]] = {
    "time-watermarks.svg": draw_watermarks,
    "time-windows.svg": draw_windows,
    "time-lateness.svg": draw_lateness,
    "time-alignment.svg": draw_alignment,
}

if __name__ == "__main__":
    for name, draw in PICTURES.items():
        (DOCS / name).write_text(draw(), encoding="utf-8")
        print(f"docs/{name}")
