"""Frames over real sockets: in order, with the token only, and an end that is always noticed."""

from __future__ import annotations

import logging
import os
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight
import pytest

from tests.conftest import poll
from weir.errors import TaskLost, Unavailable
from weir.runtime.net.connection import Connection
from weir.runtime.net.flight import FrameServer, Handlers, Refused, call_options, client_of, connect
from weir.runtime.net.lines import Lines, Secret

TOKEN = "a-secret-token"
LINES = Lines(Secret(TOKEN))
HOST = "127.0.0.1"


def frame(text: str) -> bytes:
    return b"\x20" + text.encode()


class End:
    """One end of a connection that remembers what it saw."""

    def __init__(self) -> None:
        self.frames: list[bytes] = []
        self.closes: list[str | None] = []
        self.connection: Connection | None = None

    def on_frame(self, found: pa.Buffer) -> None:
        self.frames.append(found.to_pybytes())

    def on_close(self, reason: str | None) -> None:
        self.closes.append(reason)

    @property
    def texts(self) -> list[str]:
        return [found[1:].decode() for found in self.frames]


class Server(End):
    """A server that keeps its last connection."""

    def __init__(self, lines: Lines = LINES, **options: Any) -> None:
        super().__init__()
        self.hellos: list[Mapping[str, Any]] = []
        self.refusal: str | None = None
        self.server = FrameServer(HOST, lines, self.on_connect, **options)

    def on_connect(self, hello: Mapping[str, Any], connection: Connection) -> Handlers:
        self.hellos.append(hello)
        if self.refusal:
            raise Refused(self.refusal)
        self.connection = connection
        return Handlers(on_frame=self.on_frame, on_close=self.on_close)


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    yield made
    made.server.close()


def join(server: Server, end: End, lines: Lines = LINES, **options: Any) -> Connection:
    end.connection = connect(
        server.server.address, lines, {"who": 1}, on_frame=end.on_frame, on_close=end.on_close, **options
    )
    return end.connection


def weir_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("weir-")]


def test_frames_travel_both_ways_in_order(server: Server) -> None:
    client = End()
    connection = join(server, client)
    sizes = [1, 10, 100_000, 2, 300_000, 3, 40_000, 40_000, 5]  # some written by the caller, some by the thread
    for number, size in enumerate(sizes * 20):
        connection.send(frame(f"{number}:" + "x" * size))
        server.connection.send(frame(f"{number}:" + "y" * size))
    poll(lambda: len(server.frames) == len(client.frames) == 180)
    assert [text.split(":")[0] for text in server.texts] == [str(number) for number in range(180)]
    assert [text.split(":")[0] for text in client.texts] == [str(number) for number in range(180)]
    assert server.hellos == [{"who": 1}]
    connection.close()


def test_many_threads_may_send(server: Server) -> None:
    client = End()
    connection = join(server, client)
    threads = [
        threading.Thread(
            target=lambda i=i: [connection.send(frame(f"{i}:{n}:" + "x" * (n % 7 * 9_000))) for n in range(200)]
        )
        for i in range(4)
    ]
    for thread in threads:
        thread.start()
    poll(lambda: len(server.frames) == 800)
    for i in range(4):
        assert [int(t.split(":")[1]) for t in server.texts if t.startswith(f"{i}:")] == list(range(200))
    connection.close()


def test_an_orderly_close_of_either_side_ends_both_without_a_reason() -> None:
    for closes_first in ("client", "server"):
        server, client = Server(), End()
        connection = join(server, client)
        connection.send(frame("last of the client"))
        server.connection.send(frame("last of the server"))
        # On a busy machine the other side may need longer to answer than a job would wait for it.
        connection.close(timeout_s=60.0) if closes_first == "client" else server.server.close()
        poll(lambda: client.closes and server.closes)  # noqa: B023
        assert (client.closes, server.closes) == ([None], [None])
        assert (server.texts, client.texts) == (["last of the client"], ["last of the server"])
        connection.close()
        connection.send(frame("too late"))
        server.server.close()
        assert poll(lambda: weir_threads() == [])


def test_what_was_sent_before_a_close_still_arrives(server: Server) -> None:
    client = End()
    connection = join(server, client)
    for _ in range(20):
        connection.send(frame("x" * 500_000))
    connection.close()
    assert len(server.frames) == 20


def test_a_server_that_closed_has_freed_its_port_and_threads() -> None:
    before = len(os.listdir("/proc/self/task")) if os.path.isdir("/proc/self/task") else 0
    for _ in range(15):
        server, client = Server(), End()
        join(server, client)
        server.server.close()
        server.server.close()
        with pytest.raises(ConnectionRefusedError), socket.create_connection((HOST, server.server.port), 1):
            pass
        client.connection.close()
    assert poll(lambda: weir_threads() == [])
    if before:  # gRPC keeps a few threads of its own, but not more with every connection
        assert len(os.listdir("/proc/self/task")) <= before + 12


