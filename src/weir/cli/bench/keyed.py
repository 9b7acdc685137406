"""`weir bench keyed-sum`, `keyed-process` and `keyed-batches`: running sums by key.

Comes in: what was typed. Goes out: one JSON line, or a small table, and exit code 1
when a key's last committed sum is not the true one.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated

import typer

from weir.cli.bench.options import Events, Every, Json, Master, Tls, Work
from weir.cli.bench.run import bench_options, perhaps_with_tls, run_bench
from weir.cli.options import Debug, Parallelism

if TYPE_CHECKING:
    from weir.bench.harness import BenchOptions, BenchReport

_FACTORS = {"": 1, "K": 1_000, "M": 1_000_000}


def number_of_keys(text: str) -> int:
    """A number such as 10M.

    >>> number_of_keys("10M"), number_of_keys("2500"), number_of_keys("1.5k")
    (10000000, 2500, 1500)
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([KM]?)", text.strip().upper())
    if match is None:
        raise typer.BadParameter(f"{text!r} is not a number of keys; write 2500, 500K or 10M")
    return round(float(match[1]) * _FACTORS[match[2]])


Keys = Annotated[
    int, typer.Option("--keys", parser=number_of_keys, metavar="NUMBER", help="How many, such as 500K or 10M.")
]
KeysType = Annotated[str, typer.Option("--keys-type", help="long or string.")]


def bench_keyed_sum(
    events: int = Events(200_000_000),
    parallelism: Parallelism = 2,
    json: Json = False,
    checkpoint_every: Every = "5s",
    keys: Keys = "100000",  # type: ignore[assignment]  # as if typed
    keys_type: KeysType = "long",
    tls: Tls = False,
    master: Master = None,
    work: Work = None,
    debug: Debug = False,
) -> None:
    """A running sum by key, over 100,000 int64 keys by default: source → key by → sum → sink, exactly once.

    Data: key and value are computed with NumPy from the row's number while the job runs (multiply and shift, about
    5 ns a row), so that keys come in no order. With `--keys-type string` a key is a region and eight digits, such as
    `eu-00000042`, of 11 to 15 bytes, which costs about 20 ns a row more. Every key's last committed sum must be the
    true one. task_ns_per_event is what one task takes for an event: seconds times tasks, by events.

    **Example:** `weir bench keyed-sum --keys-type string --keys 10M --events 20000000 --json`
    """
    from weir.bench.keyed import run_keyed_sum
    from weir.bench.keyed_data import keys_of

    def workload(options: BenchOptions) -> BenchReport:
        return run_keyed_sum(options, keys_of(keys_type, keys))

    options = bench_options(events, parallelism, checkpoint_every, work=work)
    run_bench(perhaps_with_tls(workload, tls), options, json=json, master=master, debug=debug)


def bench_keyed_process(
    events: int = Events(10_000_000),
    parallelism: Parallelism = 2,
    json: Json = False,
    checkpoint_every: Every = "5s",
    master: Master = None,
    work: Work = None,
    debug: Debug = False,
) -> None:
    """The same sum with a ProcessFunction: one Python call, value state and one row out for each row.

    Data: as for keyed-sum. Every row must come out, and every key's last committed sum must be the true one.

    **Example:** `weir bench keyed-process --events 5000000`
    """
    from weir.bench.keyed import run_keyed_process

    options = bench_options(events, parallelism, checkpoint_every, work=work)
    run_bench(run_keyed_process, options, json=json, master=master, debug=debug)


def bench_keyed_batches(
    events: int = Events(100_000_000),
    compare: Annotated[
        bool, typer.Option("--compare", help="Run keyed-process, too, with a tenth of the events; give the ratio.")
    ] = False,
    parallelism: Parallelism = 2,
    json: Json = False,
    checkpoint_every: Every = "5s",
    master: Master = None,
    work: Work = None,
    debug: Debug = False,
) -> None:
    """The same sum with a KeyedBatchFunction: one call for a batch, state as columns, one row out for each row.

    Data: as for keyed-sum. Every row must come out, and every key's last committed sum must be the true one. The rows
    that go in and come out are those of keyed-process.

    **Example:** `weir bench keyed-batches --compare`
    """
    from weir.bench.keyed import run_keyed_batches

    options = bench_options(events, parallelism, checkpoint_every, work=work)
    run_bench(lambda given: run_keyed_batches(given, compare=compare), options, json=json, master=master, debug=debug)
