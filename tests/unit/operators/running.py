"""Runs an operator by hand: batches in, rows out, with a snapshot wherever a test wants one."""

from __future__ import annotations

import pickle
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from tests.states import as_restored, split_by_owner, table_of
from weir.config import RocksDb
from weir.ids import AttemptId, Uid
from weir.operators.base import KEY_GROUP_COLUMN, Operator, OperatorContext, OperatorSpec, Restored
from weir.state.place import StatePlace

Tables = Mapping[str, Sequence[pa.Table]]


def context(
    index: int = 0, parallelism: int = 1, max_parallelism: int = 128, *, place: StatePlace | None = None
) -> OperatorContext:
    where = (index, parallelism, max_parallelism)
    return OperatorContext("job", Uid("the-uid"), "the-name", *where, AttemptId(1), place=place or StatePlace())


def on_disk(directory: str, memory: str = "32KB") -> StatePlace:
    """A place where hardly anything may stay in memory; of its own, however often it is asked for."""
    return StatePlace(RocksDb(memory_max=memory), tempfile.mkdtemp(dir=directory))


def opened(spec: OperatorSpec, schema: pa.Schema) -> tuple[Operator, pa.Schema]:
    """A fresh instance of a spec that has travelled, as from the driver to a task."""
    output = spec.schema([schema])
    operator = pickle.loads(pickle.dumps(spec)).make() if picklable(spec) else spec.make()
    operator.open(context(), None)
    return operator, output


def picklable(spec: OperatorSpec) -> bool:
    try:
        pickle.dumps(spec)
    except Exception as error:
        # Local functions travel by cloudpickle, which is not what these tests are about.
        return not any(word in str(error) for word in ("lambda", "local", "cloudpickle"))
    return True


def run(spec: OperatorSpec, *batches: pa.RecordBatch) -> list[pa.RecordBatch]:
    """What comes out, batch by batch; each has exactly the schema that the spec promised."""
    operator, output = opened(spec, batches[0].schema)
    emitted: list[pa.RecordBatch] = []
    for batch in batches:
        operator.process(batch, emitted.append)
    operator.close()
    for result in emitted:
        result.validate(full=True)
        assert result.schema == output
        assert result.num_rows
    return emitted


def rows(batches: Iterable[pa.RecordBatch]) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for batch in batches for row in batch.to_pylist()]


def cut(batch: pa.RecordBatch, size: int) -> list[pa.RecordBatch]:
    return [batch.slice(start, size) for start in range(0, batch.num_rows, size)]


class KeyedRun:
    """Several subtasks of one keyed operator, as the engine would run them."""

    def __init__(
        self, spec: OperatorSpec, keys: Sequence[str], *, parallelism: int, tables: Tables | None = None
    ) -> None:
        self._keys = keys
        self._parallelism = parallelism
        self._subtasks = []
        for index in range(parallelism):
            subtask = spec.make()
            here = context(index, parallelism)
            subtask.open(
                here, None if tables is None else Restored(states=as_restored(_owned(tables, here.key_groups)))
            )
            self._subtasks.append(subtask)

    def process(self, batch: pa.RecordBatch) -> list[tuple[Any, ...]]:
        emitted: list[pa.RecordBatch] = []
        for owner, part in split_by_owner(batch, self._keys, parallelism=self._parallelism, max_parallelism=128):
            self._subtasks[owner].process(part, emitted.append)
        return rows(emitted)

    def freeze(self) -> Tables:
        frozen = [subtask.freeze().states for subtask in self._subtasks]
        return {name: [table_of(part[name]) for part in frozen] for name in frozen[0]}


def _owned(tables: Tables, groups: range) -> Tables:
    return {
        name: [
            table.filter([group in groups for group in table.column(KEY_GROUP_COLUMN).to_pylist()]) for table in parts
        ]
        for name, parts in tables.items()
    }
