"""The Spark session behind `--master`: one that the command starts instead of the embedded one.

Comes in: a master URL. Goes out: a session with the settings that make restarts fast,
which every job without a session of its own then runs on.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from weir.runtime.spark.jvm import start_jvm
from weir.runtime.spark.session import SPARK_LOG_VARIABLE, provide_session, recommended_settings

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
