"""How Python workers of this executor have died, noted by the process that forks them.

Comes in: the ends of its children, and the kernel's own count of what it has killed for want of memory. Goes out: a
bounded list, which every worker that is forked later finds in its memory, and tells to the job's driver. Opens no port
and starts no thread: the daemon must not have any.
"""

from __future__ import annotations

import atexit
import os
import signal
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from weir.snapshot.messages import WorkerDeath

DEATHS_MAX = 32
"""The latest that are remembered."""

LOOK_EVERY_S = 1.0
LOOKS_KEPT = 10
"""A death is compared with the oldest of these: what was killed before that is none of it. The kernel counts first, and
a process that has much memory takes its time to die."""

CRASHES = (signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGILL, signal.SIGFPE)


@dataclass(frozen=True)
class KillCount:
    """Where the kernel counts the processes that it has killed for want of memory."""

    path: Path
    scope: str

    def read(self) -> int | None:
        """None: it cannot be known."""
        try:
            lines = self.path.read_text(encoding="ascii").splitlines()
        except (OSError, ValueError):
            return None
        counts = [line.split() for line in lines]
        return next((int(words[1]) for words in counts if words[:1] == ["oom_kill"] and words[1].isdigit()), None)


def kill_count(root: str | Path = "/") -> KillCount | None:
    """That of this process's own memory cgroup, in either version of these; otherwise the host's; None: there is none.

    In a container, the path of the cgroup may be that of the host, while the container's own is mounted as the root.
    """
    root = Path(root)
    mount, scope = root / "sys/fs/cgroup", "its memory cgroup"
    found: list[KillCount] = []
    try:
        groups = [line.split(":", 2) for line in (root / "proc/self/cgroup").read_text("ascii").splitlines()]
    except (OSError, ValueError):
        groups = []
    for _, controllers, path in (group for group in groups if len(group) == 3):
        for place in (path.strip("/"), ""):
            if controllers == "":
                found.append(KillCount(mount / place / "memory.events", scope))
            elif "memory" in controllers.split(","):
                found.append(KillCount(mount / "memory" / place / "memory.oom_control", scope))
    found.append(KillCount(root / "proc/vmstat", "the host"))
    return next((count for count in found if count.read() is not None), None)


class Deaths:
    """The children of one process that did not end well."""

    def __init__(self, count: KillCount | None, *, ended: Callable[[], tuple[int, int] | None] | None = None) -> None:
        self._count = count
        self._ended = ended or _ended_child
        self._noted: deque[WorkerDeath] = deque(maxlen=DEATHS_MAX)
        self._looks: deque[int | None] = deque(maxlen=LOOKS_KEPT)
        self.look()

    @property
    def noted(self) -> tuple[WorkerDeath, ...]:
        """The latest, oldest first."""
        return tuple(self._noted)

    def look(self) -> None:
        """How many the kernel has killed by now. It is told at equal times."""
        self._looks.append(self._read())

    def reap(self) -> None:
        """Some children may have ended."""
        before, now = self._looks[0], self._read()
        is_told = False
        while (ended := self._ended()) is not None:
            process_id, exit_code = ended
            if exit_code != 0:
                self._noted.append(WorkerDeath(process_id, self._how(exit_code, before, now)))
                is_told = is_told or exit_code == -signal.SIGKILL
        if is_told:
            # What it has killed up to now is accounted for. Another child's end may come between any two steps of
            # this, and is handled there at once: there is always a look to compare with.
            self._looks = deque([now], maxlen=LOOKS_KEPT)

    def _read(self) -> int | None:
        return None if self._count is None else self._count.read()

    def _how(self, exit_code: int, before: int | None, now: int | None) -> str:
        if exit_code > 0:
            return f"its process ended with exit code {exit_code}"
        if exit_code == -signal.SIGKILL and self._count is not None and before is not None and (now or 0) > before:
            where = f"{self._count.path}, of {self._count.scope}: oom_kill went from {before} to {now}"
            return f"its process was killed by the kernel for want of memory ({where})"
        try:
            name = signal.Signals(-exit_code).name
        except ValueError:
            name = f"signal {-exit_code}"
        return f"its process was killed by {name}{' (a crash in native code)' if -exit_code in CRASHES else ''}"


def _ended_child() -> tuple[int, int] | None:
    """The id and the exit code of a child that has ended and was not asked for yet."""
    try:
        process_id, status = os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return None
    return None if process_id == 0 else (process_id, os.waitstatus_to_exitcode(status))


_deaths: Deaths | None = None
"""Those of the daemon; in a worker, as they were when it was forked."""


def watch() -> Deaths:
    """Note the deaths of this process's children from now on. `reap` is to be called at each SIGCHLD."""
    global _deaths
    _deaths = deaths = Deaths(kill_count())
    signal.signal(signal.SIGALRM, lambda number, frame: deaths.look())
    signal.setitimer(signal.ITIMER_REAL, LOOK_EVERY_S, LOOK_EVERY_S)
    # The interpreter takes its handlers away as it ends: then the alarm would kill it.
    atexit.register(signal.setitimer, signal.ITIMER_REAL, 0)
    # Timers are not inherited; what the signal does should not be, either.
    os.register_at_fork(after_in_child=lambda: signal.signal(signal.SIGALRM, signal.SIG_DFL))
    return deaths


def known_deaths() -> tuple[WorkerDeath, ...]:
    """What a worker was born with; nothing where another daemon has forked it."""
    return () if _deaths is None else _deaths.noted
