"""Committed rows come back to the driver, and the temporary directory goes."""

from __future__ import annotations

import gc
import os
import pickle
from pathlib import Path

from tests.contract.sinks import SCHEMA, adopted, context, grant, owner, rows
from weir.connectors import Collect
from weir.ids import CheckpointId


def run(sink: Collect, *numbers: int) -> None:
    copy = pickle.loads(pickle.dumps(sink))
    writer = copy.writer()
    writer.open(context(), None)
    writer.write(rows(*numbers))
    writer.commit(grant(1), [writer.prepare(CheckpointId(1))()])
    writer.close()
    del copy, writer
    gc.collect()


def test_only_committed_rows_come_back_with_their_types() -> None:
    sink = Collect()
    sink.check(SCHEMA, "out")
    adopted(sink, owner())
    assert sink.result().equals(SCHEMA.empty_table())
    run(sink, 1, 2)
    assert sink.result().schema == SCHEMA
    assert sink.result()["n"].to_pylist() == [1, 2]


def test_the_temporary_directory_goes_with_the_object_and_a_copy_does_not_take_it() -> None:
    sink = Collect()
    path = sink.path
    assert not os.path.exists(path), "nothing happens before the job starts"
    adopted(sink, owner())
    run(sink, 1)
    assert os.path.exists(path)
    del sink
    gc.collect()
    assert not os.path.exists(path)


def test_nobody_else_may_look_into_the_temporary_directory() -> None:
    sink = Collect()
    for _ in range(2):  # the same object may be used again
        sink.validate(owner())
        assert Path(sink.path).stat().st_mode & 0o777 == 0o700
        sink.discard()
        assert not Path(sink.path).exists()


def test_a_directory_of_the_users_own_stays_until_discarded(tmp_path: Path) -> None:
    sink = Collect(tmp_path / "rows")
    adopted(sink, owner())
    run(sink, 1)
    sink.discard()
    assert list((tmp_path / "rows").iterdir()) == []
