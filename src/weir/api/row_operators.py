"""What becomes of the rows of a stream one by one, or a batch at a time: expressions and functions.

Comes in: expressions and functions of the user. Goes out: logical nodes, made by the stream
that these methods belong to. What brings rows together stands with `Stream` itself.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import polars as pl
import pyarrow as pa

from weir.api.build import MakeSpec, Options
from weir.api.options import as_expressions, call_policy
from weir.config import Duration
from weir.errors import PlanError
from weir.operators.base import OperatorSpec
from weir.operators.batches.functions import MapBatches
from weir.operators.batches.results import BatchKind
from weir.operators.calls import Retry
from weir.operators.expressions.select import Filter, Select, WithColumns
from weir.operators.functions.async_map import MapAsync
from weir.operators.functions.rows import FilterRows, FlatMapRows, MapRows

if TYPE_CHECKING:
    from weir.api.stream import Stream


class RowOperators(ABC):
    """The methods of `Stream` that need nothing but its rows."""

    @property
    @abstractmethod
    def schema(self) -> pa.Schema:
        """The Arrow schema of the rows."""

    @abstractmethod
    def _apply(self, kind: str, make: MakeSpec, options: Options) -> Stream:
        """The rows behind one more operator."""

    # --- Expressions ------------------------------------------------------------------------------------

    def select(
        self,
        *expressions: pl.Expr | str,
        uid: str | None = None,
        name: str | None = None,
        parallelism: int | None = None,
        **named: Any,
    ) -> Stream:
        """Keep or compute columns, with column names and Polars expressions.

        >>> import weir, polars as pl
        >>> bids = weir.Environment().from_collection([(1, 250)], "auction long, price long")
        >>> bids.select("auction", euros=pl.col("price") / 100)
        Stream[auction bigint, euros double]
        """
        return self._apply(
            "select", lambda: Select(as_expressions(expressions, named)), Options(uid, name, parallelism)
        )

    def with_columns(
        self,
        *expressions: pl.Expr | str,
        uid: str | None = None,
        name: str | None = None,
        parallelism: int | None = None,
        **named: Any,
    ) -> Stream:
        """Add columns, or replace those of the same name.

        >>> import weir, polars as pl
        >>> bids = weir.Environment().from_collection([(1, 250)], "auction long, price long")
        >>> bids.with_columns(dear=pl.col("price") > 100)
        Stream[auction bigint, price bigint, dear boolean]
        """
        options = Options(uid, name, parallelism)
        return self._apply("with_columns", lambda: WithColumns(as_expressions(expressions, named)), options)

    def filter(
        self,
        condition: pl.Expr | Callable[[Any], bool],
        *,
        uid: str | None = None,
        name: str | None = None,
        parallelism: int | None = None,
    ) -> Stream:
        """Keep the rows for which a Polars expression, or a function of one row, is true.

        >>> import weir, polars as pl
        >>> bids = weir.Environment().from_collection([(1, 250)], "auction long, price long")
        >>> bids.filter(pl.col("price") > 100).filter(lambda bid: bid.auction % 2 == 1)
        Stream[auction bigint, price bigint]
        """

        def make() -> OperatorSpec:
            if isinstance(condition, pl.Expr):
                return Filter(condition)
            if callable(condition):
                return FilterRows(condition)
            raise PlanError(f"{condition!r} is neither a Polars expression nor a function of one row")

        return self._apply("filter", make, Options(uid, name, parallelism))

    # --- Functions --------------------------------------------------------------------------------------

    def map_batches(
        self,
        function: Callable[[Any], Any],
        schema: pa.Schema | str | None = None,
        kind: BatchKind = "arrow",
        *,
        uid: str | None = None,
        name: str | None = None,
        parallelism: int | None = None,
    ) -> Stream:
        """Call a function with whole batches: Arrow RecordBatches, or Polars or pandas frames.

        `schema` is that of what the function returns; None: the same as what it gets. Batches are cut as load and
        time happen to cut them, so a result must not depend on which rows are together.

        >>> import weir, polars as pl
        >>> bids = weir.Environment().from_collection([(1, 250)], "auction long, price long")
        >>> bids.map_batches(lambda frame: frame.with_columns(pl.col("price").clip(0, 100)), kind="polars")
        Stream[auction bigint, price bigint]
        """
        declared = self.schema if schema is None else schema
        options = Options(uid, name, parallelism)
        return self._apply("map_batches", lambda: MapBatches(function, declared, kind), options)

    def map(
        self,
        function: Callable[[Any], Any],
        schema: pa.Schema | str,
        *,
        uid: str | None = None,
        name: str | None = None,
        parallelism: int | None = None,
    ) -> Stream:
        """Turn each row into one row: a tuple, a dict, or a scalar when there is one column.

        >>> import weir
        >>> bids = weir.Environment().from_collection([(1, 250)], "auction long, price long")
        >>> bids.map(lambda bid: (bid.auction, bid.price / 100), "auction long, euros double")
        Stream[auction bigint, euros double]
        """
        return self._apply("map", lambda: MapRows(function, schema), Options(uid, name, parallelism))

    def flat_map(
        self,
        function: Callable[[Any], Any],
        schema: pa.Schema | str,
        *,
        uid: str | None = None,
        name: str | None = None,
        parallelism: int | None = None,
    ) -> Stream:
        """Turn each row into any number of rows.

        >>> import weir
        >>> lines = weir.Environment().from_collection([("to be or not",)], "line string")
        >>> lines.flat_map(lambda row: row.line.split(), "word string")
        Stream[word string]
        """
        return self._apply("flat_map", lambda: FlatMapRows(function, schema), Options(uid, name, parallelism))

    def map_async(
        self,
        function: Callable[[Any], Awaitable[Any]],
        schema: pa.Schema | str,
        *,
        ordered: bool = True,
        capacity: int = 100,
        timeout: Duration = "10s",
        retry: Retry | int | None = None,
        failed: str | None = None,
        uid: str | None = None,
        name: str | None = None,
        parallelism: int | None = None,
    ) -> Stream:
        """Turn each row into one row by an async function, with many calls at a time: to ask an outside service.

        ordered:  results come out in the order of the rows; otherwise as they come back, but never behind a watermark
                  that their row was before
        capacity: how many rows of one subtask are under way at most
        timeout:  how long one call may take
        retry:    how often, and when, a call that failed or took too long is made again: a number of attempts, or
                  `weir.Retry(attempts=3, delay="200ms", backoff=2.0, on=(ConnectionError,))`
        failed:   a tag: rows whose calls have failed for good go to this side output of the result, as they came in;
                  without it they fail the job

        Rows under way are part of every checkpoint, and are called again after a restart: calls happen at least once.

        >>> import weir
        >>> async def looked_up(bid):
        ...     return bid.auction, f"auction {bid.auction}"
        >>> bids = weir.Environment().from_collection([(1, 250)], "auction long, price long")
        >>> bids.map_async(looked_up, "auction long, title string", timeout="2s", retry=3)
        Stream[auction bigint, title string]
        """

        def make() -> OperatorSpec:
            policy = call_policy(timeout, retry)
            return MapAsync(function, schema, policy=policy, ordered=ordered, capacity=capacity, failed=failed)

        return self._apply("map_async", make, Options(uid, name, parallelism))
