"""A job with every kind of state, whose checkpoints and savepoint are kept below tests/archive: what earlier versions
have written is read by later ones. `python tests/spark/jobs/archived.py BACKEND DIRECTORY` makes such an archive with
the version that is installed, and leaves it as a driver does that was killed.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import Any

import polars as pl

import weir
from weir import connectors as io

ROWS = 6_000
KEYS = 6
RATE = 300.0
SAVED_AT = 1_000
STEP_US = 100_000
END_US = (ROWS + 10) * STEP_US
"""Rows are a tenth of a second apart; the timers of all keys are due behind the last."""


class Remembering(weir.ProcessFunction):
    """States of all kinds, and a timer for each key."""

    seen = weir.ValueState("long", default=0)
    some = weir.ListState("long")
    names = weir.MapState("string", "long")
    largest = weir.ReducingState("long", max)
    total = weir.AggregatingState(
        "struct<n:long,sum:long>",
        create=lambda: {"n": 0, "sum": 0},
        add=lambda so_far, n: {"n": so_far["n"] + 1, "sum": so_far["sum"] + n},
        result=lambda so_far: f"{so_far['sum']} of {so_far['n']}",
    )

    def process(self, row: Any, context: Any) -> Iterator[Any]:
        self.seen.value += 1
        if row.n % 500 < KEYS:
            self.some.add(row.n)
        self.names[f"name-{row.n % 3}"] = row.n
        self.largest.add(row.n)
        self.total.add(row.n)
        context.timers.at(END_US)
        return iter(())

    def on_timer(self, time: Any, context: Any) -> Iterator[Any]:
        names = ",".join(f"{name}:{n}" for name, n in sorted(self.names.items()))
        some = ",".join(map(str, self.some.get()))
        yield context.key, self.seen.value, some, names, self.largest.get(), self.total.get()


def build(backend: Any, *, rate: float | None) -> weir.Environment:
    env = weir.Environment(
        parallelism=2, backend=backend, checkpoints=weir.Checkpoints(every="300ms", to="checkpoints", retain=2)
    )

    def rows(n: Any) -> dict[str, Any]:
        return {
            "key": n % KEYS,
            "n": n,
            "text": [f"text {i % 7}" for i in n],
            "ts": (n * STEP_US).astype("datetime64[us]"),
        }

    schema = "key long, n long, text string, ts timestamp"
    left = env.generate(ROWS, rows, schema, rate=rate, watermark=weir.monotonic("ts"), uid="left")
    right = env.generate(ROWS, rows, schema, rate=rate, watermark=weir.monotonic("ts"), uid="right").select(
        "key", "ts", other="n", uid="others"
    )
    keyed, others = left.key_by("key"), right.key_by("key")
    outputs = {
        "totals": keyed.agg(n=weir.count(), total=weir.sum("n"), last=weir.last("text"), uid="totals"),
        "windows": keyed.window(weir.tumbling("2m")).agg(n=weir.count(), low=weir.min("n"), uid="windows"),
        "sliding": keyed.window(weir.sliding("2m", "1m")).agg(n=weir.count(), uid="sliding"),
        "sessions": keyed.window(weir.session("1h")).agg(n=weir.count(), uid="sessions"),
        "listed": keyed.window(weir.tumbling("3m")).process(listed, "key long, n long, mean double", uid="listed"),
        "reduced": keyed.reduce(lambda a, b: b if b.n > a.n else a, uid="reduced"),
        "remembered": keyed.process(
            Remembering(),
            "key long, seen long, some string, names string, largest long, total string",
            uid="remembered",
        ),
        "joined": keyed.interval_join(others, lower="0s", upper="1s", uid="joined"),
        "as_of": keyed.as_of(others, uid="as-of"),
    }
    for name, stream in outputs.items():
        stream.write(io.FileSink(f"out/{name}", format="jsonl"), uid=f"out-{name}")
    return env


def listed(rows: pl.DataFrame, window: Any) -> Any:
    return window.key, rows.height, float(rows["n"].mean() or 0.0)


def main() -> None:
    backend, place = sys.argv[1:]
    os.makedirs(place)
    os.chdir(place)
    job = build(backend, rate=RATE).submit("archived")
    while not job.checkpoints() or rows_read(job) < SAVED_AT:
        job.wait(timeout=0.05)
    job.savepoint("saved")
    while len(job.checkpoints()) < 8:
        job.wait(timeout=0.05)
    job.cancel()


def rows_read(job: Any) -> int:
    operators = job.metrics()["operators"]
    return max((operator.get("rows_out", 0) for operator in operators), default=0)


if __name__ == "__main__":
    main()
