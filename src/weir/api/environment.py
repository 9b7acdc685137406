"""Where a job is put together and started.

Comes in: sources, and settings. Goes out: streams to build on, plans, running jobs.
Spark is touched only when a job is submitted; nothing here imports it before.
"""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import pyarrow as pa

from weir.api import overrides
from weir.api.build import Builder, Options, check_parallelism
from weir.api.job import JobHandle, JobResult
from weir.api.options import Format, explained
from weir.api.overrides import Progress
from weir.api.progress import wait_with_progress
from weir.api.stream import Stream
from weir.config import (
    BACKENDS,
    Checkpoints,
    ExponentialDelay,
    Heap,
    JobConfig,
    NoRestart,
    Restart,
    Settings,
    StateBackend,
    checkpoint_named,
    lineage_named,
)
from weir.connectors.collection import Collection as CollectionSource
from weir.connectors.generator import Generator
from weir.errors import ConfigError, PlanError
from weir.graph.explain import notes
from weir.graph.logical import Node, NodeId
from weir.graph.plan import Plan
from weir.graph.planner import plan
from weir.operators.source import Source
from weir.operators.time.watermarks import WatermarkStrategy

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Backend: TypeAlias = 'Literal["heap", "rocksdb", "memory"] | StateBackend'

DEFAULT_PARALLELISM_MAX = 4
"""Without a word from the user a job takes no more slots than this: enough to be fast, and Spark keeps some."""


