"""The demo: lines → words → key by word → count, with a worker killed in the middle and the result verified; then the
same once more at full speed.

Comes in: how many words, where to write. Goes out: what happens, on the console, and a
directory of running counts that has lost nothing and repeats nothing.
"""

from __future__ import annotations

import os
import signal
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl

import weir
from weir import connectors
from weir.api.job import ENDED
from weir.bench.wrapped import WrappedReader, WrappedSource
from weir.cli.demo.check import Verdict, verify
from weir.cli.demo.words import WORDS_PER_LINE, MakeLines
from weir.cli.progress import ProgressView, rate
from weir.errors import ConfigError
from weir.operators.source import Source, SourceReader
from weir.runtime.driver.notices import AttemptFailed, AttemptRunning, CheckpointSucceeded, Notice

if TYPE_CHECKING:
    from rich.console import Console

WORDS_PER_S = 250_000
STREAM_S_MAX = 20.0
"""However many words there are, the stream takes about as long; the engine could go much faster."""

FULL_SPEED_WORDS = 10_000_000
"""A few seconds' worth."""
FULL_SPEED_POLL_S = 0.01

KILL_AT_SHARE = 0.4
POLL_S = 0.1


@dataclass(frozen=True)
class DemoOptions:
    """What was asked for on the command line."""

    words: int = 4_000_000
    parallelism: int = 2
    kill: bool = True
    output: Path | None = None
    paced: bool = True
    """Whether lines come no faster than people can watch."""

    @property
    def lines(self) -> int:
        return max(1, self.words // WORDS_PER_LINE)

    @property
    def lines_per_s(self) -> float | None:
        return None if not self.paced else max(WORDS_PER_S, self.words / STREAM_S_MAX) / WORDS_PER_LINE


@dataclass
class Timeline:
    """When what happened, by time.monotonic(); filled from the job's notices."""

    killed_s: float | None = None
    victim: int | None = None
    failed_s: float | None = None
    running_s: float | None = None
    restored: int | None = None
    committed_s: float | None = None
    committed: int | None = None
    completed: int = 0

    def heard(self, notice: Notice) -> None:
        now_s = time.monotonic()
        if isinstance(notice, CheckpointSucceeded):
            self.completed += 1
            if self.running_s is not None and self.committed_s is None:
                self.committed_s, self.committed = now_s, notice.checkpoint
        elif self.killed_s is not None and isinstance(notice, AttemptFailed):
            self.failed_s = self.failed_s or now_s
        elif self.killed_s is not None and isinstance(notice, AttemptRunning) and self.running_s is None:
            self.running_s, self.restored = now_s, notice.restored

    def since_kill_s(self, moment_s: float | None) -> float:
        return (moment_s or 0.0) - (self.killed_s or 0.0)


def run_demo(options: DemoOptions, console: Console) -> bool:
    """Run it all; whether the output is exactly right."""
    directory = _directory(options)
    environment, sink = word_count(options, directory)
    console.print(
        f"Counting {options.lines * WORDS_PER_LINE:,} words on an embedded Spark, parallelism {options.parallelism}: "
        f"lines → words → key by word → count → Parquet. Checkpoints every second. "
        f"{options.lines_per_s:,.0f} lines/s are the demo's own pace; what this machine can do comes at the end.",
        highlight=False,
    )
    timeline = Timeline()
    progress = ProgressView(console)
    job: Any = environment.submit()
    job.listen(timeline.heard)
    try:
        _watch(job, timeline, progress, options)
    except BaseException:
        job.cancel()
        raise
    finally:
        progress.close()
    console.print("Verifying what was committed …", highlight=False)
    verdict = verify(sink.path, MakeLines().true_counts(options.lines))
    _report(console, options, timeline=timeline, verdict=verdict, directory=directory)
    console.print("Once more, as fast as it goes …", highlight=False)
    full = full_speed(options)
    console.print(full.line, highlight=False, soft_wrap=True)
    return verdict.exact and full.verdict.exact and (not options.kill or timeline.running_s is not None)


@dataclass(frozen=True)
class FullSpeed:
    """What the machine does when nobody holds the lines back."""

    words: int
    seconds: float
    """From the moment that all tasks run until everything is committed."""
    verdict: Verdict

    @property
    def line(self) -> str:
        if not self.verdict.exact:
            return f"At full speed: {self.verdict.lost:,} words lost, {self.verdict.duplicated:,} duplicated"
        return (
            f"At full speed this machine counts {rate(self.words / self.seconds)} words/s "
            f"({rate(self.words / WORDS_PER_LINE / self.seconds)} lines/s): "
            f"{self.words:,} words in {self.seconds:.1f} s, verified"
        )


def full_speed(options: DemoOptions, words: int = FULL_SPEED_WORDS) -> FullSpeed:
    """The same job without a pace and without a kill, in a directory that goes."""
    unpaced = replace(options, words=words, paced=False)
    with tempfile.TemporaryDirectory(prefix="weir-demo-") as directory:
        environment, sink = word_count(unpaced, Path(directory))
        job = environment.submit()
        try:
            while job.status not in ("running", *ENDED):
                job.wait(FULL_SPEED_POLL_S)
            started_s = time.monotonic()
            job.wait()
        except BaseException:
            job.cancel()
            raise
        seconds = time.monotonic() - started_s
        return FullSpeed(words, seconds, verify(sink.path, MakeLines().true_counts(unpaced.lines)))


def word_count(options: DemoOptions, directory: Path) -> tuple[weir.Environment, connectors.FileSink]:
    """The job itself: all that a user would write."""
    environment = weir.Environment(
        parallelism=options.parallelism,
        checkpoints=weir.Checkpoints(every="1s", to=str(directory / "checkpoints")),
        restart=weir.FixedDelay(attempts=5, delay=0),
        name="demo",
    )
    generator = connectors.Generator(options.lines, MakeLines(), "line string", rate=options.lines_per_s)
    lines = environment.read(Placed(generator, options.lines), uid="lines")
    words = lines.map_batches(split_into_words, "word string", kind="polars", uid="words")
    counts = words.key_by("word").agg(n=weir.count(), uid="counts")
    sink = connectors.FileSink(directory / "counts", format="parquet")
    counts.write(sink, uid="out")
    return environment, sink


def split_into_words(frame: pl.DataFrame) -> pl.DataFrame:
    return frame.select(word=pl.col("line").str.split(" ").explode())


class Placed(WrappedSource):
    """A generator of `lines` lines that also tells where it stands."""

    def __init__(self, source: Source, lines: int) -> None:
        super().__init__(source)
        self.lines = lines

    def reader(self) -> SourceReader:
        return _PlacedReader(self.source.reader(), self.lines)


class _PlacedReader(WrappedReader):
    def __init__(self, inner: SourceReader, lines: int) -> None:
        super().__init__(inner)
        self._lines = lines

    @property
    def lag(self) -> str | None:
        if self.finished:
            return "its end"
        position = self.position()
        line = max(position["rounds"].values(), default=0) * position["splits"]
        return f"line {min(line, self._lines):,} of {self._lines:,}, {self.inner.lag}"


def _directory(options: DemoOptions) -> Path:
    if options.output is None:
        return Path(tempfile.mkdtemp(prefix="weir-demo-"))
    if options.output.exists() and (not options.output.is_dir() or any(options.output.iterdir())):
        raise ConfigError(f"--output {options.output}: it is there already and not empty; name a fresh directory")
    options.output.mkdir(parents=True, exist_ok=True)
    return options.output


def _watch(job: Any, timeline: Timeline, progress: ProgressView, options: DemoOptions) -> None:
    while job.wait(POLL_S) not in ENDED:
        progress(job)
        if options.kill and timeline.killed_s is None and _may_kill(job, timeline, options):
            workers = job.process_ids
            timeline.victim = workers[-1]
            progress.say(f"kill -9 {timeline.victim}: one of the job's {len(workers)} Python workers", "bold red")
            timeline.killed_s = time.monotonic()
            os.kill(timeline.victim, signal.SIGKILL)
    progress(job)


def _may_kill(job: Any, timeline: Timeline, options: DemoOptions) -> bool:
    """In the middle of the stream, and not before there is a checkpoint to go back to."""
    if timeline.completed == 0 or job.status != "running":
        return False
    read = sum(operator["rows_out"] for operator in job.metrics()["operators"] if operator["uid"] == "lines")
    return bool(read >= options.lines * KILL_AT_SHARE)


def _report(console: Console, options: DemoOptions, *, timeline: Timeline, verdict: Verdict, directory: Path) -> None:
    from rich.panel import Panel
    from rich.table import Table

    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim")
    table.add_column()
    if timeline.running_s is not None:
        table.add_row(
            "killed",
            f"worker {timeline.victim} with SIGKILL; noticed after {timeline.since_kill_s(timeline.failed_s):.2f} s",
        )
        restored = f"checkpoint {timeline.restored}" if timeline.restored else "the beginning"
        table.add_row(
            "recovered",
            f"from {restored}: running again after [bold]{timeline.since_kill_s(timeline.running_s):.2f} s[/]",
        )
        if timeline.committed_s is not None:
            after = timeline.since_kill_s(timeline.committed_s)
            table.add_row("", f"next checkpoint, {timeline.committed}, complete after {after:.2f} s")
    elif options.kill:
        table.add_row("killed", "[red]nothing: the job ended first; try more --words[/]")
    table.add_row(
        "words", f"{verdict.words:,} of {verdict.distinct:,} kinds; {verdict.rows:,} running counts committed"
    )
    table.add_row("lost", f"[bold]{verdict.lost:,}[/]")
    table.add_row("duplicated", f"[bold]{verdict.duplicated:,}[/]")
    good = verdict.exact
    title = "[bold green]verified: every word counted exactly once[/]" if good else "[bold red]NOT what it should be[/]"
    console.print(Panel(table, title=title, title_align="left", border_style="green" if good else "red", expand=False))
    console.print(
        f"Output: {directory / 'counts'}\n"
        f"Try next:\n"
        f"  python -c \"import polars as pl; print(pl.read_parquet('{directory}/counts/*.parquet')"
        f".group_by('word').agg(pl.max('n')).top_k(10, by='n'))\"\n"
        f"  weir run examples/word_count.py\n"
        f"  weir bench keyed-sum",
        highlight=False,
        markup=False,
        soft_wrap=True,
    )
