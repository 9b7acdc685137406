"""The Spark session that a job runs on: started here or brought by the user, its slots and its addresses.

Comes in: a parallelism, or a user's SparkSession. Goes out: a session that is ready to run barrier stages,
how many tasks it can run at once, and which address tasks and driver reach each other at.
Never knows what a job computes.
"""

from __future__ import annotations

import atexit
import os
import re
import socket
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weir.errors import ConfigError, SlotsMissing
from weir.runtime.net.lines import LOOPBACK
from weir.runtime.spark.daemon import ENVIRONMENT
from weir.runtime.spark.jvm import start_jvm
from weir.runtime.storage.leftovers import TemporaryPlace

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SPARE_SLOTS = 2
"""Slots of the embedded Spark beyond the job's own: a batch query beside a running job does not hang."""

SLOTS_POLL_MS = 50
"""How often `check_slots` looks again."""

SLOTS_WAIT_MS = 30_000
"""How long `check_slots` waits for a cluster's executors to come (back)."""

SPARK_LOG_VARIABLE = "WEIR_SPARK_LOG"
"""Environment variable: the log level of the embedded Spark (INFO, WARN, ERROR). Off by default: Weir reports
what concerns the job itself."""

_session: SparkSession | None = None
_provided: SparkSession | None = None
_announce: Callable[[], None] | None = None
_session_lock = threading.Lock()


# --- The embedded session ---------------------------------------------------------------------------


def embedded_session(parallelism: int, name: str = "weir") -> SparkSession:
    """A local Spark with room for `parallelism` tasks and some more; the one that runs already, if it has the room."""
    global _session
    with _session_lock:
        _quiet_pandas_warning()
        from pyspark.sql import SparkSession

        if _provided is not None and _alive(_provided):
            return _provided
        if _session is not None and _alive(_session):
            if (slots(_session) or 0) >= parallelism:
                return _session
            raise ConfigError(
                f"The embedded Spark of this process has {slots(_session)} slots, and the job {name!r} needs "
                f"{parallelism}. Start the largest job first, or stop that one: SparkSession.getActiveSession().stop()."
            )
        active = SparkSession.getActiveSession()
        if active is not None and _alive(active):
            raise ConfigError(
                "A SparkSession is already active in this process, and a process can hold only one. "
                "Pass it on: Environment(spark=session)."
            )
        if _announce is not None:
            _announce()
        _session = _start(max(parallelism, os.cpu_count() or 1) + SPARE_SLOTS, name)
        return _session


def provide_session(session: SparkSession | None) -> None:
    """Let jobs that bring no session of their own run on this one (None: on the embedded one again)."""
    global _provided
    with _session_lock:
        _provided = session


def announce_start(callback: Callable[[], None] | None) -> None:
    """Call this whenever the embedded Spark is about to start, which takes seconds (None: nobody)."""
    global _announce
    with _session_lock:
        _announce = callback


def stop_embedded() -> None:
    """Stop the embedded Spark, if it runs."""
    global _session
    with _session_lock:
        if _session is not None and _alive(_session):
            _session.stop()
        _session = None


def _start(slot_count: int, name: str) -> SparkSession:
    from pyspark.conf import SparkConf
    from pyspark.sql import SparkSession

    # Spark removes its own files when it ends; those of one that was killed are removed by the next that starts here.
    place = TemporaryPlace("spark").make()
    atexit.register(place.remove)
    settings = {**_embedded_settings(slot_count, name), "spark.local.dir": place.path}
    # What the JVM starts with is passed on to every session that it ever holds, also to a user's own after this one.
    for_jvm = SparkConf(loadDefaults=False).setAll(list(settings.items()))
    conf = SparkConf(loadDefaults=False).setAll(list({**settings, **_PRIVATE}.items()))
    with _environment({"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": LOOPBACK, **ENVIRONMENT}):
        output = start_jvm(for_jvm, loud=SPARK_LOG_VARIABLE in os.environ)
        if not _jvm_keeps_to_loopback():
            conf.set("spark.ui.enabled", "false")
        session: SparkSession = SparkSession.builder.config(conf=conf).getOrCreate()
    if output is not None:
        output.pass_on()
    return session


