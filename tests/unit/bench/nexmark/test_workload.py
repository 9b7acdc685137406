"""Nexmark: the generator is the same everywhere, and every query gives what a batch computation says, come crashes."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from polars.testing import assert_frame_equal

import weir
from weir import connectors as io
from weir.bench.nexmark import workload as nexmark
from weir.bench.nexmark.answers import ANSWERS
from weir.bench.nexmark.events import Events, digests
from weir.connectors.nexmark.source import BEGIN_US, SCHEMAS, NexmarkRows, rows_among
from weir.errors import ConfigError
from weir.testing import run_local

PER_SECOND = {"q7": 300, "q15": 1, "q16": 1, "q17": 1}
"""So that there are several windows and sessions, or several days."""
EVENTS = {"q15": 100_000}


def stretch(query: str) -> Events:
    return Events(0, EVENTS.get(query, 20_000), PER_SECOND.get(query, 1_000))


def found_by(query: str, directory: Path, *, seed: int, crash_at: tuple[int, ...]) -> pl.DataFrame:
    rng = random.Random(seed)
    settings = weir.Settings(
        batch_rows_max=rng.choice([500, 4_000]), channel_batches_max=rng.choice([1, 4]), watermark_interval="1ms"
    )
    env = weir.Environment(parallelism=rng.randint(1, 3), settings=settings)
    page, of = nexmark.query_page(query), stretch(query)
    stream = nexmark.build(page, env, of.stop, directory=directory, events_per_second=of.per_second)
    stream.write(io.Discard(), uid="out")
    result = run_local(env, crash_at=crash_at, checkpoint_every=7)
    assert result.restarts > 0
    return pl.DataFrame(result["out"])


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("query", ANSWERS)
def test_a_query_gives_what_a_batch_computation_says(query: str, seed: int, tmp_path: Path) -> None:
    crashes = tuple(random.Random(seed).sample(range(3, 60), 3))
    found = found_by(query, tmp_path, seed=seed, crash_at=crashes)
    answer = ANSWERS[query]
    expected = pl.concat(answer.rows(stretch(query)))
    if query == "q12":  # which windows there are is a matter of the clock
        found = found.group_by("bidder").agg(pl.col("bids").sum())
    if answer.keys:
        found = found.group_by(answer.keys, maintain_order=True).last()
    assert len(expected) > (1 if query == "q15" else 4)
    assert_frame_equal(
        found.select(expected.columns), expected, check_row_order=False, check_exact=True, check_column_order=True
    )


def test_all_queries_have_pages_and_answers() -> None:
    pages = Path(nexmark.__file__).parents[4] / "examples" / "nexmark"
    assert {path.stem for path in pages.glob("q*.py")} == ANSWERS.keys()


def test_a_query_that_does_not_exist_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="no query 'q10'; there are q0, q1, q2"):
        nexmark.query_page("q10")


# --- The generator ---


@pytest.mark.parametrize("table", SCHEMAS)
def test_rows_do_not_depend_on_how_they_are_asked_for(table: Any) -> None:
    make = NexmarkRows(table, SCHEMAS[table].names, 1_000)
    numbers = np.arange(70_000, 75_000)
    whole = pl.DataFrame(make(numbers))
    shuffled = np.random.default_rng(1).permutation(5_000)
    assert pl.DataFrame(make(numbers[shuffled])).equals(whole[shuffled])
    for step in (1, 2, 3, 128):
        assert pl.DataFrame(make(numbers[1::step])).equals(whole[1::step])
    for name in SCHEMAS[table].names:
        alone = NexmarkRows(table, [name], 1_000)
        assert pl.DataFrame(alone(numbers[::2]))[name].equals(whole[name][::2])


def test_of_fifty_events_one_is_a_person_three_are_auctions_and_the_rest_bids_in_the_order_of_time() -> None:
    for events in (0, 1, 3, 4, 50, 51, 54, 1_000):
        numbers = {"person": 1, "auction": 3, "bid": 46}
        assert sum(rows_among(events, table) for table in numbers) == events  # type: ignore[arg-type]
        if events % 50 == 0:
            assert {t: rows_among(events, t) for t in numbers} == {t: n * events // 50 for t, n in numbers.items()}  # type: ignore[arg-type]
    of_time = Events(0, 1_000, 1_000_000)
    times = [of_time.rows(table, ["date_time"])["date_time"] for table in ("person", "auction", "bid")]  # type: ignore[arg-type]
    assert all(series.is_sorted() for series in times)
    assert sorted(pl.concat(times).to_physical()) == [BEGIN_US + n for n in range(1_000)]


@pytest.mark.parametrize("per_second", [1, 1_000, 7_000, 1_000_000, 10_000_000])
def test_event_time_passes_as_it_should(per_second: int) -> None:
    bids = Events(0, 100_000, per_second).bids("date_time")["date_time"].to_physical()
    assert bids[0] == BEGIN_US + 4 * 1_000_000 // per_second
    assert bids[-1] == BEGIN_US + 99_999 * 1_000_000 // per_second


def test_hot_auctions_bidders_and_sellers_are_as_frequent_as_they_should_be() -> None:
    stream = Events(0, 500_000, 1_000_000)
    bids = stream.bids("auction", "bidder", "price", "date_time")
    assert (bids["auction"] % 100 == 0).mean() == pytest.approx(0.5, abs=0.02)
    assert (bids["bidder"] % 100 == 1).mean() == pytest.approx(0.75, abs=0.02)
    auctions = stream.auctions("id", "seller", "category", "date_time", "expires", "initial_bid", "reserve")
    assert (auctions["seller"] % 100 == 0).mean() == pytest.approx(0.75, abs=0.02)
    assert auctions["category"].value_counts()["count"].min() > 5_500
    assert bids["price"].min() >= 100 and bids["price"].max() <= 100_000_000  # type: ignore[operator]
    assert bids["price"].log10().mean() == pytest.approx(5.0, abs=0.02)
    assert ((auctions["expires"] - auctions["date_time"]).dt.total_microseconds() >= 1).all()
    assert (auctions["reserve"] > auctions["initial_bid"]).all()
    joined = bids.join(auctions, left_on="auction", right_on="id", suffix="_of")
    ages = joined["date_time"] - joined["date_time_of"]
    assert ages.max().total_seconds() < 0.01 and ages.min().total_seconds() > -0.001  # type: ignore[union-attr]


def test_a_stretch_by_windows_has_every_event_once() -> None:
    whole = Events(0, 12_345, 700)
    stretches = list(whole.stretches(2))
    assert [part.start for _, part in stretches[1:]] == [part.stop for _, part in stretches[:-1]]
    assert (stretches[0][1].start, stretches[-1][1].stop) == (0, 12_345)
    for start_us, part in stretches:
        times = part.bids("date_time")["date_time"].to_physical()
        assert times.min() >= start_us and times.max() < start_us + 2_000_000  # type: ignore[operator]


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"table": "seller"}, "'seller' is not one of person, auction, bid"),
        ({"columns": ["prize"]}, "'prize'; the columns of 'bid' are auction, bidder"),
        ({"columns": []}, "the columns of 'bid' are"),
        ({"events": -1}, "-1 is negative"),
        ({"events_per_second": 0}, "0 is not a whole number"),
    ],
)
def test_a_wrong_setting_is_named(wrong: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        io.Nexmark(**{"events": 10, "table": "bid", **wrong})


def test_digests_tell_rows_apart_that_differ_in_one_place() -> None:
    rows = Events(0, 5_000, 1_000).bids("auction", "price", "date_time", "extra")
    other = rows.with_columns(pl.when(pl.int_range(pl.len()) == 77).then(pl.lit("x")).otherwise("extra").alias("extra"))
    assert digests(rows).sum() == digests(rows.reverse()).sum()
    assert (digests(rows) != digests(other)).nonzero()[0].tolist() == [77]
    assert (digests(rows) != digests(rows.with_columns(pl.col("price") + 1))).all()


def test_of_updates_only_the_last_of_each_key_counts() -> None:
    first, second = pl.DataFrame({"key": [1, 2], "n": [5, 6]}), pl.DataFrame({"key": [2, 2], "n": [7, 8]})
    fold, other = nexmark.Updates(["key"]), nexmark.Updates(["key"])
    for frame in (first, second):
        fold.add(frame.to_arrow().to_batches()[0], 0)
    other.add(pl.DataFrame({"key": [2, 1], "n": [8, 5]}).to_arrow().to_batches()[0], 0)
    epochs = [nexmark.Epoch(1, 0, 1, 4, 0, 0, taken.take()) for taken in (fold, other)]
    assert nexmark.last_updates(epochs[:1]) == nexmark.last_updates(epochs[1:]) == nexmark.last_updates(epochs)


def test_digests_of_lists_know_their_order_and_which_row_they_are_of() -> None:
    one, two = {"price": 1}, {"price": 2}
    lists = [[one, two], [two, one], [], [one], [one, two]]
    found = digests(pl.DataFrame({"best": lists})).tolist()
    assert found[0] == found[4]
    assert len(set(found)) == 4
