"""Jobs and their known answers: what their regions do, and the same in one thread. They are drawn in draws.py.

A job can be planned at any parallelism, since a driver that is started again may ask for another.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import polars as pl

import weir
from tests.sim import held, loops
from tests.sim.externals import SCHEMA, External, Row, SimFileSink, SimSink, SimSource
from tests.sim.storage import SCHEME
from tests.sim.timed import Timed
from weir.config import Checkpoints, Settings
from weir.connectors import FileSink
from weir.graph.plan import Plan
from weir.ids import AttemptId, Uid
from weir.operators.base import InlinePart, OperatorContext, Restored, RestoredInline
from weir.operators.sink import Sink
from weir.operators.source import Source
from weir.runtime.storage.state_files import CheckpointFiles
from weir.snapshot.manifest import Manifest
from weir.snapshot.parts import Progress, SplitProgress
from weir.snapshot.watermarks import END_US

PARALLELISM_MAX = 4
FIRST_PLACE = "1"
"""The directory of the first run of a job. Runs from its savepoints are in "2", "3" and so on."""
TOTALS = "key long, n long, total long"


@dataclass
class SinkExpectation:
    """How one sink's committed rows are judged."""

    uid: str
    kind: Literal["exact", "running", "final", "conserved", "held"]
    rows: list[tuple[Any, ...]]
    """exact: what must be there. running: (key, count, sum) at the end, for each key. final: what must be there when
    the job has finished, if it read everything itself. conserved: the same, but some rows may come out alone. held:
    what may be there, once at most."""
    sink: Sink
    whole: Sequence[tuple[Any, ...]] = ()
    """final, conserved: what may be there at any time."""
    needed: Sequence[tuple[Any, ...]] = ()
    """final, conserved: what must be there of it at the end, because no run before can have known it."""
    is_unclear: bool = False
    """final, conserved: what must be there depends on where runs before were flushed."""


