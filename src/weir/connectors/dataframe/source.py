"""A bounded Spark DataFrame as a source: its partitions flow from Spark's own scan and codegen into the tasks.

Comes in: a DataFrame. Goes out: its rows, exactly once. While the job runs, an ordinary Spark job computes the
partitions in slots of its own and pushes them to the readers; a plan that Spark might compute differently the
next time is copied to parquet first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from weir.connectors.dataframe.plan import copied, fingerprint, is_replayable
from weir.errors import CheckpointError, ConfigError, JobError, PlanError, SchemaError, SlotsMissing, TaskLost
from weir.operators.base import InlinePart, OperatorContext
from weir.operators.source import DriverContext, Source, SourceReader
from weir.runtime.net.feed_inbox import FeedAddress, FeedInbox
from weir.runtime.net.lines import RunLines
from weir.runtime.spark.feed import FeedHub
from weir.runtime.spark.session import check_slots, driver_host, is_local, task_host
from weir.runtime.storage.leftovers import TemporaryPlace
from weir.runtime.storage.opening import opener_of
from weir.schema import parse_type
from weir.snapshot.parts import Json

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

WAIT_MS = 2.0
"""Between two looks into an empty inbox."""


class DataFrameSource(Source):
    """The rows of `dataframe`, which must be bounded and of the session that the job runs on.

    It needs at least one slot beside those of the job, for Spark to compute the rows in.
    """

    def __init__(self, dataframe: DataFrame) -> None:
        if not hasattr(dataframe, "sparkSession"):
            raise PlanError(f"from_dataframe: expected a Spark DataFrame, found {type(dataframe).__name__}")
        if dataframe.isStreaming:
            raise PlanError("from_dataframe: the DataFrame is a stream; only bounded DataFrames can be read")
        self._dataframe: DataFrame | None = dataframe
        self._schema = arrow_schema(dataframe.schema)
        self._feed: FeedAddress | None = None
        self._layout: str | None = None
        self._hub: FeedHub | None = None
        self._temporary: TemporaryPlace | None = None

    def __getstate__(self) -> dict[str, Any]:
        """For the tasks: where to get the rows, and nothing of Spark."""
        kept = {"_schema": self._schema, "_feed": self._feed, "_layout": self._layout}
        return {"_dataframe": None, "_hub": None, "_temporary": None, **kept}

    @property
    def schema(self) -> pa.Schema:
        return self._schema

    @property
    def bounded(self) -> bool:
        return True

    def on_driver_start(self, driver: DriverContext) -> None:
        if self._dataframe is None or self._hub is not None:
            raise PlanError(f"{driver.name}: this DataFrame source already runs in another job; make another one")
        self._check_slot(driver)
        frame = self._dataframe
        if not is_replayable(frame):
            frame = copied(frame, self._directory(driver), opener_of(driver.settings), reuse=driver.resume)
        host = driver_host(driver.session)
        self._hub = FeedHub(
            frame,
            self._schema,
            host=host,
            lines=RunLines.new(driver.settings, host),
            parallelism=driver.parallelism,
            description=f"weir: rows for {driver.name}",
        )
        self._feed = self._hub.address
        self._layout = fingerprint(self._hub.frame)

    def on_driver_stop(self) -> None:
        if self._hub is not None:
            self._hub.close()
            self._hub = self._feed = None
        if self._temporary is not None:
            self._temporary.remove()
            self._temporary = None

    def reader(self) -> SourceReader:
        if self._feed is None:
            raise JobError("a DataFrame can only be read by a job that Spark runs")
        return DataFrameReader(self._feed, self._schema, self._layout)

    def _check_slot(self, driver: DriverContext) -> None:
        try:
            check_slots(driver.session, driver.slots + 1)
        except SlotsMissing as error:
            raise SlotsMissing(
                f"{driver.name}: Spark computes a DataFrame's rows while the job runs, in at least one slot beside "
                f"the job's {driver.slots}. {error}",
                **error.details,
            ) from error

    def _directory(self, driver: DriverContext) -> str:
        if driver.directory is not None:
            return driver.directory
        if not is_local(driver.session):
            raise ConfigError(
                f"{driver.name}: Spark may compute this DataFrame's rows in another order next time, so they must be "
                f"copied where all executors can read them. Set Checkpoints(to=...), or write the DataFrame to files "
                f"and read those."
            )
        self._temporary = TemporaryPlace("dataframe").make()
        return self._temporary.path


class DataFrameReader(SourceReader):
    """Hands out what Spark's tasks push. The position: for each partition, the rows handed out, or that it is done."""

    def __init__(self, feed: FeedAddress, schema: pa.Schema, layout: str | None) -> None:
        self._feed = feed
        self._schema = schema
        self._layout = layout
        self._name = ""
        self._inbox: FeedInbox | None = None

    def open(self, context: OperatorContext, restored: Sequence[InlinePart] | None) -> None:
        self._name = context.name
        taken: dict[int, int | None] = {}
        for part in restored or ():
            self._check_layout(part.value["layout"])
            rows = {int(split): int(count) for split, count in part.value["rows"].items()}
            taken.update({split: count for split, count in rows.items() if _is_mine(split, context)})
            taken.update({split: None for split in part.value["done"] if _is_mine(split, context)})
        host = task_host(self._feed.host)
        self._inbox = FeedInbox(
            self._feed, self._schema, host=host, index=context.index, attempt=context.attempt, taken=taken
        )

    def poll(self, rows_max: int) -> pa.RecordBatch | None:
        inbox = self._opened
        if inbox.failure is not None:
            raise TaskLost(f"{self._name}: Spark could not compute the DataFrame's rows: {inbox.failure}")
        return inbox.take(rows_max)

    @property
    def finished(self) -> bool:
        # In this order: nothing comes after `complete`.
        return self._opened.complete and self._opened.empty

    def position(self) -> Json:
        taken = self._opened.taken()
        return {
            "layout": self._layout,
            "rows": {str(split): rows for split, rows in taken.items() if rows},
            "done": sorted(split for split, rows in taken.items() if rows is None),
        }

    @property
    def wait_ms(self) -> float:
        return WAIT_MS

    @property
    def lag(self) -> str | None:
        taken = self._opened.taken()
        return f"{sum(rows is None for rows in taken.values())} partitions done"

    def close(self) -> None:
        if self._inbox is not None:
            self._inbox.close()

    @property
    def _opened(self) -> FeedInbox:
        assert self._inbox is not None, "open() comes first"
        return self._inbox

    def _check_layout(self, found: str | None) -> None:
        if found != self._layout:
            raise CheckpointError(
                f"{self._name}: the DataFrame is not the one that the checkpoint was taken from: its query, its files "
                f"or the way Spark splits them have changed. Restore both as they were, or start the job afresh."
            )


def _is_mine(split: int, context: OperatorContext) -> bool:
    return split % context.parallelism == context.index


def arrow_schema(schema: Any) -> pa.Schema:
    """The Arrow schema of a Spark StructType. Needs no pandas."""
    names = [field.name for field in schema.fields]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise SchemaError(f"from_dataframe: column {twice[0]!r} is there twice; rename one with toDF or alias")
    if not names:
        raise SchemaError("from_dataframe: the DataFrame has no columns")
    return pa.schema([pa.field(f.name, _arrow_type(f.dataType, f.name), f.nullable) for f in schema.fields])


def _arrow_type(kind: Any, column: str) -> pa.DataType:
    name = kind.typeName()
    if name == "array":
        return pa.list_(_arrow_type(kind.elementType, column))
    if name == "map":
        return pa.map_(_arrow_type(kind.keyType, column), _arrow_type(kind.valueType, column))
    if name == "struct":
        return pa.struct([pa.field(field.name, _arrow_type(field.dataType, column)) for field in kind.fields])
    try:
        return parse_type(kind.simpleString())
    except SchemaError as error:
        raise SchemaError(
            f"from_dataframe: column {column!r} has type {kind.simpleString()}, which Weir does not know; "
            f"cast it, for example to string"
        ) from error
