"""Local directories of a job's run, for databases and copies of state files.

    BASE/weir-USER/JOB-RUN/3-0-1   of region 0's task 1 in attempt 3: gone when the task ends
    BASE/weir-USER/JOB-RUN/copies  of state files: outlives attempts

Comes in: who asks. Goes out: paths; directories are made with no access for others. A
process that is killed leaves its directory, which the task's next attempt removes.
"""

from __future__ import annotations

import getpass
import hashlib
import os
import re
import shutil
import tempfile
from urllib.parse import quote

from weir.config import RocksDb, Settings
from weir.errors import ConfigError
from weir.ids import AttemptId, TaskIndex

COPIES = "copies"
_NAME_CHARACTERS_MAX = 100
_TASK = re.compile(r"(\d+)-(\d+)-(\d+)")


def run_directory(settings: Settings, job: str, token: str) -> str:
    """Where a run's directories lie on any host. `token`: the run's secret, of which the name tells nothing."""
    chosen = settings.backend.directory if isinstance(settings.backend, RocksDb) else None
    run = hashlib.sha256(token.encode()).hexdigest()[:16]
    name = quote(job, safe="")[:_NAME_CHARACTERS_MAX]
    return os.path.join(chosen or tempfile.gettempdir(), f"weir-{_user()}", f"{name}-{run}")


def remove_run(settings: Settings, job: str, token: str) -> None:
    """Remove what a run has left on this host."""
    shutil.rmtree(run_directory(settings, job, token), ignore_errors=True)


class TaskDirectory:
    """The directories of one task. `region`: of the job, in which the task has its index."""

    def __init__(self, run: str, attempt: AttemptId, task: TaskIndex, *, region: int = 0) -> None:
        self._run = run
        self._attempt = attempt
        self._place = (region, task)
        self.path = os.path.join(run, f"{attempt}-{region}-{task}")
        self.copies = os.path.join(run, COPIES)

    def make(self) -> None:
        """Make the task's own directory, and remove those of its earlier attempts, which were killed."""
        _make_private(os.path.dirname(self._run))
        _make_private(self._run)
        for name in os.listdir(self._run):
            match = _TASK.fullmatch(name)
            if match and (int(match[2]), int(match[3])) == self._place and int(match[1]) <= self._attempt:
                shutil.rmtree(os.path.join(self._run, name), ignore_errors=True)
        _make_private(self.path)

    def remove(self, *, copies: bool) -> None:
        """Remove the task's own directory. `copies`: the run is over, so nobody will want those either."""
        shutil.rmtree(self.path, ignore_errors=True)
        if copies:
            shutil.rmtree(self.copies, ignore_errors=True)
        try:
            os.rmdir(self._run)
        except OSError:
            pass  # others have theirs in it, or removed it


def _make_private(path: str) -> None:
    try:
        os.makedirs(path, mode=0o700, exist_ok=True)
        found = os.lstat(path)
    except OSError as error:
        raise ConfigError(f"the local directory {path} cannot be made: {error}; set RocksDb(directory=…)") from error
    if found.st_uid != os.getuid() or not os.path.isdir(path) or os.path.islink(path):
        # Anybody may make such a name below the directory for temporary files.
        raise ConfigError(f"the local directory {path} belongs to somebody else; set RocksDb(directory=…)")
    if found.st_mode & 0o077:
        os.chmod(path, 0o700)


def _user() -> str:
    try:
        return quote(getpass.getuser(), safe="")
    except (KeyError, OSError):
        return str(os.getuid())  # a container may know no name for it