@dataclass
class Job:
    """A job with its known answer."""

    steps: list[Step]
    sources: list[tuple[Source, list[Row]]]
    ends: list[tuple[str, Sink]]
    checkpoints: Checkpoints
    settings: Settings
    before: frozenset[Row] = frozenset()
    """What the run that this one goes on from has read."""
    parallelism_max: int = PARALLELISM_MAX
    prefix: str = ""
    """Of every uid."""
    beside: Job | None = None
    """Another region of the same job, with which this one shares nothing."""
    timed: Timed | None = None
    """What this region does in event time, instead of steps and ends of the other sort."""
    was_flushed: bool = False
    """The run that this one goes on from had ended its input, and put out what was open in event time."""
    is_unclear: bool = False
    """The same of one before that, or a drain was given up: what was open then is not told apart here."""

    def plan(self, rng: random.Random) -> Plan:
        """The plan at a parallelism that is drawn anew; the answer does not depend on it."""
        env = weir.Environment(parallelism=rng.randint(1, self.parallelism_max), settings=self.settings)
        for region in self.regions:
            region.lay_out(env, rng)
        return env.plan()

    def lay_out(self, env: weir.Environment, rng: random.Random) -> None:
        """This region alone."""
        # Watermarks know of splits only where they are made beside the source.
        timed = self.timed is not None
        streams = [
            env.read(
                source,
                uid=f"{self.prefix}source-{i}",
                parallelism=None if timed else rng.randint(1, env.parallelism),
            )
            for i, (source, _) in enumerate(self.sources)
        ]
        if self.timed is not None:
            self.timed.apply(streams, self.ends[0][1], self.prefix)
            return
        stream = streams[0].union(*streams[1:]) if len(streams) > 1 else streams[0]
        for step in self.steps:
            stream = step.apply(stream, self.prefix)
        for end, sink in self.ends:
            _ends()[end].apply(stream, sink, self.prefix)

    @property
    def regions(self) -> list[Job]:
        return [self] if self.beside is None else [self, *self.beside.regions]

    @property
    def sinks(self) -> list[Sink]:
        return [sink for region in self.regions for _, sink in region.ends]

    @property
    def named_sources(self) -> list[tuple[str, Source]]:
        """By uid."""
        return [(f"{r.prefix}source-{i}", source) for r in self.regions for i, (source, _) in enumerate(r.sources)]

    @property
    def rows(self) -> list[Row]:
        """All that the sources hold."""
        return [row for region in self.regions for _, of_source in region.sources for row in of_source]

    def rows_read(self, manifest: Manifest, files: CheckpointFiles) -> list[Row]:
        """What the sources had handed out before a checkpoint, by the positions in it; without what was still on its
        way round in a loop."""
        beside: list[Row] = [] if self.beside is None else self.beside.rows_read(manifest, files)
        inside = loops.rows_inside(manifest, self.prefix, files) if self.has_loop else {}
        return beside + [row for row in self.handed_out(manifest) if row[0] not in inside]

    def loop_states(self, manifest: Manifest, files: CheckpointFiles) -> dict[str, dict[int, tuple[int, int]]]:
        """The same as `states` for what is in loops."""
        found: dict[str, dict[int, tuple[int, int]]] = {}
        for region in self.regions:
            if region.has_loop:
                rows = region._answer(region.handed_out(manifest))
                inside = loops.rows_inside(manifest, region.prefix, files)
                found[f"{region.prefix}round"] = loops.state_of(rows, inside)
        return found

    @property
    def has_loop(self) -> bool:
        return any(end == "loop" for end, _ in self.ends)

    def handed_out(self, manifest: Manifest) -> list[Row]:
        """What the sources of this region had handed out, by the positions in a checkpoint."""
        read: list[Row] = []
        for i, (source, rows) in enumerate(self.sources):
            operator = manifest.operators[Uid(f"{self.prefix}source-{i}")]
            parts = [RestoredInline(part.index, operator.parallelism, part.inline) for part in operator.parts]
            left = rows_left(source, Restored(parts).positions or [])
            read += [row for row in rows if row not in left]
        return read

    def expectations(self, read: Sequence[Row]) -> list[SinkExpectation]:
        """What must be committed, worked out in one thread and without the engine, when these rows have been read."""
        beside = [] if self.beside is None else self.beside.expectations(read)
        if self.timed is not None:
            return [*beside, self._timed_expectation(self.timed, read)]
        rows = self._answer([row for row in read if row not in self.before])
        totals, keys = totals_of(self._answer(read)), {key for _, key, _ in rows}
        running: list[tuple[Any, ...]] = [(key, *totals[key]) for key in totals if key in keys]
        answers: dict[str, tuple[Any, list[tuple[Any, ...]]]] = {
            "plain": ("exact", list(rows)),
            "loop": ("exact", loops.rows_out(rows)),
            "held": ("held", list(self._answer(read))),
        }
        found = [
            (f"{self.prefix}{_ends()[end].sink_uid}", *answers.get(end, ("running", running)), s)
            for end, s in self.ends
        ]
        return beside + [SinkExpectation(uid, kind, wanted, sink) for uid, kind, wanted, sink in found]

    def _timed_expectation(self, timed: Timed, read: Sequence[Row]) -> SinkExpectation:
        every = [row for _, of_source in self.sources for row in of_source]
        if self.was_flushed:
            read = [row for row in read if row not in self.before]
            every = [row for row in every if row not in self.before]
        whole = timed.answer(every)
        known = Counter(timed.answer([row for row in every if row in self.before]))
        return SinkExpectation(
            f"{self.prefix}{timed.sink_uid}",
            timed.kind,
            timed.answer(self._answer(read)),
            self.ends[0][1],
            whole=whole,
            needed=list((Counter(whole) - known).elements()),
            is_unclear=self.is_unclear or (self.was_flushed and not timed.forgets),
        )

    def states(self, read: Sequence[Row]) -> dict[str, dict[int, tuple[int, int]]]:
        """uid of a keyed operator to what its state must be when these rows have been read: key to (count, sum)."""
        checked = [end for end, _ in self.ends if end in ENDS and ENDS[end].has_state_to_check]
        states = {f"{self.prefix}{end}": totals_of(self._answer(read)) for end in checked}
        return states if self.beside is None else {**states, **self.beside.states(read)}

    def going_on(
        self, manifest: Manifest, external: External, place: str, *, before: Sequence[Row], is_unclear: bool
    ) -> Job:
        """The same job behind a savepoint, with sinks of its own."""
        ends = [(end, _sink_like(sink, external, f"{place}/out/{self.prefix}{end}")) for end, sink in self.ends]
        beside = self.beside and self.beside.going_on(manifest, external, place, before=before, is_unclear=is_unclear)
        for source, _ in self.sources:
            if isinstance(source, SimSource):
                source.reached.clear()
        return replace(
            self,
            ends=ends,
            before=frozenset(before),
            beside=beside,
            was_flushed=self.timed is not None and self._has_ended(manifest),
            is_unclear=is_unclear or self.is_unclear or self.was_flushed,
        )

    def _has_ended(self, manifest: Manifest) -> bool:
        """Whether event time had ended in this region."""
        own = [operator for uid, operator in manifest.operators.items() if uid.startswith(self.prefix)]
        inlines = [part.inline for operator in own for part in operator.parts]
        known = [inline for inline in inlines if isinstance(inline, (Progress, SplitProgress))]
        return any(progress.watermark_us == END_US for progress in known)

    def _answer(self, rows: Sequence[Row]) -> list[Row]:
        own = {row for _, of_source in self.sources for row in of_source}
        answer = [row for row in rows if row in own]
        for step in self.steps:
            answer = step.answer(answer)
        return answer


