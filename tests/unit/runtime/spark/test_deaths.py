"""How children have died, as their parent notes it: with real children, and with the kernel's count as a file."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from weir.runtime.spark import deaths as module
from weir.runtime.spark.deaths import DEATHS_MAX, LOOKS_KEPT, Deaths, KillCount, kill_count
from weir.snapshot.messages import WorkerDeath

CGROUP = Path("/sys/fs/cgroup/memory")
LIMIT_BYTES = 512 << 20


class Ends:
    """Children that end when the test says so."""

    def __init__(self) -> None:
        self.waiting: list[tuple[int, int]] = []

    def __call__(self) -> tuple[int, int] | None:
        return self.waiting.pop(0) if self.waiting else None


@pytest.fixture
def count(tmp_path: Path) -> KillCount:
    path = tmp_path / "memory.events"
    path.write_text("low 0\noom 3\noom_kill 3\noom_group_kill 0\n")
    return KillCount(path, "its memory cgroup")


def test_a_sigkill_is_the_kernels_for_want_of_memory_only_when_its_own_count_says_so(count: KillCount) -> None:
    ends = Ends()
    deaths = Deaths(count, ended=ends)
    ends.waiting = [(11, -signal.SIGKILL)]
    deaths.reap()
    count.path.write_text("oom_kill 4\n")
    ends.waiting = [(12, -signal.SIGKILL)]
    deaths.reap()
    ends.waiting = [(13, -signal.SIGKILL)]
    deaths.reap()
    evidence = f"({count.path}, of its memory cgroup: oom_kill went from 3 to 4)"
    assert deaths.noted == (
        WorkerDeath(11, "its process was killed by SIGKILL"),
        WorkerDeath(12, f"its process was killed by the kernel for want of memory {evidence}"),
        WorkerDeath(13, "its process was killed by SIGKILL"),
    )


@pytest.mark.parametrize(("looks", "is_evidence"), [(LOOKS_KEPT - 2, True), (LOOKS_KEPT, False)])
def test_what_the_kernel_killed_long_before_is_no_evidence(count: KillCount, looks: int, is_evidence: bool) -> None:
    ends = Ends()
    deaths = Deaths(count, ended=ends)
    count.path.write_text("oom_kill 4\n")
    for _ in range(looks):  # A process with much memory dies for seconds.
        deaths.look()
    ends.waiting = [(11, -signal.SIGKILL)]
    deaths.reap()
    assert ("want of memory" in deaths.noted[0].how) is is_evidence


def test_other_deaths_are_named_as_they_are_and_a_good_end_is_none(count: KillCount) -> None:
    ends = Ends()
    deaths = Deaths(count, ended=ends)
    ends.waiting = [(1, 0), (2, 75), (3, -signal.SIGSEGV), (4, -signal.SIGTERM)]
    count.path.write_text("oom_kill 4\n")
    deaths.reap()
    assert [death.how for death in deaths.noted] == [
        "its process ended with exit code 75",
        "its process was killed by SIGSEGV (a crash in native code)",
        "its process was killed by SIGTERM",
    ]


def test_only_the_latest_deaths_are_kept() -> None:
    ends = Ends()
    deaths = Deaths(None, ended=ends)
    ends.waiting = [(number, 1) for number in range(DEATHS_MAX + 5)]
    deaths.reap()
    assert [death.process_id for death in deaths.noted] == list(range(5, DEATHS_MAX + 5))


def test_a_child_may_end_at_any_moment_while_the_end_of_another_is_handled(count: KillCount) -> None:
    ends = Ends()
    deaths = Deaths(count, ended=ends)
    nested = 0

    def another(frame: FrameType, event: str, argument: object) -> Any:
        """As a signal does, between two steps of the handler."""
        nonlocal nested
        if frame.f_code is not Deaths.reap.__code__:
            return None
        if event == "line" and frame.f_locals.get("is_told"):
            sys.settrace(None)
            nested += 1
            ends.waiting.append((100 + nested, -signal.SIGKILL))
            deaths.reap()
            sys.settrace(another)
        return another

    ends.waiting = [(1, -signal.SIGKILL)]
    before = sys.gettrace()
    sys.settrace(another)
    try:
        deaths.reap()
    finally:
        sys.settrace(before)
    assert nested > 2 and len({death.process_id for death in deaths.noted}) == 1 + nested


@pytest.mark.parametrize(
    ("groups", "path", "found"),
    [
        ("0::/user.slice/run-1", "sys/fs/cgroup/user.slice/run-1/memory.events", "its memory cgroup"),
        ("0::/host/path/of/a/container", "sys/fs/cgroup/memory.events", "its memory cgroup"),
        ("3:cpu:/a\n4:memory:/a\n0::/", "sys/fs/cgroup/memory/a/memory.oom_control", "its memory cgroup"),
        ("3:cpu:/a\n0::/", "proc/vmstat", "the host"),
    ],
)
def test_the_kernels_count_is_found_in_every_kind_of_cgroup(tmp_path: Path, groups: str, path: str, found: str) -> None:
    for name, text in (("proc/self/cgroup", groups), ("proc/vmstat", "pgfree 1\noom_kill 7\n"), (path, "oom_kill 7\n")):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert kill_count(tmp_path) == KillCount(tmp_path / path, found)


def test_where_the_kernel_counts_nothing_nothing_is_claimed(tmp_path: Path) -> None:
    assert kill_count(tmp_path) is None
    assert KillCount(tmp_path / "gone", "the host").read() is None


def test_a_worker_that_another_daemon_has_forked_knows_nothing() -> None:
    assert module.known_deaths() == ()


PARENT = """
import os, signal
from types import SimpleNamespace
from weir.runtime.spark import deaths
from weir.runtime.spark.daemon import note_deaths

