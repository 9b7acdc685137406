"""The windowed benchmarks' answers: what they call true is what a plain computation says."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

import weir
from weir import connectors
from weir.bench import window_data
from weir.bench.keyed_data import Numbers
from weir.bench.window_data import TimedRows
from weir.testing import collect_local

EVENTS = 3_000
ROWS = TimedRows(20_000)


def frame() -> pl.DataFrame:
    keys, times = ROWS.columns(np.arange(EVENTS))
    return pl.DataFrame({"key": keys % 50, "ts": times}).with_columns(pl.col("ts").cast(pl.Datetime("us")))


def few_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    original = window_data.keys_and_values
    monkeypatch.setattr(
        window_data, "keys_and_values", lambda numbers: (original(numbers)[0] % 50, original(numbers)[1])
    )


def found(windows: object) -> Numbers:
    stream = weir.Environment(parallelism=1).read(connectors.Collection(frame()), uid="rows")
    stream = stream.with_watermarks(weir.bounded_disorder("ts", "1s"))
    table = collect_local(stream.key_by("key").window(windows).agg(n=weir.count()))  # type: ignore[arg-type]
    results = window_data.ResultDigests()
    for batch in table.to_batches():
        results.add(batch, 0)
    return results.take()["sums"]


def test_the_true_windows_are_those_of_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    few_keys(monkeypatch)
    true = window_data.true_windows(EVENTS, ROWS, size_us=10_000_000, slide_us=10_000_000)
    assert np.array_equal(true, found(weir.tumbling("10s")))
    assert true[2] == EVENTS
    true = window_data.true_windows(EVENTS, ROWS, size_us=30_000_000, slide_us=10_000_000)
    assert np.array_equal(true, found(weir.sliding("30s", "10s")))
    assert true[2] == 3 * EVENTS


def test_the_true_sessions_are_those_of_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    few_keys(monkeypatch)
    true = window_data.true_sessions(EVENTS, ROWS, gap_us=2_000_000)
    assert true[1] > 100
    assert np.array_equal(true, found(weir.session("2s")))


def test_a_digest_tells_results_apart() -> None:
    one = np.array([1, 2, 3, 4])
    digests = window_data.digest(one, one + 10, one + 20, one + 30)
    for changed in range(4):
        columns = [one, one + 10, one + 20, one + 30]
        columns[changed] = columns[changed] + 1
        assert window_data.digest(*columns).sum() != digests.sum()