def rows_left(source: Source, parts: Sequence[InlinePart]) -> set[Row]:
    """What a source hands out from these positions on."""
    reader = source.reader()
    context = OperatorContext(
        job="", uid=Uid(""), name="", index=0, parallelism=1, max_parallelism=1, attempt=AttemptId(0)
    )
    reader.open(context, parts)
    left: set[Row] = set()
    while not reader.finished:
        batch = reader.poll(1_000)
        left.update(zip(*(column.to_pylist() for column in batch.columns), strict=True) if batch else ())
    return left


# --- Steps between sources and sinks ------------------------------------------------------------------


@dataclass(frozen=True)
class Step:
    """One thing done to a stream, and the same thing done to the reference."""

    apply: Callable[[Any, str], Any]
    """To a stream, with the prefix of uids."""
    answer: Callable[[list[Row]], list[Row]]


def _filter(rng: random.Random) -> Step:
    return Step(
        lambda stream, prefix: stream.filter(pl.col("value") < 60, uid=f"{prefix}filter"),
        lambda rows: [row for row in rows if row[2] < 60],
    )


def _rebalanced(rng: random.Random) -> Step:
    return Step(
        lambda stream, prefix: stream.rebalance().with_columns(value=pl.col("value") + 1, uid=f"{prefix}more"),
        lambda rows: [(i, k, v + 1) for i, k, v in rows],
    )


def _mapped(rng: random.Random) -> Step:
    return Step(
        lambda stream, prefix: stream.map(lambda row: (row.id, row.key, row.value * 2), SCHEMA, uid=f"{prefix}map"),
        lambda rows: [(i, k, v * 2) for i, k, v in rows],
    )


def _repeated(rng: random.Random) -> Step:
    return Step(
        lambda stream, prefix: stream.flat_map(lambda row: [row] * (row.id % 3), SCHEMA, uid=f"{prefix}flat_map"),
        lambda rows: [row for row in rows for _ in range(row[0] % 3)],
    )


def _broadcast(rng: random.Random) -> Step:
    # A fixed parallelism: the number of copies is part of the answer.
    copies = rng.randint(1, 3)
    return Step(
        lambda stream, prefix: stream.broadcast().select(
            "id", "key", "value", uid=f"{prefix}copies", parallelism=copies
        ),
        lambda rows: rows * copies,
    )


