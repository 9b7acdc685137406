"""Frozen settings, checked when they are made.

Comes in: what the user wrote ("5s", 10, "64MB"). Goes out: plain values with
their unit in the name. Never touches files or clocks.
"""

from __future__ import annotations

import math
import os
import re
from dataclasses import dataclass, field, fields
from datetime import timedelta
from numbers import Integral, Real
from typing import Any, Literal, TypeAlias

from weir.errors import ConfigError, shown
from weir.ids import CheckpointId, Lineage

Duration: TypeAlias = "str | int | float | timedelta"
"""A string with a unit ("250ms", "5s", "2m", "1h", "1d"), a timedelta, or seconds."""

Size: TypeAlias = "str | int"
"""A string with a unit ("64KB", "512MB", "2GB") or a number of bytes."""

Mode: TypeAlias = Literal["exactly_once", "at_least_once", "none"]

MAX_PARALLELISM_LIMIT = 32_768
"""Then every key group fits into an int16. Flink has the same limit."""

MESSAGE_MAX_LEAST_BYTES = 64 << 10
"""Any answer to a command fits into this."""

_DURATION_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_SIZE_BYTES = {"B": 1, "KB": 1 << 10, "MB": 1 << 20, "GB": 1 << 30, "TB": 1 << 40}
_NUMBER_MAX = 1 << 63
"""No duration and no size is as large as this."""
_NUMBER = r"(\d+(?:\.\d*)?|\.\d+)"


BARE_SECONDS_MAX = 60
"""A number without a unit is so many seconds; a larger one was often meant as milliseconds, and is refused."""


def duration_ms(value: Duration, name: str = "duration") -> int:
    """Turn a duration into whole milliseconds.

    >>> duration_ms("250ms"), duration_ms("1.5s"), duration_ms(2)
    (250, 1500, 2000)
    """
    if isinstance(value, timedelta):
        ms = value.total_seconds() * 1_000
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        ms = value * 1_000 if abs(value) < _NUMBER_MAX else math.inf
    elif isinstance(value, str) and (match := re.fullmatch(rf"\s*{_NUMBER}\s*(ms|s|m|h|d)\s*", value)):
        ms = float(match[1]) * _DURATION_MS[match[2]]
    else:
        ms = math.nan
    if not math.isfinite(ms):
        raise ConfigError(
            f"{name}: {value!r} is not a duration; write '250ms', '5s', '2m', '1h', a timedelta or seconds"
        )
    if ms < 0:
        raise ConfigError(f"{name}: {value!r} is negative")
    if isinstance(value, (int, float)) and value > BARE_SECONDS_MAX:
        hint = f"write '{value}ms' or '{value}s', whichever is meant"
        raise ConfigError(f"{name}: {value!r} would be {value:,} seconds, as numbers without a unit are; {hint}")
    return round(ms)


def size_bytes(value: Size, name: str = "size") -> int:
    """Turn a size into bytes.

    >>> size_bytes("64KB"), size_bytes(10)
    (65536, 10)
    """
    bytes = math.nan
    if isinstance(value, int) and not isinstance(value, bool):
        bytes = value
    elif isinstance(value, str) and (match := re.fullmatch(rf"\s*{_NUMBER}\s*([KMGT]?B)\s*", value.upper())):
        bytes = float(match[1]) * _SIZE_BYTES[match[2]]
    if 0 <= bytes < _NUMBER_MAX:
        return round(bytes)
    raise ConfigError(f"{name}: {value!r} is not a size; write '64KB', '512MB', '2GB' or a number of bytes")


def checkpoint_named(text: str) -> CheckpointId:
    """The checkpoint that somebody names, as its directory is called, or by its number.

    >>> checkpoint_named("chk-0000000012"), checkpoint_named("12")
    (12, 12)
    """
    name = text.rstrip("/").rpartition("/")[2]
    if match := re.fullmatch(r"(?:chk-)?(\d+)", name):
        return CheckpointId(int(match[1]))
    raise ConfigError(f"{text!r} names no checkpoint; write it as its directory is called, such as 'chk-0000000012'")


