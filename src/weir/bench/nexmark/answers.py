"""The true answers to the Nexmark queries, computed as a batch.

Comes in: a stretch of events from the beginning of the stream. Goes out: the rows that a
query must give, in pieces, in no order; of a query that gives updates the last row of
each key. Polars and NumPy; no operator of Weir is used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import polars as pl

from weir.bench.nexmark.events import Events
from weir.connectors.nexmark.source import AUCTIONS, AUCTIONS_OPEN, EPOCH, SCHEMAS, Numbers

EUROS = 0.908
GAP_US = 10_000_000


@dataclass(frozen=True)
class Answer:
    """`keys`: the query gives updates, of which the last of each key counts; none: every row counts. `weight`: which
    windows there are is a matter of the clock; only the sums of this column over the others are known."""

    rows: Callable[[Events], Iterator[pl.DataFrame]]
    keys: tuple[str, ...] = ()
    weight: str | None = None


def pass_through(events: Events) -> Iterator[pl.DataFrame]:
    for chunk in events.chunks():
        yield chunk.bids("auction", "bidder", "price", "date_time", "extra")


def currency(events: Events) -> Iterator[pl.DataFrame]:
    for chunk in pass_through(events):
        yield chunk.with_columns(pl.col("price") * EUROS)


def selection(events: Events) -> Iterator[pl.DataFrame]:
    for chunk in events.chunks():
        yield chunk.bids("auction", "price").filter(pl.col("auction") % 123 == 0)


def hot_items(events: Events) -> Iterator[pl.DataFrame]:
    panes: dict[int, Counted] = {}
    slide_us, per_window = 2_000_000, 5
    for start_us, pane in events.stretches(2):
        panes[start_us] = _counted(pane)
    for start_us in range(min(panes) - (per_window - 1) * slide_us, max(panes) + 1, slide_us):
        parts = [panes[at] for at in range(start_us, start_us + per_window * slide_us, slide_us) if at in panes]
        counts = np.zeros(max(part.first + len(part.counts) for part in parts) - parts[0].first, np.int64)
        for part in parts:
            offset = part.first - parts[0].first
            counts[offset : offset + len(part.counts)] += part.counts
        best = int(counts.max())
        hot = np.flatnonzero(counts == best) + parts[0].first
        ends = pl.lit(start_us + per_window * slide_us).cast(pl.Datetime("us"))
        yield pl.DataFrame({"auction": hot}).with_columns(bids=pl.lit(best, pl.Int64), ends=ends)


@dataclass(frozen=True)
class Counted:
    """How many bids each auction had, from the first on."""

    first: int
    counts: Numbers


def _counted(events: Events) -> Counted:
    first, parts = None, []
    for chunk in events.chunks():
        auctions = chunk.bids("auction")["auction"].to_numpy()
        if not len(auctions):
            continue
        # Ids never go back by more than the auctions that are open.
        first = int(auctions.min()) if first is None else min(first, int(auctions.min()))
        parts.append(auctions)
    if first is None:
        return Counted(0, np.zeros(0, np.int64))
    counts = np.zeros(max(int(part.max()) for part in parts) - first + 1, np.int64)
    for part in parts:
        counts += np.bincount(part - first, minlength=len(counts))
    return Counted(first, counts)


def highest_bid(events: Events) -> Iterator[pl.DataFrame]:
    columns = ["auction", "bidder", "price", "date_time", "extra"]
    for _, window in events.stretches(10):
        found = []
        for chunk in window.chunks():
            prices = chunk.bids("price")["price"].to_numpy()
            if len(prices):
                found.append(chunk.rows("bid", columns, np.flatnonzero(prices == prices.max())))
        if found:
            yield pl.concat(found).filter(pl.col("price") == pl.col("price").max())


def new_users(events: Events) -> Iterator[pl.DataFrame]:
    for start_us, window in events.stretches(10):
        sellers = window.auctions("seller").unique()
        new = window.persons("id", "name").join(sellers, left_on="id", right_on="seller", how="semi")
        yield new.with_columns(window_start=pl.lit(start_us).cast(pl.Datetime("us")))


def sessions(events: Events) -> Iterator[pl.DataFrame]:
    """Sessions of each chunk first, which are then merged where they are close enough."""
    time = pl.col("date_time").to_physical()
    parts = [
        chunk.bids("bidder", "date_time")
        .sort("bidder", "date_time")
        .select("bidder", first=time, last=time, bids=pl.lit(1, pl.Int64))
        .pipe(_merged)
        for chunk in events.chunks()
    ]
    whole = _merged(pl.concat(parts).sort("bidder", "first"))
    yield whole.select(
        "bidder",
        pl.col("first").cast(pl.Datetime("us")).alias("window_start"),
        (pl.col("last") + GAP_US).cast(pl.Datetime("us")).alias("window_end"),
        "bids",
    )


def _merged(parts: pl.DataFrame) -> pl.DataFrame:
    """Of parts of sessions in the order of bidder and time, those that follow closely become one."""
    changes = (pl.col("bidder") != pl.col("bidder").shift()) | (pl.col("first") - pl.col("last").shift() >= GAP_US)
    return (
        parts.with_columns(session=changes.fill_null(True).cum_sum())
        .group_by("session", maintain_order=True)
        .agg(pl.col("bidder", "first").first(), pl.col("last").last(), pl.col("bids").sum())
        .drop("session")
    )


# --- Answers about whole streams; what they hold in memory grows with the number of events -------------------


def local_items(events: Events) -> Iterator[pl.DataFrame]:
    persons = events.persons("id", "name", "city", "state").filter(pl.col("state").is_in(["OR", "ID", "CA"]))
    auctions = events.auctions("id", "seller", "category").filter(pl.col("category") == 10)
    yield persons.join(auctions.rename({"id": "auction"}), left_on="id", right_on="seller").select(
        "name", "city", "state", pl.col("auction").alias("id")
    )


def _winners(events: Events, auction: Sequence[str], bid: Sequence[str] = ()) -> Iterator[pl.DataFrame]:
    """Auctions with their best valid bids; columns of bids have the prefix `bid_`. No auction outlasts a chunk."""
    for chunk in events.chunks():
        names = list(dict.fromkeys(["id", "date_time", "expires", *auction]))
        needed = list(dict.fromkeys(["auction", "price", "date_time", *bid]))
        until = min(chunk.stop + 4 * AUCTIONS_OPEN * EPOCH // AUCTIONS, events.stop)
        bids = replace(chunk, stop=until).bids(*needed).select(pl.all().name.prefix("bid_"))
        pairs = chunk.auctions(*names).join(bids, left_on="id", right_on="bid_auction")
        valid = pairs.filter(pl.col("bid_date_time").is_between("date_time", "expires"))
        best = valid.sort("bid_price", "bid_date_time", descending=[True, False])
        yield best.unique("id", keep="first", maintain_order=True)


def category_averages(events: Events) -> Iterator[pl.DataFrame]:
    finals = pl.concat(_winners(events, ["category"]))
    yield finals.group_by("category").agg(average=pl.col("bid_price").mean())


def seller_averages(events: Events) -> Iterator[pl.DataFrame]:
    finals = pl.concat(piece.select("seller", "expires", "id", "bid_price") for piece in _winners(events, ["seller"]))
    last = finals.sort("expires", "id", descending=True).group_by("seller", maintain_order=True).head(10)
    yield last.group_by("seller").agg(average=pl.col("bid_price").mean())


def winning_bids(events: Events) -> Iterator[pl.DataFrame]:
    auction = SCHEMAS["auction"].names
    for piece in _winners(events, auction, ["bidder", "extra"]):
        chosen = piece.select(*auction, "bid_bidder", "bid_price", "bid_date_time", "bid_extra")
        yield chosen.rename({"bid_bidder": "bidder", "bid_price": "price"})


def bids_of_bidders(events: Events) -> Iterator[pl.DataFrame]:
    counts = [chunk.bids("bidder").group_by("bidder").agg(bids=pl.len()) for chunk in events.chunks()]
    yield pl.concat(counts).group_by("bidder").agg(pl.col("bids").sum().cast(pl.Int64))


def side_input(events: Events) -> Iterator[pl.DataFrame]:
    for chunk in events.chunks():
        bids = chunk.bids("auction", "bidder", "price", "date_time")
        yield bids.with_columns(value=(pl.col("auction") % 10_000).cast(pl.String))


def calculation(events: Events) -> Iterator[pl.DataFrame]:
    hours = {hour: "day" if 8 <= hour <= 18 else "night" if hour <= 6 or hour >= 20 else "other" for hour in range(24)}
    for chunk in currency(events):
        dear = chunk.filter(pl.col("price").is_between(1_000_000, 50_000_000, closed="none"))
        yield dear.with_columns(
            time_of_day=pl.col("date_time").dt.hour().replace_strict(hours),
            c_counts=pl.col("extra").str.len_bytes() - pl.col("extra").str.replace_all("c", "").str.len_bytes(),
        )


def _ranked(events: Events, *columns: str) -> pl.DataFrame:
    rank = 1 + (pl.col("price") >= 10_000).cast(pl.Int64) + (pl.col("price") >= 1_000_000).cast(pl.Int64)
    bids = events.bids("price", "date_time", *columns)
    return bids.with_columns(rank=rank, day=pl.col("date_time").dt.date())


def _statistics(events: Events, keys: Sequence[str]) -> pl.DataFrame:
    """Counts of bids, and of distinct bidders and auctions, in all and by rank."""
    ranked = _ranked(events, "bidder", "auction", *(key for key in keys if key != "day"))
    ranks = {"total": pl.lit(True), **{f"rank{rank}": pl.col("rank") == rank for rank in (1, 2, 3)}}
    columns = {}
    for rank, chosen in ranks.items():
        columns[f"{rank}_bids"] = pl.col("price").filter(chosen).len().cast(pl.Int64)
        columns[f"{rank}_bidders"] = pl.col("bidder").filter(chosen).n_unique().cast(pl.Int64)
        columns[f"{rank}_auctions"] = pl.col("auction").filter(chosen).n_unique().cast(pl.Int64)
    return ranked.group_by(keys).agg(minute=pl.col("date_time").max().dt.strftime("%H:%M"), **columns)


def day_statistics(events: Events) -> Iterator[pl.DataFrame]:
    yield _statistics(events, ["day"]).drop("minute")


def channel_statistics(events: Events) -> Iterator[pl.DataFrame]:
    yield _statistics(events, ["channel", "day"])


def auction_statistics(events: Events) -> Iterator[pl.DataFrame]:
    price, rank = pl.col("price"), pl.col("rank")
    grouped = _ranked(events, "auction").group_by("auction", "day")
    yield grouped.agg(
        total_bids=pl.len().cast(pl.Int64),
        **{f"rank{n}_bids": (rank == n).sum().cast(pl.Int64) for n in (1, 2, 3)},
        min_price=price.min(),
        max_price=price.max(),
        avg_price=price.sum() / pl.len(),
        sum_price=price.sum(),
    )


def last_bids(events: Events) -> Iterator[pl.DataFrame]:
    pairs = events.bids("bidder", "auction").with_row_index("number")
    last = pairs.group_by("bidder", "auction").agg(pl.col("number").max())["number"]
    yield events.rows("bid", SCHEMAS["bid"].names, last.cast(pl.Int64).to_numpy())


def top_ten(events: Events) -> Iterator[pl.DataFrame]:
    prices = events.bids("auction", "price").with_row_index("number")
    best = prices.sort("auction", "price", "number", descending=[False, True, False])
    best = best.group_by("auction", maintain_order=True).head(10)
    fields = ["bidder", "price", "channel", "url", "date_time", "extra"]
    rows = events.rows("bid", ["auction", *fields], best["number"].cast(pl.Int64).to_numpy())
    yield rows.group_by("auction", maintain_order=True).agg(best=pl.struct(fields))


def bids_with_auctions(events: Events) -> Iterator[pl.DataFrame]:
    """An auction's bids are never far from it in the stream."""
    reach = 4 * AUCTIONS_OPEN * EPOCH // AUCTIONS
    for chunk in events.chunks():
        near = replace(chunk, start=max(chunk.start - reach, 0), stop=min(chunk.stop + reach, events.stop))
        items = near.auctions(*SCHEMAS["auction"].names).filter(pl.col("category") == 10)
        yield chunk.bids(*SCHEMAS["bid"].names).join(
            items, left_on="auction", right_on="id", suffix="_of_auction", maintain_order="left"
        )


ANSWERS: Mapping[str, Answer] = {
    "q0": Answer(pass_through),
    "q1": Answer(currency),
    "q2": Answer(selection),
    "q3": Answer(local_items),
    "q4": Answer(category_averages, keys=("category",)),
    "q5": Answer(hot_items),
    "q6": Answer(seller_averages, keys=("seller",)),
    "q7": Answer(highest_bid),
    "q8": Answer(new_users),
    "q9": Answer(winning_bids),
    "q11": Answer(sessions),
    "q12": Answer(bids_of_bidders, weight="bids"),
    "q13": Answer(side_input),
    "q14": Answer(calculation),
    "q15": Answer(day_statistics, keys=("day",)),
    "q16": Answer(channel_statistics, keys=("channel", "day")),
    "q17": Answer(auction_statistics, keys=("auction", "day")),
    "q18": Answer(last_bids, keys=("bidder", "auction")),
    "q19": Answer(top_ten, keys=("auction",)),
    "q20": Answer(bids_with_auctions),
}
