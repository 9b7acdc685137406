"""Both sides of a connection prove who they are, and nobody else gets a word in."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.flight as flight
import pytest

from tests.conftest import poll
from tests.unit.runtime.net.ends import HOST, End, Server, frame
from tests.unit.runtime.net.test_exchange import batch, channel, plan_of
from tests.unit.runtime.proxy import Proxy
from weir.config import Settings
from weir.errors import ConfigError, TaskLost
from weir.ids import AttemptId, TaskIndex
from weir.runtime.net.certificates import Role, new_identities
from weir.runtime.net.exchange import TaskTransport
from weir.runtime.net.flight import client_of, connect
from weir.runtime.net.lines import Lines, RunLines, Secret
from weir.runtime.spark.session import check_private

SETTINGS = Settings(tls=True, ping_interval="100ms", line_timeout="1s")
OTHER_HOST = "192.0.2.1"


@pytest.fixture
def lines() -> RunLines:
    return RunLines.new(SETTINGS, HOST)


@pytest.fixture
def driver(lines: RunLines) -> Iterator[Server]:
    made = Server(lines=lines.driver)
    yield made
    made.server.close()


def call(address: str, lines: Lines, end: End | None = None, **options: Any) -> Any:
    end = end or End()
    return connect(address, lines, {}, on_frame=end.on_frame, on_close=end.on_close, timeout_s=3, **options)


def test_a_task_and_its_driver_know_each_other(driver: Server, lines: RunLines) -> None:
    end = End()
    connection = call(driver.server.address, lines.tasks, end)
    assert driver.server.address.startswith("grpc+tls://")
    for number in range(20):
        connection.send(frame(f"{number}" + "x" * 90_000))
        assert driver.connection is not None
        driver.connection.send(frame(f"{number}"))
    poll(lambda: len(driver.frames) == len(end.frames) == 20)
    connection.close()


def test_the_token_alone_opens_no_door(driver: Server, lines: RunLines) -> None:
    plain = replace(lines.tasks, identity=None)
    with pytest.raises(TaskLost):
        call(driver.server.address.replace("grpc+tls", "grpc"), plain)
    stranger = replace(lines.tasks, identity=new_identities()[Role.TASK])
    with pytest.raises(TaskLost):
        call(driver.server.address, stranger)
    assert lines.tasks.identity is not None
    forged = replace(lines.tasks.identity, certificate=new_identities()[Role.TASK].certificate)
    with pytest.raises(TaskLost):
        call(driver.server.address, replace(lines.tasks, identity=forged))
    assert driver.hellos == []


def test_a_certificate_alone_opens_no_door_either(driver: Server, lines: RunLines) -> None:
    with pytest.raises(TaskLost, match="token"):
        call(driver.server.address, replace(lines.tasks, token=Secret("a guess")))


def test_a_task_cannot_pass_for_the_driver_nor_the_driver_for_a_task(lines: RunLines) -> None:
    task = Server(lines=lines.tasks)
    with pytest.raises(TaskLost, match=r"driver\.weir"):
        call(task.server.address, lines.tasks)
    with pytest.raises(TaskLost, match=r"driver\.weir.*is not task\.weir"):
        call(task.server.address, lines.driver, to=Role.TASK)
    assert task.hellos == []
    call(task.server.address, lines.tasks, to=Role.TASK).close()
    task.server.close()


def test_what_is_shipped_to_tasks_holds_no_key_of_the_driver_or_the_authority(lines: RunLines) -> None:
    assert lines.driver.identity is not None and lines.tasks.identity is not None
    shipped = pickle.dumps(lines.tasks)
    assert pickle.loads(shipped) == lines.tasks
    assert shipped.count(b"BEGIN PRIVATE KEY") == 1
    assert lines.driver.identity.key.reveal().encode() not in shipped
    assert lines.tasks.identity.key.reveal().encode() in shipped


def test_secrets_are_not_shown(lines: RunLines) -> None:
    assert lines.tasks.identity is not None
    for text in (repr(lines), str(lines), f"{lines}", f"{lines.tasks.token}", f"{lines.tasks.token:>20}"):
        assert lines.tasks.token.reveal() not in text
        assert "PRIVATE KEY" not in text


def test_tls_is_there_as_soon_as_anything_leaves_the_machine() -> None:
    assert RunLines.new(Settings(), HOST).tasks.identity is None
    assert RunLines.new(Settings(), OTHER_HOST).tasks.identity is not None
    assert RunLines.new(Settings(tls=True), HOST).tasks.identity is not None
    assert RunLines.new(Settings(tls=False), OTHER_HOST).tasks.identity is None


def test_tasks_exchange_rows_and_notice_a_black_hole(lines: RunLines) -> None:
    ends = [
        TaskTransport(
            plan_of(2),
            TaskIndex(i),
            AttemptId(1),
            lines=lines.tasks,
            host=HOST,
            capacity=2,
            wake=threading.Event().set,
        )
        for i in range(2)
    ]
    proxy = Proxy(ends[1].address)
    ends[0].connect([ends[0].address, proxy.address])
    assert ends[0].out(channel(0, 0, 1)).offer(batch(1, 2, 3))
    found: Any = poll(lambda: ends[1].into(channel(0, 0, 1)).peek())
    assert found.column(0).to_pylist() == [1, 2, 3]
    proxy.swallow("up")
    poll(lambda: all(end.failure for end in ends), within_s=4)
    for end in ends:
        end.close(0.2)
    proxy.close()


# --- Large calls of strangers ---------------------------------------------------------------------------------

SERVER = """
import sys
from weir.config import Settings
from weir.runtime.net.lines import RunLines
from weir.runtime.net.flight import FrameServer
lines = RunLines.new(Settings(tls=True), "127.0.0.1")
server = FrameServer("127.0.0.1", lines.driver, lambda hello, connection: None)
print(server.port, flush=True)
sys.stdin.read()
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into /proc")
def test_a_huge_call_of_a_stranger_takes_no_memory() -> None:
    """Without TLS gRPC takes a single call in as a whole, twice, before the token can be looked at."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.Popen(
        [sys.executable, "-c", SERVER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=environment,
    )
    try:
        assert process.stdout is not None
        port = int(process.stdout.readline())
        before_bytes = peak_bytes(process.pid)
        strangers = new_identities()[Role.TASK]
        for address, identity in ((f"grpc://{HOST}:{port}", None), (f"grpc+tls://{HOST}:{port}", strangers)):
            with client_of(address, 3, identity=identity) as client, pytest.raises(flight.FlightError):
                list(client.do_action(flight.Action("x", b"x" * 400_000_000), flight.FlightCallOptions(timeout=5)))
        assert peak_bytes(process.pid) < before_bytes + (50 << 20)
    finally:
        process.kill()
        process.communicate()


def peak_bytes(process_id: int) -> int:
    status = Path(f"/proc/{process_id}/status").read_text()
    (peak,) = [line.split()[1] for line in status.splitlines() if line.startswith("VmHWM")]
    return int(peak) << 10


# --- Spark's own traffic --------------------------------------------------------------------------------------


class Session:
    """What the check looks at: a session on a cluster, with a few settings."""

    def __init__(self, host: str, **settings: str) -> None:
        self._settings = {name.replace("_", "."): value for name, value in settings.items()}
        self.conf = self
        self._sc = type("Context", (), {"master": "spark://…:7077", "getConf": lambda _: {"spark.driver.host": host}})()

    def get(self, name: str, default: str) -> str:
        return self._settings.get(name, default)


CRYPTO = {"spark_authenticate": "true", "spark_network_crypto_enabled": "true"}


@pytest.mark.parametrize(
    ("session", "trusted"),
    [
        (Session(HOST), False),
        (Session(OTHER_HOST), True),
        (Session(OTHER_HOST, **CRYPTO), False),
        (Session(OTHER_HOST, spark_authenticate="true", spark_ssl_rpc_enabled="true"), False),
    ],
)
def test_a_job_runs_where_sparks_traffic_is_private_or_trusted(session: Any, trusted: bool) -> None:
    check_private(session, trusted=trusted)


@pytest.mark.parametrize("settings", [{}, {"spark_authenticate": "true"}, {"spark_network_crypto_enabled": "true"}])
def test_a_job_is_refused_where_its_keys_would_travel_in_the_clear(settings: dict[str, str]) -> None:
    session: Any = Session(OTHER_HOST, **settings)
    with pytest.raises(ConfigError, match=r"spark\.network\.crypto\.enabled=true.*trust_spark_network"):
        check_private(session, trusted=False)
