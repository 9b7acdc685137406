"""Run a bounded job in this process, without Spark: for tests of jobs, functions and connectors.

Comes in: an environment, a stream or a plan. Goes out: the rows that each sink was
given, once committed. The driver, the workers and the checkpoints are the production
ones; only channels, clock and storage are in memory, and one thread does everything.
PySpark is needed only to copy functions to tasks the way that it does; no Spark starts.
"""

from __future__ import annotations

import pickle
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from weir.api.build import Options
from weir.api.environment import Environment
from weir.api.stream import Stream
from weir.config import Settings
from weir.connectors.files.collect import Collect
from weir.errors import ConfigError, PlanError
from weir.graph.plan import Plan, PlannedOperator
from weir.ids import CheckpointId, Lineage
from weir.operators.base import InlinePart, OperatorContext
from weir.operators.sink import Sink, SinkOwner, SinkWriter
from weir.operators.source import Source, SourceReader
from weir.runtime.local.run import JOB, LocalRun
from weir.runtime.storage.layout import new_lineage
from weir.runtime.task.metrics import operator_metrics
from weir.snapshot.commit import CommitGrant
from weir.snapshot.parts import Json

CHECKPOINT_TURNS = 10


@dataclass(frozen=True)
class LocalResult:
    """What came of a run; `result["uid"]` is what that sink was given."""

    tables: Mapping[str, pa.Table]
    """By the sink's uid: its committed rows, by epoch and subtask."""
    restarts: int
    """How many of the crashes that were asked for happened; those after the end do not."""
    checkpoints: int
    """Completed ones, with the final one."""
    turns: int
    """How long it took; a crash can be asked for at any of them."""
    operators: Sequence[Mapping[str, Any]]
    """Rows and bytes per operator, counted since the last restart."""

    def __getitem__(self, uid: str) -> pa.Table:
        if uid not in self.tables:
            raise KeyError(f"no sink has the uid {uid!r}; there are {sorted(self.tables)}")
        return self.tables[uid]


def run_local(
    job: Environment | Plan,
    *,
    crash_at: int | Sequence[int] = (),
    checkpoint_every: int | None = None,
    seed: int | None = None,
    real_sinks: bool = False,
) -> LocalResult:
    """Run a bounded job to its end in this process and return what its sinks were given.

    crash_at:         turns (one step of every task) after which all tasks are lost, as by kill -9; the job goes on from
                      its last checkpoint
    checkpoint_every: turns between two checkpoints; without it only the final one is taken, or, with `crash_at`,
                      one every 10 turns
    seed:             split the sources' batches, order the steps of tasks and delay what runs in the background at
                      random; the same seed gives the same run
    real_sinks:       write to the job's own sinks. Without it nothing is written outside: every sink is replaced by one
                      in memory

    >>> import weir
    >>> env = weir.Environment(parallelism=2)
    >>> words = env.from_collection(["to", "be", "or", "not", "to", "be"], "word string")
    >>> words.key_by("word").count(uid="count").print(uid="out")
    >>> run_local(env)["out"].sort_by("word").to_pylist()[0]
    {'word': 'be', 'count': 2}
    """
    plan, settings = (job.plan(), job.settings) if isinstance(job, Environment) else (job, Settings())
    return _run(plan, settings, crash_at, checkpoint_every=checkpoint_every, seed=seed, real_sinks=real_sinks)


def _run(
    plan: Plan,
    settings: Settings,
    crash_at: int | Sequence[int] = (),
    *,
    checkpoint_every: int | None = None,
    seed: int | None = None,
    real_sinks: bool = False,
) -> LocalResult:
    settings = replace(settings, max_parallelism=plan.max_parallelism)
    lineage = new_lineage()
    _validate(plan, lineage, real_sinks)
    crashes = [crash_at] if isinstance(crash_at, int) else list(crash_at)
    if checkpoint_every is None and crashes:
        checkpoint_every = CHECKPOINT_TURNS
    if checkpoint_every is not None and checkpoint_every < 1:
        raise ConfigError(f"run_local: checkpoint_every={checkpoint_every} is below 1")
    rng = None if seed is None else random.Random(seed)
    shelves: dict[str, _Shelf] = (
        {} if real_sinks else {operator.uid: _Shelf(operator.schema) for operator in _sinks(plan)}
    )
    payload = _pickled(plan)
    run = LocalRun(
        _prepared(plan, None, shelves),
        settings,
        shipped_plan=lambda: _prepared(pickle.loads(payload), rng, shelves),
        crashes=crashes,
        checkpoint_every=checkpoint_every,
        rng=rng,
        lineage=lineage,
    )
    run.to_end()
    return LocalResult(
        tables=_collected(plan) if real_sinks else {uid: shelf.table() for uid, shelf in shelves.items()},
        restarts=run.driver.restarts,
        checkpoints=run.checkpoints,
        turns=run.turns,
        operators=operator_metrics(run.metrics),
    )


def collect_local(stream: Stream, **options: Any) -> pa.Table:
    """The rows of a bounded stream. Other sinks of its environment do not run. Options as for `run_local`.

    >>> import weir, polars as pl
    >>> numbers = weir.Environment(parallelism=2).from_collection([1, 2, 3, 4], "n long")
    >>> sorted(collect_local(numbers.filter(pl.col("n") % 2 == 0))["n"].to_pylist())
    [2, 4]
    """
    environment = stream._environment
    node = environment._builder.sink("collect_local", _Shelf(), stream._upstream, options=Options())
    plan = environment._plan(more=[node], ends=[node.id])
    (table,) = _run(plan, environment.settings, **options).tables.values()
    return table


