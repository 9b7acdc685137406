"""What is said when Java is missing, too old or does not start; and that the worker daemon may fork."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from weir.errors import ConfigError
from weir.runtime.spark import jvm
from weir.runtime.spark.daemon import ENVIRONMENT


def fake_java(home: Path, *, version: str) -> None:
    path = home / "bin" / "java"
    path.parent.mkdir()
    path.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\nexit 1\n")
    path.chmod(0o755)


def test_a_missing_java_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match=r"no `java` is on the PATH.*openjdk-17-jre-headless"):
        jvm.find_java()


def test_a_java_home_without_java_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(ConfigError, match=f"JAVA_HOME is '{tmp_path}', which holds no bin/java"):
        jvm.find_java()


@pytest.mark.parametrize(("version", "number"), [("11.0.2", "11"), ("1.8.0_302", "8")])
def test_an_old_java_is_named_with_its_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, number: str
) -> None:
    fake_java(tmp_path, version=version)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    pyspark_context = pytest.importorskip("pyspark.core.context")
    monkeypatch.setattr(pyspark_context.SparkContext, "_gateway", None)
    from pyspark.conf import SparkConf

    with pytest.raises(ConfigError, match=f"needs Java 17 or newer, but {tmp_path}/bin/java is Java {number}"):
        jvm.start_jvm(SparkConf(loadDefaults=False), loud=False)


def test_a_jvm_that_does_not_start_is_quoted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_java(tmp_path, version="21.0.1")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    pyspark_context = pytest.importorskip("pyspark.core.context")
    monkeypatch.setattr(pyspark_context.SparkContext, "_gateway", None)
    from pyspark.conf import SparkConf

    with pytest.raises(ConfigError, match=r"did not start. Its last words:\n(.*\n)*openjdk version"):
        jvm.start_jvm(SparkConf(loadDefaults=False), loud=False)


FORKING = """
import json, os
from weir.runtime.spark.daemon import preload
preload()
threads = [open(f"/proc/self/task/{task}/comm").read().strip() for task in os.listdir("/proc/self/task")]
child = os.fork()
if child == 0:
    import polars as pl, pyarrow as pa, pyarrow.flight as flight
    class Server(flight.FlightServerBase):
        def do_get(self, context, ticket):
            return flight.RecordBatchStream(table)
    frame = pl.DataFrame({"k": [1, 2, 1], "v": [1, 2, 3]}).group_by("k").agg(pl.sum("v")).sort("k")
    table = frame.to_arrow()
    server = Server("grpc://127.0.0.1:0")
    with flight.connect(f"grpc://127.0.0.1:{server.port}") as client:
        assert client.do_get(flight.Ticket(b"")).read_all().to_pydict() == {"k": [1, 2], "v": [4, 2]}
    os._exit(0)
code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
print(json.dumps([threads, code]))
"""

SAFE_THREADS = {"python", "python3", "polars-ooc-clea"}
"""The main thread, and Polars' cleaner of spilled files, which waits on a queue that nobody fills before the fork."""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into /proc")
def test_preloading_starts_no_thread_that_a_fork_would_miss_and_forked_workers_can_compute() -> None:
    pytest.importorskip("pyspark")
    environment = {**os.environ, **ENVIRONMENT, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    run = subprocess.run(
        [sys.executable, "-c", FORKING], env=environment, capture_output=True, text=True, timeout=120, check=True
    )
    threads, code = json.loads(run.stdout)
    assert {thread for thread in threads if not thread.startswith("python")} <= SAFE_THREADS
    assert len([thread for thread in threads if thread.startswith("python")]) == 1
    assert code == 0
