"""One attempt's tasks as one Spark barrier stage: launch, watch, cancel.

Comes in: a session and a function of the task's index. Goes out: the function running in P Spark tasks at once,
and word of how it ended. Uses the DataFrame API only; never looks into what the tasks do.
"""

from __future__ import annotations

import importlib.util
import re
import sys
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from weir.errors import PlanError, SlotsMissing, TaskLost, WeirError
from weir.runtime.spark.daemon import ENVIRONMENT
from weir.runtime.spark.session import adopt, check_slots, classic_context
from weir.texts import quoted, shown

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

TaskMain = Callable[[int], None]
BatchFunction = Callable[[Iterable[Any]], Iterator[Any]]

ERROR_CHARACTERS_MAX = 4_000
"""What is kept of a Spark exception's text."""


class BarrierStage:
    """`task_main(index)` in `parallelism` Spark tasks that start together and fail together."""

    def __init__(
        self, session: SparkSession, *, name: str, parallelism: int, task_main: TaskMain, description: str = ""
    ) -> None:
        self.name = name
        self.parallelism = parallelism
        self.done = threading.Event()
        self.error: WeirError | None = None
        """Why the stage failed; None while it runs and after a clean end. Read it once `done` is set."""
        adopt(session)
        self._session = session
        self._group = f"weir-{uuid.uuid4().hex[:12]}"
        self._description = description or name
        self._function = shipped(_for_each_index(task_main), what=f"The job {name!r}")
        self._cancelled = threading.Event()
        self._callbacks: list[Callable[[BarrierStage], None]] = []
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name=f"weir-stage-{name}", daemon=True)

    def start(self) -> None:
        """Submit the stage; returns at once."""
        self._thread.start()

    def on_done(self, callback: Callable[[BarrierStage], None]) -> None:
        """Call back, on the stage's own thread, when it has ended; at once if it already has."""
        with self._lock:
            if not self.done.is_set():
                self._callbacks.append(callback)
                return
        callback(self)

    def cancel(self) -> None:
        """Have Spark kill the tasks. Returns at once; `done` is set when Spark has given them up.

        Spark looks every two seconds for Python workers to kill, so a task that does not leave by itself may live,
        and hold its slot, for that long after `done`.
        """
        self._cancelled.set()
        with suppress(Exception):  # a session that is gone has no stage either
            cancel_jobs(self._session, self._group)

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait for the end; False when it did not come in time."""
        return self.done.wait(timeout_s)

    def _run(self) -> None:
        try:
            label_jobs(self._session, self._group, self._description)
            # An executor that was lost is replaced after a while; Spark itself would look again only much later.
            check_slots(self._session, self.parallelism, given_up=self._cancelled.is_set)
            frame = self._session.range(0, self.parallelism, 1, self.parallelism)
            map_in_arrow(frame, self._function, "task long", barrier=True).collect()
        except BaseException as error:
            self.error = stage_error(error, cancelled=self._cancelled.is_set())
        with self._lock:
            self.done.set()
            callbacks = list(self._callbacks)
        for callback in callbacks:
            callback(self)


def _for_each_index(task_main: TaskMain) -> BatchFunction:
    def run(batches: Iterable[Any]) -> Iterator[Any]:
        for batch in batches:
            for index in batch.column(0).to_pylist():
                task_main(index)
        return iter(())

    return run


# --- Shipping functions to Python workers -----------------------------------------------------------


def shipped(function: BatchFunction, *, what: str) -> BatchFunction:
    """`function` as something that any Python worker can run: it brings the driver's module search path along.

    `what` names the owner in the error about a function that cannot be pickled.
    """
    from pyspark import cloudpickle

    try:
        payload = cloudpickle.dumps(function)
    except Exception as error:
        raise PlanError(
            f"{what} cannot be sent to Spark's tasks: {error}. Functions must not hold a SparkSession, a DataFrame, "
            f"an open file, a lock or a connection; open such things inside the function."
        ) from error
    paths = tuple(path for path in sys.path if path)
    environment = dict(ENVIRONMENT)

    # A nested function travels by value: it must not need `weir` before the search path is in place.
    def run(batches: Iterable[Any]) -> Iterator[Any]:
        import os
        import sys

        for path in paths:
            if path not in sys.path and os.path.exists(path):
                sys.path.append(path)
        for variable, value in environment.items():
            os.environ.setdefault(variable, value)
        from pyspark import cloudpickle

        try:
            function: BatchFunction = cloudpickle.loads(payload)
        except ModuleNotFoundError as error:
            raise RuntimeError(
                f"A Spark task cannot import {error.name!r} under {sys.executable}. Install it on every executor, "
                f"or ship it with SparkSession.addArtifacts(..., pyfile=True)."
            ) from error
        return function(batches)

    return run


def map_in_arrow(
    frame: DataFrame, function: BatchFunction, schema: StructType | str, *, barrier: bool = False
) -> DataFrame:
    """`DataFrame.mapInArrow`, which in classic PySpark 4 asks for pandas although it makes no use of it."""
    if classic_context(frame.sparkSession) is None or importlib.util.find_spec("pandas") is not None:
        return frame.mapInArrow(function, schema, barrier=barrier)
    from pyspark.sql.classic.dataframe import DataFrame as ClassicDataFrame
    from pyspark.sql.udf import UserDefinedFunction
    from pyspark.util import PythonEvalType

    udf = UserDefinedFunction(function, returnType=schema, evalType=PythonEvalType.SQL_MAP_ARROW_ITER_UDF)
    column: Any = udf(*[frame[name] for name in frame.columns])
    java_frame: Any = frame._jdf
    return ClassicDataFrame(java_frame.mapInArrow(column._jc, barrier, None), frame.sparkSession)


# --- Jobs of a thread: their name in Spark's UI, and how to cancel them ---------------------------------


def label_jobs(session: SparkSession, group: str, description: str) -> None:
    """Name the Spark jobs that this thread submits from now on."""
    context = classic_context(session)
    if context is not None:
        context.setJobGroup(group, description)
    else:
        session.addTag(group)


def cancel_jobs(session: SparkSession, group: str) -> None:
    """From any thread: cancel the jobs that were labelled so."""
    context = classic_context(session)
    if context is not None:
        # Future ones too: the thread may be about to submit.
        context._jsc.sc().cancelJobGroupAndFutureJobs(group)
    else:
        session.interruptTag(group)


# --- What Spark's exceptions boil down to -----------------------------------------------------------


def stage_error(error: BaseException, *, cancelled: bool) -> WeirError:
    """The root cause of a Spark job's failure, without the Java stack."""
    if cancelled:
        return TaskLost("The stage was cancelled.", cancelled=True)
    if isinstance(error, WeirError):
        return error
    text = str(error)
    if "SPARK-24819" in text or "BarrierJobSlotsNumberCheck" in text:
        return SlotsMissing("Spark has fewer slots than the job has tasks.")
    return TaskLost(root_cause(text))


