"""The same job twice: a Python function for each row, and one for whole batches with the state of all their keys.

    python examples/running_totals_fast.py [PAYMENTS]

Both give every payment the running total of its account. `process_batches` hands over the rows of a batch and the
state of their keys as columns; it is many times faster.
"""

import sys
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import polars as pl

import weir
from weir import connectors as io

PAYMENTS = int(sys.argv[1]) if len(sys.argv) > 1 else 5_000_000
SCHEMA = "account long, cents long, total long"


class RowByRow(weir.ProcessFunction):
    """Sees one payment at a time."""

    total = weir.ValueState("long", default=0)

    def process(self, payment: Any, context: Any) -> Iterator[tuple[int, int, int]]:
        self.total.value += payment.cents
        yield payment.account, payment.cents, self.total.value


class WholeBatches(weir.KeyedBatchFunction):
    """Sees up to 65,536 payments at a time, and one row of `state` for each account among them."""

    total = weir.ValueState("long", default=0)

    def process(self, rows: pl.DataFrame, state: pl.DataFrame) -> tuple[Any, Any]:
        accounts = weir.ByKey(rows, state)
        total = accounts.running_sum("cents", start="total")
        payments = {"account": rows["account"], "cents": rows["cents"], "total": total}
        return payments, {"total": accounts.last(total)}


def payments(numbers: np.ndarray) -> dict[str, np.ndarray]:
    return {"account": numbers * 7_919 % 50_000, "cents": numbers * 31 % 1_009}


def running_totals(env: weir.Environment, how: str, count: int) -> weir.Stream:
    keyed = env.generate(count, payments, "account long, cents long", uid="payments").key_by("account")
    if how == "process":
        return keyed.process(RowByRow(), SCHEMA, uid="totals")
    return keyed.process_batches(WholeBatches(), SCHEMA, uid="totals")


def check(how: str, count: int) -> None:
    """The largest total of an account is the sum of its payments."""
    rows = running_totals(weir.Environment(parallelism=2), how, count).collect()
    found = pl.DataFrame(rows).group_by("account").agg(pl.max("total")).sort("account")
    made = pl.DataFrame(payments(np.arange(count)))
    assert found.equals(made.group_by("account").agg(total=pl.sum("cents")).sort("account")), "the totals are wrong"


def seconds(how: str, count: int) -> float:
    """How long the whole job takes, from start to end."""
    env = weir.Environment(parallelism=2)
    running_totals(env, how, count).write(io.Discard(), uid="out")
    started_s = time.perf_counter()
    env.run(how)
    return time.perf_counter() - started_s


def rate(how: str) -> float:
    """Payments per second, without the start of the job."""
    check(how, 100_000)
    start_s = seconds(how, 1)
    return PAYMENTS / max(seconds(how, PAYMENTS) - start_s, 0.001)


by_row, by_batch = rate("process"), rate("process_batches")
print(f"process:         {by_row:12,.0f} payments/s")
print(f"process_batches: {by_batch:12,.0f} payments/s, {by_batch / by_row:.1f} times as many")