class Environment:
    """What a job is built in, and run from.

    spark:        the SparkSession to run on; None: a local one that Weir starts when it is needed
    parallelism:  how many subtasks an operator has unless it says otherwise; None: the cores, at most 4
    checkpoints:  how often, where and how strictly to snapshot; None: only when a bounded job ends, to commit
    restart:      what to do after a failure; None: exponential delays with checkpoints, no restart without
    settings:     limits that seldom need to be changed
    backend:      where keyed state lives: "heap" (in the tasks' memory), "rocksdb" (on their local disks, larger than
                  memory), weir.RocksDb(…), or "memory" (heap, with the checkpoints in the driver's memory)
    name:         the job's name where `run` and `submit` are given none

    >>> import weir, polars as pl
    >>> env = weir.Environment(parallelism=2)
    >>> bids = env.from_collection([(1, 250), (2, 90)], "auction long, price long", uid="bids")
    >>> dear = bids.filter(pl.col("price") > 100, uid="dear")
    >>> dear.key_by("auction").agg(n=weir.count(), uid="hot").print(uid="out")
    >>> print(env.explain(format="mermaid"))
    flowchart LR
        v0(["bids: Collection<br/>dear: Filter<br/>hot/combine: PartialAggregate<br/>× 2"])
        v1(["hot: RunningAggregate<br/>out: Stdout<br/>× 2"])
        v0 -->|"hash by auction"| v1
    """

    def __init__(
        self,
        spark: SparkSession | None = None,
        *,
        parallelism: int | None = None,
        checkpoints: Checkpoints | None = None,
        restart: Restart | None = None,
        settings: Settings | None = None,
        backend: Backend | None = None,
        name: str = "weir-job",
    ) -> None:
        check_parallelism(parallelism)
        self.name = name
        self.checkpoints = checkpoints
        self.restart = restart
        self.settings = chosen_settings(settings, backend, checkpoints)
        self._spark = spark
        self._parallelism = parallelism
        self._builder = Builder()

    @property
    def parallelism(self) -> int:
        """How many subtasks an operator has unless it says otherwise."""
        chosen = overrides.current().parallelism or self._parallelism
        return chosen or min(available_slots(self._spark), DEFAULT_PARALLELISM_MAX, self.settings.max_parallelism)

    @property
    def spark(self) -> SparkSession:
        """The session that jobs run on; the embedded one is started if it must be."""
        if self._spark is not None:
            return self._spark
        from weir.runtime.spark.session import embedded_session

        return embedded_session(self.parallelism, self.name)

    # --- Sources ----------------------------------------------------------------------------------------

    def read(
        self,
        source: Source,
        *,
        watermark: WatermarkStrategy | None = None,
        uid: str | None = None,
        name: str | None = None,
        parallelism: int | None = None,
    ) -> Stream:
        """The rows of a source, such as `weir.connectors.Files("bids/", schema="auction long, price long")`.

        watermark: where the rows have their event time, and how far it has come, such as `bounded_disorder("ts", "2s")`
        """
        if not isinstance(source, Source):
            raise PlanError(f"read: {source!r} is not a source; weir.connectors has some, such as Files(path)")
        return self._read("source", source, Options(uid, name, parallelism), watermark)

    def from_collection(
        self,
        rows: Iterable[Any],
        schema: pa.Schema | str | None = None,
        *,
        watermark: WatermarkStrategy | None = None,
        uid: str | None = None,
        name: str | None = None,
        parallelism: int | None = None,
    ) -> Stream:
        """Rows that are at hand: tuples, dicts, scalars (one column), a pyarrow Table or a Polars DataFrame.

        `schema` may be left out for dicts, scalars and tables.

        >>> import weir
        >>> weir.Environment().from_collection([("a", 1), ("b", 2)], "word string, n long")
        Stream[word string, n bigint]
        """
        return self._read("collection", CollectionSource(rows, schema), Options(uid, name, parallelism), watermark)

    def generate(
        self,
        count: int | None,
        make: Callable[[Any], Any],
        schema: pa.Schema | str,
        *,
        rate: float | None = None,
        watermark: WatermarkStrategy | None = None,
        uid: str | None = None,
        name: str | None = None,
        parallelism: int | None = None,
    ) -> Stream:
        """Rows made from their numbers, 0 to `count` (None: without end), at `rate` rows a second or at full speed.

        `make` gets an int64 array of row numbers and returns a dict of columns or a RecordBatch; the same number
        must always give the same row.

        >>> import weir
        >>> weir.Environment().generate(1_000, lambda n: {"key": n % 10, "value": n}, "key long, value long")
        Stream[key bigint, value bigint]
        """
        source = Generator(count, make, schema, rate=rate)
        return self._read("generator", source, Options(uid, name, parallelism), watermark)

    def from_dataframe(
        self,
        dataframe: DataFrame,
        *,
        watermark: WatermarkStrategy | None = None,
        uid: str | None = None,
        name: str | None = None,
        parallelism: int | None = None,
    ) -> Stream:
        """The rows of a bounded Spark DataFrame, straight from Spark's own scan.

        Spark computes them while the job runs, in at least one slot beside the job's own. A plan that it might compute
        in another order the next time is copied to Parquet first.
        """
        from weir.connectors.dataframe.source import DataFrameSource

        return self._read("dataframe", DataFrameSource(dataframe), Options(uid, name, parallelism), watermark)

    # --- Plans ------------------------------------------------------------------------------------------

    def plan(self) -> Plan:
        """What will run: everything that leads to a sink."""
        return self._plan()

    def explain(self, format: Format = "text") -> str:
        """The plan as text, with what it guarantees, or as a Mermaid diagram."""
        return explained(self.plan(), format, self._config())

    # --- Jobs -------------------------------------------------------------------------------------------

    def run(
        self,
        name: str | None = None,
        *,
        resume: bool = False,
        at: str | None = None,
        from_savepoint: str | None = None,
        allow_dropped_state: bool = False,
        progress: Progress = None,
    ) -> JobResult:
        """Run the job to its end, showing how it goes.

        resume:              go on from the last checkpoint of an earlier run with the same name and storage
        at:                  with resume: go back to this checkpoint ("chk-0000000012"), whatever is newer. What sinks
                             have committed since is written again; a warning says what that is
        from_savepoint:      start from this savepoint, or from the directory of any checkpoint of another run, as long
                             as there is no checkpoint of its own
        allow_dropped_state: leave out state of operators that are no longer there, rather than refuse to start
        progress:            True or False; None: on a terminal only; or a function that is called with the handle
        """
        config = self._config(
            name, resume=resume, at=at, from_savepoint=from_savepoint, allow_dropped_state=allow_dropped_state
        )
        return self._run(self._planned(), config, progress)

    def submit(
        self,
        name: str | None = None,
        *,
        resume: bool = False,
        at: str | None = None,
        from_savepoint: str | None = None,
        allow_dropped_state: bool = False,
    ) -> JobHandle:
        """Start the job and come back at once, with a handle to it. Options as for `run`."""
        from weir.runtime.job.launch import submit

        config = self._config(
            name, resume=resume, at=at, from_savepoint=from_savepoint, allow_dropped_state=allow_dropped_state
        )
        plan_at = self._planned()
        return submit(_inspected(plan_at(self.parallelism)), config, self._spark, plan_at=plan_at)

    # --- For streams and results ------------------------------------------------------------------------

    def _read(self, kind: str, source: Source, options: Options, watermark: WatermarkStrategy | None = None) -> Stream:
        stream = Stream(self, self._builder.add(self._builder.source(kind, source, options)))
        if watermark is None:
            return stream
        uid = None if options.uid is None else f"{options.uid}/watermarks"
        return stream.with_watermarks(watermark, uid=uid, parallelism=options.parallelism)

    def _plan(self, *, more: Iterable[Node] = (), ends: Collection[NodeId] | None = None) -> Plan:
        return self._planned(more=more, ends=ends)(self.parallelism)

    def _planned(self, *, more: Iterable[Node] = (), ends: Collection[NodeId] | None = None) -> Callable[[int], Plan]:
        """The plan of what is built up to now, at any parallelism, whatever is built later."""
        nodes, max_parallelism = (*self._builder.graph, *more), self.settings.max_parallelism
        return lambda parallelism: plan(nodes, parallelism=parallelism, max_parallelism=max_parallelism, ends=ends)

    def _run(self, plan_at: Callable[[int], Plan], config: JobConfig, progress: Progress = None) -> JobResult:
        from weir.runtime.job.launch import submit

        started_s = time.monotonic()
        made = _inspected(plan_at(self.parallelism))
        handle: JobHandle = submit(made, config, self._spark, plan_at=plan_at)
        chosen = overrides.current().progress
        sources = [vertex.operators[0].uid for vertex in made.vertices if vertex.is_source]
        wait_with_progress(handle, progress if chosen is None else chosen, sources=sources)
        return JobResult(
            name=handle.name,
            status=handle.status,
            seconds=time.monotonic() - started_s,
            checkpoints=tuple(handle.checkpoints()),
            metrics=handle.metrics(),
        )

    def _config(
        self,
        name: str | None = None,
        *,
        resume: bool = False,
        at: str | None = None,
        from_savepoint: str | None = None,
        allow_dropped_state: bool = False,
    ) -> JobConfig:
        chosen = overrides.current()
        at = at if chosen.at is None else chosen.at
        checkpoints = chosen.apply_to_checkpoints(self.checkpoints)
        return JobConfig(
            name=self.name if name is None else name,
            checkpoints=checkpoints,
            restart=self.restart or default_restart(checkpoints),
            settings=self.settings,
            resume=resume if chosen.resume is None else chosen.resume,
            back_to=None if at is None else checkpoint_named(at),
            back_to_lineage=None if at is None else lineage_named(at),
            from_savepoint=from_savepoint if chosen.from_savepoint is None else chosen.from_savepoint,
            allow_dropped_state=chosen.allow_dropped_state or allow_dropped_state,
        )


