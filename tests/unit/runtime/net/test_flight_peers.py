"""Frames to and from a peer in another process, which is killed, frozen, thawed or forgotten."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.conftest import poll
from tests.unit.runtime.net.ends import LINES, TOKEN, End, Server, frame, weir_threads
from weir.runtime.net.connection import Connection
from weir.runtime.net.flight import connect

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
