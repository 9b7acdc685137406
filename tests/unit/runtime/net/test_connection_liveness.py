"""A connection whose network loses everything is noticed by both ends, in a named time; a slow one is not."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator

import pyarrow as pa
import pytest

from tests.conftest import poll
from tests.unit.runtime.net.ends import HOST, End, Server, frame, weir_threads
from tests.unit.runtime.net.test_exchange import batch, channel, plan_of
from tests.unit.runtime.proxy import Proxy
from weir.errors import TaskLost
from weir.ids import AttemptId, TaskIndex
from weir.runtime.net.connection import Connection
from weir.runtime.net.control import ControlClient, ControlServer
from weir.runtime.net.exchange import TaskTransport
from weir.runtime.net.flight import connect
from weir.runtime.net.lines import Lines, Secret
from weir.runtime.net.pulse import Pulse

TIMEOUT_S = 1.0
LINES = Lines(Secret("a-secret-token"), ping_interval_s=0.1, timeout_s=TIMEOUT_S)
NOTICED_S = 2 * TIMEOUT_S + 1.0
"""The end that hears nothing gives up first; the other one when it hears of that, or after as long again."""


@pytest.fixture
def proxied() -> Iterator[Callable[..., tuple[Server, End, Connection, Proxy]]]:
    made: list[tuple[Server, Connection, Proxy]] = []

    def make(delay_s: float = 0.0) -> tuple[Server, End, Connection, Proxy]:
        server, client = Server(lines=LINES), End()
        proxy = Proxy(server.server.address, delay_s=delay_s)
        line = connect(proxy.address, LINES, {}, on_frame=client.on_frame, on_close=client.on_close)
        made.append((server, line, proxy))
        return server, client, line, proxy

    yield make
    for server, line, proxy in made:
        line.close(0.2)
        server.server.close(0.2)
        proxy.close()
    assert poll(lambda: weir_threads() == [])


@pytest.mark.parametrize("lost", [("up",), ("down",), ("up", "down")], ids="-".join)
def test_a_black_hole_in_any_direction_is_noticed_by_both_ends(
    proxied: Callable[..., tuple[Server, End, Connection, Proxy]], lost: tuple[str, ...]
) -> None:
    server, client, line, proxy = proxied()
    line.send(frame("hello"))
    poll(lambda: server.frames)
    proxy.swallow(*lost)
    started_s = time.monotonic()
    poll(lambda: client.closes and server.closes, within_s=NOTICED_S)
    assert time.monotonic() - started_s >= TIMEOUT_S * 0.8
    assert client.closes[0] and server.closes[0]
    assert "the peer for" in f"{client.closes} {server.closes}"


@pytest.mark.parametrize("lost", [("up",), ("down",), ("up", "down")], ids="-".join)
def test_a_black_hole_under_load_is_noticed_though_the_writer_is_stuck(
    proxied: Callable[..., tuple[Server, End, Connection, Proxy]], lost: tuple[str, ...]
) -> None:
    server, client, line, proxy = proxied()
    proxy.swallow(*lost)
    for _ in range(300):
        line.send(frame("x" * 100_000))
        assert server.connection is not None
        server.connection.send(frame("y" * 100_000))
    poll(lambda: client.closes and server.closes, within_s=NOTICED_S)


def test_an_idle_line_stays(proxied: Callable[..., tuple[Server, End, Connection, Proxy]]) -> None:
    server, client, line, proxy = proxied()
    before = proxy.passed_bytes
    assert not line.ended.wait(2.5 * TIMEOUT_S)
    assert proxy.passed_bytes > before
    line.send(frame("still here"))
    poll(lambda: server.texts == ["still here"])
    assert (client.closes, server.closes) == ([], [])


def test_a_slow_line_loses_nothing_and_is_not_given_up(
    proxied: Callable[..., tuple[Server, End, Connection, Proxy]],
) -> None:
    server, client, line, _ = proxied(delay_s=0.2)
    assert server.connection is not None
    for number in range(100):
        line.send(frame(f"{number}:" + "x" * 100_000))
        server.connection.send(frame(f"{number}:" + "y" * 100_000))
    poll(lambda: len(server.frames) == len(client.frames) == 100, within_s=30)
    assert [text.split(":")[0] for text in server.texts] == [str(number) for number in range(100)]
    assert not line.ended.wait(1.5 * TIMEOUT_S)
    assert (client.closes, server.closes) == ([], [])


def test_a_frozen_peer_is_noticed() -> None:
    script = (
        "import sys\n"
        "from weir.runtime.net.control import ControlClient\n"
        "from weir.runtime.net.lines import Lines, Secret\n"
        "lines = Lines(Secret('a-secret-token'), ping_interval_s=0.1, timeout_s=1.0)\n"
        "line = ControlClient(sys.argv[1], lines, attempt=4, task=7, on_message=print, on_lost=print)\n"
        "print('connected', flush=True); sys.stdin.read()"
    )
    lost: list[tuple[int, int, str]] = []
    driver = ControlServer(HOST, LINES, on_message=lambda _: None, on_lost=lambda *found: lost.append(found))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.Popen(
        [sys.executable, "-c", script, driver.address], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
    )
    try:
        assert process.stdout is not None and process.stdout.readline().strip() == b"connected"
        process.send_signal(signal.SIGSTOP)
        poll(lambda: lost, within_s=NOTICED_S)
        assert lost[0][:2] == (4, 7) and "nothing was heard" in lost[0][2]
        process.send_signal(signal.SIGCONT)  # it finds its line cut, and says so
        assert process.stdout.readline().strip()
    finally:
        process.kill()
        process.communicate()
        driver.close()


def test_a_task_whose_driver_is_swallowed_hears_of_it() -> None:
    lost: list[str] = []
    driver = ControlServer(HOST, LINES, on_message=lambda _: None, on_lost=lambda *_: None)
    proxy = Proxy(driver.address)
    task = ControlClient(
        proxy.address,
        LINES,
        attempt=AttemptId(1),
        task=TaskIndex(0),
        on_message=lambda _: None,
        on_lost=lost.append,
    )
    proxy.swallow()
    poll(lambda: lost, within_s=NOTICED_S)
    task.close(0.2)
    driver.close(0.2)
    proxy.close()


def test_a_black_hole_between_two_tasks_fails_both_exchanges() -> None:
    ends = [
        TaskTransport(
            plan_of(2), TaskIndex(i), AttemptId(1), lines=LINES, host=HOST, capacity=2, wake=threading.Event().set
        )
        for i in range(2)
    ]
    proxy = Proxy(ends[1].address)
    ends[0].connect([ends[0].address, proxy.address])
    assert ends[0].out(channel(0, 0, 1)).offer(batch(1))
    poll(lambda: ends[1].into(channel(0, 0, 1)).peek() is not None)
    proxy.swallow("down")
    failures = poll(lambda: [end.failure for end in ends if end.failure] if all(e.failure for e in ends) else [], 4.0)
    assert all(isinstance(failure, TaskLost) for failure in failures)
    for end in ends:
        end.close(0.2)
    proxy.close()


# --- without sockets ----------------------------------------------------------------------------------------


def test_the_time_in_which_a_process_did_not_run_is_no_silence_of_its_peer() -> None:
    from weir.runtime.net.connection import _Silence

    silence = _Silence(interval_s=1.0, timeout_s=10.0)
    assert silence.noticed(0.0, 0, 0) is None
    assert silence.noticed(1_000.0, 0, 0) is None, "frozen for a quarter of an hour, and then one look"
    now_s = 1_000.0
    while (reason := silence.noticed(now_s, 0, 0)) is None:
        now_s += 1.0
    assert "nothing was heard" in reason and 1_007.0 <= now_s <= 1_011.0


def test_a_peer_that_talks_but_hears_nothing_is_noticed_too() -> None:
    from weir.runtime.net.connection import _Silence

    silence = _Silence(interval_s=1.0, timeout_s=10.0)
    reasons = [silence.noticed(float(second), second, 5) for second in range(12)]
    assert reasons[:10] == [None] * 10 and "nothing has reached the peer" in str(reasons[11])


def test_pings_overtake_what_waits_and_never_follow_the_goodbye() -> None:
    written: list[bytes] = []
    writes, may_write = threading.Event(), threading.Event()

    def write(buffer: pa.Buffer) -> None:
        writes.set()
        may_write.wait(10)
        written.append(buffer.to_pybytes())

    connection = Connection("slow", write=write, cut=lambda: None, ping_interval_s=0.1, timeout_s=60.0)
    threading.Thread(target=connection.send, args=(frame("first"),)).start()
    writes.wait(10)
    for text in ("second", "third"):
        connection.send(frame(text))
    connection._beat()
    connection._beat()
    connection.leave()
    connection._beat()
    may_write.set()
    poll(lambda: len(written) == 5)
    assert [found[0] for found in written] == [0x20, 2, 0x20, 0x20, 3]


def test_a_pulse_lives_as_long_as_somebody_wants_it() -> None:
    pulse, beats = Pulse(), threading.Semaphore(0)

    def beat() -> None:
        beats.release()

    pulse.join(beat, 0.01)
    assert all(beats.acquire(timeout=10) for _ in range(3))
    pulse.leave(beat)
    poll(lambda: weir_threads() == [])
    pulse.join(beat, 0.01)
    assert beats.acquire(timeout=10)
    pulse.leave(beat)
