"""Whether Spark would compute a DataFrame's rows again exactly as before, and what to do when it would not.

Comes in: a DataFrame. Goes out: one whose partitions hold the same rows in the same order whenever they are
computed (the same, or a copy in parquet), and a fingerprint of its partitions. Starts a Spark job only to copy.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit
from urllib.request import url2pathname

from weir.runtime.ports import Opener
from weir.runtime.storage.locations import absolute_location, location_below, scheme_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

COPY_MARKER = "complete.json"
"""Written after the last file of a copy."""

FILE_PARTITIONS_MIN = 32
"""How finely files are split at least, as far as their size allows: fixed, for by default that follows the number of
cores, and a job that goes on with more or fewer of them must find the same partitions."""

PLANNING = {
    "spark.sql.files.minPartitionNum": str(FILE_PARTITIONS_MIN),
    # As many rows at once as a source hands over; Spark's default makes batches that are small for a stream.
    "spark.sql.execution.arrow.maxRecordsPerBatch": "65536",
}
"""Spark's settings while a DataFrame is planned, as far as the user has not chosen."""

_HADOOP_SCHEMES = {"s3": "s3a", "gcs": "gs"}
"""Where Hadoop has another name for the same storage."""

_REPLAYABLE_NODES = frozenset({"Project", "Filter", "SubqueryAlias", "LogicalRelation", "LocalRelation", "Range"})
"""Narrow, and in the order of what lies below; all others may bring rows in another order next time."""

_UNTRUSTED = re.compile(r"UDF|Udf|Subquery|Invoke|Reflect|Aggregator|ApplyFunction|^(?!org\.apache\.spark\.)")
"""Classes of expressions that run code or queries which Spark knows nothing about."""

_MOMENT = re.compile(r"\b(?:current_\w+|now|localtimestamp|localtime|curdate)\(")
"""Functions that Spark replaces by this moment's value before it runs the plan."""


def is_replayable(frame: DataFrame) -> bool:
    """Whether the plan is a scan of files, a range or a local table, with deterministic filters and projections."""
    try:
        execution = frame._jdf.queryExecution()
        if _MOMENT.search(execution.analyzed().toString()):
            return False
        return _replayable(execution.optimizedPlan())
    except Exception:  # no plan to look at, as with Spark Connect, or one that this version shows differently
        return False


def _replayable(node: Any) -> bool:
    kind = node.getClass().getSimpleName()
    if kind not in _REPLAYABLE_NODES or not node.deterministic():
        return False
    if kind == "LogicalRelation" and node.relation().getClass().getSimpleName() != "HadoopFsRelation":
        return False
    if not all(_trusted(expression) for expression in _each(node.expressions())):
        return False
    return all(_replayable(child) for child in _each(node.children()))


def _trusted(expression: Any) -> bool:
    if _UNTRUSTED.search(expression.getClass().getName()):
        return False
    return all(_trusted(child) for child in _each(expression.children()))


def _each(sequence: Any) -> list[Any]:
    return [sequence.apply(index) for index in range(sequence.size())]


# --- Copies -------------------------------------------------------------------------------------------


def copied(frame: DataFrame, location: str, opener: Opener, *, reuse: bool) -> DataFrame:
    """The DataFrame as parquet files at `location`; with `reuse`, as they are if an earlier run has completed them."""
    session = frame.sparkSession
    storage = opener(location)
    rows = _spark_location(location_below(location, "rows"))
    if not (reuse and COPY_MARKER in storage.list("")):
        storage.delete(COPY_MARKER)
        # Column names by number: parquet does not take all that Spark does.
        numbered = frame.toDF(*[f"c{index}" for index in range(len(frame.columns))])
        numbered.write.mode("overwrite").parquet(rows)
        storage.publish(COPY_MARKER, json.dumps({"columns": frame.columns}).encode())
    return session.read.parquet(rows)


def _spark_location(location: str) -> str:
    """The location as Hadoop spells it, which unlike a URI takes every character of a path literally. Options at the
    end of a URI, and credentials in it, are Weir's: Hadoop has settings of its own for these."""
    text = absolute_location(location)
    scheme = scheme_of(text)
    if scheme is None:
        return f"file://{text}"
    uri = urlsplit(text)
    if scheme == "file":
        return f"file://{url2pathname(uri.path)}"
    host = uri.netloc.rpartition("@")[2] if scheme == "s3" else uri.netloc
    return f"{_HADOOP_SCHEMES.get(scheme, scheme)}://{host}{unquote(uri.path)}"


# --- Fingerprints -------------------------------------------------------------------------------------


def fingerprint(frame: DataFrame) -> str | None:
    """What tells two sets of partitions apart: the plan, the files and how they are split. None where Spark Connect
    hides it. From now on this DataFrame object keeps its partitions."""
    try:
        execution = frame._jdf.queryExecution()
    except Exception:
        return None
    with _planning(frame.sparkSession):
        rdd = execution.toRdd()
        parts = [str(rdd.getNumPartitions()), *(line for root in _roots(rdd) for line in _partition_files(root))]
    for node in _tree(execution.optimizedPlan()):
        parts.extend(_node_parts(node))
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32]


@contextmanager
def _planning(session: SparkSession) -> Iterator[None]:
    unset = [name for name in PLANNING if session.conf.get(name, None) is None]
    for name in unset:
        session.conf.set(name, PLANNING[name])
    try:
        yield
    finally:
        for name in unset:
            session.conf.unset(name)


def _roots(rdd: Any) -> list[Any]:
    dependencies = _each(rdd.dependencies())
    return [root for dependency in dependencies for root in _roots(dependency.rdd())] if dependencies else [rdd]


def _partition_files(rdd: Any) -> Iterator[str]:
    if rdd.getClass().getSimpleName() == "FileScanRDD":
        for partition in _each(rdd.filePartitions()):
            yield "; ".join(file.toString() for file in partition.files())


def _tree(node: Any) -> Iterator[Any]:
    yield node
    for child in _each(node.children()):
        yield from _tree(child)


def _node_parts(node: Any) -> Iterator[str]:
    kind = node.getClass().getSimpleName()
    yield kind
    if kind != "MapInArrow":  # ours: it holds addresses, which differ from run to run
        yield from (re.sub(r"#\d+L?", "#", expression.sql()) for expression in _each(node.expressions()))
    if kind == "Range":
        yield re.sub(r"#\d+L?", "#", node.toString())
    if kind == "LocalRelation":
        yield str(node.data().hashCode())
    if kind == "LogicalRelation":
        with suppress(Exception):
            files = node.relation().location().allFiles().mkString("\n")
            yield from sorted(map(str, re.findall(r"path=([^;]+);.*?length=(\d+);.*?modification_time=(\d+)", files)))
