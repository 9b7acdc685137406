"""The line between driver and tasks, and the driver's storage at its end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest

from tests.conftest import poll
from weir.errors import ProtocolViolation, StorageFull, StorageUnavailable, TaskLost
from weir.ids import AttemptId, CheckpointId, TaskIndex
from weir.runtime.net.control import ControlClient, ControlServer
from weir.runtime.net.lines import Lines, Secret
from weir.runtime.net.remote_storage import RemoteStorage
from weir.snapshot.messages import Heartbeat, StopTask, TaskRunning, TriggerCheckpoint

TOKEN = "a-secret-token"
LINES = Lines(Secret(TOKEN))
HOST = "127.0.0.1"


class Driver:
    """A control server that remembers what it heard."""

    def __init__(self, storage: Any = None) -> None:
        self.heard: list[Any] = []
        self.lost: list[tuple[int, int, str]] = []
        self.server = ControlServer(
            HOST,
            LINES,
            on_message=self.heard.append,
            on_lost=lambda attempt, task, reason: self.lost.append((attempt, task, reason)),
            storage=storage,
        )


class Task:
    """A control client that remembers what it heard."""

    def __init__(self, driver: Driver, attempt: int, task: int) -> None:
        self.heard: list[Any] = []
        self.lost: list[str] = []
        self.client = ControlClient(
            driver.server.address,
            LINES,
            attempt=AttemptId(attempt),
            task=TaskIndex(task),
            on_message=self.heard.append,
            on_lost=self.lost.append,
        )


@pytest.fixture
def driver() -> Iterator[Driver]:
    made = Driver()
    yield made
    made.server.close()


def trigger(attempt: int, checkpoint: int) -> TriggerCheckpoint:
    return TriggerCheckpoint(AttemptId(attempt), CheckpointId(checkpoint))


def test_messages_go_both_ways_in_order(driver: Driver) -> None:
    task = Task(driver, 1, 0)
    beats = [Heartbeat(AttemptId(1), TaskIndex(0), {"n": n}) for n in range(100)]
    triggers = [trigger(1, n) for n in range(100)]
    for beat, order in zip(beats, triggers):
        task.client.send(beat)
        assert driver.server.send(AttemptId(1), TaskIndex(0), order)
    poll(lambda: len(driver.heard) == len(task.heard) == 100)
    assert (driver.heard, task.heard) == (beats, triggers)
    task.client.close()


def test_an_order_reaches_only_its_own_attempt(driver: Driver) -> None:
    old, new, other = Task(driver, 1, 0), Task(driver, 2, 0), Task(driver, 2, 1)
    for index in (0, 1):
        driver.server.send(AttemptId(2), TaskIndex(index), trigger(2, 5))
    driver.server.send(AttemptId(2), TaskIndex(1), trigger(2, 6))
    driver.server.send(AttemptId(1), TaskIndex(0), StopTask(AttemptId(1), cancelled=True))
    poll(lambda: old.heard and new.heard and len(other.heard) == 2)
    assert old.heard == [StopTask(AttemptId(1), cancelled=True)]
    assert new.heard == [trigger(2, 5)]
    assert other.heard == [trigger(2, 5), trigger(2, 6)]
    old.client.send(TaskRunning(AttemptId(1), TaskIndex(0)))
    assert poll(lambda: driver.heard) == [TaskRunning(AttemptId(1), TaskIndex(0))]
    for task in (old, new, other):
        task.client.close()


def test_nobody_connected_is_said_not_raised(driver: Driver) -> None:
    assert not driver.server.send(AttemptId(1), TaskIndex(0), trigger(1, 1))


def test_the_same_task_of_the_same_attempt_connects_once(driver: Driver) -> None:
    first = Task(driver, 1, 0)
    with pytest.raises(TaskLost, match="connected already"):
        Task(driver, 1, 0)
    assert driver.server.send(AttemptId(1), TaskIndex(0), trigger(1, 1))
    poll(lambda: first.heard)
    first.client.close()


def test_a_task_that_leaves_in_order_is_not_lost_and_may_come_back(driver: Driver) -> None:
    task = Task(driver, 1, 0)
    task.client.send(TaskRunning(AttemptId(1), TaskIndex(0)))
    task.client.close()
    poll(lambda: not driver.server.send(AttemptId(1), TaskIndex(0), trigger(1, 1)))
    assert len(driver.heard) == 1
    assert (driver.lost, task.lost) == ([], [])
    Task(driver, 1, 0).client.close()


def test_a_task_hears_that_the_driver_has_left() -> None:
    driver = Driver()
    task = Task(driver, 1, 0)
    driver.server.close()
    assert poll(lambda: task.lost) == ["the driver has left"]
    task.client.send(TaskRunning(AttemptId(1), TaskIndex(0)))
    task.client.close()
    assert len(task.lost) == 1


TASK = """
import sys
from weir.runtime.net.control import ControlClient
from weir.runtime.net.lines import Lines, Secret
lines = Lines(Secret(sys.argv[2]))
client = ControlClient(sys.argv[1], lines, attempt=4, task=7, on_message=print, on_lost=print)
sys.stdin.read()
"""


def test_a_killed_task_is_lost_within_a_second(driver: Driver) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", TASK, driver.server.address, TOKEN]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, env=environment)
    try:
        poll(lambda: driver.server.send(AttemptId(4), TaskIndex(7), trigger(4, 1)))
        process.send_signal(signal.SIGKILL)
        poll(lambda: driver.lost, within_s=1.0)
        assert driver.lost[0][:2] == (4, 7)
        assert not driver.server.send(AttemptId(4), TaskIndex(7), trigger(4, 1))
    finally:
        process.kill()
        process.communicate()


# --- the driver's storage -----------------------------------------------------------------------------------


class FakeStorage:
    """Files in a dict; raises what it is told to."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.error: Exception | None = None

    def _check(self) -> None:
        if self.error is not None:
            raise self.error

    def write(self, path: str, data: pa.Buffer | bytes) -> None:
        self._check()
        self.files[path] = pa.py_buffer(data).to_pybytes()

    def publish(self, path: str, data: bytes) -> None:
        self.write(path, data)

    def create(self, path: str, data: bytes) -> bool:
        if path in self.files:
            return False
        self.write(path, data)
        return True

    def read(self, path: str) -> pa.Buffer:
        self._check()
        if path not in self.files:
            raise FileNotFoundError(path)
        return pa.py_buffer(self.files[path])

    def list(self, path: str) -> list[str]:
        return sorted({name[len(path) + 1 :].split("/")[0] for name in self.files if name.startswith(path + "/")})

    def delete(self, path: str) -> None:
        self.files = {n: d for n, d in self.files.items() if n != path and not n.startswith(path + "/")}

    def move(self, source: str, target: str) -> None:
        if source not in self.files:
            raise FileNotFoundError(source)
        self.files[target] = self.files.pop(source)


