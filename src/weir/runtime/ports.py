"""The ports through which the worker and the driver touch the world.

The worker loop (task/worker.py) and the driver's (driver/loop.py) reach clocks, threads,
channels, the control connection and storage only through these. On Spark they
are real; in tests/sim the same loops run over simulated ones.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeAlias, TypeVar

import pyarrow as pa

from weir.graph.plan import Plan
from weir.ids import AttemptId, ChannelId, CheckpointId, TaskIndex
from weir.snapshot.elements import Marker
from weir.snapshot.messages import FromTask, ToTask
from weir.snapshot.parts import FileRef

T = TypeVar("T")

Element: TypeAlias = "pa.RecordBatch | Marker"

Chance: TypeAlias = Callable[[], float]
"""Draws a number from 0 up to 1."""


class Clock(Protocol):
    """Time that only grows, and the time of day."""

    def now_ms(self) -> float: ...

    def wall_ms(self) -> int:
        """Milliseconds since 1970, which only grow either: processing time, for timers and what expires."""

    def not_before(self, wall_ms: float) -> None:
        """Processing time has been known to be this late: it does not go back behind that."""


class Background(Protocol):
    """Work behind the stream's back, at most `snapshot_threads` at once."""

    def run(self, work: Callable[[], T], done: Callable[[T | BaseException], None]) -> None:
        """Run `work` elsewhere; later, on the loop's own thread, call `done` with its result or its exception."""

    def breathe(self) -> None:
        """Called by `work` between small pieces: waits, if that is needed to leave the processor to the stream."""


class OutChannel(Protocol):
    """The sending end of one channel."""

    def offer(self, element: Element) -> bool:
        """Send, or say False when the channel is full; the caller keeps the element and tries again later."""


class InChannel(Protocol):
    """The receiving end of one channel."""

    def peek(self) -> Element | None:
        """The next element, if it is here."""

    def pop(self) -> Element:
        """Take the next element; the sender may send one more."""

    def on_arrival(self, tell: Callable[[], None]) -> None:
        """Call `tell` from now on whenever an element has come, in whatever thread; it must not wait."""


class Transport(Protocol):
    """The channels of one task."""

    def out(self, channel: ChannelId) -> OutChannel: ...

    def into(self, channel: ChannelId) -> InChannel: ...


class Control(Protocol):
    """A task's line to the driver."""

    def send(self, message: FromTask) -> None: ...


class Cluster(Protocol):
    """Where the driver's attempts run. What happens there comes back to the driver as events."""

    def launch(self, attempt: AttemptId, plan: Plan) -> None:
        """Start the tasks of an attempt, which run the members of the plan; each will register, and the stage's end
        will be told."""

    def send(self, attempt: AttemptId, task: TaskIndex, message: ToTask) -> None:
        """Tell a task something; nothing happens when the task is gone."""

    def kill(self, attempt: AttemptId) -> None:
        """End the attempt's stage by force."""


class Storage(Protocol):
    """A directory in durable storage. Paths are relative, with '/' between parts.

    Any call may raise StorageUnavailable, which leaves its outcome unknown, or StorageFull.
    """

    @property
    def creates_atomically(self) -> bool:
        """Whether of several writers that create one file at once exactly one is told True. Where not, nobody can tell
        who owns a job's checkpoints."""

    def write(self, path: str, data: pa.Buffer | bytes) -> None:
        """Write a new file and make it durable. A reader may see it half-written until this returns."""

    def publish(self, path: str, data: bytes) -> None:
        """Make a file appear with all its content at once, durably: never half of it. Replaces one that is there."""

    def create(self, path: str, data: bytes) -> bool:
        """Like publish, but it never replaces another file. True when the file is there with this content: by this
        call, by an earlier one whose reply was lost, or by another caller who gave the same, so whoever must know that
        it is his own gives what nobody else does. False, and nothing changed, when it is there with other content."""

    def read(self, path: str) -> pa.Buffer:
        """The content of a file, or FileNotFoundError."""

    def list(self, path: str) -> list[str]:
        """The names of the files and directories directly below; empty when there is no such directory. What was there
        when the call was made, and stays, is among them; what comes or goes meanwhile may be or not, since long lists
        are read in pages."""

    def delete(self, path: str) -> None:
        """Remove a file or a directory with all below it; nothing happens when it is not there."""

    def prune(self, path: str) -> None:
        """Remove a directory that is empty; nothing happens when it is not, or where there are no directories. What a
        writer that died long ago has left half-written, and nobody sees, goes with it."""

    def move(self, source: str, target: str) -> None:
        """Give a file another name, durably; at the new one it appears at once. FileNotFoundError when `source` is not
        there. FileExistsError, and nothing changed, when another file has the new name; one with the same content is
        what an earlier move left that was cut off, and this one completes it."""


class Opener(Protocol):
    """Opens storage by its location, for what lies elsewhere than a job's own checkpoints: savepoints, and what a job
    starts from."""

    def __call__(self, location: str, create: bool = True) -> Storage:
        """The storage at a local path or URI; `create` makes the directory when it is not there. ConfigError when it is
        no location."""


class Copies(Protocol):
    """Copies of state files near the tasks that wrote them. They are a convenience: nothing fails for want of one, and
    whatever goes wrong with one, storage has the file."""

    def find(self, file: FileRef) -> str | None:
        """The path of a copy that is exactly what the manifest says, if there is one."""

    def keep(self, path: str, data: pa.Buffer | bytes) -> None:
        """Keep the content of a file that storage has at `path`."""

    def keep_file(self, path: str, local_path: str) -> None:
        """The same of a file that will not be changed in place."""

    def completed(self, checkpoint: CheckpointId) -> None:
        """What belongs to no checkpoint from this one on may go."""
