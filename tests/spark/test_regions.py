"""Two pipelines in one job: killing a worker of one leaves the other alone, and both lose and repeat nothing."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

import weir
from tests.conftest import poll
from tests.spark.helpers import check_plain, kill, notices_of, numbers, open_gate, slow_settings
from weir import connectors as io
from weir.errors import SlotsMissing
from weir.runtime.driver.notices import AttemptFailed, AttemptRunning, CheckpointSucceeded
from weir.runtime.spark.session import slots

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into /proc")

PATIENCE_S = 120.0
ROWS = 20_000


def two_pipelines(embedded: Any, directory: Path, **settings: Any) -> weir.Environment:
    env = weir.Environment(
        embedded,
        parallelism=1,
        checkpoints=weir.Checkpoints(every="100ms", to=str(directory / "checkpoints")),
        restart=weir.FixedDelay(attempts=5, delay="100ms"),
        settings=slow_settings(**settings),
    )
    for name in ("left", "right"):
        stream = numbers(env, directory, ROWS, uid=f"{name}-numbers")
        stream.select("n", uid=f"{name}-n").write(io.FileSink(directory / name, "jsonl"), uid=name)
    return env


def test_a_killed_worker_restarts_its_own_region_only(embedded: Any, tmp_path: Path) -> None:
    job = two_pipelines(embedded, tmp_path).submit("two-regions")
    try:
        poll(lambda: notices_of(job, CheckpointSucceeded) or job.error, PATIENCE_S)
        left, right = job.process_ids
        assert kill(right)
        poll(lambda: notices_of(job, AttemptFailed) or job.error, PATIENCE_S)
        poll(lambda: len(notices_of(job, AttemptRunning)) == 3 or job.error, PATIENCE_S)
        assert [notice.region for notice in notices_of(job, AttemptFailed)] == [1]
        assert job.process_ids[0] == left
        assert job.process_ids[1] != right
        before = len(notices_of(job, CheckpointSucceeded))
        poll(lambda: len(notices_of(job, CheckpointSucceeded)) > before or job.error, PATIENCE_S)
        open_gate(tmp_path)
        assert job.wait(PATIENCE_S) == "finished"
    finally:
        job.cancel()
    check_plain(tmp_path / "left", ROWS)
    check_plain(tmp_path / "right", ROWS)
    assert job.metrics()["restarts"] == 1


def test_regions_need_slots_of_their_own_unless_they_share_them(embedded: Any, tmp_path: Path) -> None:
    there = slots(embedded)
    assert there is not None
    many = [f"p{i}" for i in range(there + 1)]
    env = weir.Environment(embedded, parallelism=1)
    for name in many:
        env.from_collection([(1,)], "n long", uid=name).write(io.Discard(), uid=f"{name}-out")
    with pytest.raises(SlotsMissing, match="share_slots=True"):
        env.submit("too-many-regions")
    shared = weir.Environment(embedded, parallelism=1, settings=weir.Settings(share_slots=True))
    for name in many:
        shared.from_collection([(1,)], "n long", uid=name).write(io.Discard(), uid=f"{name}-out")
    assert shared.submit("shared").wait(PATIENCE_S) == "finished"