daemon = SimpleNamespace(SIG_IGN=signal.SIG_IGN)
note_deaths(daemon)
signal.signal(signal.SIGCHLD, daemon.SIG_IGN)  # as PySpark's does

def child(act):
    process = os.fork()
    if process == 0:
        assert signal.getsignal(signal.SIGALRM) is signal.SIG_DFL, "the daemon's alarm is none of a worker's"
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        act()
        os._exit(0)
    return process

def devour():
    held = []
    while True:
        held.append(os.urandom(1 << 20))

first = child(lambda: ACT)
while not deaths.known_deaths():
    signal.sigtimedwait([signal.SIGUSR1], 0.01)
second = child(lambda: os.write(1, deaths.known_deaths()[0].how.encode()))
try:
    os.waitpid(second, 0)
except ChildProcessError:
    pass
"""


def told_by_a_later_child(act: str, *, before: Callable[[], object] | None = None) -> str:
    """What a worker knows of the one before it that did this. `before`: in the parent, before it begins."""
    command = [sys.executable, "-c", PARENT.replace("ACT", act)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, preexec_fn=before)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_worker_knows_how_one_before_it_has_died() -> None:
    assert told_by_a_later_child("os.kill(os.getpid(), signal.SIGKILL)") == "its process was killed by SIGKILL"


@pytest.fixture
def small_group() -> Iterator[Path]:
    """A memory cgroup with a limit, where this machine lets us make one."""
    group = CGROUP / f"weir-test-{os.getpid()}"
    try:
        group.mkdir()
        (group / "memory.limit_in_bytes").write_text(str(LIMIT_BYTES))
    except OSError as error:
        pytest.skip(f"no memory cgroup can be made here: {error}")
    yield group
    with suppress(OSError):
        group.rmdir()


def test_a_worker_that_the_kernel_kills_for_want_of_memory_is_known_as_such(small_group: Path) -> None:
    def enter() -> None:
        (small_group / "cgroup.procs").write_text(str(os.getpid()))

    told = told_by_a_later_child("devour()", before=enter)
    evidence = f"({small_group}/memory.oom_control, of its memory cgroup: oom_kill went from 0 to 1)"
    assert told == f"its process was killed by the kernel for want of memory {evidence}"
