"""Each workload, small, on one shared Spark: it runs, and it finds its own result right, or wrong when it is."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

import weir
from weir.bench import keyed_data
from weir.bench.checkpoint_cost import run_checkpoint_cost
from weir.bench.cost import comparison
from weir.bench.cost.comparison import METHODS, read_csv, run_comparison
from weir.bench.filtering import run_filter
from weir.bench.harness import BenchOptions, BenchReport
from weir.bench.interval_join import run_interval_join
from weir.bench.keyed import run_keyed_batches, run_keyed_process, run_keyed_sum
from weir.bench.latency import run_latency
from weir.bench.nexmark.answers import ANSWERS, Answer
from weir.bench.nexmark.workload import run_nexmark
from weir.bench.recovery import run_recovery
from weir.bench.soak import run_soak
from weir.bench.state import workloads as state_workloads
from weir.bench.state.job import StateOptions
from weir.bench.state.timed import OpenSessions
from weir.bench.state.workloads import run_incremental, run_pause, run_restore, run_updates
from weir.bench.windows import run_session, run_sliding, run_window

REQUIRED = {"workload", "events", "seconds", "events_per_s", "checkpoints", "verified"}


@pytest.mark.parametrize(
    "workload",
    [
        run_filter,
        run_keyed_sum,
        run_keyed_process,
        run_keyed_batches,
        run_interval_join,
        run_window,
        run_sliding,
        run_session,
    ],
    ids=lambda run: run.__name__,
)
def test_a_throughput_workload_verifies_itself(
    workload: Callable[[BenchOptions], BenchReport], embedded: Any, tmp_path: Path
) -> None:
    report = workload(BenchOptions(events=300_000, checkpoint_every="100ms", work=str(tmp_path)))
    assert report.verified, report
    assert report.checkpoints >= 1
    values = json.loads(report.as_json())
    assert values.keys() >= REQUIRED
    assert values["seconds"] == pytest.approx(300_000 / values["events_per_s"], abs=0.0006), "rounded to milliseconds"
    assert list(tmp_path.iterdir()) == [], "nothing is left behind"


def test_sums_by_many_string_keys_verify_themselves(embedded: Any, tmp_path: Path) -> None:
    options = BenchOptions(events=300_000, checkpoint_every="100ms", work=str(tmp_path))
    report = run_keyed_sum(options, keyed_data.keys_of("string", 1_000_000))
    assert report.verified, report
    assert report.more["keys"] == 1_000_000
    assert report.more["task_ns_per_event"] == pytest.approx(report.seconds * 2 / 300_000 * 1e9, rel=0.01)


def test_batches_are_compared_with_rows(embedded: Any, tmp_path: Path) -> None:
    report = run_keyed_batches(BenchOptions(events=300_000, work=str(tmp_path)), compare=True)
    assert report.verified and report.more["rows_out"] == 300_000
    assert report.more["times_process"] == pytest.approx(
        report.events_per_s / report.more["process_events_per_s"], rel=0.1
    )


def test_a_wrong_sum_is_noticed(embedded: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    true_sums = keyed_data.true_sums

    def off_by_one(events: int, count: int) -> Any:
        sums = np.array(true_sums(events, count))
        sums[42] += 1
        return sums

    monkeypatch.setattr(keyed_data, "true_sums", off_by_one)
    report = run_keyed_sum(BenchOptions(events=300_000))
    assert not report.verified
    assert report.more["wrong_keys"] == 1


def test_latency_is_measured_for_every_row(embedded: Any) -> None:
    report = run_latency(BenchOptions(events=20_000, checkpoint_every="200ms"))
    assert report.verified, report
    assert report.p50_ms is not None and report.p99_ms is not None
    assert 0 < report.p50_ms <= report.p99_ms < 5_000
    assert report.seconds >= 1.5, "the rate was kept"


def test_a_killed_worker_costs_time_and_no_rows(embedded: Any) -> None:
    report = run_recovery(BenchOptions(events=600_000, checkpoint_every="100ms"), kills=1)
    assert report.verified, report
    assert 0 < report.more["recovery_s"] < 30


def test_the_cost_of_checkpoints_is_a_ratio(embedded: Any) -> None:
    report = run_checkpoint_cost(BenchOptions(events=300_000), rounds=1)
    assert report.verified
    assert report.more["ratio_to_off"]["off"] == 1.0
    assert report.more["ratio_to_off"]["1s"] > 0


def test_methods_of_taking_checkpoints_of_state_are_compared_and_drawn(
    embedded: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("BASELINE_S", "EVERY_S", "WARM_UP_S"):
        monkeypatch.setattr(comparison, name, 0.5)
    plot = tmp_path / "cost.svg"
    report = run_comparison(BenchOptions(events=1), list(METHODS), [1_000_000], plot=plot)
    assert report.verified, report
    assert [cost.method for cost in read_csv(plot.with_suffix(".csv"))] == list(METHODS)
    for cost in report.more["costs"]:
        assert cost["rows_per_s"] > 0 and cost["pause_ms"] > 0 and cost["p99_ms"] > 0


@pytest.mark.parametrize("workload", ["keyed-sum", "interval-join"])
def test_the_soak_samples_memory_and_draws_it(workload: str, embedded: Any, tmp_path: Path) -> None:
    report = run_soak(BenchOptions(events=1, checkpoint_every="1s"), workload, minutes=0.06, plot=tmp_path / "soak.svg")
    assert report.events > 0
    assert f"{workload} at full speed" in (tmp_path / "soak.svg").read_text()
    assert min(report.more["rss_end_mb"].values()) > 20
    assert (tmp_path / "soak.svg").read_text().startswith("<svg")
    lines = (tmp_path / "soak.csv").read_text().splitlines()
    assert lines[0].startswith("seconds,rows,driver_rss_bytes,jvm_rss_bytes,workers_rss_bytes,local_disk_bytes")
    assert len(lines) >= 3


def test_the_soak_samples_what_state_takes_on_disk(embedded: Any, tmp_path: Path) -> None:
    options = BenchOptions(events=1, checkpoint_every="1s", memory_max="64MB")
    report = run_soak(options, "interval-join", minutes=0.1, plot=tmp_path / "soak.svg")
    assert report.more["disk_end_mb"]["local"] > 0 and report.more["disk_end_mb"]["checkpoints"] > 0


@pytest.mark.parametrize("query", ["q5", "q13", "q19"])
def test_a_nexmark_query_verifies_itself(query: str, embedded: Any, tmp_path: Path) -> None:
    report = run_nexmark(
        BenchOptions(events=200_000, checkpoint_every="100ms", work=str(tmp_path)), query, per_second=20_000
    )
    assert report.verified, report
    assert report.more["results"] == report.more["true_results"] > 0
    assert list(tmp_path.iterdir()) == [], "nothing is left behind"


def test_a_wrong_answer_to_a_nexmark_query_is_noticed(embedded: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    right = ANSWERS["q2"]
    wrong = Answer(lambda events: (piece.with_columns(pl.col("price") + 1) for piece in right.rows(events)))
    monkeypatch.setitem(ANSWERS, "q2", wrong)  # type: ignore[arg-type]
    report = run_nexmark(BenchOptions(events=50_000), "q2")
    assert not report.verified


@pytest.mark.parametrize("kind", ["agg", "window", "session", "join", "as-of", "timers", "process"])
def test_updates_of_each_kind_of_state_verify_themselves(kind: str, embedded: Any, tmp_path: Path) -> None:
    report = run_updates(StateOptions(10_000, kind=kind, work=str(tmp_path)), seconds=0.5)
    assert report.verified, report
    assert report.more["checkpoint_mb"] > 0 and report.more["worker_rss_max_mb"] > 20
    assert list(tmp_path.iterdir()) == [], "nothing is left behind"


def test_a_pause_is_told_apart_from_the_machines(embedded: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_workloads, "BASELINE_S", 1.0)
    monkeypatch.setattr(state_workloads, "AFTER_S", 1.0)
    report = run_pause(StateOptions(10_000, kind="join"))
    assert report.verified, report
    for when in ("before", "after"):
        assert 0 <= report.more[f"pause_max_{when}_beyond_ms"] <= report.more[f"pause_max_{when}_ms"] < 5_000
    assert report.more["events_per_s_before"] > 0


def test_a_share_of_join_rows_that_changed_is_uploaded(embedded: Any) -> None:
    report = run_incremental(StateOptions(50_000, kind="join", backend=weir.RocksDb()), share=0.01)
    assert report.verified, report
    assert 0 < report.more["ratio"] < 0.5


def test_a_state_job_that_is_killed_restores_and_comes_to_the_known_answer(embedded: Any) -> None:
    report = run_restore(StateOptions(10_000, kind="session"))
    assert report.verified, report
    assert 0 < report.more["kill_to_running_s"] < 30


def test_results_of_a_state_job_that_are_wrong_are_noticed(embedded: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    answer = OpenSessions.answer
    monkeypatch.setattr(OpenSessions, "answer", lambda self, given: answer(self, given) + np.array([1, 0, 0]))
    report = run_updates(StateOptions(10_000, kind="session"), seconds=0.2)
    assert not report.verified and report.more["wrong"] == 1