def root_cause(text: str) -> str:
    """What happened, out of an exception's text of a hundred lines.

    >>> root_cause("x\\norg.apache.spark.SparkException: Python worker exited unexpectedly (crashed). Consider …")
    'A Python worker died: killed from outside, out of memory, or crashed in native code.'
    """
    task = re.search(r"barrier task ResultTask\(\d+, (\d+)\)", text)
    prefix = f"Task {task[1]}: " if task else ""
    if traceback := re.search(r"(Traceback \(most recent call last\):\n.*?)(?:\n *SQLSTATE|\n\tat )", text, re.DOTALL):
        return prefix + shown(traceback[1])[-ERROR_CHARACTERS_MAX:]
    if "Python worker exited unexpectedly" in text:
        return f"{prefix}A Python worker died: killed from outside, out of memory, or crashed in native code."
    if executor := re.search(r"ExecutorLostFailure \((executor \S+)[^)]*\)(?: Reason: ([^\n]*))?", text):
        return f"{prefix}The {executor[1]} was lost. {executor[2] or ''}".rstrip()
    reason = re.search(r"finished unsuccessfully\.\n(.*?)(?:\n\tat |\Z)", text, re.DOTALL)
    first = reason[1] if reason else text.split("\n\tat ", 1)[0]
    return prefix + quoted(first.strip(), ERROR_CHARACTERS_MAX)
