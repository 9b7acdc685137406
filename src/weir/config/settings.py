"""The engine's named limits: frozen, and checked when made.

Comes in: what the user wrote ("10ms", 8, "32MB"). Goes out: that, and plain values with
their unit in the name. Never touches files or clocks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from weir.config.backends import HEAP, Heap, RocksDb, StateBackend
from weir.config.checks import check_at_least, check_booleans, port_range
from weir.config.units import Bytes, Duration, Milliseconds, Size, parse_units
from weir.errors import ConfigError

MAX_PARALLELISM_LIMIT = 32_768
"""Then every key group fits into an int16. Flink has the same limit."""

MESSAGE_MAX_LEAST_BYTES = 64 << 10
"""Any answer to a command fits into this."""


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
    """Longest wait for Spark to start all tasks of an attempt, and again for them to connect."""

    restore_timeout: Duration = "30m"
    """Longest wait for all tasks of an attempt to restore the state of a checkpoint, and to connect."""

    stop_timeout: Duration = "10s"
    """Longest wait for tasks to end when asked, before Spark is told to kill them."""

    snapshot_threads: int = 2
    """Threads per task that write snapshots and commit epochs behind the stream's back."""

    snapshot_share: float = 0.08
    """Most of a processor, per such thread, that writing a large snapshot may take while the stream needs it."""

    backend: StateBackend = HEAP
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

    batch_max_bytes = Bytes("batch_bytes_max")
    loop_memory_max_bytes = Bytes("loop_memory_max")
    loop_disk_max_bytes = Bytes("loop_disk_max")
    message_max_bytes = Bytes("message_max")
    buffer_timeout_ms = Milliseconds("buffer_timeout")
    watermark_interval_ms = Milliseconds("watermark_interval")
    heartbeat_interval_ms = Milliseconds("heartbeat_interval")
    heartbeat_timeout_ms = Milliseconds("heartbeat_timeout")
    ping_interval_ms = Milliseconds("ping_interval")
    line_timeout_ms = Milliseconds("line_timeout")
    launch_timeout_ms = Milliseconds("launch_timeout")
    restore_timeout_ms = Milliseconds("restore_timeout")
    stop_timeout_ms = Milliseconds("stop_timeout")
    commit_retry_delay_ms = Milliseconds("commit_retry_delay")
    commit_retry_delay_max_ms = Milliseconds("commit_retry_delay_max")
    storage_retry_delay_ms = Milliseconds("storage_retry_delay")
    storage_retry_delay_max_ms = Milliseconds("storage_retry_delay_max")
    outage_max_ms = Milliseconds("outage_max")
    outage_retry_delay_ms = Milliseconds("outage_retry_delay")
    outage_retry_delay_max_ms = Milliseconds("outage_retry_delay_max")

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
        parse_units(self)
        for name in ("commit_retry_delay", "storage_retry_delay", "outage_retry_delay"):
            first_ms, longest_ms = getattr(self, f"{name}_ms"), getattr(self, f"{name}_max_ms")
            if longest_ms < first_ms:
                raise ConfigError(f"Settings.{name}_max: {longest_ms} ms is shorter than {name}, {first_ms} ms")
        self._check_lines()

    def _check_lines(self) -> None:
        if self.tls != "auto" and not isinstance(self.tls, bool):
            raise ConfigError(f"Settings.tls: {self.tls!r} is not 'auto', True or False")
        if self.message_max_bytes < MESSAGE_MAX_LEAST_BYTES:
            raise ConfigError(f"Settings.message_max: {self.message_max!r} is below {MESSAGE_MAX_LEAST_BYTES} bytes")
        for name in ("driver_ports", "task_ports"):
            if getattr(self, name) is not None:
                port_range(getattr(self, name), f"Settings.{name}")
        if self.ping_interval_ms < 1:
            raise ConfigError("Settings.ping_interval: must be at least 1ms")
        if self.line_timeout_ms < 2 * self.ping_interval_ms:
            raise ConfigError(
                f"Settings.line_timeout: {self.line_timeout!r} is below two pings (Settings.ping_interval is "
                f"{self.ping_interval!r}): one late ping would end a connection"
            )
