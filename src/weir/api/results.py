"""The rows of a bounded stream, in hand: the job runs now, into a sink of its own.

Comes in: an environment and a stream. Goes out: a pyarrow Table or a Spark DataFrame
of committed rows. Other sinks of the environment do not run.
"""

from __future__ import annotations

import atexit
from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa

from weir.api.build import Options
from weir.config import JobConfig
from weir.connectors.files.collect import Collect
from weir.connectors.files.sink import FileSink
from weir.errors import PlanError
from weir.operators.sink import Sink
from weir.runtime.storage.leftovers import TemporaryPlace
from weir.schema import format_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from weir.api.environment import Environment
    from weir.api.upstream import Upstream


def collect(environment: Environment, upstream: Upstream, path: str | None) -> pa.Table:
    """All rows as one table; what was written for it is removed again."""
    sink = Collect(path)
    _run_into(environment, upstream, sink, kind="collect")
    try:
        return sink.result()
    finally:
        # Only here: before the run the directory was not ours, and a temporary one goes with the sink in any case.
        sink.discard()


def to_dataframe(environment: Environment, upstream: Upstream, path: str | None) -> DataFrame:
    """All rows as a DataFrame over committed Parquet files."""
    if path is None:
        place = TemporaryPlace("to-dataframe").make()
        path = place.path
        # Spark reads the files whenever the DataFrame is used, so they last as long as the process.
        atexit.register(place.remove)
    sink = FileSink(path, format="parquet")
    _run_into(environment, upstream, sink, kind="to_dataframe")
    spark = environment.spark
    if not sink.parts().committed():
        return spark.createDataFrame([], format_schema(upstream.schema))
    return spark.read.parquet(sink.path)


def _run_into(environment: Environment, upstream: Upstream, sink: Sink, *, kind: str) -> None:
    node = environment._builder.sink(kind, sink, upstream, options=Options())
    plan_at = environment._planned(more=[node], ends=[node.id])
    if not plan_at(environment.parallelism).bounded:
        raise PlanError(f"{node}: the stream has no end, so this would wait for ever; write it to a sink instead")
    environment._run(plan_at, _ephemeral(environment._config(f"{environment.name}-{kind}")))


def _ephemeral(config: JobConfig) -> JobConfig:
    """With checkpoints in the driver's memory: such a run is never resumed, and may be repeated at any time."""
    checkpoints = config.checkpoints and replace(config.checkpoints, to=None)
    return replace(config, checkpoints=checkpoints, resume=False, from_savepoint=None)
