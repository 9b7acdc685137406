"""The Spark session of a command: the embedded one, or one that it starts for `--master` instead.

Comes in: a master URL. Goes out: a session with the settings that make restarts fast,
which every job without a session of its own then runs on, and a word before Spark starts.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from weir.runtime.spark.jvm import start_jvm
from weir.runtime.spark.session import SPARK_LOG_VARIABLE, announce_start, provide_session, recommended_settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

STARTING = "Starting Spark …"
"""Said before the seconds in which nothing else is heard."""


@contextmanager
def spark_on(master: str | None, name: str, *, say: Callable[[str], None] | None) -> Iterator[None]:
    """Run jobs on this master for a while; None: on the embedded Spark, which starts with the first of them and ends
    with the process. `say`: told when Spark starts."""

    def starting() -> None:
        if say is not None:
            say(STARTING)

    if master is None:
        announce_start(starting)
        try:
            yield
        finally:
            announce_start(None)
        return
    starting()
    session = _start(master, name)
    provide_session(session)
    try:
        yield
    finally:
        provide_session(None)
        session.stop()


def _start(master: str, name: str) -> SparkSession:
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    warnings.filterwarnings("ignore", message="PySpark does not yet fully support pandas", category=FutureWarning)
    from pyspark.conf import SparkConf
    from pyspark.sql import SparkSession

    level = os.environ.get(SPARK_LOG_VARIABLE)
    settings = {
        "spark.master": master,
        "spark.app.name": name,
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": (level or "OFF").upper(),
        **recommended_settings(),
    }
    conf = SparkConf().setAll(list(settings.items()))
    output = start_jvm(conf, loud=level is not None)
    session: SparkSession = SparkSession.builder.config(conf=conf).getOrCreate()
    if output is not None:
        output.pass_on()
    return session
