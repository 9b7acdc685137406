"""What killed processes leave on the local disk, and who removes it. The processes are real, and really killed."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from weir.config import RocksDb, Settings
from weir.errors import ConfigError
from weir.ids import AttemptId, TaskIndex
from weir.runtime.net.lines import Secret
from weir.runtime.storage import leftovers
from weir.runtime.storage.leftovers import COPIES_KEPT_S, RUN_LOCK, Lock, TemporaryPlace, base_directory, sweep
from weir.runtime.storage.local_directory import RunDirectory, TaskDirectory, run_directory

CHILD = """
import os, sys
from weir.config import RocksDb, Settings
from weir.ids import AttemptId, TaskIndex
from weir.runtime.storage.leftovers import TemporaryPlace
from weir.runtime.net.lines import Secret
from weir.runtime.storage.local_directory import RunDirectory, TaskDirectory, run_directory
base, job, what = sys.argv[1:]
settings = Settings(backend=RocksDb(directory=base))
run = run_directory(settings, job, Secret("secret"))
if what == "driver":
    held = RunDirectory(settings, run)
    print(run, flush=True)
elif what == "temporary":
    place = TemporaryPlace("rows").make()
    open(os.path.join(place.path, "part"), "w").close()
    print(place.path, flush=True)
else:
    task = TaskDirectory(run, AttemptId(1), TaskIndex(0))
    task.make()
    os.makedirs(os.path.join(task.path, "db"))
    open(os.path.join(task.path, "db", "000007.sst"), "w").close()
    if what == "copying":
        os.makedirs(task.copies)
        open(os.path.join(task.copies, "a-file"), "w").close()
    print(task.path, flush=True)
