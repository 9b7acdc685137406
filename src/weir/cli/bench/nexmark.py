"""`weir bench nexmark`: the command.

Comes in: what was typed. Goes out: as for the other workloads.
"""

from __future__ import annotations

from typing import Annotated

import typer

from weir.cli.bench.options import Every, Json, Master, Work
from weir.cli.bench.run import run_workload
from weir.cli.options import Debug, Parallelism


def bench_nexmark(
    query: Annotated[str, typer.Option("--query", "-q", help="q0 to q9, q11 to q20.")],
    events: Annotated[
        int, typer.Option("--events", "-n", min=1, help="Events of the whole stream: persons, auctions and bids.")
    ] = 100_000_000,
    events_per_second: Annotated[
        int, typer.Option("--events-per-second", min=1, help="How many of them there are in a second of event time.")
    ] = 1_000_000,
    parallelism: Parallelism = 2,
    json: Json = False,
    checkpoint_every: Every = "5s",
    master: Master = None,
    work: Work = None,
    debug: Debug = False,
) -> None:
    """One query of the Nexmark benchmark, an auction house: sources → the query → sink, exactly once.

    Data: of 50 events one is a person, three are auctions and 46 are bids, computed with NumPy from their numbers while
    the job runs; texts are slices of a prepared pool. A query makes only the tables and columns that it reads, but all
    events count. Half of the bids are for a hot auction, three of four by a hot bidder. The committed rows must be
    exactly those of a batch computation.

    **Example:** `weir bench nexmark --query q5 --events 100000000 --json`
    """
    from weir.bench.harness import BenchOptions
    from weir.bench.nexmark.workload import run_nexmark

    every = None if checkpoint_every == "off" else checkpoint_every
    run_workload(
        lambda given: run_nexmark(given, query, per_second=events_per_second),
        lambda: BenchOptions(events=events, parallelism=parallelism, checkpoint_every=every, work=work),
        json=json,
        master=master,
        debug=debug,
    )
