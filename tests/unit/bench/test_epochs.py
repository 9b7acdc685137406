"""The benchmarks' sink keeps the rules of sinks: nothing shows before its commit, and then once."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pyarrow as pa

from tests.contract.sinks import grant, owner
from weir.bench.epochs import FoldSink, read_epochs
from weir.bench.keyed_data import LastSums
from weir.bench.plot import Series, line_plot
from weir.bench.soak import Sample, disk_bytes, growth_of
from weir.ids import AttemptId, CheckpointId, Uid
from weir.operators.base import OperatorContext
from weir.operators.sink import SinkWriter


def writer(directory: Path, attempt: int = 1) -> SinkWriter:
    sink = FoldSink(directory, LastSums)
    sink.validate(owner())
    made = sink.writer()
    made.open(OperatorContext("job", Uid("sink"), "sink", 0, 1, 128, AttemptId(attempt)), None)
    return made


def rows(*pairs: tuple[int, int]) -> pa.RecordBatch:
    keys, totals = zip(*pairs)
    return pa.record_batch([pa.array(keys, pa.int64()), pa.array(totals, pa.int64())], names=["key", "total"])


def test_an_epoch_shows_when_it_is_committed_and_not_before(tmp_path: Path) -> None:
    sink = writer(tmp_path)
    sink.write(rows((1, 5), (2, 6)))
    committable = sink.prepare(CheckpointId(1))()
    assert read_epochs(tmp_path) == []
    sink.commit(grant(1), [committable])
    (epoch,) = read_epochs(tmp_path)
    assert (epoch.checkpoint, epoch.subtask, epoch.attempt, epoch.rows) == (1, 0, 1, 2)
    assert epoch.arrays["last"][:4].tolist() == [-1, 5, 6, -1]
    assert epoch.last_row_ns <= epoch.committed_ns


def test_a_commit_may_be_repeated_also_by_a_later_attempt_and_keeps_its_first_time(tmp_path: Path) -> None:
    first = writer(tmp_path)
    first.write(rows((1, 5)))
    committable = first.prepare(CheckpointId(1))()
    first.commit(grant(1), [committable])
    (before,) = read_epochs(tmp_path)
    first.commit(grant(1), [committable])
    writer(tmp_path, attempt=2).commit(grant(1), [committable])
    (after,) = read_epochs(tmp_path)
    assert after.committed_ns == before.committed_ns


def test_an_epoch_without_rows_has_nothing_to_commit(tmp_path: Path) -> None:
    sink = writer(tmp_path)
    sink.write(rows((1, 5)))
    sink.prepare(CheckpointId(1))
    assert sink.prepare(CheckpointId(2))() is None
    sink.commit(grant(1), [None])
    assert read_epochs(tmp_path) == []


def test_the_next_epoch_begins_empty(tmp_path: Path) -> None:
    sink = writer(tmp_path)
    for checkpoint, key in ((1, 10), (2, 11)):
        sink.write(rows((key, 7)))
        sink.commit(grant(1), [sink.prepare(CheckpointId(checkpoint))()])
    second = read_epochs(tmp_path)[1]
    assert np.flatnonzero(second.arrays["last"] >= 0).tolist() == [11]
    assert second.rows == 1


def samples(sizes: list[int]) -> list[Sample]:
    return [Sample(float(second), second, size, 1, size) for second, size in enumerate(sizes)]


def test_growth_compares_the_end_with_the_time_after_the_warm_up() -> None:
    warming_up = [100] * 20 + [500] * 80
    assert growth_of(samples(warming_up), "workers") == 1.0
    assert growth_of(samples([100 + second for second in range(100)]), "driver") > 1.5


def test_a_plot_is_a_whole_svg_with_a_line_for_each_series() -> None:
    plot = line_plot(
        "a & b", [0.0, 1.0], [Series("driver", [1.0, 2.0]), Series("jvm", [3.0, 3.0])], x_label="x", y_label="y"
    )
    assert plot.startswith("<svg") and plot.rstrip().endswith("</svg>")
    assert plot.count("<polyline") == 2
    assert "a &amp; b" in plot


def test_a_file_takes_room_once_however_many_links_it_has(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "one").write_bytes(bytes(1_000))
    (tmp_path / "two").write_bytes(bytes(10))
    os.link(tmp_path / "state" / "one", tmp_path / "linked")
    assert disk_bytes(tmp_path) == 1_010
    assert disk_bytes(tmp_path / "none") == 0
