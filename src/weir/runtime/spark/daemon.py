"""The process that forks PySpark's Python workers, with the heavy imports done once.

Comes in: what Spark passes to `pyspark.daemon` (spark.python.daemon.module names this one instead). Goes out:
workers that start in milliseconds, and know how earlier ones have died. Never runs a query or opens a port before it
forks: a thread that is alive here would be missing in every worker.
"""

from __future__ import annotations

import gc
import importlib
import os
from typing import Any

PRELOADED = (
    "numpy",
    "pyarrow",
    "pyarrow.compute",
    "pyarrow.flight",
    "pyarrow.fs",
    "pandas",  # pyarrow imports it, where it is installed, with the first pa.array(); better here than in every worker
    "polars",
    "pyspark.worker",
    "weir",
)
"""Imported before the first fork. Their thread pools (Arrow's, gRPC's, Polars') start at first use, in the worker."""

ENVIRONMENT = {
    "POLARS_MAX_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    # Allocators must not start a thread when they are loaded: it would not survive the fork.
    "_RJEM_MALLOC_CONF": "background_thread:false",
    "JE_ARROW_MALLOC_CONF": "background_thread:false",
}
"""What a worker's environment must hold before the libraries are loaded: one core per task, no early threads."""


def preload() -> None:
    """Import what every worker needs; what is not installed is left to the worker to complain about."""
    for name in PRELOADED:
        try:
            importlib.import_module(name)
        except ImportError:
            continue
    # The objects made so far live as long as the process: keep the collector from touching (and copying) their pages.
    gc.collect()
    gc.freeze()


def main() -> None:
    """Preload, then serve forks as PySpark's own daemon does."""
    for variable, value in ENVIRONMENT.items():
        os.environ.setdefault(variable, value)
    # Spark reads the daemon's port from its standard output: nothing else may be written there.
    protocol = os.dup(1)
    os.dup2(2, 1)
    try:
        preload()
    finally:
        os.dup2(protocol, 1)
        os.close(protocol)
    from pyspark import daemon

    note_deaths(daemon)
    daemon.manager()


def note_deaths(daemon: Any) -> None:
    """PySpark's daemon ignores the signals that tell of its children's ends, and so loses how they ended. It asks its
    own module what to ignore them with: what stands there now looks, and ignores no more than that."""
    from weir.runtime.spark.deaths import watch

    deaths = watch()
    daemon.SIG_IGN = lambda number, frame: deaths.reap()


if __name__ == "__main__":
    main()
