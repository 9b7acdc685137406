"""Local directories of a job's run, for databases and copies of state files.

    BASE/weir-USER/JOB-RUN/3-0-1   of region 0's task 1 in attempt 3: gone when the task ends
    BASE/weir-USER/JOB-RUN/copies  of state files: outlives attempts

Comes in: who asks. Goes out: paths; directories are made with no access for others. A
process that is killed leaves its directory; whoever starts next on the host removes it
(leftovers.py).
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from urllib.parse import quote

from weir.config import RocksDb, Settings
from weir.errors import ConfigError
from weir.ids import AttemptId, TaskIndex
from weir.runtime.secret import Secret
from weir.runtime.storage.leftovers import (
    COPIES,
    LOCK_SUFFIX,
    RUN_LOCK,
    TRIES_MAX,
    Lock,
    base_directory,
    make_private,
    sweep,
    sweep_run,
)

_NAME_CHARACTERS_MAX = 100
_ADVICE = "Set RocksDb(directory=…) or, with another backend, the environment variable TMPDIR, to a directory of yours"
_TASK = re.compile(r"(\d+)-(\d+)-(\d+)")


def run_directory(settings: Settings, job: str, token: Secret) -> str:
    """Where a run's directories lie on any host. `token`: the run's secret, of which the name tells nothing."""
    chosen = settings.backend.directory if isinstance(settings.backend, RocksDb) else None
    run = hashlib.sha256(token.reveal().encode()).hexdigest()[:16]
    name = quote(job, safe="")[:_NAME_CHARACTERS_MAX]
    return os.path.join(base_directory(chosen), f"{name}-{run}")


def needs_directory(settings: Settings) -> bool:
    """Whether tasks keep anything on their local disks that has a name."""
    return settings.local_recovery or isinstance(settings.backend, RocksDb)


class RunDirectory:
    """A run's directory on the host of its driver: what others have left there goes when it starts, and its own when
    it ends. Meanwhile nobody takes it for a dead one's, also when no task is there."""

    def __init__(self, settings: Settings, path: str) -> None:
        self._path = path
        sweep(os.path.dirname(path))
        self._lock = _held_run(path) if needs_directory(settings) else None

    def remove(self) -> None:
        shutil.rmtree(self._path, ignore_errors=True)
        if self._lock is not None:
            self._lock.release()


def _held_run(path: str) -> Lock:
    """The run's lock; its directory may be removed, by who finds nobody in it, just when it was made."""
    for _ in range(TRIES_MAX):
        make_private(os.path.dirname(path), advice=_ADVICE)
        make_private(path, advice=_ADVICE)
        try:
            return Lock.hold(os.path.join(path, RUN_LOCK), shared=True)
        except FileNotFoundError:
            continue
        except OSError as error:
            raise ConfigError(f"the local directory {path} cannot be used: {error}. {_ADVICE}") from error
    raise ConfigError(f"the local directory {path} is removed again and again. {_ADVICE}")


class TaskDirectory:
    """The directories of one task. `region`: of the job, in which the task has its index."""

    def __init__(self, run: str, attempt: AttemptId, task: TaskIndex, *, region: int = 0) -> None:
        self._run = run
        self._attempt = attempt
        self._place = (region, task)
        self.path = os.path.join(run, f"{attempt}-{region}-{task}")
        self.copies = os.path.join(run, COPIES)
        self._locks: list[Lock] = []

    def make(self) -> None:
        """Make the task's own directory. What dead processes have left on this host goes, and what earlier attempts of
        this task have, dead or not: they are fenced."""
        sweep(os.path.dirname(self._run))
        self._locks = [_held_run(self._run), Lock.hold(f"{self.path}{LOCK_SUFFIX}")]
        for name in os.listdir(self._run):
            match = _TASK.fullmatch(name)
            if match and (int(match[2]), int(match[3])) == self._place and int(match[1]) <= self._attempt:
                shutil.rmtree(os.path.join(self._run, name), ignore_errors=True)
        make_private(self.path, advice=_ADVICE)

    def remove(self, *, copies: bool) -> None:
        """Remove the task's own directory. `copies`: the run is over, so nobody will want those either."""
        shutil.rmtree(self.path, ignore_errors=True)
        if copies:
            shutil.rmtree(self.copies, ignore_errors=True)
        while self._locks:
            lock = self._locks.pop()
            lock.release(remove=lock.path.startswith(self.path))
        sweep_run(self._run)
