"""`weir bench checkpoint-store`: what a storage location costs. Needs no Spark.

Comes in: what was typed. Goes out: one JSON line, or a small table, and exit code 1
when something did not come back as it was written.
"""

from __future__ import annotations

from typing import Annotated

import typer

from weir.cli.bench.options import Json
from weir.cli.bench.run import show_report
from weir.cli.failures import readable_errors
from weir.cli.options import Debug


def bench_checkpoint_store(
    to: Annotated[str, typer.Option("--to", metavar="LOCATION", help="A directory or a URI, as for Checkpoints.to.")],
    calls: Annotated[int, typer.Option("--calls", min=1, help="How often each call is measured.")] = 50,
    files: Annotated[int, typer.Option("--files", min=1, help="Files of the checkpoint.")] = 64,
    file_size: Annotated[str, typer.Option("--file-size", metavar="SIZE", help="Bytes of each of them.")] = "256KB",
    large_size: Annotated[str, typer.Option("--large-size", metavar="SIZE", help="Bytes of a large file.")] = "64MB",
    threads: Annotated[int, typer.Option("--threads", min=1, help="Files of the checkpoint at once.")] = 4,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Latency of each storage call, speed of large files, and a checkpoint of many files: written, restored, deleted.

    Works in a new directory below the location, and removes it. Every byte that is read is compared with what was
    written, and of two creators of one file the second must be refused.

    **Example:** `weir bench checkpoint-store --to s3://bucket/bench?region=eu-west-1`
    """
    with readable_errors(debug=debug):
        from weir.bench.checkpoint_store import StoreOptions, run_checkpoint_store

        options = StoreOptions(
            to, calls=calls, files=files, file_size=file_size, large_size=large_size, threads=threads
        )
        show_report(run_checkpoint_store(options), json=json)