@pytest.mark.parametrize("token", ["wrong", "", TOKEN + "x"])
def test_a_wrong_token_is_refused_and_not_logged(server: Server, token: str, caplog: pytest.LogCaptureFixture) -> None:
    client = End()
    with caplog.at_level(logging.DEBUG), pytest.raises(TaskLost, match="token"):
        join(server, client, lines=Lines(Secret(token)))
    assert server.hellos == []
    assert client.closes == []
    assert "refused" in caplog.text
    assert TOKEN not in caplog.text


def test_no_single_call_is_taken_with_or_without_the_token(server: Server) -> None:
    with client_of(server.server.address) as client:
        action = flight.Action("x", b"")
        for options in ((), (call_options(Secret("wrong")),)):
            for call in (
                lambda o=options: list(client.do_action(action, *o)),
                lambda o=options: list(client.list_flights(b"", *o)),
            ):
                with pytest.raises(flight.FlightUnauthenticatedError):
                    call()
        with pytest.raises(NotImplementedError):
            list(client.do_action(action, call_options(LINES.token)))


def test_a_refused_caller_hears_why(server: Server) -> None:
    server.refusal = "attempt 3 is over"
    client = End()
    with pytest.raises(TaskLost, match="attempt 3 is over"):
        join(server, client)
    assert client.closes == []
    assert poll(lambda: weir_threads() == [])


def test_servers_take_the_ports_that_they_are_given_and_say_when_there_are_none() -> None:
    with socket.socket() as free:
        free.bind((HOST, 0))
        first = free.getsockname()[1]
    lines = replace(LINES, ports=range(first, first + 3))
    servers: list[Server] = []
    with pytest.raises(Unavailable, match=rf"{first} to {first + 2}.*task_ports"):
        while True:  # others on this machine may hold some of them
            servers.append(Server(lines=lines))
    assert servers and {server.server.port for server in servers} <= set(lines.ports)
    taken = servers[0].server.port
    for server in servers:
        server.server.close()
    again = Server(lines=lines)
    assert again.server.port == taken
    again.server.close()


def test_nobody_at_the_address_is_a_lost_task_not_a_hang() -> None:
    with socket.socket() as free:
        free.bind((HOST, 0))
        address = f"grpc://{HOST}:{free.getsockname()[1]}"
    with pytest.raises(TaskLost, match="cannot connect"):
        connect(address, LINES, {}, on_frame=lambda _: None, on_close=lambda _: None, timeout_s=3)


def test_a_listener_that_never_answers_is_a_lost_task_not_a_hang() -> None:
    with socket.socket() as silent:
        silent.bind((HOST, 0))
        silent.listen()
        started_s = time.monotonic()
        with pytest.raises(TaskLost, match="cannot connect"):
            address = f"grpc://{HOST}:{silent.getsockname()[1]}"
            connect(address, LINES, {}, on_frame=lambda _: None, on_close=lambda _: None, timeout_s=0.5)
        assert time.monotonic() - started_s < 4
    assert poll(lambda: weir_threads() == [])


def test_a_frame_that_the_receiver_cannot_bear_ends_the_connection_with_its_reason(server: Server) -> None:
    client = End()
    server.on_frame = lambda _: 1 / 0  # type: ignore[method-assign,assignment,return-value]
    connection = join(server, client)
    connection.send(frame("x"))
    poll(lambda: client.closes and server.closes)
    assert server.closes == ["division by zero"]
    assert client.closes[0] is not None
    connection.close()


# --- with a peer in another process -----------------------------------------------------------------------

PEER = """
import sys, threading
import pyarrow as pa
from weir.runtime.net.lines import Lines, Secret
from weir.runtime.net.flight import FrameServer, Handlers, connect
role, address, token = sys.argv[1:4]
lines = Lines(Secret(token))
made = []
def on_connect(hello, connection):
    made.append(connection)
    return Handlers(on_frame=lambda frame: connection.send(frame), on_close=lambda reason: None)
if role == "server":
    server = FrameServer("127.0.0.1", lines, on_connect)
    print(server.address, flush=True)
else:
    connection = connect(address, lines, {}, on_frame=lambda frame: connection.send(frame), on_close=print)
    print("connected", flush=True)
sys.stdin.read()
"""


class Peer:
    """A process that sends every frame back, until it is killed."""

    def __init__(self, role: str, address: str = "-") -> None:
        command = [sys.executable, "-c", textwrap.dedent(PEER), role, address, TOKEN]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        assert self.process.stdout is not None
        self.said = self.process.stdout.readline().strip()
        assert self.said, "the peer did not start"

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            pipe.close()


@pytest.fixture
def peer() -> Iterator[Callable[..., Peer]]:
    made: list[Peer] = []

    def make(role: str, address: str = "-") -> Peer:
        made.append(Peer(role, address))
        return made[-1]

    yield make
    for one in made:
        one.end()


def connect_to(peer: Peer, end: End, **options: Any) -> Connection:
    return connect(peer.said, LINES, {}, on_frame=end.on_frame, on_close=end.on_close, **options)