STEPS: list[tuple[float, Callable[[random.Random], Step]]] = [
    (0.3, _filter),
    (0.3, _rebalanced),
    (0.2, _mapped),
    (0.15, _repeated),
    (0.15, _broadcast),
]


# --- Ends -----------------------------------------------------------------------------------------------


class Types:
    """Of state, in the run that goes on now."""

    are_wide = False
    """Whether somebody has widened them: from then on all have them so."""


class Total(weir.ProcessFunction):
    """A running count and sum per key, row by row. After the first attempt the sum is of a wider type."""

    count = weir.ValueState("long", default=0)
    total: Any

    def open(self, context: Any) -> None:
        if context.attempt > 1:
            Types.are_wide = True
        self.total = context.state("total", weir.ValueState("long" if Types.are_wide else "int", default=0))

    def process(self, row: Any, context: Any) -> Any:
        self.count.set(self.count.get() + 1)
        self.total.set(self.total.get() + row.value)
        return [(row.key, self.count.get(), self.total.get())]


def _plain(stream: Any, sink: Sink, prefix: str) -> None:
    stream.write(sink, uid=f"{prefix}plain")


def _agg(stream: Any, sink: Sink, prefix: str) -> None:
    stream.key_by("key").agg(n=weir.count(), total=weir.sum("value"), uid=f"{prefix}agg").write(
        sink, uid=f"{prefix}totals"
    )


def _process(stream: Any, sink: Sink, prefix: str) -> None:
    stream.key_by("key").process(Total(), schema=TOTALS, uid=f"{prefix}process").write(sink, uid=f"{prefix}rows")


def _reduce(stream: Any, sink: Sink, prefix: str) -> None:
    pairs = stream.map(lambda row: (row.key, 1, row.value), TOTALS, uid=f"{prefix}pairs")
    reduced = pairs.key_by("key").reduce(lambda a, b: (a.key, a.n + b.n, a.total + b.total), uid=f"{prefix}reduce")
    reduced.write(sink, uid=f"{prefix}reduced")


def _add_up(rows: pl.DataFrame, state: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    added = rows.group_by("key_row").agg(n=pl.len().cast(pl.Int64), total=pl.col("value").sum()).sort("key_row")
    new = state.select("key", n=pl.col("n") + added["n"], total=pl.col("total") + added["total"])
    return new, new


def _batches(stream: Any, sink: Sink, prefix: str) -> None:
    state = {"n": weir.ValueState("long", default=0), "total": weir.ValueState("long", default=0)}
    sums = stream.key_by("key").process_batches(_add_up, TOTALS, state=state, uid=f"{prefix}batches")
    sums.write(sink, uid=f"{prefix}added")


@dataclass(frozen=True)
class End:
    apply: Callable[[Any, Sink, str], None]
    sink_uid: str
    has_state_to_check: bool


ENDS = {
    "plain": End(_plain, "plain", False),
    "agg": End(_agg, "totals", True),
    "process": End(_process, "rows", True),
    "batches": End(_batches, "added", True),
    "reduce": End(_reduce, "reduced", False),
}


def _ends() -> dict[str, End]:
    """All of them; a loop needs rows that come once, and what is held is out only when more of its key has come."""
    return {**ENDS, "loop": End(loops.loop, "looped", False), "held": End(held.hold, "held-out", False)}


def totals_of(rows: Sequence[Row]) -> dict[int, tuple[int, int]]:
    totals: dict[int, tuple[int, int]] = {}
    for _, key, value in rows:
        count, total = totals.get(key, (0, 0))
        totals[key] = (count + 1, total + value)
    return totals


def _sink_like(sink: Sink, external: External, place: str) -> Sink:
    if isinstance(sink, FileSink):
        return SimFileSink(external, f"{SCHEME}://{place}", sink.format, roll_rows=sink.roll_rows)  # type: ignore[arg-type]
    return SimSink(external) if isinstance(sink, SimSink) else type(sink)(external)  # type: ignore[call-arg]
