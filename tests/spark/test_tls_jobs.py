"""Whole jobs with TLS on: rows, checkpoints in the driver's memory, a DataFrame's rows, a kill in between."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import weir
from tests.conftest import poll
from tests.spark.helpers import build_job, check_output, kill, notices_of, open_gate, slow_settings
from weir.bench.encrypted import run_with_tls
from weir.bench.harness import BenchOptions
from weir.bench.keyed import run_keyed_sum
from weir.bench.latency import run_latency
from weir.runtime.driver.notices import AttemptRunning

ROWS = 40_000
PATIENCE_S = 60.0


def test_a_job_with_tls_and_checkpoints_in_memory_survives_a_kill(embedded: Any, tmp_path: Path) -> None:
    env = weir.Environment(
        embedded,
        parallelism=2,
        checkpoints=weir.Checkpoints(every="100ms"),
        restart=weir.FixedDelay(3, "100ms"),
        settings=slow_settings(tls=True),
    )
    build_job(env, tmp_path, rows=ROWS)
    job: Any = env.submit("encrypted")
    poll(lambda: len(job.checkpoints()) >= 2, PATIENCE_S)
    assert kill(job.process_ids[1])
    poll(lambda: len(notices_of(job, AttemptRunning)) == 2, PATIENCE_S)
    open_gate(tmp_path)
    assert job.wait(PATIENCE_S) == "finished"
    check_output(tmp_path, ROWS)


def test_the_rows_of_a_dataframe_come_through_tls(embedded: Any) -> None:
    env = weir.Environment(embedded, parallelism=2, settings=weir.Settings(tls=True))
    found = env.from_dataframe(embedded.range(0, 1_000, 1, 5), uid="rows").collect()
    assert sorted(found.column("id").to_pylist()) == list(range(1_000))


def test_the_bench_tells_what_tls_costs(embedded: Any, tmp_path: Path) -> None:
    report = run_with_tls(run_keyed_sum, BenchOptions(events=300_000, checkpoint_every="100ms", work=str(tmp_path)))
    assert report.verified and report.p50_ms is None
    assert report.more["tls_rate_ratio"] == round(report.events_per_s / report.more["plain_events_per_s"], 3)
    report = run_with_tls(lambda given: run_latency(given, 20_000), BenchOptions(events=20_000, work=str(tmp_path)))
    assert report.verified and report.p50_ms is not None
    assert {"plain_p50_ms", "plain_p99_ms", "tls_p50_ms_ratio", "tls_p99_ms_ratio"} <= report.more.keys()
