"""Functions of the user on a stream whose rows are together by key, with state by key.

Comes in: functions and the states that they declare. Goes out: logical nodes behind a hash
exchange, made by the keyed stream that these methods belong to.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from weir.api.build import MakeSpec, Options
from weir.api.options import call_policy
from weir.api.upstream import Upstream
from weir.config import Duration
from weir.operators.base import OperatorSpec
from weir.operators.batches.keyed import KeyedBatches, KeyedBatchFunction
from weir.operators.batches.results import BatchKind
from weir.operators.calls import Retry
from weir.operators.functions.async_map import MapAsync
from weir.operators.functions.interfaces import ProcessFunction
from weir.operators.functions.process import ProcessRows
from weir.operators.functions.reduce import ReduceRows
from weir.operators.functions.rows import FilterRows, FlatMapRows, MapRows
from weir.state.declared.base import StateDescriptor

if TYPE_CHECKING:
    from weir.api.stream import Stream


class KeyedFunctions(ABC):
    """The methods of `KeyedStream` that call a function of the user with its rows."""

    _keys: tuple[str, ...]
    _upstream: Upstream

    @abstractmethod
    def _behind(self, kind: str, make: MakeSpec, options: Options) -> Stream:
        """The rows behind one more operator."""

    # --- Row by row -------------------------------------------------------------------------------------

    def map(
        self,
        function: Callable[..., Any],
        schema: pa.Schema | str,
        *,
        state: Mapping[str, StateDescriptor] | None = None,
        uid: str | None = None,
        name: str | None = None,
        parallelism: int | None = None,
    ) -> Stream:
        """Turn each row into one row, with state by key: an object whose class declares states, called with a row, or a
        plain function of (row, state) with its states in `state`.

        >>> import weir
        >>> from weir.testing import collect_local
        >>> class Numbered:
        ...     seen = weir.ValueState("long", default=0)
        ...     def __call__(self, bid):
        ...         self.seen.value += 1
        ...         return bid.auction, self.seen.value
        >>> bids = weir.Environment(parallelism=1).from_collection(
        ...     [(1, 250), (2, 90), (1, 300)], "auction long, price long")
        >>> collect_local(bids.key_by("auction").map(Numbered(), "auction long, number long"))["number"].to_pylist()
        [1, 1, 2]
        """
        options = Options(uid, name, parallelism)
        return self._behind("map", lambda: MapRows(function, schema, keys=self._keys, state=state), options)

    def flat_map(
        self,
        function: Callable[..., Iterable[Any]],
        schema: pa.Schema | str,
        *,
        state: Mapping[str, StateDescriptor] | None = None,
        uid: str | None = None,
        name: str | None = None,
        parallelism: int | None = None,
    ) -> Stream:
        """Turn each row into any number of rows, with state by key as in `map`.

        >>> import weir
        >>> from weir.testing import collect_local
        >>> def rising(bid, state):
        ...     if bid.price > state.highest.value:
        ...         state.highest.value = bid.price
        ...         yield bid
        >>> bids = weir.Environment(parallelism=1).from_collection(
        ...     [(1, 250), (1, 90), (1, 300)], "auction long, price long")
        >>> states = {"highest": weir.ValueState("long", default=0)}
        >>> collect_local(bids.key_by("auction").flat_map(rising, bids.schema, state=states))["price"].to_pylist()
        [250, 300]
        """
        options = Options(uid, name, parallelism)
        return self._behind("flat_map", lambda: FlatMapRows(function, schema, keys=self._keys, state=state), options)

    def filter(
        self,
        condition: Callable[..., bool],
        *,
        state: Mapping[str, StateDescriptor] | None = None,
        uid: str | None = None,
        name: str | None = None,
        parallelism: int | None = None,
    ) -> Stream:
        """Keep the rows for which the function is true, with state by key as in `map`. Expressions need no key: filter
        with them before `key_by`.

        >>> import weir
        >>> from weir.testing import collect_local
        >>> class FirstOfEach:
        ...     seen = weir.ValueState("boolean", default=False)
        ...     def __call__(self, bid):
        ...         before, self.seen.value = self.seen.value, True
        ...         return not before
        >>> bids = weir.Environment(parallelism=1).from_collection(
        ...     [(1, 250), (1, 90), (2, 300)], "auction long, price long")
        >>> collect_local(bids.key_by("auction").filter(FirstOfEach()))["price"].to_pylist()
        [250, 300]
        """
        options = Options(uid, name, parallelism)
        return self._behind("filter", lambda: FilterRows(condition, keys=self._keys, state=state), options)

    def map_async(
        self,
        function: Callable[..., Awaitable[Any]],
        schema: pa.Schema | str,
        *,
        state: Mapping[str, StateDescriptor] | None = None,
        ordered: bool = True,
        capacity: int = 100,
        timeout: Duration = "10s",
        retry: Retry | int | None = None,
        failed: str | None = None,
        uid: str | None = None,
        name: str | None = None,
        parallelism: int | None = None,
    ) -> Stream:
        """The same as `Stream.map_async`, with state by key as in `map`. The rows of a key are called for one after the
        other; those of different keys side by side. A call sees what the one before of its key has left, and what it
        changes is kept when its row comes out: a call that fails, or is made again, changes nothing by itself.

        >>> import weir
        >>> from weir.testing import collect_local
        >>> class Asked:
        ...     answers = weir.MapState("long", "string")
        ...     async def __call__(self, bid):
        ...         if bid.price not in self.answers:
        ...             self.answers[bid.price] = f"asked for {bid.price}"
        ...         return bid.auction, len(self.answers)
        >>> bids = weir.Environment(parallelism=1).from_collection(
        ...     [(1, 250), (1, 90), (1, 250)], "auction long, price long")
        >>> asked = bids.key_by("auction").map_async(Asked(), "auction long, asked long")
        >>> collect_local(asked)["asked"].to_pylist()
        [1, 2, 2]
        """

        def make() -> OperatorSpec:
            return MapAsync(
                function,
                schema,
                policy=call_policy(timeout, retry),
                ordered=ordered,
                capacity=capacity,
                failed=failed,
                keys=self._keys,
                state=state,
            )

        return self._behind("map_async", make, Options(uid, name, parallelism))

    def reduce(
        self,
        function: Callable[..., Any],
        *,
        state: Mapping[str, StateDescriptor] | None = None,
        uid: str | None = None,
        name: str | None = None,
        parallelism: int | None = None,
    ) -> Stream:
        """Fold the rows of each key into one of the same schema: `function(so far, row)`, which may have more state, as
        in `map`. It is called from a key's second row on.

        >>> import weir
        >>> bids = weir.Environment().from_collection([(1, 250)], "auction long, price long")
        >>> bids.key_by("auction").reduce(lambda best, bid: bid if bid.price > best.price else best)
        Stream[auction bigint, price bigint]
        """
        options = Options(uid, name, parallelism)
        return self._behind("reduce", lambda: ReduceRows(self._keys, function, state), options)

    def process(
        self,
        function: ProcessFunction | Callable[[Any, Any], Any],
        schema: pa.Schema | str,
        *,
        state: Mapping[str, StateDescriptor] | None = None,
        sides: Mapping[str, pa.Schema | str] | None = None,
        uid: str | None = None,
        name: str | None = None,
        parallelism: int | None = None,
    ) -> Stream:
        """Call a ProcessFunction, or a plain function of (row, state), with each row and the state of its key.

        The function yields rows, or returns one, a list of them, or None. A plain function's states are given
        in `state`; a ProcessFunction declares them as class attributes, and may set timers and use side outputs:
        `sides` has the schema of each by its tag, `context.side(tag, row)` fills it, `result.side(tag)` reads it.

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
        return self._behind(
            "process",
            lambda: ProcessRows(self._keys, function, schema, state, sides=sides, time=event_time(self._upstream)),
            Options(uid, name, parallelism),
        )

    # --- Whole batches ----------------------------------------------------------------------------------

    def process_batches(
        self,
        function: KeyedBatchFunction | Callable[[Any, Any], Any],
        schema: pa.Schema | str,
        *,
        state: Mapping[str, StateDescriptor] | None = None,
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
        return self._behind(
            "process_batches",
            lambda: KeyedBatches(self._keys, function, schema, state=state, kind=kind),
            Options(uid, name, parallelism),
        )


def event_time(upstream: Upstream) -> tuple[str, int] | None:
    """Where the rows have their event time, as operators are told it."""
    return None if upstream.time is None else (upstream.time.name, upstream.time.offset_us)
