"""Which jobs this user runs: one small file for each, in the user's own state directory.

Comes in: a running job's name, process and control address. Goes out: the jobs that are
there. The token is in the file, so the directory and its files are the user's alone. A
job's process holds a lock on its file: one whose process is gone is ignored, and removed
by whoever looks or registers next, also when its process id is another's by now.
"""

from __future__ import annotations

import json
import os
import re
import socket
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from weir.errors import JobError
from weir.runtime.secret import Secret
from weir.runtime.storage.leftovers import Lock

STATE_VARIABLE = "XDG_STATE_HOME"
RUN_SHOWN = 8
"""Characters of a run's id that are enough to tell runs apart."""

_held: dict[Path, Lock] = {}
"""The locks on the files of this process's own jobs."""


@dataclass(frozen=True)
class JobEntry:
    """A job that runs, and how to talk to it."""

    name: str
    run: str
    pid: int
    host: str
    address: str
    token: Secret
    started_s: float
    """Seconds since 1970."""
    checkpoints: str | None
    """The job's checkpoint location; None: the driver's memory."""
    parallelism: int

    @property
    def file_name(self) -> str:
        name = re.sub(r"[^\w.-]", "_", self.name)
        return f"{name}-{self.pid}-{self.run[:RUN_SHOWN]}.json"

    @property
    def public(self) -> dict[str, Any]:
        """What may be shown: everything but the token."""
        return {key: value for key, value in asdict(self).items() if key != "token"}

    def __str__(self) -> str:
        return f"{self.name} (run {self.run[:RUN_SHOWN]}, pid {self.pid} on {self.host})"


def registry_directory() -> Path:
    """Where the files are: below XDG_STATE_HOME, or ~/.local/state."""
    state = os.environ.get(STATE_VARIABLE) or os.path.join(os.path.expanduser("~"), ".local", "state")
    return Path(state) / "weir" / "jobs"


def this_host() -> str:
    return socket.gethostname()


def register(entry: JobEntry) -> Path:
    """Write the job's file, for this user's eyes only, at once as a whole."""
    directory = registry_directory()
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    directory.chmod(0o700)
    _remove_dead(directory)
    path = directory / entry.file_name
    new = path.with_suffix(f".{os.getpid()}.new")
    new.unlink(missing_ok=True)
    _held[path] = Lock.hold(str(new))  # of the file, whatever its name will be
    with open(os.open(new, os.O_WRONLY), "w", encoding="utf-8") as file:
        json.dump({**entry.public, "token": entry.token.reveal()}, file)
    os.replace(new, path)
    return path


def unregister(entry: JobEntry) -> None:
    path = registry_directory() / entry.file_name
    path.unlink(missing_ok=True)
    if lock := _held.pop(path, None):
        lock.release()


def entries() -> list[JobEntry]:
    """The jobs that run, the oldest first. Files of processes that are gone are removed."""
    directory = registry_directory()
    _remove_dead(directory)
    found = [entry for path in sorted(directory.glob("*.json")) if (entry := _read(path)) is not None]
    return sorted(found, key=lambda entry: entry.started_s)


def _remove_dead(directory: Path) -> None:
    """Remove the files of this host's processes that are gone, those half-written among them. Nobody knows here what
    runs on other hosts."""
    for path in directory.glob("*.json"):
        entry = _read(path)
        if entry is not None and entry.host == this_host() and _is_dead(path, entry.pid):
            with suppress(OSError):
                path.unlink()
    for path in directory.glob("*.new"):
        process = path.suffixes[-2].removeprefix(".") if len(path.suffixes) > 1 else ""
        if process.isdigit() and _is_dead(path, int(process)):
            with suppress(OSError):
                path.unlink()


def _is_dead(path: Path, process_id: int) -> bool:
    if not _is_alive(process_id):
        return True
    # The id may be another process's by now.
    lock = Lock.seize(str(path))
    if lock is not None:
        lock.release()
    return lock is not None


def find_job(name: str, *, run: str | None = None, pid: int | None = None) -> JobEntry:
    """The one job with this name; JobError says which there are when there is none, or more than one."""
    running = entries()
    named = [entry for entry in running if entry.name == name]
    found = [
        entry for entry in named if (run is None or entry.run.startswith(run)) and (pid is None or entry.pid == pid)
    ]
    if len(found) == 1:
        return found[0]
    if found:
        raise JobError(f"{len(found)} jobs are named {name!r}: {_listed(found)}. Say which with --run or --pid")
    if named:
        raise JobError(f"no job {name!r} has that run or process id; there are: {_listed(named)}")
    there = f"there are: {_listed(running)}" if running else "this user runs no job on this machine"
    raise JobError(f"no job named {name!r} runs; {there}")


def _listed(found: Sequence[JobEntry]) -> str:
    return ", ".join(str(entry) for entry in found)


def _read(path: Path) -> JobEntry | None:
    """None for a file that is gone meanwhile, or that no version of Weir wrote."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        return JobEntry(**{**found, "token": Secret(found["token"])})
    except (OSError, ValueError, TypeError, KeyError):
        return None


def _is_alive(process_id: int) -> bool:
    try:
        os.kill(process_id, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
