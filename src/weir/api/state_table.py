"""State as a table: what a checkpoint or savepoint holds, as Spark DataFrames and as a listing.

Comes in: the location of a checkpoint or savepoint. Goes out: DataFrames that Spark's
tasks read, one for each old subtask's key groups; and what there is, with schemas and
sizes. Reads only, and never unpickles anything.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from weir.errors import CheckpointError
from weir.ids import Uid
from weir.operators.base import key_group_range
from weir.runtime.driver.compatibility import stored_schema
from weir.runtime.storage.opening import open_storage
from weir.runtime.storage.savepoints import origin_at
from weir.runtime.storage.state_files import CheckpointFiles
from weir.snapshot.manifest import Manifest, OperatorSnapshot
from weir.state.frozen import KEY_GROUP_COLUMN, RestoredPart, RestoredParts

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_SHOWN_AS = {KEY_GROUP_COLUMN: "key_group", "__touched_ms": "touched_ms"}
"""Columns that have another name in state files."""


@dataclass(frozen=True)
class StateSummary:
    """One state of one operator in a checkpoint."""

    uid: str
    state: str
    format: str
    parallelism: int
    schema: pa.Schema
    rows: int
    """One for each key, or for each entry of a map."""
    bytes: int


def read(spark: SparkSession, checkpoint: str | os.PathLike[str], *, uid: str, state: str | None = None) -> DataFrame:
    """The state of an operator as a DataFrame: key_group, the key columns, and the values.

    checkpoint:  the directory of a savepoint, or of a checkpoint (`…/chk-0000000012`)
    uid:         the operator
    state:       the name of the state; may be left out where the operator has one only

    Spark reads the parts of the old subtasks in parallel.
    """
    origin = origin_at(os.fspath(checkpoint))
    manifest = origin.read(origin.open(open_storage))
    operator = _operator(manifest, uid, origin.location)
    chosen = _state(operator, uid, state)
    root, count, max_parallelism = origin.root, len(operator.parts), manifest.max_parallelism
    schema = _shown(stored_schema(operator, chosen, CheckpointFiles(origin.open(open_storage)), max_parallelism))

    def tables(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        files = CheckpointFiles(open_storage(root, create=False))
        for batch in batches:
            for index in batch.column(0).to_pylist():
                for table in _part_tables(operator, index, chosen, files=files, max_parallelism=max_parallelism):
                    yield from table.rename_columns(schema.names).cast(schema).to_batches()

    from pyspark.sql.pandas.types import from_arrow_schema

    # Not above: the daemon that forks Spark's workers is run as a module, and must not be imported before.
    from weir.runtime.spark.stage import map_in_arrow

    return map_in_arrow(spark.range(count, numPartitions=count), tables, from_arrow_schema(schema))


def state_tables(checkpoint: str | os.PathLike[str], *, uid: str, state: str | None = None) -> Iterator[pa.Table]:
    """The same in this process, as Arrow tables in the form of state files."""
    origin = origin_at(os.fspath(checkpoint))
    storage = origin.open(open_storage)
    manifest = origin.read(storage)
    operator = _operator(manifest, uid, origin.location)
    chosen, files = _state(operator, uid, state), CheckpointFiles(storage)
    for index in range(len(operator.parts)):
        yield from _part_tables(operator, index, chosen, files=files, max_parallelism=manifest.max_parallelism)


def describe(checkpoint: str | os.PathLike[str]) -> list[StateSummary]:
    """Every state that a checkpoint or savepoint holds. Reads the state to count its rows."""
    origin = origin_at(os.fspath(checkpoint))
    storage = origin.open(open_storage)
    manifest = origin.read(storage)
    files = CheckpointFiles(storage)
    found = []
    for uid, operator in manifest.operators.items():
        for state in sorted({name for part in operator.parts for name in part.states}):
            held = [part.states[state] for part in operator.parts if state in part.states]
            of_part = (
                _part_tables(operator, index, state, files=files, max_parallelism=manifest.max_parallelism)
                for index in range(len(operator.parts))
            )
            tables = [(table.schema, table.num_rows) for tables in of_part for table in tables]
            summary = StateSummary(
                uid=uid,
                state=state,
                format=held[0].format,
                parallelism=operator.parallelism,
                schema=_shown(tables[0][0]),
                rows=sum(rows for _, rows in tables),
                bytes=sum(file.length_bytes for part in held for file in part.files.values()),
            )
            found.append(summary)
    return found


def _operator(manifest: Manifest, uid: str, location: str) -> OperatorSnapshot:
    operator = manifest.operators.get(Uid(uid))
    if operator is None:
        known = ", ".join(sorted(manifest.operators)) or "none"
        raise CheckpointError(f"{location} has no operator with the uid {uid!r}; there are: {known}")
    return operator


def _state(operator: OperatorSnapshot, uid: str, state: str | None) -> str:
    known = sorted({name for part in operator.parts for name in part.states})
    if not known:
        raise CheckpointError(f"operator {uid!r} has no state in this checkpoint")
    if state is None and len(known) == 1:
        return known[0]
    if state not in known:
        asked = "name one with state=" if state is None else f"there is no {state!r}"
        raise CheckpointError(f"operator {uid!r} has the states {', '.join(known)}: {asked}")
    return state


def _part_tables(
    operator: OperatorSnapshot, index: int, state: str, *, files: CheckpointFiles, max_parallelism: int
) -> Iterator[pa.Table]:
    part = operator.parts[index]
    if state in part.states:
        held = key_group_range(part.index, operator.parallelism, max_parallelism)
        yield from RestoredParts([RestoredPart(part.states[state], held, files)], held).tables()


def _shown(schema: pa.Schema) -> pa.Schema:
    """Column names as users see them, in types that Spark knows."""
    names = [_SHOWN_AS.get(name, name) for name in schema.names]
    return pa.schema([pa.field(name, _spark_type(kind)) for name, kind in zip(names, schema.types, strict=True)])


def _spark_type(kind: pa.DataType) -> pa.DataType:
    types = pa.types
    if types.is_unsigned_integer(kind):
        wider: dict[int, Any] = {8: pa.int16(), 16: pa.int32(), 32: pa.int64(), 64: pa.decimal128(20, 0)}
        return wider[kind.bit_width]
    if types.is_float16(kind):
        return pa.float32()
    if types.is_timestamp(kind):
        return pa.timestamp("us", kind.tz)
    return kind
