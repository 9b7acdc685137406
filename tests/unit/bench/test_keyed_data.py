"""The benchmarks' data and their known answers, checked against plain Python."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pyarrow as pa
import pytest

from weir.bench import filtering, interval_join, keyed_data, string_keys
from weir.bench.epochs import Epoch
from weir.bench.latency import due_times_ns, lost_and_duplicated, percentiles
from weir.errors import ConfigError


@pytest.fixture(scope="module")
def templates() -> pa.StringArray:
    return filtering.templates()


def test_every_payload_is_80_bytes_and_one_in_a_thousand_holds_the_needle(templates: pa.StringArray) -> None:
    texts = templates.to_pylist()
    assert {len(text.encode()) for text in texts} == {80}
    holders = [number for number, text in enumerate(texts) if filtering.NEEDLE in text]
    assert holders == filtering.needle_templates().tolist()
    assert len(holders) == filtering.TEMPLATES // 1_000


@pytest.mark.parametrize("events", [1, 1_000, filtering.TEMPLATES, 2 * filtering.TEMPLATES + 12_345])
def test_the_known_number_is_that_of_counting(templates: pa.StringArray, events: int) -> None:
    holds = np.array([filtering.NEEDLE in text for text in templates.to_pylist()])
    assert filtering.known_number(events) == holds[np.arange(events) % filtering.TEMPLATES].sum()


@pytest.mark.parametrize(
    "numbers",
    [
        np.arange(5, 900, dtype=np.int64),
        np.arange(filtering.TEMPLATES * 3 - 7, filtering.TEMPLATES * 3 + 900, 2, dtype=np.int64),
        np.arange(1, 90_000, 3, dtype=np.int64),
        np.array([0, 1, 128, 129], dtype=np.int64),
        np.array([42], dtype=np.int64),
    ],
    ids=["all", "every second, around the end", "every third", "uneven", "one"],
)
def test_row_n_is_template_n_however_the_rows_are_spaced(templates: pa.StringArray, numbers: np.ndarray) -> None:
    payloads = filtering.Payloads()
    for shift in (0, 1_000_000):
        column = payloads(numbers + shift).column(0)
        assert column.equals(templates.take(pa.array((numbers + shift) % filtering.TEMPLATES)))


def test_keys_cover_the_whole_range_evenly_and_values_are_small() -> None:
    keys, values = keyed_data.keys_and_values(np.arange(5_000_000, dtype=np.int64))
    counts = np.bincount(keys, minlength=keyed_data.KEYS)
    assert keys.min() >= 0 and len(counts) == keyed_data.KEYS
    assert counts.min() > 10 and counts.max() < 120
    assert values.min() >= 0 and values.max() < 1 << keyed_data.VALUE_BITS


def test_the_true_sums_are_those_of_adding_up() -> None:
    keys, values = keyed_data.keys_and_values(np.arange(20_000, dtype=np.int64))
    sums: dict[int, int] = defaultdict(int)
    for key, value in zip(keys.tolist(), values.tolist()):
        sums[key] += value
    true = keyed_data.true_sums(20_000)
    assert {key: total for key, total in enumerate(true.tolist()) if total >= 0} == sums


def test_the_newest_sum_of_each_key_is_kept_over_epochs() -> None:
    fold = keyed_data.LastSums()
    epochs = []
    for checkpoint, rows in enumerate([[(1, 10), (1, 20), (2, 5)], [(1, 30)], [(3, 0)]]):
        keys, sums = zip(*rows)
        fold.add(pa.record_batch([pa.array(keys), pa.array(sums)], names=["key", "total"]), 0)
        epochs.append(Epoch(checkpoint, 0, 1, len(rows), 0, 0, fold.take()))
    committed = keyed_data.committed_sums(epochs)
    assert committed[:5].tolist() == [-1, 30, 5, 0, -1]


def test_sums_by_string_keys_are_those_by_their_numbers() -> None:
    of = keyed_data.keys_of("string", 5_000)
    rows = of.make_rows(np.arange(20_000, dtype=np.int64))
    keys, values = keyed_data.keys_and_values(np.arange(20_000, dtype=np.int64), 5_000)
    assert rows.column(0).equals(string_keys.strings_of(keys)) and rows.column(1).to_numpy().tolist() == values.tolist()
    assert keys.max() == 4_999
    fold = of.last_sums()
    sums = keyed_data.true_sums(20_000, 5_000)
    seen = np.flatnonzero(sums >= 0)
    fold.add(pa.record_batch([string_keys.strings_of(seen), pa.array(sums[seen])], names=["key", "total"]), 0)
    committed = keyed_data.committed_sums([Epoch(1, 0, 1, len(seen), 0, 0, fold.take())], 5_000)
    assert committed.tolist() == sums.tolist()


@pytest.mark.parametrize(("kind", "count"), [("string", 0), ("string", 100_000_001), ("long", 1 << 31), ("text", 5)])
def test_keys_that_there_cannot_be_are_refused(kind: str, count: int) -> None:
    with pytest.raises(ConfigError, match="found"):
        keyed_data.keys_of(kind, count)


def test_lost_and_duplicated_rows_are_told_apart() -> None:
    assert lost_and_duplicated(np.array([0, 1, 2, 3]), 4) == (0, 0)
    assert lost_and_duplicated(np.array([0, 1, 1, 1]), 4) == (2, 2)


def test_percentiles_leave_out_the_warm_up() -> None:
    created = np.arange(10_000, dtype=np.int64) * 1_000_000  # a row each millisecond
    took_ms = np.where(created < 2_000_000_000, 500.0, 3.0)
    arrived = created + (took_ms * 1e6).astype(np.int64)
    measured = percentiles(created, arrived, created.astype(np.float64))
    assert measured["p50_ms"] == measured["p99_ms"] == measured["max_ms"] == 3.0


def test_a_row_that_was_made_late_counts_from_when_it_was_due_by_its_own_subtasks_clock() -> None:
    number = np.arange(4_000, dtype=np.int64)
    made = number * 1_000_000 + np.where(number % 2 == 1, 700_000_000, 0)  # subtask 1 started 0.7 s later
    stalled = (number >= 3_000) & (number < 3_500) & (number % 2 == 0)
    made[stalled] = 3_500_000_000
    due = due_times_ns(number, made, rate_per_s=1_000, parallelism=2)
    late_ms = (made - due) / 1e6
    assert np.allclose(late_ms[~stalled], 0.0)
    assert late_ms[3_000] == pytest.approx(500.0)


def test_the_known_pairs_of_the_interval_join_are_those_of_looking_at_each_with_each(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(interval_join, "KEYS", 40)
    monkeypatch.setattr(interval_join, "INTERVAL_US", 1_000)
    monkeypatch.setattr(interval_join, "DISORDER_US", 2_000)
    monkeypatch.setattr(interval_join, "CHUNK", 700)
    sides = [interval_join.maker(salt)(np.arange(2_000, dtype=np.int64)) for salt in (1, 2)]
    (keys, values, times), (other_keys, other_values, other_times) = (
        [column.to_numpy().astype(np.int64) for column in side.columns] for side in sides
    )
    near = (keys[:, None] == other_keys) & (np.abs(times[:, None] - other_times) <= 1_000)
    left, right = np.nonzero(near)
    products = int((values[left] * other_values[right]).sum()) % (1 << 64)
    assert interval_join.true_pairs(2_000) == (len(left), products)
    assert len(left) > 1_000
