"""A DataFrame as a source: Spark's own scan feeds readers that live in this process."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from datetime import date, datetime, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.conftest import poll
from weir.connectors.dataframe.plan import PLANNING, fingerprint, is_replayable
from weir.connectors.dataframe.source import DataFrameSource, arrow_schema
from weir.errors import CheckpointError, PlanError, SchemaError, SlotsMissing, TaskLost
from weir.ids import AttemptId, Uid
from weir.operators.base import InlinePart, OperatorContext
from weir.operators.source import DriverContext, SourceReader
from weir.runtime.spark.session import slots

ROWS = 40_000
PARTITIONS = 5


class Run:
    """One job over a source: its driver's hooks, and attempts at reading it."""

    def __init__(self, source: DataFrameSource, session: Any, *, parallelism: int, **more: Any) -> None:
        self.source = source
        self.parallelism = parallelism
        options = {"slots": parallelism, "directory": None, "resume": False, **more}
        self.driver = DriverContext(session=session, name="numbers", parallelism=parallelism, **options)
        source.on_driver_start(self.driver)
        self.readers: list[SourceReader] = []

    def attempt(self, number: int, restored: list[InlinePart] | None = None) -> list[SourceReader]:
        self.close_readers()
        for index in range(self.parallelism):
            reader = self.source.reader()
            self.readers.append(reader)
            context = OperatorContext("job", Uid("u"), "numbers", index, self.parallelism, 128, AttemptId(number))
            reader.open(context, restored)
        return self.readers

    def positions(self) -> list[InlinePart]:
        return [
            InlinePart(index, self.parallelism, json.loads(json.dumps(reader.position())))
            for index, reader in enumerate(self.readers)
        ]

    def read(self, rows_least: int | None = None, within_s: float = 60) -> list[pa.RecordBatch]:
        """Everything, or until at least so many rows are there."""
        batches: list[pa.RecordBatch] = []
        deadline_s = time.monotonic() + within_s
        while not all(reader.finished for reader in self.readers):
            assert time.monotonic() < deadline_s
            for reader in self.readers:
                if (batch := reader.poll(1_000)) is not None:
                    batches.append(batch)
            if rows_least is not None and sum(batch.num_rows for batch in batches) >= rows_least:
                break
        return batches

    def close_readers(self) -> None:
        while self.readers:
            self.readers.pop().close()

    def stop(self) -> None:
        self.close_readers()
        self.source.on_driver_stop()


@pytest.fixture
def start(embedded: Any) -> Iterator[Callable[..., Run]]:
    runs: list[Run] = []

    def make(frame: Any, parallelism: int = 2, **more: Any) -> Run:
        runs.append(Run(DataFrameSource(frame), embedded, parallelism=parallelism, **more))
        return runs[-1]

    yield make
    for run in runs:
        run.stop()