def _validate(plan: Plan, lineage: Lineage, real_sinks: bool) -> None:
    if not plan.bounded:
        raise PlanError("run_local: the job has a source without end, so it would run for ever; bound it for the test")
    for operator in _operators(plan):
        spec = operator.spec
        if isinstance(spec, Source):
            if type(spec).on_driver_start is not Source.on_driver_start:
                raise PlanError(f"run_local: source {operator.name!r} needs Spark; give the rows as a collection")
            spec.validate(operator.name)
        elif isinstance(spec, Sink) and real_sinks:
            spec.validate(SinkOwner(JOB, lineage, operator.uid, operator.name, resume=False, is_durable=False))


def _pickled(plan: Plan) -> bytes:
    """Each task gets its own copy, as from Spark: what functions keep in themselves is not shared, and dies with it."""
    from pyspark import cloudpickle

    try:
        return bytes(cloudpickle.dumps(plan))
    except Exception as error:
        raise PlanError(
            f"run_local: the job cannot be sent to tasks: {error}. Functions must not hold an open file, a lock or a "
            "connection; open such things inside the function."
        ) from error


def _prepared(plan: Plan, rng: random.Random | None, shelves: Mapping[str, _Shelf]) -> Plan:
    """The plan with sources that split their batches, and with sinks in memory."""

    def prepared(operator: PlannedOperator) -> PlannedOperator:
        if isinstance(operator.spec, Source) and rng is not None:
            return replace(operator, spec=_Splitting(operator.spec, rng))
        return replace(operator, spec=shelves.get(operator.uid, operator.spec))

    vertices = tuple(replace(v, operators=tuple(map(prepared, v.operators))) for v in plan.vertices)
    return replace(plan, vertices=vertices)


def _collected(plan: Plan) -> dict[str, pa.Table]:
    sinks = {operator.uid: operator.spec for operator in _sinks(plan)}
    return {uid: sink.result() for uid, sink in sinks.items() if isinstance(sink, Collect)}


def _sinks(plan: Plan) -> list[PlannedOperator]:
    return [operator for operator in _operators(plan) if isinstance(operator.spec, Sink)]


def _operators(plan: Plan) -> Iterator[PlannedOperator]:
    return (operator for vertex in plan.vertices for operator in vertex.operators)


# --- Stand-ins for sources and sinks ----------------------------------------------------------------------


class _Splitting(Source):
    """A source whose batches are split at random."""

    def __init__(self, source: Source, rng: random.Random) -> None:
        self.reader_class = source.reader_class
        self._source = source
        self._rng = rng

    @property
    def schema(self) -> pa.Schema:
        return self._source.schema

    @property
    def bounded(self) -> bool:
        return self._source.bounded

    def reader(self) -> SourceReader:
        return _SplittingReader(self._source.reader(), self._rng)


class _SplittingReader(SourceReader):
    def __init__(self, reader: SourceReader, rng: random.Random) -> None:
        self._reader = reader
        self._rng = rng

    def open(self, context: OperatorContext, restored: Sequence[InlinePart] | None) -> None:
        self._reader.open(context, restored)

    def poll(self, rows_max: int) -> pa.RecordBatch | None:
        # Mostly small, so that batches end everywhere; sometimes whole, and sometimes nothing comes just now.
        if self._rng.random() < 0.1:
            return None
        return self._reader.poll(min(rows_max, self._rng.choice([1, 2, 3, 7, 50, rows_max])))

    @property
    def finished(self) -> bool:
        return self._reader.finished

    def position(self) -> Json:
        return self._reader.position()

    @property
    def split(self) -> str:
        return self._reader.split

    @property
    def open_splits(self) -> frozenset[str] | None:
        return self._reader.open_splits

    @property
    def wait_ms(self) -> float:
        return self._reader.wait_ms

    @property
    def lag(self) -> str | None:
        return self._reader.lag

    @property
    def keeper(self) -> Any:
        return self._reader.keeper

    def close(self) -> None:
        self._reader.close()


class _Shelf(Sink):
    """Rows in memory, visible when their checkpoint is complete."""

    def __init__(self, schema: pa.Schema | None = None) -> None:
        self._schema = schema
        self.pending: dict[str, list[pa.RecordBatch]] = {}
        self.committed: dict[tuple[int, int, str], list[pa.RecordBatch]] = {}

    def writer(self) -> SinkWriter:
        return _ShelfWriter(self)

    def table(self) -> pa.Table:
        batches = [batch for _, epoch in sorted(self.committed.items()) for batch in epoch]
        return pa.Table.from_batches(batches, self._schema)


class _ShelfWriter(SinkWriter):
    def __init__(self, shelf: _Shelf) -> None:
        self._shelf = shelf
        self._batches: list[pa.RecordBatch] = []

    def open(self, context: OperatorContext, restored: Sequence[Json] | None) -> None:
        self._context = context

    def write(self, batch: pa.RecordBatch) -> None:
        self._batches.append(batch)

    def prepare(self, checkpoint: CheckpointId) -> Callable[[], Json]:
        batches, self._batches = self._batches, []
        name = f"{self._context.index}-{self._context.attempt}-{checkpoint}"

        def keep() -> Json:
            if not batches:
                return None
            self._shelf.pending[name] = batches
            return [int(checkpoint), self._context.index, name]

        return keep

    def commit(self, grant: CommitGrant, committables: Sequence[Json]) -> None:
        for checkpoint, index, name in committables:
            self._shelf.committed[(checkpoint, index, name)] = self._shelf.pending[name]
