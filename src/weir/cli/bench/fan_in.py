"""`weir bench fan-in`: what an element costs where many channels meet. Needs no Spark.

Comes in: what was typed. Goes out: a JSON line or a small table for each number of channels,
one more that compares them, and exit code 1 when rows were lost, doubled or out of order.
"""

from __future__ import annotations

from typing import Annotated

import typer

from weir.cli.bench.run import show_report
from weir.cli.failures import readable_errors
from weir.cli.options import Debug


def bench_fan_in(
    channels: Annotated[
        str, typer.Option("--channels", metavar="N,N,…", help="How many channels, one measurement for each number.")
    ] = "2,16,64,256",
    elements: Annotated[int, typer.Option("--elements", min=1, help="Elements of a round.")] = 100_000,
    rounds: Annotated[int, typer.Option("--rounds", min=1, help="Rounds, in turn; the fastest counts.")] = 5,
    json: Annotated[
        bool, typer.Option("--json", help="Print one JSON line for each number of channels, and last the comparison.")
    ] = False,
    debug: Debug = False,
) -> None:
    """What an element costs a subtask, by the number of channels that it takes from.

    Data: batches of one row, and a watermark after every four, wait on all channels before the clock starts; the
    subtask that jobs run takes them one by one. Every row must come through once, in the order of its channel. The last
    line compares: the cost is flat when the dearest number of channels costs at most 1.5 times what the cheapest does.

    **Example:** `weir bench fan-in --channels 2,1024`
    """
    with readable_errors(debug=debug):
        from weir.bench.fan_in import FanInOptions, counts_of, run_fan_in

        options = FanInOptions(counts_of(channels), elements=elements, rounds=rounds)
        show_report(*run_fan_in(options), json=json)
