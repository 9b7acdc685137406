"""The workloads `keyed-sum`, `keyed-batches` and `keyed-process`: running sums over 100,000 keys, as an aggregate,
with a function of whole batches, and row by row. The aggregate sums over other keys, too: more, and strings.

Comes in: a number of events. Goes out: how fast they are summed up, and whether
every key's last committed sum is the true one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

import weir
from weir import connectors
from weir.bench import keyed_data
from weir.bench.harness import Bench, BenchOptions, BenchReport, FinishedJob, bench
from weir.bench.keyed_data import LONGS, Keys

OUTPUT = "key long, total long"
COMPARED_SHARE = 10


class RunningSum(weir.ProcessFunction):
    """The same sum as weir.sum, in Python: one call and one row out for each row in."""

    total = weir.ValueState("long", default=0)

    def process(self, row: Any, context: Any) -> tuple[int, int]:
        total = self.total.get() + row.value
        self.total.set(total)
        return row.key, total


class RunningSums(weir.KeyedBatchFunction):
    """The same as RunningSum, one row out for each row in, with one call for a batch."""

    total = weir.ValueState("long", default=0)

    def process(self, rows: Any, state: Any) -> tuple[Any, Any]:
        keys = weir.ByKey(rows, state)
        total = keys.running_sum("value", start="total")
        return {"key": rows["key"], "total": total}, {"total": keys.last(total)}


def run_keyed_sum(options: BenchOptions, keys: Keys = LONGS) -> BenchReport:
    with bench(options, "keyed-sum") as it:
        run = run_sums(it, keys)
        wrong = wrong_sums(run, options.events, keys)
        took = run.seconds * options.parallelism / options.events
        return it.report(
            run,
            verified=wrong == 0,
            wrong_keys=wrong,
            rows_out=rows_out(run),
            keys=keys.count,
            task_ns_per_event=round(took * 1e9, 1),
        )


def run_keyed_process(options: BenchOptions) -> BenchReport:
    return _running_sums(options, "keyed-process", lambda keyed: keyed.process(RunningSum(), OUTPUT, uid="process"))


def run_keyed_batches(options: BenchOptions, *, compare: bool = False) -> BenchReport:
    """`compare`: run keyed-process, too, with a tenth of the events, and say how many times faster this is."""
    report = _running_sums(
        options, "keyed-batches", lambda keyed: keyed.process_batches(RunningSums(), OUTPUT, uid="process")
    )
    if not compare:
        return report
    by_row = run_keyed_process(replace(options, events=max(options.events // COMPARED_SHARE, 1)))
    ratio = round(report.events_per_s / max(by_row.events_per_s, 1), 1)
    more = {**report.more, "process_events_per_s": by_row.events_per_s, "times_process": ratio}
    return replace(report, verified=report.verified and by_row.verified, more=more)


def _running_sums(options: BenchOptions, name: str, process: Callable[[weir.KeyedStream], weir.Stream]) -> BenchReport:
    with bench(options, name) as it:
        rows = it.read(connectors.Generator(options.events, keyed_data.make_rows, keyed_data.SCHEMA))
        process(rows.key_by("key")).write(it.sink(keyed_data.LastSums), uid="sink")
        run = it.run()
        wrong, came = wrong_sums(run, options.events), rows_out(run)
        verified = wrong == 0 and came == options.events
        return it.report(run, verified=verified, wrong_keys=wrong, rows_out=came)


def run_sums(it: Bench, keys: Keys = LONGS) -> FinishedJob:
    """The job of keyed-sum, for whoever measures it."""
    rows = it.read(connectors.Generator(it.options.events, keys.make_rows, keys.schema))
    sums = rows.key_by("key").agg(total=weir.sum("value"), uid="sum")
    sums.write(it.sink(keys.last_sums), uid="sink")
    return it.run()


def wrong_sums(run: FinishedJob, events: int, keys: Keys = LONGS) -> int:
    """How many keys have another last committed sum than the true one."""
    committed, true = keyed_data.committed_sums(run.epochs, keys.count), keyed_data.true_sums(events, keys.count)
    return int(np.count_nonzero(committed != true))


def rows_out(run: FinishedJob) -> int:
    return int(sum(epoch.arrays["rows"][0] for epoch in run.epochs))