@pytest.fixture(scope="module")
def numbers(embedded: Any, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A parquet table of ROWS rows in PARTITIONS files."""
    path = str(tmp_path_factory.mktemp("numbers") / "table")
    columns = ("id as n", "id % 7 as k", "cast(id as string) as text")
    embedded.range(0, ROWS, 1, PARTITIONS).selectExpr(*columns).write.parquet(path)
    return path


def column(batches: list[pa.RecordBatch], name: str = "n") -> list[Any]:
    return [value for batch in batches for value in batch.column(name).to_pylist()]


# --- Rows ---------------------------------------------------------------------------------------------


def test_a_filtered_scan_flows_directly_and_every_row_comes_once(
    embedded: Any, numbers: str, start: Callable[..., Run]
) -> None:
    run = start(embedded.read.parquet(numbers).where("k = 3").select("text", "n"))
    run.attempt(1)
    batches = run.read()
    assert sorted(column(batches)) == list(range(3, ROWS, 7))
    assert column(batches, "text") == [str(n) for n in column(batches)]
    assert batches[0].schema == pa.schema([("text", pa.string()), ("n", pa.int64())])
    assert run.source._temporary is None
    assert max(batch.num_rows for batch in batches) == 1_000  # what was asked for, though it came in larger ones


def test_a_restored_attempt_goes_on_at_another_parallelism_without_loss_or_repeat(
    embedded: Any, numbers: str, start: Callable[..., Run]
) -> None:
    frame = embedded.read.parquet(numbers)
    first = start(frame, parallelism=2)
    first.attempt(1)
    before = first.read(rows_least=ROWS // 3)
    positions = first.positions()
    first.read(rows_least=2_000)  # handed out after the checkpoint: void
    first.stop()
    assert 0 < sum(batch.num_rows for batch in before) < ROWS
    second = start(frame, parallelism=1, resume=True)
    second.attempt(2, positions)
    assert sorted(column(before) + column(second.read())) == list(range(ROWS))


def test_the_next_attempt_of_the_same_job_goes_on_while_the_old_spark_job_may_linger(
    embedded: Any, numbers: str, start: Callable[..., Run]
) -> None:
    run = start(embedded.read.parquet(numbers))
    got: list[int] = []
    positions: list[InlinePart] | None = None
    for attempt in (1, 2, 3):
        run.attempt(attempt, positions)
        got += column(run.read(rows_least=ROWS // 5))
        positions = run.positions()
    run.attempt(4, positions)
    assert sorted(got + column(run.read())) == list(range(ROWS))


def test_a_plan_that_may_change_its_mind_is_copied_first_and_the_copy_is_removed(
    embedded: Any, numbers: str, start: Callable[..., Run]
) -> None:
    run = start(embedded.read.parquet(numbers).selectExpr("n", "rand() as r").orderBy("r"))
    assert run.source._temporary is not None
    copy = run.source._temporary.path
    assert os.listdir(copy)
    run.attempt(1)
    before = run.read(rows_least=ROWS // 3)
    run.attempt(2, run.positions())
    after = run.read()
    assert sorted(column(before + after)) == list(range(ROWS))
    run.stop()
    assert not os.path.exists(copy)


def test_a_resumed_job_finds_the_copy_of_the_run_before(
    embedded: Any, numbers: str, start: Callable[..., Run], tmp_path: Path
) -> None:
    frame = embedded.read.parquet(numbers).groupBy("k").count().withColumnRenamed("count", "how many, really")
    directory = (tmp_path / "a job").as_uri() + "/u%25"
    first = start(frame, directory=directory)
    first.attempt(1)
    before = first.read(rows_least=1)
    positions = first.positions()
    first.stop()
    assert sorted(path.name for path in (tmp_path / "a job" / "u%").iterdir()) == ["complete.json", "rows"]
    second = start(frame, directory=directory, resume=True)
    second.attempt(2, positions)
    rows = before + second.read()
    assert sorted(column(rows, "k")) == list(range(7))
    assert sum(column(rows, "how many, really")) == ROWS


def test_every_type_keeps_its_values(embedded: Any, start: Callable[..., Run]) -> None:
    sql = """select * from values
        (true, 1Y, 2S, 3, 4L, 1.5F, 2.5D, 12.34BD, 'x', X'01', date'2020-01-02', timestamp'2020-01-02 03:04:05Z',
         timestamp_ntz'2020-01-02 03:04:05', array(1, null), map('a', 1L),
         named_struct('odd name', array(date'2020-01-01'))),
        (null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null)
        as t(a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p)"""
    embedded.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    try:
        run = start(embedded.sql(sql), parallelism=1)
        run.attempt(1)
        table = pa.Table.from_batches(run.read())
    finally:
        embedded.conf.unset("spark.sql.session.timeZone")
    instant = datetime(2020, 1, 2, 3, 4, 5)
    expected = [True, 1, 2, 3, 4, 1.5, 2.5, Decimal("12.34"), "x", b"\x01", date(2020, 1, 2)]
    expected += [instant.replace(tzinfo=timezone.utc), instant, [1, None], [("a", 1)], {"odd name": [date(2020, 1, 1)]}]
    rows = sorted(table.to_pylist(), key=lambda row: row["a"] is None)
    assert list(rows[0].values()) == expected
    assert set(rows[1].values()) == {None}
    assert table.schema.field("l").type == pa.timestamp("us", "UTC")


# --- What may be replayed -----------------------------------------------------------------------------


def test_which_plans_may_be_computed_again(embedded: Any, numbers: str) -> None:
    from pyspark.sql.functions import udf

    table = embedded.read.parquet(numbers)
    yes = {
        "scan": table,
        "filter": table.where("k > 2 and text like '1%'").select("n"),
        "range": embedded.range(0, 10, 1, 2).selectExpr("id * 2 as x"),
        "values": embedded.sql("select * from values (1), (2) as t(a)"),
        "text": embedded.read.text(numbers.replace("table", "")),
    }
    no = {
        "random": table.selectExpr("rand() as r"),
        "moment": table.where("current_timestamp() > timestamp'2020-01-01'"),
        "udf": table.select(udf(lambda n: n, "long")("n")),
        "sort": table.orderBy("n"),
        "limit": table.limit(10),
        "shuffle": table.repartition(3),
        "aggregate": table.groupBy("k").count(),
        "join": table.join(table.withColumnRenamed("n", "m"), "k"),
        "sample": table.sample(0.5),
        "subquery": table.where("n > (select avg(id) from range(10))"),
        "python": table.mapInArrow(lambda batches: batches, table.schema),
    }
    assert {name: is_replayable(frame) for name, frame in (yes | no).items()} == {
        **dict.fromkeys(yes, True),
        **dict.fromkeys(no, False),
    }


def test_the_fingerprint_follows_the_query_and_the_files_and_nothing_else(embedded: Any, tmp_path: Path) -> None:
    path = str(tmp_path / "table")
    embedded.range(0, 1_000, 1, 3).write.parquet(path)

    def of(condition: str = "id > 5") -> str | None:
        return fingerprint(embedded.read.parquet(path).where(condition))

    first = of()
    assert first is not None and of() == first
    assert of("id > 6") != first
    assert [embedded.conf.get(name, None) for name in PLANNING] == [None, None]
    embedded.range(5).write.mode("append").parquet(path)
    assert of() != first


def test_changed_files_are_refused_on_restore(embedded: Any, start: Callable[..., Run], tmp_path: Path) -> None:
    path = str(tmp_path / "table")
    embedded.range(0, 1_000, 1, 3).write.parquet(path)
    first = start(embedded.read.parquet(path), parallelism=1)
    first.attempt(1)
    first.read(rows_least=10)
    positions = first.positions()
    first.stop()
    embedded.range(5).write.mode("append").parquet(path)
    second = start(embedded.read.parquet(path), parallelism=1, resume=True)
    with pytest.raises(
        CheckpointError, match="numbers: the DataFrame is not the one that the checkpoint was taken from"
    ):
        second.attempt(2, positions)


# --- What goes wrong ----------------------------------------------------------------------------------


def test_a_plan_that_fails_says_why_at_the_reader(embedded: Any, numbers: str, start: Callable[..., Run]) -> None:
    run = start(
        embedded.read.parquet(numbers).selectExpr("n", "if(n = 39999, raise_error('row 39999 is bad'), 1) as x")
    )
    run.attempt(1)
    with pytest.raises(TaskLost, match=r"numbers: Spark could not compute(.|\n)*row 39999 is bad") as caught:
        run.read()
    assert "\tat " not in str(caught.value)


def test_stopping_in_the_middle_ends_the_spark_job(embedded: Any, numbers: str, start: Callable[..., Run]) -> None:
    run = start(embedded.read.parquet(numbers))
    run.attempt(1)
    run.read(rows_least=1)
    tracker = embedded.sparkContext.statusTracker()
    assert tracker.getActiveJobsIds()
    run.stop()
    poll(lambda: not tracker.getActiveJobsIds())


def test_without_a_slot_to_spare_the_error_says_so(embedded: Any, numbers: str, start: Callable[..., Run]) -> None:
    taken = slots(embedded)
    with pytest.raises(SlotsMissing, match=f"at least one slot beside the job's {taken}.*1 missing"):
        start(embedded.read.parquet(numbers), slots=taken)


def test_streams_and_unreadable_schemas_are_refused_where_they_are_written(embedded: Any) -> None:
    with pytest.raises(PlanError, match="is a stream"):
        DataFrameSource(embedded.readStream.format("rate").load())
    with pytest.raises(PlanError, match="expected a Spark DataFrame, found list"):
        DataFrameSource([1])  # type: ignore[arg-type]
    with pytest.raises(SchemaError, match="column 'id' is there twice"):
        DataFrameSource(embedded.range(1).selectExpr("id", "id"))
    with pytest.raises(SchemaError, match="column 'i' has type interval"):
        arrow_schema(embedded.sql("select interval 3 days as i").schema)


def test_a_source_travels_without_its_dataframe(embedded: Any, numbers: str, start: Callable[..., Run]) -> None:
    from pyspark import cloudpickle

    run = start(embedded.read.parquet(numbers), parallelism=1)
    run.source = cloudpickle.loads(cloudpickle.dumps(run.source))
    run.attempt(1)
    assert len(column(run.read())) == ROWS
