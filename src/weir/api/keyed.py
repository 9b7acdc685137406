"""A stream whose rows are together by key: running aggregates, windows and joins.

Comes in: aggregates and functions of the user. Goes out: logical nodes behind a
hash exchange. Keys are checked when the stream is made.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import pyarrow as pa

from weir.api import joined
from weir.api.build import MakeSpec, Options
from weir.api.keyed_functions import KeyedFunctions
from weir.config import Duration
from weir.errors import PlanError
from weir.operators.aggregates import named as of
from weir.operators.aggregates.named import Aggregate
from weir.operators.aggregates.running import PartialAggregate, RunningAggregate
from weir.operators.joins.output import How
from weir.operators.windows.event_time import TimeWindows, Windows
from weir.operators.windows.triggers import Trigger

if TYPE_CHECKING:
    from weir.api.connected import BroadcastConnectedStream, KeyedConnectedStreams
    from weir.api.stream import Stream
    from weir.api.windowed import WindowedStream


class KeyedStream(KeyedFunctions):
    """A stream by key. Made by `Stream.key_by`; what comes out of its operators is a plain Stream again."""

    def __init__(self, stream: Stream, keys: tuple[str, ...]) -> None:
        self._stream = stream
        self._keys = keys
        self._upstream = stream._upstream.keyed(keys)

    def _behind(self, kind: str, make: MakeSpec, options: Options) -> Stream:
        return self._stream._apply(kind, make, options, upstream=self._upstream)

    @property
    def keys(self) -> tuple[str, ...]:
        return self._keys

    @property
    def schema(self) -> pa.Schema:
        """The Arrow schema of the rows, keys included."""
        return self._upstream.schema

    def __repr__(self) -> str:
        return f"{self._stream!r}.key_by({', '.join(map(repr, self._keys))})"

    def agg(
        self,
        aggregates: Mapping[str, Aggregate] | None = None,
        /,
        *,
        uid: str | None = None,
        name: str | None = None,
        parallelism: int | None = None,
        **named: Aggregate,
    ) -> Stream:
        """Running aggregates: each key's newest values, again whenever they have changed.

        Changes that follow each other closely come out as one. Pass a dict for columns that are called like an option.

        >>> import weir
        >>> bids = weir.Environment().from_collection([(1, 250)], "auction long, price long")
        >>> bids.key_by("auction").agg(n=weir.count(), total=weir.sum("price"))
        Stream[auction bigint, n bigint, total bigint]
        """
        chosen = {**(aggregates or {}), **named}
        return self._stream._apply(
            "agg",
            lambda: RunningAggregate(self._keys, checked_aggregates(chosen), self.schema),
            Options(uid, name, parallelism),
            upstream=self._upstream,
            make_combine=lambda: PartialAggregate(self._keys, chosen, self.schema),
        )

    def window(
        self,
        windows: Windows,
        *,
        lateness: Duration = 0,
        late: str | None = None,
        trigger: Trigger | None = None,
    ) -> WindowedStream:
        """By windows of event time: `weir.tumbling("10s")`, `weir.sliding("60s", "10s")`, `weir.session("30s")`; or
        `weir.count_window(100)` and `weir.global_window()`.

        lateness: how long behind its end a window is kept; rows that come by then change it, and it is emitted again
        late:     a tag: rows that are later still go to this side output of the result (`result.side(tag)`); otherwise
                  they are left out, and counted in the metrics
        trigger:  when windows come out early, such as `weir.continuous("1s")`; a later result replaces an early one.
                  With `.purging()` it does not: each is of the rows since the one before. Sliding windows take
                  `continuous` and `on_processing_time`; sliding and session windows cannot purge.
        """
        from weir.api.windowed import WindowedStream

        return WindowedStream(self, windows, lateness=lateness, late=late, trigger=trigger)

    def interval_join(
        self,
        other: KeyedStream,
        *,
        lower: Duration,
        upper: Duration,
        how: How = "inner",
        suffix: str = "_right",
        time: str = "join_time",
        late_left: str | None = None,
        late_right: str | None = None,
        uid: str | None = None,
        name: str | None = None,
        parallelism: int | None = None,
    ) -> Stream:
        """Rows of both streams with equal keys, where the right row's time is from `lower` to `upper` behind the left
        row's, both included.

        Out come all columns of both sides, and `join_time`, the later of both times, which is the result's event time.
        Pairs come out as soon as both rows are here. As in SQL, a null in a key equals nothing.

        how:       "inner", "left", "right" or "full": rows without a partner come out, with nulls for the other side,
                   once event time has passed the last that they could have had; watermarks are held back by that much
        suffix:    for columns of the right side that are called like one of the left side
        time:      what to call the column with the later time
        late_left, late_right: tags: late rows go to these side outputs of the result; otherwise they are left out, and
                   counted in the metrics

        >>> import weir
        >>> env = weir.Environment()
        >>> orders = env.from_collection([], "id long, ts timestamp", watermark=weir.monotonic("ts"))
        >>> payments = env.from_collection([], "order_id long, ts timestamp", watermark=weir.monotonic("ts"))
        >>> paid = orders.key_by("id").interval_join(payments.key_by("order_id"), lower="0s", upper="1h")
        >>> paid.columns
        ['id', 'ts', 'order_id', 'ts_right', 'join_time']
        """
        return joined.interval_join(
            self,
            other,
            lower=lower,
            upper=upper,
            how=how,
            suffix=suffix,
            time=time,
            late=(late_left, late_right),
            options=Options(uid, name, parallelism),
        )

    def join(
        self,
        other: KeyedStream,
        windows: TimeWindows,
        *,
        how: How = "inner",
        suffix: str = "_right",
        lateness: Duration = 0,
        late_left: str | None = None,
        late_right: str | None = None,
        uid: str | None = None,
        name: str | None = None,
        parallelism: int | None = None,
    ) -> Stream:
        """Rows of both streams with equal keys in the same window, once event time has passed the window's end.

        Out come all columns of both sides, `window_start` and `window_end`. As in SQL, a null in a key equals nothing.

        how:    "inner", "left", "right" or "full": which rows without a partner come out, with nulls for the other side
        suffix: for columns of the right side that are called like one of the left side
        lateness: how long behind its end a window is kept: late rows come out with their partners, or alone, then. What
                came out before is not taken back, so that in an outer join a row may come out alone, and later with one
        late_left, late_right: as for `interval_join`

        >>> import weir
        >>> env = weir.Environment()
        >>> clicks, views = (env.from_collection([], "ad long, ts timestamp") for _ in range(2))
        >>> clicks, views = (stream.with_watermarks(weir.monotonic("ts")).key_by("ad") for stream in (clicks, views))
        >>> views.join(clicks, weir.tumbling("10s"), how="left").columns
        ['ad', 'ts', 'ad_right', 'ts_right', 'window_start', 'window_end']
        """
        late = (late_left, late_right)
        options = Options(uid, name, parallelism)
        return joined.window_join(
            self, other, windows, how=how, suffix=suffix, lateness=lateness, late=late, options=options
        )

    def co_group(
        self,
        other: KeyedStream,
        windows: TimeWindows,
        *,
        lateness: Duration = 0,
        late_left: str | None = None,
        late_right: str | None = None,
    ) -> joined.CoGroupedStreams:
        """The rows of both streams by key and window, for a function of yours: `co_group(…).apply(function, schema)`.
        Here a null is a key like any other.

        lateness: how long behind its end a window is kept: the function is called again, with all rows of the key, when
                  late rows have come
        late_left, late_right: as for `interval_join`
        """
        return joined.CoGroupedStreams(self, other, windows, lateness=lateness, late=(late_left, late_right))

    def as_of(
        self,
        other: KeyedStream,
        *,
        how: How = "left",
        suffix: str = "_right",
        late: str | None = None,
        uid: str | None = None,
        name: str | None = None,
        parallelism: int | None = None,
    ) -> Stream:
        """Each row with what the other stream, a table that changes, had for its key at that time: the newest row at or
        before.

        A row comes out once event time has passed its time on both sides; its event time stays. Of the other stream,
        each key's newest row is kept, and older ones as long as rows may still come that need them. One that comes late
        is counted in the metrics, and holds for what comes out from then on.

        how:    "left": rows for which nothing held come out with nulls; "inner": they do not
        suffix: for columns of the other stream that are called like one of this
        late:   a tag: late rows go to this side output of the result; otherwise they are left out, and counted

        >>> import weir
        >>> env = weir.Environment()
        >>> time = weir.monotonic("ts")
        >>> orders = env.from_collection([], "id long, currency string, ts timestamp", watermark=time)
        >>> rates = env.from_collection([], "currency string, rate double, ts timestamp", watermark=time)
        >>> orders.key_by("currency").as_of(rates.key_by("currency")).columns
        ['id', 'currency', 'ts', 'currency_right', 'rate', 'ts_right']
        """
        options = Options(uid, name, parallelism)
        return joined.as_of(self, other, how=how, suffix=suffix, late=late, options=options)

    def count(
        self, column: str = "count", *, uid: str | None = None, name: str | None = None, parallelism: int | None = None
    ) -> Stream:
        """The running number of rows of each key."""
        return self.agg({column: of.count()}, uid=uid, name=name, parallelism=parallelism)

    def sum(
        self, *columns: str, uid: str | None = None, name: str | None = None, parallelism: int | None = None
    ) -> Stream:
        """The running sums of these columns, under their own names."""
        return self.agg({c: of.sum(c) for c in columns}, uid=uid, name=name, parallelism=parallelism)

    def connect(self, other: KeyedStream | Stream) -> KeyedConnectedStreams | BroadcastConnectedStream:
        """With another keyed stream, to share state by key; or with a broadcast one, `rules.broadcast()`.

        >>> import weir
        >>> env = weir.Environment()
        >>> bids = env.from_collection([(1, 250)], "auction long, price long")
        >>> rules = env.from_collection([("dear", 100)], "name string, price long")
        >>> bids.key_by("auction").connect(rules.broadcast())
        Stream[auction bigint, price bigint].key_by('auction').connect(Stream[name string, price bigint].broadcast())
        """
        from weir.api.connected import connect_keyed

        return connect_keyed(self, other)


def checked_aggregates(aggregates: Mapping[str, Aggregate]) -> Mapping[str, Aggregate]:
    """The same, or PlanError."""
    if not aggregates:
        raise PlanError("at least one aggregate is needed, for example agg(n=weir.count())")
    for name, aggregate in aggregates.items():
        if not isinstance(aggregate, Aggregate):
            raise PlanError(f"{name}={aggregate!r} is not an aggregate; write for example {name}=weir.max('price')")
    return aggregates
