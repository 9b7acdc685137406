"""`weir bench nexmark`: the command.

Comes in: what was typed. Goes out: as for the other workloads.
"""

from __future__ import annotations

from typing import Annotated

import typer

from weir.cli.bench.run import run_workload


def bench_nexmark(
    query: Annotated[str, typer.Option("--query", "-q", help="q0 to q9, q11 to q20.")],
    events: Annotated[
        int, typer.Option("--events", "-n", min=1, help="Events of the whole stream: persons, auctions and bids.")
    ] = 100_000_000,
    events_per_second: Annotated[
        int, typer.Option("--events-per-second", min=1, help="How many of them there are in a second of event time.")
    ] = 1_000_000,
    parallelism: Annotated[int, typer.Option("--parallelism", "-p", min=1, help="How many subtasks and slots.")] = 2,
    json: Annotated[bool, typer.Option("--json", help="Print exactly one JSON line on standard output.")] = False,
    checkpoint_every: Annotated[
        str, typer.Option("--checkpoint-every", metavar="TIME", help="Such as 5s or 200ms; 'off': only the last one.")
    ] = "5s",
    master: Annotated[
        str | None, typer.Option("--master", metavar="URL", help="A Spark master instead of the embedded Spark.")
    ] = None,
    work: Annotated[
        str | None,
        typer.Option("--work", metavar="DIR", help="Where to work, if executors are on other hosts: shared."),
    ] = None,
    debug: Annotated[bool, typer.Option("--debug", help="Show Weir's own traceback when something fails.")] = False,
) -> None:
    """One query of the Nexmark benchmark, an auction house: sources → the query → sink, exactly once.

    Data: of 50 events one is a person, three are auctions and 46 are bids, computed with NumPy from their numbers while
    the job runs; texts are slices of a prepared pool. A query makes only the tables and columns that it reads, but all
    events count. Half of the bids are for a hot auction, three of four by a hot bidder. The committed rows must be
    exactly those of a batch computation.

    **Example:** `weir bench nexmark --query q5 --events 100000000 --json`
    """
    from weir.bench.harness import Options
    from weir.bench.nexmark.workload import run_nexmark

    every = None if checkpoint_every == "off" else checkpoint_every
    run_workload(
        lambda given: run_nexmark(given, query, per_second=events_per_second),
        lambda: Options(events=events, parallelism=parallelism, checkpoint_every=every, work=work),
        json=json,
        master=master,
        debug=debug,
    )