sys.stdin.read()
"""


class Child:
    """A process that keeps something on the local disk, until it is killed."""

    def __init__(self, base: Path, job: str, what: str) -> None:
        command = [sys.executable, "-c", CHILD, str(base), job, what]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self.path = Path(self._process.stdout.readline().strip())
        assert self.path.is_absolute()

    def kill(self) -> Child:
        with self._process as process:  # … which is waited for, and its pipes are closed
            process.send_signal(signal.SIGKILL)
        return self


Start = Callable[..., Child]


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    started: list[Child] = []

    def begin(job: str, what: str = "task") -> Child:
        started.append(Child(tmp_path, job, what))
        return started[-1]

    yield begin
    for child in started:
        child.kill()


def task_of(base: Path, job: str) -> TaskDirectory:
    settings = Settings(backend=RocksDb(directory=str(base)))
    return TaskDirectory(run_directory(settings, job, Secret("another secret")), AttemptId(1), TaskIndex(0))


def test_the_directory_of_a_killed_task_is_removed_by_the_next_task_of_any_job(tmp_path: Path, start: Start) -> None:
    alive, killed = start("first"), start("second").kill()
    assert (killed.path / "db" / "000007.sst").exists()
    task = task_of(tmp_path, "third")
    task.make()
    assert not killed.path.parent.exists(), "nobody of that run is here any more"
    assert (alive.path / "db" / "000007.sst").exists()
    task.remove(copies=False)
    assert sorted(os.listdir(base_directory(str(tmp_path)))) == [alive.path.parent.name]


def test_a_driver_that_starts_removes_what_killed_ones_have_left(tmp_path: Path, start: Start) -> None:
    killed_driver, killed_task = start("first", "driver").kill(), start("second").kill()
    alive = start("third", "driver")
    run = RunDirectory(Settings(), os.path.join(base_directory(str(tmp_path)), "heap-run"))
    assert not killed_driver.path.exists() and not killed_task.path.parent.exists()
    assert alive.path.exists(), "between two attempts no task is there, but the driver is"
    run.remove()


def test_four_kills_in_a_row_leave_what_one_leaves(tmp_path: Path, start: Start) -> None:
    for number in range(4):
        start(f"job-{number}").kill()
    assert len(os.listdir(base_directory(str(tmp_path)))) == 1
    sweep(base_directory(str(tmp_path)))
    assert os.listdir(base_directory(str(tmp_path))) == []


def test_copies_of_a_run_outlive_its_tasks_for_a_day(
    tmp_path: Path, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed = start("first", "copying").kill()
    run = killed.path.parent
    sweep(base_directory(str(tmp_path)))
    assert not killed.path.exists() and (run / "copies" / "a-file").exists()
    used_s = (run / RUN_LOCK).stat().st_mtime
    monkeypatch.setattr(leftovers.time, "time", lambda: used_s + COPIES_KEPT_S)
    sweep(base_directory(str(tmp_path)))
    assert not run.exists()


def test_temporary_places_are_private_and_go_with_their_process(tmp_path: Path, start: Start) -> None:
    killed, alive = start("x", "temporary").kill(), start("x", "temporary")
    own = TemporaryPlace("rows").make()
    assert not killed.path.exists() and (alive.path / "part").exists()
    for path in (own.path, os.path.dirname(own.path), base_directory()):
        assert stat.S_IMODE(os.stat(path).st_mode) == 0o700
    own.make()
    sweep(base_directory())
    assert os.path.isdir(own.path)
    own.remove()
    own.remove()
    assert not os.path.exists(os.path.dirname(own.path))


def test_a_name_that_somebody_else_has_taken_does_not_keep_processes_from_starting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leftovers.tempfile, "tempdir", str(tmp_path))
    (tmp_path / "elsewhere").mkdir(mode=0o755)
    os.symlink(tmp_path / "elsewhere", base_directory())
    place = TemporaryPlace("rows")
    with pytest.warns(UserWarning, match=r"belongs to somebody else.*nobody removes.*TMPDIR"):
        place.make()
    assert stat.S_IMODE(os.stat(place.path).st_mode) == 0o700
    assert stat.S_IMODE(os.stat(os.path.dirname(place.path)).st_mode) == 0o700
    assert os.path.dirname(os.path.dirname(place.path)) == str(tmp_path)
    place.remove()
    assert sorted(os.listdir(tmp_path)) == ["elsewhere", os.path.basename(base_directory())]
    assert os.listdir(tmp_path / "elsewhere") == []
    assert stat.S_IMODE(os.stat(tmp_path / "elsewhere").st_mode) == 0o755


def test_a_name_that_is_taken_meanwhile_is_refused_with_what_helps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leftovers.tempfile, "tempdir", str(tmp_path))
    place = TemporaryPlace("rows")
    os.symlink(tmp_path, base_directory())
    with pytest.raises(ConfigError, match=r"belongs to somebody else.*TMPDIR"):
        place.make()


def test_what_is_not_ours_is_left_alone(tmp_path: Path) -> None:
    base = Path(base_directory(str(tmp_path)))
    (base / "older-version" / "1-0-0").mkdir(parents=True)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / RUN_LOCK).touch()
    (base / "link").symlink_to(tmp_path / "elsewhere")
    sweep(str(base))
    assert (base / "older-version" / "1-0-0").exists(), "without a lock nobody knows whose it is"
    assert (tmp_path / "elsewhere" / RUN_LOCK).exists()


def _precious(directory: Path) -> Path:
    """A user's file that lies as a dead task's would: beside a lock that nobody holds."""
    (directory / "project" / "uv").mkdir(parents=True)
    (directory / "project" / "uv.lock").touch()
    (directory / "project" / "uv" / "main.py").write_text("precious")
    return directory / "project" / "uv" / "main.py"


def test_a_base_that_is_a_link_is_not_swept(tmp_path: Path) -> None:
    precious = _precious(tmp_path / "home")
    base = Path(base_directory(str(tmp_path)))
    base.symlink_to(tmp_path / "home")  # by another user, who may make any name in /tmp
    RunDirectory(Settings(), str(base / "job-run"))
    with pytest.raises(ConfigError, match="somebody else"):
        task_of(tmp_path, "job").make()
    assert precious.exists() and precious.parent.with_suffix(".lock").exists()


@pytest.mark.parametrize("whose", ["base", "project"])
def test_a_directory_of_another_user_is_not_swept(whose: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base = Path(base_directory(str(tmp_path)))
    precious = _precious(base)
    theirs = base if whose == "base" else base / whose
    honest = os.lstat

    def lstat(path: str) -> os.stat_result:
        found = list(honest(path))
        found[stat.ST_UID] += str(path) == str(theirs)
        return os.stat_result(found)

    monkeypatch.setattr(leftovers.os, "lstat", lstat)
    sweep(str(base))
    monkeypatch.undo()
    assert precious.exists()
    sweep(str(base))
    assert not precious.exists(), "this is how a leftover lies"


def test_a_lock_whose_file_was_removed_by_a_sweep_is_taken_anew(tmp_path: Path) -> None:
    path = str(tmp_path / "run.lock")
    first = Lock.hold(path, shared=True)
    assert Lock.seize(path) is None
    first.release()
    swept = Lock.seize(path)
    assert swept is not None
    swept.release(remove=True)
    again = Lock.hold(path)
    assert Lock.seize(path) is None and os.path.exists(path)
    again.release(remove=True)
    assert Lock.seize(path) is None and not os.path.exists(path)
