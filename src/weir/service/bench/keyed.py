"""The workloads `keyed-sum` and `keyed-process`: a running sum over 100,000 keys, vectorised and row by row.

Comes in: a number of events. Goes out: how fast they are summed up, and whether
every key's last committed sum is the true one.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import weir
from weir import connectors
from weir.service.bench import keyed_data
from weir.service.bench.harness import Bench, Options, Report, Run, bench


class RunningSum(weir.ProcessFunction):
    """The same sum as weir.sum, in Python: one call and one row out for each row in."""

    total = weir.ValueState("long", default=0)

    def process(self, row: Any, context: Any) -> tuple[int, int]:
        total = self.total.get() + row.value
        self.total.set(total)
        return row.key, total


def run_keyed_sum(options: Options) -> Report:
    with bench(options, "keyed-sum") as it:
        run = run_sums(it)
        wrong = wrong_sums(run, options.events)
        return it.report(run, verified=wrong == 0, wrong_keys=wrong, rows_out=rows_out(run))


def run_keyed_process(options: Options) -> Report:
    with bench(options, "keyed-process") as it:
        rows = it.read(connectors.Generator(options.events, keyed_data.make_rows, keyed_data.SCHEMA))
        sums = rows.key_by("key").process(RunningSum(), "key long, total long", uid="process")
        sums.write(it.sink(keyed_data.LastSums), uid="sink")
        run = it.run()
        wrong, came = wrong_sums(run, options.events), rows_out(run)
        verified = wrong == 0 and came == options.events
        return it.report(run, verified=verified, wrong_keys=wrong, rows_out=came)


def run_sums(it: Bench) -> Run:
    """The job of keyed-sum, for whoever measures it."""
    rows = it.read(connectors.Generator(it.options.events, keyed_data.make_rows, keyed_data.SCHEMA))
    sums = rows.key_by("key").agg(total=weir.sum("value"), uid="sum")
    sums.write(it.sink(keyed_data.LastSums), uid="sink")
    return it.run()


def wrong_sums(run: Run, events: int) -> int:
    """How many keys have another last committed sum than the true one."""
    return int(np.count_nonzero(keyed_data.committed_sums(run.epochs) != keyed_data.true_sums(events)))


def rows_out(run: Run) -> int:
    return int(sum(epoch.arrays["rows"][0] for epoch in run.epochs))
