"""Frames over real sockets: in order, with the token only, and an end that is always noticed."""

from __future__ import annotations

import logging
import os
import socket
import subprocess
import sys
import textwrap
import threading
import time
from dataclasses import replace

import pyarrow as pa
import pyarrow.flight as flight
import pytest

from tests.conftest import poll
from tests.unit.runtime.net.ends import HOST, LINES, TOKEN, End, Server, frame, join, weir_threads
from weir.errors import TaskLost, Unavailable
from weir.runtime.net.connection import Connection
from weir.runtime.net.flight import call_options, client_of, connect
from weir.runtime.net.lines import Lines, Secret


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
    from tests.unit.runtime.net.ends import End, Server, frame, join
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
