"""Running totals per account from a generated stream, with expressions before the key and several aggregates after.

    python examples/running_totals.py

The generator makes rows from their numbers with NumPy, so the stream is the same every time, can be read in parallel,
and can be replayed from any position after a failure.
"""

import numpy as np
import polars as pl

import weir

PAYMENTS = 200_000


def payments(numbers: np.ndarray) -> dict[str, np.ndarray]:
    return {"account": numbers * 7_919 % 500, "cents": numbers * 31 % 10_007 - 2_000}


env = weir.Environment(parallelism=2, checkpoints=weir.Checkpoints(every="1s"))
totals = (
    env.generate(PAYMENTS, payments, "account long, cents long", uid="payments")
    .filter(pl.col("cents") != 0, uid="not-empty")
    .with_columns(euros=pl.col("cents") / 100, uid="euros")
    .key_by("account")
    .agg(
        payments=weir.count(),
        balance=weir.sum("euros"),
        largest=weir.max("euros"),
        mean=weir.avg("euros"),
        uid="totals",
    )
)
print(totals.explain())

# Each change of an account is a row; the one with most payments is its newest.
changes = pl.from_arrow(totals.collect())
newest = changes.sort("payments").group_by("account").last().sort("account")
print(newest.head(5))