def _jvm_keeps_to_loopback() -> bool:
    """Whether Spark's UI would: it goes by the environment that the JVM was started in, perhaps by somebody else."""
    from pyspark.core.context import SparkContext

    jvm: Any = SparkContext._jvm
    return bool(jvm.System.getenv("SPARK_LOCAL_IP") == LOOPBACK)


_PRIVATE = {"spark.authenticate": "true", "spark.ui.killEnabled": "false"}
"""Others on this machine reach the ports of the embedded Spark, too: they may neither run code in it nor end its jobs.
In local mode Spark draws the secret itself, and shows it nowhere."""


def _embedded_settings(slot_count: int, name: str) -> dict[str, str]:
    return {
        "spark.master": f"local[{slot_count}]",
        "spark.app.name": name,
        "spark.driver.host": LOOPBACK,
        "spark.driver.bindAddress": LOOPBACK,
        "spark.log.level": os.environ.get(SPARK_LOG_VARIABLE, "OFF").upper(),
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": str(slot_count),
        **recommended_settings(),
    }


def recommended_settings() -> dict[str, str]:
    """What the embedded Spark has and a cluster may be given, for a fast restart: none of it is needed to run.

    The daemon that preloads the libraries needs Weir to be importable on every executor.
    """
    package_parent = str(Path(__file__).parents[3])
    return {
        "spark.task.maxFailures": "1",
        "spark.scheduler.barrier.maxConcurrentTasksCheck.interval": "1s",
        "spark.scheduler.barrier.maxConcurrentTasksCheck.maxFailures": "3",
        "spark.python.worker.reuse": "true",
        "spark.python.task.killTimeout": "100ms",
        "spark.python.daemon.module": "weir.runtime.spark.daemon",
        # The daemon must find this very package, however the driver came by it.
        "spark.executorEnv.PYTHONPATH": os.pathsep.join(p for p in (package_parent, os.environ.get("PYTHONPATH")) if p),
        **{f"spark.executorEnv.{variable}": value for variable, value in ENVIRONMENT.items()},
    }


def _alive(session: SparkSession) -> bool:
    context = classic_context(session)
    return context is None or (context._jsc is not None and not context._jsc.sc().isStopped())


def _quiet_pandas_warning() -> None:
    """PySpark warns about pandas 3 whenever it is installed; Weir's path through PySpark does not use pandas."""
    warnings.filterwarnings("ignore", message="PySpark does not yet fully support pandas", category=FutureWarning)


