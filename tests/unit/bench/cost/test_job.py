"""The job of the comparison: every probe comes out, none of the bulk does, and all of it can be sent to tasks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
from pyspark import cloudpickle

import weir
from weir.bench.cost import job as cost
from weir.bench.cost.job import PROBES_PER_S, Probes
from weir.bench.epochs import FoldSink, read_epochs
from weir.bench.state.kinds import BatchEntries
from weir.bench.state.valve import Valve
from weir.testing import run_local

ROWS = 500


def test_probes_come_out_with_the_time_at_which_they_were_made(tmp_path: Path) -> None:
    env = weir.Environment(parallelism=2)
    bulk, probes = cost.sources(BatchEntries(ROWS), ROWS)
    cost.lay(env, bulk, probes, FoldSink(tmp_path, Probes))
    run_local(env, real_sinks=True)
    arrays = [epoch.arrays for epoch in read_epochs(tmp_path)]
    made_ns, came_ns = (np.concatenate([each[name] for each in arrays]) for name in ("made_ns", "came_ns"))
    assert len(made_ns) == ROWS
    assert (came_ns >= made_ns).all() and made_ns.min() > 0
    assert (made_ns.max() - made_ns.min()) / 1e9 < 10 * ROWS / PROBES_PER_S


def test_the_bulk_fills_every_key_once(tmp_path: Path) -> None:
    bulk, _ = cost.sources(BatchEntries(ROWS), ROWS)
    rows = pa.Table.from_batches([cost.bulk_rows(np.arange(ROWS), kind=BatchEntries(ROWS))])
    assert sorted(rows["key"].to_pylist()) == list(range(ROWS))
    assert rows.schema.equals(bulk.schema)


def test_sources_and_sink_travel_to_the_tasks(tmp_path: Path) -> None:
    for source in cost.sources(BatchEntries(ROWS)):
        assert cloudpickle.loads(cloudpickle.dumps(Valve(source, tmp_path))).schema == source.schema
    cloudpickle.dumps(FoldSink(tmp_path, Probes))