def test_a_killed_server_is_noticed_within_a_second(peer: Callable[..., Peer]) -> None:
    other, client = peer("server"), End()
    connection = connect_to(other, client)
    connection.send(frame("hello"))
    poll(lambda: client.frames)
    other.signal(signal.SIGKILL)
    poll(lambda: client.closes, within_s=1.0)
    connection.send(frame("to nobody"))
    connection.close()
    assert len(client.closes) == 1
    assert client.closes[0]


def test_a_killed_client_is_noticed_within_a_second(server: Server, peer: Callable[..., Peer]) -> None:
    other = peer("client", server.server.address)
    server.connection.send(frame("hello"))
    poll(lambda: server.frames)
    other.signal(signal.SIGKILL)
    poll(lambda: server.closes, within_s=1.0)
    server.connection.send(frame("to nobody"))
    assert server.closes[0]
    assert poll(lambda: weir_threads() == [])


def flood(connection: Connection) -> float:
    """Send far more than any socket holds; how long that took."""
    started_s = time.monotonic()
    for _ in range(300):
        connection.send(frame("x" * 50_000))
    for _ in range(3_000):
        connection.send(frame("y" * 100))
    return time.monotonic() - started_s


def test_sending_to_a_frozen_server_does_not_block_and_closing_does_not_hang(peer: Callable[..., Peer]) -> None:
    other, client = peer("server"), End()
    connection = connect_to(other, client)
    other.signal(signal.SIGSTOP)
    assert flood(connection) < 2
    started_s = time.monotonic()
    connection.close(0.3)
    assert time.monotonic() - started_s < 2
    assert len(client.closes) == 1
    assert poll(lambda: weir_threads() == [])


def test_sending_to_a_frozen_client_does_not_block_and_closing_does_not_hang(peer: Callable[..., Peer]) -> None:
    server = Server()
    other = peer("client", server.server.address)
    other.signal(signal.SIGSTOP)
    assert flood(server.connection) < 2
    started_s = time.monotonic()
    server.server.close(0.3)
    assert time.monotonic() - started_s < 2
    assert len(server.closes) == 1
    assert poll(lambda: weir_threads() == [])


def test_a_process_that_forgets_to_close_its_server_still_exits(peer: Callable[..., Peer]) -> None:
    other, client = peer("server"), End()
    connection = connect_to(other, client)
    assert other.process.stdin is not None
    other.process.stdin.close()
    assert other.process.wait(10) == 0
    poll(lambda: client.closes)
    connection.close()


def test_a_peer_that_thaws_gets_everything_in_order(peer: Callable[..., Peer]) -> None:
    other, client = peer("server"), End()
    connection = connect_to(other, client)
    other.signal(signal.SIGSTOP)
    for number in range(200):
        connection.send(frame(f"{number}:" + "x" * 50_000))
    other.signal(signal.SIGCONT)
    poll(lambda: len(client.frames) == 200)
    assert [text.split(":")[0] for text in client.texts] == [str(number) for number in range(200)]
    connection.close()


def test_more_unread_messages_than_the_limit_give_the_connection_up(peer: Callable[..., Peer]) -> None:
    other, client = peer("server"), End()
    connection = connect_to(other, client, frames_max=50)
    other.signal(signal.SIGSTOP)
    for _ in range(400):
        connection.send(frame("x" * 50_000))
    poll(lambda: client.closes, within_s=2)
    assert "has not read" in str(client.closes[0])


def test_a_goodbye_of_the_peer_does_not_overtake_what_was_sent_before() -> None:
    written: list[bytes] = []
    writes, may_write, ends = threading.Event(), threading.Event(), End()

    def write(buffer: pa.Buffer) -> None:
        writes.set()
        may_write.wait(10)
        written.append(buffer.to_pybytes())

    connection = Connection("slow", write=write, cut=lambda: None)
    threading.Thread(target=connection.send, args=(frame("first"),)).start()
    writes.wait(10)
    connection.send(frame("second"))
    connection.send(frame("third"))
    arriving = iter([pa.py_buffer(bytes([3])), None])  # the peer's goodbye, and then the end
    reading = threading.Thread(
        target=connection.run,
        args=(lambda: next(arriving),),
        kwargs={"on_frame": ends.on_frame, "on_close": ends.on_close},
    )
    reading.start()
    poll(lambda: connection.parted)
    assert not connection.ended.wait(0.05)
    may_write.set()
    reading.join(10)
    assert written == [frame("first"), frame("second"), frame("third"), bytes([3])] and ends.closes == [None]


LEAVING = """
    from tests.unit.runtime.net.test_flight import End, Server, frame, join
    for _ in range(300):
        server, client = Server(), End()
        connection = join(server, client)
        for _ in range(3):
            connection.send(frame("x" * 50_000))
        connection.leave()
        connection._cut()
        assert connection.ended.wait(10)
        server.server.close(0.5)
"""


def test_leaving_while_the_stream_breaks_does_not_take_the_process_down() -> None:
    """Flight's done_writing did that to one process in three; gRPC aborts it."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    ended = subprocess.run([sys.executable, "-c", textwrap.dedent(LEAVING)], env=environment, timeout=120)
    assert ended.returncode == 0