def lineage_named(text: str) -> Lineage | None:
    """The lineage that the path of a checkpoint names, if it does.

    >>> lineage_named("s3://bucket/job/00c0ffee00/chk-0000000012"), lineage_named("12")
    ('00c0ffee00', None)
    """
    above = text.rstrip("/").rpartition("/")[0].rpartition("/")[2]
    return Lineage(above) if re.fullmatch("[0-9a-f]{10}", above) else None


def port_range(value: str, name: str = "ports") -> range:
    """Turn "7000-7099", or one port, into the ports to choose from.

    >>> port_range("7000-7099")
    range(7000, 7100)
    """
    match = re.fullmatch(r"\s*(\d{1,5})\s*(?:-\s*(\d{1,5})\s*)?", value) if isinstance(value, str) else None
    first, last = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
    if not 0 < first <= last < 1 << 16:
        raise ConfigError(f"{name}: {value!r} is not a range of ports; write '7000-7099', or one port")
    return range(first, last + 1)


def check_at_least(owner: object, name: str, least: float) -> None:
    """Refuse a setting that is not a number, or is below `least`; the error names it."""
    value: Any = getattr(owner, name)
    setting = f"{type(owner).__name__}.{name}"
    whole = isinstance(least, int)
    number = not isinstance(value, bool) and isinstance(value, Integral if whole else Real)
    if not number:
        raise ConfigError(f"{setting}: {value!r} is not a {'whole ' if whole else ''}number")
    if not value >= least:
        raise ConfigError(f"{setting}: {value} is below {least}")


def check_booleans(owner: object, *names: str) -> None:
    """Refuse a setting that is neither True nor False: "false" would be taken for True."""
    for name in names:
        if not isinstance(value := getattr(owner, name), bool):
            raise ConfigError(f"{type(owner).__name__}.{name}: {value!r} is neither True nor False")


@dataclass(frozen=True)
class Checkpoints:
    """How often, where and how strictly a job snapshots itself.

    every:              time from one trigger to the next; None: only on request and at the end
    to:                 a storage URI (file, s3, gs, hdfs …), a local path, or None: the driver's memory
    mode:               "exactly_once" aligns, "at_least_once" does not, "none" takes no periodic checkpoints
    timeout:            a checkpoint that takes longer is aborted
    min_pause:          least time between the end of one and the start of the next
    max_concurrent:     how many may be under way at once
    tolerable_failures: consecutive failures before the attempt is failed
    retain:             how many completed checkpoints to keep
    memory_limit:       with to=None: the most that the driver holds
    exclusive_storage:  True promises that no other process ever writes there; needed only where storage cannot create
                        a file atomically, so that two drivers could both take themselves for the owner
    """

    every: Duration | None = "10s"
    to: str | None = None
    mode: Mode = "exactly_once"
    timeout: Duration = "10m"
    min_pause: Duration = 0
    max_concurrent: int = 1
    tolerable_failures: int = 3
    retain: int = 2
    memory_limit: Size = "256MB"
    exclusive_storage: bool = False

    def __repr__(self) -> str:
        values = ((each.name, getattr(self, each.name)) for each in fields(self))
        return f"Checkpoints({', '.join(f'{name}={value!r}' for name, value in values if name != 'to')}, to={self._to})"

    @property
    def _to(self) -> str:
        return repr(None if self.to is None else shown(self.to))

    def __post_init__(self) -> None:
        if self.to is not None and not (isinstance(self.to, (str, os.PathLike)) and os.fspath(self.to).strip()):
            raise ConfigError(f"Checkpoints.to: {self.to!r} is no location; give a path, a URI, or None for memory")
        check_booleans(self, "exclusive_storage")
        if self.mode not in ("exactly_once", "at_least_once", "none"):
            raise ConfigError(f"Checkpoints.mode: {self.mode!r} is not one of exactly_once, at_least_once, none")
        for name, least in (("max_concurrent", 1), ("tolerable_failures", 0), ("retain", 1)):
            check_at_least(self, name, least)
        if self.every is not None and duration_ms(self.every, "Checkpoints.every") < 1:
            raise ConfigError("Checkpoints.every: must be at least 1ms; write None to take checkpoints only on request")
        if self.timeout_ms < 1:
            raise ConfigError("Checkpoints.timeout: must be at least 1ms")
        _ = self.min_pause_ms, self.memory_limit_bytes

    @property
    def interval_ms(self) -> int | None:
        """Time between two periodic triggers; None when there are none."""
        if self.every is None or self.mode == "none":
            return None
        return duration_ms(self.every, "Checkpoints.every")

    @property
    def timeout_ms(self) -> int:
        return duration_ms(self.timeout, "Checkpoints.timeout")

    @property
    def min_pause_ms(self) -> int:
        return duration_ms(self.min_pause, "Checkpoints.min_pause")

    @property
    def memory_limit_bytes(self) -> int:
        return size_bytes(self.memory_limit, "Checkpoints.memory_limit")