@pytest.fixture
def served() -> Iterator[tuple[FakeStorage, RemoteStorage]]:
    fake = FakeStorage()
    driver = Driver(storage=fake)
    remote = RemoteStorage(driver.server.address, LINES)
    yield fake, remote
    remote.close()
    driver.server.close()


def test_every_storage_call_reaches_the_driver(served: tuple[FakeStorage, RemoteStorage]) -> None:
    fake, remote = served
    remote.write("chk-1/a", pa.py_buffer(b"one"))
    remote.write("chk-1/empty", b"")
    remote.publish("manifest", b"two")
    assert remote.create("claim", b"three")
    assert not remote.create("claim", b"four")
    assert fake.files == {"chk-1/a": b"one", "chk-1/empty": b"", "manifest": b"two", "claim": b"three"}
    assert remote.read("chk-1/a").to_pybytes() == b"one"
    assert remote.read("chk-1/empty").to_pybytes() == b""
    assert remote.list("chk-1") == ["a", "empty"]
    assert remote.list("nothing") == []
    remote.move("chk-1/a", "chk-2/ä")
    remote.delete("chk-1")
    assert sorted(fake.files) == ["chk-2/ä", "claim", "manifest"]


def test_a_large_file_passes_both_ways(served: tuple[FakeStorage, RemoteStorage]) -> None:
    _, remote = served
    data = os.urandom(1 << 20) * 40
    remote.write("large", data)
    assert remote.read("large").to_pybytes() == data


@pytest.mark.parametrize(
    ("raised", "expected"),
    [
        (StorageFull("no room for a"), StorageFull),
        (StorageUnavailable("who knows"), StorageUnavailable),
        (FileNotFoundError("a"), FileNotFoundError),
        (PermissionError("not yours"), StorageUnavailable),
        (ProtocolViolation("a bug"), ProtocolViolation),
        (ZeroDivisionError("another bug"), ProtocolViolation),
    ],
    ids=lambda value: getattr(value, "__name__", type(value).__name__),
)
def test_an_error_of_the_storage_is_the_same_error_in_the_task(
    served: tuple[FakeStorage, RemoteStorage], raised: Exception, expected: type[Exception]
) -> None:
    fake, remote = served
    fake.error = raised
    calls: list[Callable[[], object]] = [lambda: remote.write("a", b"x"), lambda: remote.read("a")]
    for call in calls:
        with pytest.raises(expected, match=str(raised)) as caught:
            call()
        assert type(caught.value) is expected


def test_a_missing_file_is_missing_in_the_task_too(served: tuple[FakeStorage, RemoteStorage]) -> None:
    _, remote = served
    with pytest.raises(FileNotFoundError, match="nowhere"):
        remote.read("nowhere")
    with pytest.raises(FileNotFoundError, match="nowhere"):
        remote.move("nowhere", "somewhere")


def test_storage_without_the_token_or_without_a_driver_is_unavailable(driver: Driver) -> None:
    served = Driver(storage=FakeStorage())
    stranger = RemoteStorage(served.server.address, Lines(Secret("wrong")))
    with pytest.raises(StorageUnavailable, match="token"):
        stranger.list("")
    stranger.close()
    late = RemoteStorage(served.server.address, LINES, timeout_s=5)
    served.server.close()
    with pytest.raises(StorageUnavailable, match="did not answer"):
        late.list("")
    late.close()
    without = RemoteStorage(driver.server.address, LINES)
    with pytest.raises(StorageUnavailable):
        without.list("")
    without.close()
