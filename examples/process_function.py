"""Python code with state, one row at a time: alert when an account spends much more than it used to.

    python examples/process_function.py

A ProcessFunction sees each row at its key and keeps values by key. They are part of every checkpoint: after a failure
the function goes on with exactly the values that belong to the rows it has seen.
"""

from collections.abc import Iterator
from typing import Any

import weir


class UnusualSpending(weir.ProcessFunction):
    """Compares each payment with the running mean of the account's payments before it."""

    seen = weir.ValueState("long", default=0)
    mean = weir.ValueState("double", default=0.0)

    def process(self, payment: Any, context: Any) -> Iterator[tuple[str, float, float]]:
        seen, mean = self.seen.value, self.mean.value
        if seen >= 3 and payment.amount > 5 * mean:
            yield payment.account, payment.amount, mean
        self.seen.value = seen + 1
        self.mean.value = mean + (payment.amount - mean) / (seen + 1)


PAYMENTS = [
    ("anna", 20.0),
    ("ben", 5.0),
    ("anna", 30.0),
    ("ben", 7.0),
    ("anna", 25.0),
    ("ben", 6.0),
    ("anna", 900.0),
    ("ben", 8.0),
    ("anna", 22.0),
    ("ben", 60.0),
]

env = weir.Environment(parallelism=2)
alerts = (
    env.from_collection(PAYMENTS, "account string, amount double", uid="payments", parallelism=1)
    .key_by("account")
    .process(UnusualSpending(), "account string, amount double, usual double", uid="unusual")
    .collect()
)
for alert in sorted(alerts.to_pylist(), key=lambda row: row["account"]):
    print(f"{alert['account']} spent {alert['amount']:.2f}, usually {alert['usual']:.2f}")
