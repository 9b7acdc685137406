"""A stream whose rows are together by key: running aggregates and stateful functions.

Comes in: aggregates and functions of the user. Goes out: logical nodes behind a
hash exchange. Keys are checked when the stream is made.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from weir.api.build import Options
from weir.config import Duration
from weir.errors import PlanError
from weir.operators import aggregates as of
from weir.operators.aggregate import PartialAggregate, RunningAggregate
from weir.operators.aggregates import Aggregate
from weir.operators.batch_results import BatchKind
from weir.operators.functions import ProcessFunction
from weir.operators.keyed_batches import KeyedBatches, KeyedBatchFunction
from weir.operators.process import ProcessRows
from weir.operators.reduce import ReduceRows
from weir.operators.window_triggers import Trigger
from weir.operators.windows import Windows
from weir.state.descriptor_base import StateDescriptor
from weir.state.descriptors import ValueState

if TYPE_CHECKING:
    from weir.api.stream import Stream
    from weir.api.windowed import WindowedStream


class KeyedStream:
    """A stream by key. Made by `Stream.key_by`; what comes out of its operators is a plain Stream again."""

    def __init__(self, stream: Stream, keys: tuple[str, ...]) -> None:
        self._stream = stream
        self._keys = keys
        self._upstream = stream._upstream.keyed(keys)

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

    def reduce(
        self,
        function: Callable[[Any, Any], Any],
        *,
        uid: str | None = None,
        name: str | None = None,
        parallelism: int | None = None,
    ) -> Stream:
        """Fold the rows of each key into one of the same schema: `function(so far, row)`.

        >>> import weir
        >>> bids = weir.Environment().from_collection([(1, 250)], "auction long, price long")
        >>> bids.key_by("auction").reduce(lambda best, bid: bid if bid.price > best.price else best)
        Stream[auction bigint, price bigint]
        """
        options = Options(uid, name, parallelism)
        return self._stream._apply("reduce", lambda: ReduceRows(self._keys, function), options, upstream=self._upstream)

    def process(
        self,
        function: ProcessFunction | Callable[[Any, Any], Any],
        schema: pa.Schema | str,
        *,
        state: Mapping[str, StateDescriptor] | None = None,
        uid: str | None = None,
        name: str | None = None,
        parallelism: int | None = None,
    ) -> Stream:
        """Call a ProcessFunction, or a plain function of (row, state), with each row and the state of its key.

        The function yields rows, or returns one, a list of them, or None. A plain function's states are given
        in `state`; a ProcessFunction declares them as class attributes.

        >>> import weir
        >>> def first_bid(bid, state):
        ...     if not state.seen.value:
        ...         state.seen.value = True
        ...         yield bid
        >>> bids = weir.Environment().from_collection([(1, 250)], "auction long, price long")
        >>> seen = weir.ValueState("boolean", default=False)
        >>> bids.key_by("auction").process(first_bid, "auction long, price long", state={"seen": seen})
        Stream[auction bigint, price bigint]
        """
        return self._stream._apply(
            "process",
            lambda: ProcessRows(self._keys, function, schema, state),
            Options(uid, name, parallelism),
            upstream=self._upstream,
        )

    def process_batches(
        self,
        function: KeyedBatchFunction | Callable[[Any, Any], Any],
        schema: pa.Schema | str,
        *,
        state: Mapping[str, ValueState] | None = None,
        kind: BatchKind = "polars",
        uid: str | None = None,
        name: str | None = None,
        parallelism: int | None = None,
    ) -> Stream:
        """Call a KeyedBatchFunction, or a plain function of (rows, state), with whole batches of many keys.

        `rows` has the column `key_row` besides its own: which row of `state` is that of the row's key. `state` has one
        row for each key of the batch: its key columns and its values. The function returns the rows that come out, and
        the new state in the order of the old. Several times faster than `process`.

        >>> import polars as pl, weir
        >>> def totals(rows, state):
        ...     added = rows.group_by("key_row").agg(pl.col("price").sum()).sort("key_row")["price"]
        ...     state = state.with_columns(total=pl.col("total") + added)
        ...     return state, state
        >>> bids = weir.Environment().from_collection([(1, 250)], "auction long, price long")
        >>> total = weir.ValueState("long", default=0)
        >>> bids.key_by("auction").process_batches(totals, "auction long, total long", state={"total": total})
        Stream[auction bigint, total bigint]
        """
        return self._stream._apply(
            "process_batches",
            lambda: KeyedBatches(self._keys, function, schema, state=state, kind=kind),
            Options(uid, name, parallelism),
            upstream=self._upstream,
        )


def checked_aggregates(aggregates: Mapping[str, Aggregate]) -> Mapping[str, Aggregate]:
    """The same, or PlanError."""
    if not aggregates:
        raise PlanError("at least one aggregate is needed, for example agg(n=weir.count())")
    for name, aggregate in aggregates.items():
        if not isinstance(aggregate, Aggregate):
            raise PlanError(f"{name}={aggregate!r} is not an aggregate; write for example {name}=weir.max('price')")
    return aggregates
