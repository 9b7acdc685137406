"""A job on rocksdb whose tasks are killed: every row counts once, from local copies, and no directory is left."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import weir
from tests.conftest import poll
from tests.spark.helpers import KEYS, committed_rows, kill, notices_of, numbers, open_gate, slow_settings
from weir import connectors as io
from weir.runtime.driver.notices import CheckpointSucceeded

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into /proc")

PATIENCE_S = 120.0
ROWS = 60_000


class Counted(weir.ProcessFunction):
    count = weir.ValueState("long", default=0)
    by_digit = weir.MapState("long", "long", default=0)

    def process(self, row: Any, context: Any) -> Any:
        self.count.set(self.count.get() + 1)
        self.by_digit.put(row.n % 10, self.by_digit.get(row.n % 10) + 1)
        yield (row.key, self.count.get(), self.by_digit.get(row.n % 10))


def test_a_job_on_rocksdb_survives_kills_and_leaves_no_directory(embedded: Any, tmp_path: Path) -> None:
    local = tmp_path / "local"
    local.mkdir()
    env = weir.Environment(
        embedded,
        parallelism=2,
        checkpoints=weir.Checkpoints(every="200ms", to=str(tmp_path / "checkpoints")),
        restart=weir.FixedDelay(10, "20ms"),
        settings=slow_settings(backend=weir.RocksDb("32MB", directory=str(local)), local_recovery=True),
    )
    counted = numbers(env, tmp_path, ROWS).key_by("key").process(Counted(), "key long, n long, d long", uid="counted")
    counted.write(io.FileSink(tmp_path / "out", "jsonl"), uid="out")
    job = env.submit("rocks")
    try:
        for _ in range(2):
            before = len(notices_of(job, CheckpointSucceeded))
            poll(lambda: len(notices_of(job, CheckpointSucceeded)) >= before + 3 or job.error, PATIENCE_S)  # noqa: B023
            assert job.error is None
            (run,) = local.glob("weir-*/rocks-*")
            copies = [path for path in (run / "copies").rglob("*") if path.suffix == ".sst"]
            assert copies and len(list(run.glob("*-0"))) == 1
            processes = job.process_ids
            assert kill(processes[0])
            poll(lambda: job.status == "running" and job.process_ids != processes, PATIENCE_S)  # noqa: B023
        open_gate(tmp_path)
        assert job.wait(timeout=PATIENCE_S) == "finished"
    finally:
        job.cancel()
    found = Counter((row["key"], row["n"]) for row in committed_rows(tmp_path / "out"))
    sizes = Counter(n % KEYS for n in range(ROWS))
    assert found == Counter((key, n) for key in sizes for n in range(1, sizes[key] + 1))
    poll(lambda: not list(local.glob("weir-*/*")), PATIENCE_S)