@dataclass(frozen=True)
class Heap:
    """State lives in the memory of the Python processes: the fastest, as long as it fits."""


@dataclass(frozen=True)
class RocksDb:
    """State lives in RocksDB on a local disk, and may be larger than memory."""

    memory_max: Size = "512MB"
    """Most memory that the databases of one task take together, for what was written and read last."""

    directory: str | None = None
    """A local directory for them; None: one below the directory for temporary files."""

    def __post_init__(self) -> None:
        size_bytes(self.memory_max, "RocksDb.memory_max")


StateBackend: TypeAlias = "Heap | RocksDb"

BACKENDS: dict[str, StateBackend] = {"heap": Heap(), "rocksdb": RocksDb()}


@dataclass(frozen=True)
class Settings:
    """The engine's named limits. The defaults suit most jobs."""

    max_parallelism: int = 128
    """Key groups; fixed for the life of a job's state."""

    batch_rows_max: int = 65_536
    """Most rows that a source hands over, or an operator takes, at once."""

    batch_bytes_max: Size = "32MB"
    """Most bytes that queued batches are merged into before an operator takes them."""

    buffer_timeout: Duration = "10ms"
    """Longest time that an operator under load may hold rows back to merge them."""

    channel_batches_max: int = 8
    """Elements that may wait in one channel; the sender pauses beyond that."""

    loop_memory_max: Size = "64MB"
    """Most bytes of rows that have come back in a loop, and wait, that one subtask keeps in memory. More go to a local
    file, and no new rows are let into the loop meanwhile."""

    loop_disk_max: Size = "10GB"
    """Most bytes of such rows that one subtask keeps in local files. A loop that needs more fails: its step feeds back
    more rows than it lets go."""

    watermark_interval: Duration = "100ms"
    """How often watermarks are made from what came in since."""

    heartbeat_interval: Duration = "500ms"
    heartbeat_timeout: Duration = "10s"
    """A task whose loop is silent for longer is given up and the attempt fails."""

    ping_interval: Duration = "1s"
    """How often both ends of a connection say that they are there."""

    line_timeout: Duration = "10s"
    """A connection on which nothing has come for so long is over. A task that loses its driver so ends itself, within
    as long again, and gives its slot back. Longer than the largest batch takes to travel."""

    tls: Literal["auto"] | bool = "auto"
    """Whether driver and tasks encrypt what they say to each other, and prove who they are: "auto" does as soon as
    anything leaves this machine."""

    trust_spark_network: bool = False
    """Whether a job may run where Spark's own traffic is not encrypted. The keys of the job travel in it: who can read
    along can join in."""

    driver_ports: str | None = None
    """Where the driver listens: a range such as "7000-7009", of which each job takes one, and one more for each
    DataFrame source; None: the system chooses."""

    task_ports: str | None = None
    """The same for tasks: each takes one of its host's, and one more for each DataFrame source."""

    show_rows: bool = True
    """Whether errors show the row and the key on which a function failed, and what it said. False: they name the
    operator, the kind of error and the lines of code only."""

    message_max: Size = "1GB"
    """The largest single call between processes of a job: a state file that goes into the driver's memory, or an answer
    to a command. It travels in pieces, but is put together in memory."""

    launch_timeout: Duration = "60s"
    """Longest wait for Spark to start all tasks of an attempt."""

    stop_timeout: Duration = "10s"
    """Longest wait for tasks to end when asked, before Spark is told to kill them."""

    snapshot_threads: int = 2
    """Threads per task that write snapshots and commit epochs behind the stream's back."""

    snapshot_share: float = 0.08
    """Most of a processor, per such thread, that writing a large snapshot may take while the stream needs it."""

    backend: StateBackend = Heap()
    """Where keyed state lives in the tasks. Environment(backend="rocksdb") sets it, too."""

    local_recovery: bool = False
    """Whether tasks keep copies of the last checkpoint's state files on their own disks, so that a restart on the same
    host need not read them from storage."""

    share_slots: bool = False
    """Whether parts of a job that share no edges run in the same Spark slots: that takes fewer of them, but then the
    parts fail and recover together."""

    commit_retries_max: int = 10
    """Times that a failed commit of a sink is tried again before the attempt fails."""

    commit_retry_delay: Duration = "100ms"
    commit_retry_delay_max: Duration = "10s"
    """The pause before a failed commit is tried again: the first, and the longest. It doubles, and half is random."""

    storage_retries_max: int = 5
    """Times that a storage call which failed, or got no reply, is tried again. 0: it is not."""

    storage_retry_delay: Duration = "100ms"
    storage_retry_delay_max: Duration = "10s"
    """The pause before such a call is tried again: the first, and the longest, like those of commits."""

    outage_max: Duration = "6h"
    """How long a job waits for storage that is away. Such failures do not count for the restart strategy."""

    outage_retry_delay: Duration = "100ms"
    outage_retry_delay_max: Duration = "30s"
    """The pause before the next look at storage that is away: the first, and the longest, like those of commits."""

    def __post_init__(self) -> None:
        for name in ("max_parallelism", "batch_rows_max", "channel_batches_max", "snapshot_threads"):
            check_at_least(self, name, 1)
        check_booleans(self, "trust_spark_network", "show_rows", "local_recovery", "share_slots")
        if not isinstance(self.backend, (Heap, RocksDb)):
            raise ConfigError(f"Settings.backend: expected Heap() or RocksDb(…), found {self.backend!r}")
        if not 0 < self.snapshot_share <= 1:
            raise ConfigError(f"Settings.snapshot_share: {self.snapshot_share} is not above 0 and at most 1")
        for name in ("commit_retries_max", "storage_retries_max"):
            check_at_least(self, name, 0)
        if self.max_parallelism > MAX_PARALLELISM_LIMIT:
            raise ConfigError(f"Settings.max_parallelism: {self.max_parallelism} is above {MAX_PARALLELISM_LIMIT}")
        size_bytes(self.batch_bytes_max, "Settings.batch_bytes_max")
        size_bytes(self.loop_memory_max, "Settings.loop_memory_max")
        size_bytes(self.loop_disk_max, "Settings.loop_disk_max")
        for name in ("buffer_timeout", "watermark_interval", "heartbeat_interval", "heartbeat_timeout"):
            duration_ms(getattr(self, name), f"Settings.{name}")
        for name in ("launch_timeout", "stop_timeout", "outage_max"):
            duration_ms(getattr(self, name), f"Settings.{name}")
        for name in ("commit_retry_delay", "storage_retry_delay", "outage_retry_delay"):
            first_ms, longest_ms = (duration_ms(getattr(self, n), f"Settings.{n}") for n in (name, f"{name}_max"))
            if longest_ms < first_ms:
                raise ConfigError(f"Settings.{name}_max: {longest_ms} ms is shorter than {name}, {first_ms} ms")
        self._check_lines()

    def _check_lines(self) -> None:
        if self.tls != "auto" and not isinstance(self.tls, bool):
            raise ConfigError(f"Settings.tls: {self.tls!r} is not 'auto', True or False")
        if size_bytes(self.message_max, "Settings.message_max") < MESSAGE_MAX_LEAST_BYTES:
            raise ConfigError(f"Settings.message_max: {self.message_max!r} is below {MESSAGE_MAX_LEAST_BYTES} bytes")
        for name in ("driver_ports", "task_ports"):
            if getattr(self, name) is not None:
                port_range(getattr(self, name), f"Settings.{name}")
        ping_ms = duration_ms(self.ping_interval, "Settings.ping_interval")
        if ping_ms < 1:
            raise ConfigError("Settings.ping_interval: must be at least 1ms")
        if duration_ms(self.line_timeout, "Settings.line_timeout") < 2 * ping_ms:
            raise ConfigError(
                f"Settings.line_timeout: {self.line_timeout!r} is below two pings (Settings.ping_interval is "
                f"{self.ping_interval!r}): one late ping would end a connection"
            )