def _inspected(made: Plan) -> Plan:
    """The plan, unless somebody only wanted to look at it. What it has notes on is a warning, too."""
    if inspect := overrides.current().inspect:
        inspect(made)
        raise overrides.Inspected
    for note in (note for vertex in made.vertices for note in notes(vertex, made)):
        warnings.warn(note, stacklevel=3)
    return made


def chosen_settings(settings: Settings | None, backend: Backend | None, checkpoints: Checkpoints | None) -> Settings:
    """Settings with the backend that was asked for."""
    given = settings or Settings()
    if backend is None:
        return given
    if backend == "memory":
        if checkpoints is not None and checkpoints.to is not None:
            raise ConfigError(
                f'backend="memory" keeps checkpoints in the driver, but they go to {checkpoints.to!r}; leave out '
                'Checkpoints.to, or choose backend="heap"'
            )
        return replace(given, backend=Heap())
    if isinstance(backend, str):
        if backend not in BACKENDS:
            raise ConfigError(f"backend: {backend!r} is not one of {', '.join(sorted([*BACKENDS, 'memory']))}")
        return replace(given, backend=BACKENDS[backend])
    return replace(given, backend=backend)


def default_restart(checkpoints: Checkpoints | None) -> Restart:
    """Restarting makes sense when there is something to restart from."""
    return NoRestart() if checkpoints is None or checkpoints.mode == "none" else ExponentialDelay()


def available_slots(spark: SparkSession | None) -> int:
    """How many tasks may run at once: of the given session where it can tell, otherwise this machine's cores."""
    if spark is not None:
        from weir.runtime.spark.session import slots

        found = slots(spark)
        if found:
            return found
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1