@contextmanager
def _environment(values: dict[str, str]) -> Iterator[None]:
    """Set environment variables for a while: what the JVM inherits, and what PySpark reads when a session starts."""
    before = {variable: os.environ.get(variable) for variable in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for variable, value in before.items():
            if value is None:
                os.environ.pop(variable, None)
            else:
                os.environ[variable] = value


# --- A user's session -------------------------------------------------------------------------------


def adopt(session: SparkSession) -> None:
    """Make a session that Weir did not start run this very Python, where that is certain to exist and nobody chose."""
    _quiet_pandas_warning()
    context = classic_context(session)
    if context is not None and is_local(session) and context.pythonExec == "python3":
        context.pythonExec = sys.executable


# --- Slots ------------------------------------------------------------------------------------------


def classic_context(session: SparkSession) -> Any:
    """The SparkContext of a classic session; None for Spark Connect."""
    return getattr(session, "_sc", None)


def is_local(session: SparkSession) -> bool:
    """Whether every task runs on this host: local[N] and local-cluster[…]."""
    context = classic_context(session)
    return context is not None and str(context.master).startswith("local")


def slots(session: SparkSession) -> int | None:
    """How many tasks Spark can run at once now; None when it does not say (Spark Connect)."""
    context = classic_context(session)
    if context is None:
        return None
    java_context = context._jsc.sc()
    with suppress(Exception):  # not a public call: what a barrier stage is checked against by Spark itself
        profile = java_context.resourceProfileManager().defaultResourceProfile()
        return int(java_context.maxNumConcurrentTasks(profile))
    return int(context.defaultParallelism)


def busy_slots(session: SparkSession) -> int:
    """How many tasks run now."""
    context = classic_context(session)
    if context is None:
        return 0
    tracker = context.statusTracker()
    stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
    # Spark counts active tasks late, but a stage that has started any shows at least one.
    left = (s.numTasks - s.numCompletedTasks - s.numFailedTasks for s in stages if s is not None and s.numActiveTasks)
    return min(int(sum(left)), slots(session) or 0)


def check_slots(
    session: SparkSession,
    needed: int,
    *,
    own: int = 0,
    timeout_ms: int = SLOTS_WAIT_MS,
    given_up: Callable[[], bool] = lambda: False,
) -> None:
    """Raise SlotsMissing unless Spark has `needed` slots in all. A local Spark is refused at once; the executors
    of a cluster may take `timeout_ms` to come, unless `given_up()` says that nobody waits any more.

    `own`: slots that the job itself holds, and gives back before it takes the others.
    """
    context = classic_context(session)
    if context is not None and not is_local(session) and _dynamic_allocation(context):
        raise ConfigError(
            "Spark cannot run barrier stages with dynamic allocation. "
            "Start the session with spark.dynamicAllocation.enabled=false."
        )
    deadline = time.monotonic() + timeout_ms / 1_000
    while (there := slots(session)) is not None and there < needed and not given_up():
        fixed = context is not None and re.fullmatch(r"local(\[[^\]]*\])?", str(context.master)) is not None
        if fixed or time.monotonic() >= deadline:
            raise SlotsMissing(slots_message(session, there, needed, own), there=there, needed=needed)
        time.sleep(SLOTS_POLL_MS / 1_000)


def _dynamic_allocation(context: Any) -> bool:
    return str(context.getConf().get("spark.dynamicAllocation.enabled", "false")).lower() == "true"


def slots_message(session: SparkSession, there: int | None, needed: int, own: int = 0) -> str:
    """For a launch that waits in vain: how many slots there are, how many are taken, what to do."""
    if there is None:
        return f"The job needs {needed} task slots at once, and Spark did not start them."
    busy = max(0, busy_slots(session) - own)
    taken = f", of which {busy} are taken by other work" if busy else ""
    return (
        f"The job needs {needed} task slots at once; Spark has {there}{taken}: {max(1, needed - there + busy)} "
        f"missing. Start Spark with more cores or executors (master local[{needed + SPARE_SLOTS}], or more "
        f"spark.executor.instances), or lower the job's parallelism. "
        "Parts of a job that share no edges have slots of their own, unless Settings(share_slots=True)."
    )


# --- Privacy ----------------------------------------------------------------------------------------


def check_private(session: SparkSession, *, trusted: bool) -> None:
    """Refuse to send a job's keys through a Spark whose traffic leaves this machine in the clear, unless `trusted`."""
    if trusted or driver_host(session) == LOOPBACK:
        return

    def is_on(name: str) -> bool:
        return str(session.conf.get(name, "false")).lower() == "true"

    if is_on("spark.authenticate") and (is_on("spark.network.crypto.enabled") or is_on("spark.ssl.rpc.enabled")):
        return
    raise ConfigError(
        "The job's keys travel inside Spark's own traffic, which leaves this machine without encryption: who can read "
        "along could join in. Start Spark with spark.authenticate=true and spark.network.crypto.enabled=true (or "
        "spark.ssl.rpc.enabled=true), or, on a network that you trust, say Settings(trust_spark_network=True)."
    )


# --- Addresses --------------------------------------------------------------------------------------


def driver_host(session: SparkSession) -> str:
    """The address at which tasks reach the driver process; also the one to listen on."""
    context = classic_context(session)
    if is_local(session):
        return LOOPBACK
    if context is not None:
        return str(context.getConf().get("spark.driver.host", _own_host()))
    return _own_host()


def task_host(driver: str | None = None) -> str:
    """Inside a task: the address at which other tasks and the driver reach it, and to listen on.

    `driver`: what driver_host() said there; when that is this very host, nothing needs to leave it.
    """
    if driver == LOOPBACK:
        return LOOPBACK
    from pyspark import BarrierTaskContext, TaskContext

    context = TaskContext.get()
    if isinstance(context, BarrierTaskContext):
        address: str = context.getTaskInfos()[context.partitionId()].address
        return address.rsplit(":", 1)[0].strip("[]")
    return _own_host()


def _own_host() -> str:
    return socket.gethostbyname(socket.gethostname())