@dataclass(frozen=True)
class NoRestart:
    """The first failure ends the job."""


@dataclass(frozen=True)
class FixedDelay:
    """Restart up to `attempts` times, `delay` apart."""

    attempts: int = 3
    delay: Duration = "1s"

    def __post_init__(self) -> None:
        check_at_least(self, "attempts", 0)
        duration_ms(self.delay, "FixedDelay.delay")


@dataclass(frozen=True)
class ExponentialDelay:
    """Restart with growing delays; the delay falls back to `initial` after `reset_after` without a failure."""

    initial: Duration = "100ms"
    maximum: Duration = "30s"
    multiplier: float = 2.0
    reset_after: Duration = "1m"
    attempts: int | None = 20
    """Failures in a row before the job is given up; None: never."""

    def __post_init__(self) -> None:
        for name in ("initial", "maximum", "reset_after"):
            duration_ms(getattr(self, name), f"ExponentialDelay.{name}")
        check_at_least(self, "multiplier", 1.0)
        if self.attempts is not None:
            check_at_least(self, "attempts", 0)


@dataclass(frozen=True)
class FailureRate:
    """Give up when more than `failures` fall within `per`; wait `delay` before each restart."""

    failures: int = 3
    per: Duration = "5m"
    delay: Duration = "1s"

    def __post_init__(self) -> None:
        check_at_least(self, "failures", 0)
        for name in ("per", "delay"):
            duration_ms(getattr(self, name), f"FailureRate.{name}")


Restart: TypeAlias = "NoRestart | FixedDelay | ExponentialDelay | FailureRate"


@dataclass(frozen=True)
class JobConfig:
    """All that an attempt needs to know besides its plan."""

    name: str
    checkpoints: Checkpoints | None = None
    restart: Restart = field(default_factory=NoRestart)
    settings: Settings = field(default_factory=Settings)
    resume: bool = False
    back_to: CheckpointId | None = None
    """With `resume`: the checkpoint to go back to, whatever is newer."""
    back_to_lineage: Lineage | None = None
    """… and its lineage, where the user has named that, too."""
    from_savepoint: str | None = field(default=None, repr=False)
    """Where to start from as long as there is no checkpoint of its own: a savepoint, or a checkpoint of another run."""
    allow_dropped_state: bool = False
    """State of operators that are no longer there may be left out when a checkpoint is restored."""

    def __post_init__(self) -> None:
        check_booleans(self, "resume", "allow_dropped_state")
        if not self.name:
            raise ConfigError("the name of a job is an empty text; give it one, or None for that of the Environment")
        if self.from_savepoint is not None and not os.fspath(self.from_savepoint).strip():
            raise ConfigError("from_savepoint (--from) is an empty text; give a location, or None to start anew")
