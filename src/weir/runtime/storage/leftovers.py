"""What processes keep on the local disk, and who removes it when they were killed.

    BASE/weir-USER/RUN/run.lock     held by all of the run on this host
    BASE/weir-USER/RUN/TASK.lock    held by that task
    BASE/weir-USER/RUN/TASK/        its files

Comes in: who makes a directory. Goes out: locks, which the kernel lets go of when their
process ends, however it ends; process ids would be used again. Whoever starts later on the
host takes the locks that nobody holds, and removes what belongs to them.
"""

from __future__ import annotations

import fcntl
import getpass
import os
import shutil
import stat
import tempfile
import time
import uuid
import warnings
from contextlib import suppress
from urllib.parse import quote

from weir.errors import ConfigError

RUN_LOCK = "run.lock"
LOCK_SUFFIX = ".lock"
COPIES = "copies"

COPIES_KEPT_S = 24 * 3_600.0
"""How long copies of state files are kept where nobody of their run is: it may only be between two attempts."""

_SET_TMPDIR = "Set the environment variable TMPDIR to a directory of yours"

TRIES_MAX = 100
"""How often a lock is taken anew whose file was removed meanwhile."""


class Lock:
    """An open file that is locked."""

    def __init__(self, descriptor: int, path: str) -> None:
        self.path = path
        self._descriptor: int | None = descriptor

    @classmethod
    def hold(cls, path: str, *, shared: bool = False) -> Lock:
        """Take the lock; who removes what a dead owner has left may have it for a moment."""
        for _ in range(TRIES_MAX):
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            with suppress(OSError):  # a file system without locks: then nobody will ever seize one either
                fcntl.flock(descriptor, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)
            if _is_at(descriptor, path):
                os.utime(descriptor)
                return cls(descriptor, path)
            os.close(descriptor)
        raise OSError(f"{path} is removed again and again")

    @classmethod
    def seize(cls, path: str) -> Lock | None:
        """The lock, if there is one that nobody holds."""
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:
            return None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_at(descriptor, path):
                return cls(descriptor, path)
        except OSError:
            pass  # somebody holds it
        os.close(descriptor)
        return None

    @property
    def used_s(self) -> float:
        """When it was last held, in seconds since 1970."""
        return os.stat(self.path).st_mtime

    def release(self, *, remove: bool = False, is_use: bool = True) -> None:
        """Let go. `remove`: nobody will want it again. `is_use`: who held it had a right to what it stands for."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is None:
            return
        with suppress(OSError):
            if remove:
                os.unlink(self.path)
            elif is_use:
                os.utime(descriptor)
        os.close(descriptor)


def _is_at(descriptor: int, path: str) -> bool:
    """Whether the path still leads to the open file."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except OSError:
        return False


def base_directory(chosen: str | None = None) -> str:
    """Where this user's directories lie on any host. `chosen`: instead of the directory for temporary files."""
    return os.path.join(chosen or tempfile.gettempdir(), f"weir-{_user()}")


def sweep(base: str) -> None:
    """Remove what dead processes have left below a directory of `base_directory`. Whatever cannot be removed stays, and
    whatever is somebody else's: anybody may make such a name below the directory for temporary files."""
    for run in _names(base) if _is_ours(base) else []:
        sweep_run(os.path.join(base, run))


def sweep_run(run: str) -> None:
    """The same for one run: its dead tasks' files, and all of it when nobody of the run is here."""
    if not _is_ours(run):
        return
    for name in _names(run):
        if name.endswith(LOCK_SUFFIX) and name != RUN_LOCK and (lock := Lock.seize(os.path.join(run, name))):
            shutil.rmtree(lock.path.removesuffix(LOCK_SUFFIX), ignore_errors=True)
            lock.release(remove=True)
    lock = Lock.seize(os.path.join(run, RUN_LOCK))
    if lock is None:
        return  # the run is alive here
    names = [name for name in _names(run) if name != RUN_LOCK]
    if COPIES in names and time.time() - lock.used_s < COPIES_KEPT_S:
        lock.release(is_use=False)
        return
    for name in names:
        shutil.rmtree(os.path.join(run, name), ignore_errors=True)
    lock.release(remove=True)
    with suppress(OSError):
        os.rmdir(run)  # unless somebody has just begun to use it again


def _names(directory: str) -> list[str]:
    try:
        return sorted(os.listdir(directory))
    except OSError:
        return []


class TemporaryPlace:
    """A directory of this process, private, which goes with it."""

    def __init__(self, what: str) -> None:
        """`what`: the beginning of its name."""
        base, name = base_directory(), f"{quote(what, safe='')}-{uuid.uuid4().hex}"
        self._is_swept = _is_ours(base) or not os.path.lexists(base)
        """Otherwise somebody else has taken the name. A place beside it is as private, but nobody finds it later."""
        self._top = os.path.join(base, name) if self._is_swept else f"{base}-{name}"
        self.path = os.path.join(self._top, "files")
        self._lock: Lock | None = None

    def make(self) -> TemporaryPlace:
        """Make it, and remove those of processes that are dead."""
        if self._lock is None:
            if self._is_swept:
                make_private(os.path.dirname(self._top), advice=_SET_TMPDIR)
                sweep(os.path.dirname(self._top))
            else:
                warnings.warn(
                    f"{base_directory()} belongs to somebody else, so temporary files go to {self._top}; should this "
                    f"process be killed, nobody removes them. {_SET_TMPDIR}",
                    stacklevel=2,
                )
            make_private(self._top, advice=_SET_TMPDIR)
            self._lock = Lock.hold(os.path.join(self._top, RUN_LOCK))
        make_private(self.path, advice=_SET_TMPDIR)
        return self

    def remove(self) -> None:
        shutil.rmtree(self._top, ignore_errors=True)
        if self._lock is not None:
            self._lock.release()
            self._lock = None


def make_private(path: str, *, advice: str) -> None:
    """Make a directory that nobody else may enter, or refuse one that is somebody else's, with this advice."""
    try:
        os.makedirs(path, mode=0o700, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"the local directory {path} cannot be made: {error}. {advice}") from error
    if not _is_ours(path):
        raise ConfigError(f"the local directory {path} belongs to somebody else. {advice}")
    if os.lstat(path).st_mode & 0o077:
        os.chmod(path, 0o700)


def _is_ours(path: str) -> bool:
    """Whether this is a directory of this user, and no link to one."""
    try:
        found = os.lstat(path)
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()


def _user() -> str:
    try:
        return quote(getpass.getuser(), safe="")
    except (KeyError, OSError):
        return str(os.getuid())  # a container may know no name for it
