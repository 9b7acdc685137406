"""A stream of rows with a schema, and what can be done with it.

Comes in: expressions, functions and sinks of the user. Goes out: logical nodes in
the environment's graph, with schemas checked at the line that wrote them. Nothing
runs until the environment does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import polars as pl
import pyarrow as pa

from weir.api import results
from weir.api.build import MakeSpec, Options
from weir.api.keyed import KeyedStream
from weir.api.options import Format, explained
from weir.api.row_operators import RowOperators
from weir.api.upstream import Upstream
from weir.config import Duration
from weir.connectors.console import Stdout
from weir.errors import PlanError
from weir.graph.logical import Input, TimeColumn
from weir.graph.plan import Broadcast, Forward, Rebalance
from weir.operators.sink import Sink
from weir.operators.time.processing_time import AssignProcessingTime
from weir.operators.time.watermarks import AssignWatermarks, WatermarkStrategy
from weir.operators.windows.definition import ALL
from weir.operators.windows.event_time import Windows
from weir.operators.windows.triggers import Trigger
from weir.schema import format_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from weir.api.connected import ConnectedStreams
    from weir.api.environment import Environment
    from weir.api.windowed import WindowedStream


class Stream(RowOperators):
    """An unbounded or bounded stream of rows. Made by an Environment and by the methods below.

    Every operator takes `uid` (the stable name that its state is matched by), `name` (what people see) and
    `parallelism` (how many subtasks; the environment's by default).
    """

    def __init__(self, environment: Environment, upstream: Upstream) -> None:
        self._environment = environment
        self._upstream = upstream

    @property
    def schema(self) -> pa.Schema:
        """The Arrow schema of the rows."""
        return self._upstream.schema

    @property
    def columns(self) -> list[str]:
        return list(self.schema.names)

    def __repr__(self) -> str:
        return f"Stream[{format_schema(self.schema)}]"

    # --- Event time -------------------------------------------------------------------------------------

    def with_watermarks(
        self,
        strategy: WatermarkStrategy,
        *,
        uid: str | None = None,
        name: str | None = None,
        parallelism: int | None = None,
    ) -> Stream:
        """Say where the rows have their event time, and how far it has come: `weir.bounded_disorder("ts", "2s")`.

        At a source, `read(…, watermark=…)` does the same.

        >>> import weir
        >>> bids = weir.Environment().from_collection([(1, None)], "auction long, ts timestamp")
        >>> bids.with_watermarks(weir.bounded_disorder("ts", "2s")).time_column
        'ts'
        """
        if not isinstance(strategy, WatermarkStrategy):
            raise PlanError(f"{strategy!r} is no watermark strategy; write for example bounded_disorder('ts', '2s')")
        time = TimeColumn(strategy.column)
        return self._apply("watermarks", lambda: AssignWatermarks(strategy), Options(uid, name, parallelism), time=time)

    def with_processing_time(
        self,
        column: str = "processing_time",
        *,
        uid: str | None = None,
        name: str | None = None,
        parallelism: int | None = None,
    ) -> Stream:
        """Stamp each row with the wall clock as it comes in, in a new column, and let windows, timers and joins behind
        go by that. Their time passes whether rows come or not. Rows that are read again after a failure are stamped
        again: unlike that of event time, the answer depends on when a job ran.

        >>> import weir
        >>> bids = weir.Environment().from_collection([(1,)], "auction long")
        >>> bids.with_processing_time("seen").key_by("auction").window(weir.tumbling("10s")).agg(n=weir.count())
        Stream[auction bigint, window_start timestamp_ntz, window_end timestamp_ntz, n bigint]
        """
        if not isinstance(column, str) or not column:
            raise PlanError(f"with_processing_time: {column!r} is not the name of a column")
        options = Options(uid, name, parallelism)
        return self._apply("processing time", lambda: AssignProcessingTime(column), options, time=TimeColumn(column))

    def side(self, tag: str) -> Stream:
        """A side output of the operator that made this stream, such as the late rows of a window."""
        inputs = self._upstream.inputs
        node = self._environment._builder.graph[inputs[0].node]
        if len(inputs) > 1 or inputs[0].side is not None or tag not in node.sides:
            there = ", ".join(repr(known) for known in node.sides) or "none"
            raise PlanError(f"side: {node} has no side output {tag!r}; it has {there}")
        upstream = Upstream((Input(node.id, Forward(), side=tag),), node.sides[tag], None)
        return Stream(self._environment, upstream)

    @property
    def time_column(self) -> str | None:
        """The column that holds the rows' event time; None: they have none."""
        return None if self._upstream.time is None else self._upstream.time.name

    # --- Where rows go ----------------------------------------------------------------------------------

    def key_by(self, *columns: str) -> KeyedStream:
        """Bring rows with equal values in these columns together: what state is kept by.

        >>> import weir
        >>> bids = weir.Environment().from_collection([(1, 250)], "auction long, price long")
        >>> bids.key_by("auction").agg(n=weir.count(), top=weir.max("price"))
        Stream[auction bigint, n bigint, top bigint]
        """
        return KeyedStream(self, columns)

    def union(self, *others: Stream) -> Stream:
        """The rows of all these streams, which must have the same schema.

        >>> import weir
        >>> env = weir.Environment()
        >>> one, two = (env.from_collection([(n,)], "n long") for n in (1, 2))
        >>> one.union(two)
        Stream[n bigint]
        """
        upstream = self._upstream
        for other in others:
            if not isinstance(other, Stream) or other._environment is not self._environment:
                raise PlanError(f"union: {other!r} is not a stream of the same Environment")
            upstream = upstream.merged(other._upstream)
        return Stream(self._environment, upstream)

    def connect(self, other: Stream) -> ConnectedStreams:
        """Two streams, of any schemas, for one function that shares state by key between them.

        >>> import weir
        >>> env = weir.Environment()
        >>> orders = env.from_collection([(1, 250)], "id long, amount long")
        >>> payments = env.from_collection([(1, "card")], "order long, kind string")
        >>> class Paid(weir.CoProcessFunction):
        ...     amount = weir.ValueState("long")
        ...     def process_left(self, order, context):
        ...         self.amount.value = order.amount
        ...     def process_right(self, payment, context):
        ...         yield context.key, self.amount.value
        >>> orders.connect(payments).key_by("id", "order").process(Paid(), "order long, amount long")
        Stream[order bigint, amount bigint]
        """
        from weir.api.connected import ConnectedStreams

        return ConnectedStreams(self, other)

    def iterate(
        self,
        step: Callable[[Stream], tuple[Stream, Stream]],
        *,
        uid: str | None = None,
        name: str | None = None,
        parallelism: int | None = None,
    ) -> Stream:
        """Feed rows back: a loop. `step` is given the rows of this stream and those that were fed back, and returns two
        streams: what is fed back, of the same columns, and what is done, which is the result.

        What is on its way round is part of every checkpoint. A bounded job ends when nothing goes round any more.

        >>> import weir, polars as pl
        >>> from weir.testing import collect_local
        >>> def halve(rows):
        ...     smaller = rows.with_columns(n=pl.col("n") // 2, steps=pl.col("steps") + 1)
        ...     return smaller.filter(pl.col("n") > 1), smaller.filter(pl.col("n") <= 1)
        >>> numbers = weir.Environment().from_collection([(5, 0), (100, 0)], "n long, steps long")
        >>> sorted(collect_local(numbers.iterate(halve))["steps"].to_pylist())
        [2, 6]
        """
        from weir.api.loops import iterate

        return iterate(self, step, Options(uid, name, parallelism))

    def rebalance(self) -> Stream:
        """Hand batches to the subtasks of the next operator in turn."""
        return Stream(self._environment, self._upstream.redirected(Rebalance(), "rebalance"))

    def broadcast(self) -> Stream:
        """Give every row to every subtask of the next operator."""
        return Stream(self._environment, self._upstream.redirected(Broadcast(), "broadcast"))

    # --- Windows ----------------------------------------------------------------------------------------

    def window(
        self,
        windows: Windows,
        *,
        lateness: Duration = 0,
        late: str | None = None,
        trigger: Trigger | None = None,
    ) -> WindowedStream:
        """The same as `KeyedStream.window`, over all rows. One subtask does it; aggregates are combined before.

        >>> import weir
        >>> bids = weir.Environment().from_collection([], "auction long, price long, ts timestamp")
        >>> bids = bids.with_watermarks(weir.bounded_disorder("ts", "2s"))
        >>> bids.window(weir.tumbling("10s")).agg(highest=weir.max("price"))
        Stream[window_start timestamp, window_end timestamp, highest bigint]
        """
        from weir.api.windowed import WindowedStream

        keyed = self.with_columns(pl.lit(0, pl.Int8).alias(ALL)).key_by(ALL)
        return WindowedStream(keyed, windows, lateness=lateness, late=late, trigger=trigger, parallelism=1)

    # --- Where rows end ---------------------------------------------------------------------------------

    def write(
        self, sink: Sink, *, uid: str | None = None, name: str | None = None, parallelism: int | None = None
    ) -> None:
        """Send the rows to a sink."""
        if not isinstance(sink, Sink):
            raise PlanError(f"write: {sink!r} is not a sink; weir.connectors has some, such as FileSink(path)")
        builder = self._environment._builder
        builder.add(builder.sink("sink", sink, self._upstream, options=Options(uid, name, parallelism)))

    def print(self, *, uid: str | None = None, name: str | None = None, parallelism: int | None = None) -> None:
        """Print the rows, for a look, where tasks print: with the embedded Spark on the driver's standard error, on a
        cluster in the executors' logs."""
        self.write(Stdout(), uid=uid, name=name, parallelism=parallelism)

    def collect(self, path: str | None = None) -> pa.Table:
        """Run what leads to this stream, which must be bounded; its rows as one table.

        The rows come by way of a directory that is removed again: a temporary one, or on a cluster `path`, which
        executors and driver must share.
        """
        return results.collect(self._environment, self._upstream, path)

    def to_dataframe(self, path: str | None = None) -> DataFrame:
        """Run what leads to this stream, which must be bounded; its rows as a Spark DataFrame.

        The rows are committed as Parquet below `path`. Without one they go to a temporary directory that lasts as
        long as this process; on a cluster, give a path that executors and driver share.
        """
        return results.to_dataframe(self._environment, self._upstream, path)

    def explain(self, format: Format = "text") -> str:
        """The plan of what leads to this stream.

        >>> import weir
        >>> print(weir.Environment(parallelism=2).from_collection([(1,)], "n long", uid="ones").explain())
        bounded job, 2 task slots, 1 vertex, 0 exchanges, 128 key groups
        <BLANKLINE>
        [0] parallelism 2
            ones  Collection  n bigint
        """
        ends = [i.node for i in self._upstream.inputs]
        return explained(self._environment._plan(ends=ends), format)

    def _apply(
        self,
        kind: str,
        make: MakeSpec,
        options: Options,
        *,
        upstream: Upstream | None = None,
        make_combine: MakeSpec | None = None,
        time: TimeColumn | None = None,
    ) -> Stream:
        builder = self._environment._builder
        node = builder.operator(
            kind, make, upstream or self._upstream, options=options, make_combine=make_combine, time=time
        )
        return self._following(builder.add(node))

    def _following(self, upstream: Upstream) -> Stream:
        return Stream(self._environment, upstream)
