"""The Spark session behind `--master`: one that the command starts instead of the embedded one.

Comes in: a master URL. Goes out: a session with the settings that make restarts fast,
which every job without a session of its own then runs on.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from weir.runtime.spark import provide_session, recommended_settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@contextmanager
def spark_on(master: str | None, name: str) -> Iterator[None]:
    """Run jobs on this master for a while; None: on the embedded Spark, which ends with the process."""
    if master is None:
        yield
        return
    session = _start(master, name)
    provide_session(session)
    try:
        yield
    finally:
        provide_session(None)
        session.stop()


def _start(master: str, name: str) -> SparkSession:
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master(master).appName(name)
    settings = {"spark.ui.showConsoleProgress": "false", "spark.log.level": "ERROR", **recommended_settings()}
    for setting, value in settings.items():
        builder = builder.config(setting, value)
    session: SparkSession = builder.getOrCreate()
    return session
