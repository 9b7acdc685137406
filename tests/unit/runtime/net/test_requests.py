"""Requests over a connection: many at once, in pieces, within a limit, and lost when the line is."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from tests.conftest import poll
from tests.unit.runtime.net.ends import HOST, weir_threads
from weir.errors import DataError, TaskLost
from weir.runtime.net import requests
from weir.runtime.net.connection import Connection
from weir.runtime.net.flight import FrameServer, Handlers, connect
from weir.runtime.net.lines import Lines, Secret
from weir.runtime.net.requests import HELLO, PIECE_BYTES_MAX, REQUESTS_MAX, Answers, Requester

LINES = Lines(Secret("a-secret-token"), message_bytes_max=8 * PIECE_BYTES_MAX)


class Door:
    """A server that answers with what `reply` says."""

    def __init__(self, lines: Lines = LINES) -> None:
        self.reply: Callable[[dict[str, Any], pa.Buffer], Any] = lambda head, data: (head, data)
        self.answers = Answers(lambda head, data: self.reply(head, data), lines)
        self.server = FrameServer(HOST, lines, self._accept)
        self.requester = Requester(self.server.address, lines)

    def _accept(self, hello: Mapping[str, Any], connection: Connection) -> Handlers:
        assert HELLO in hello
        return self.answers.serve(connection)


@pytest.fixture
def door() -> Iterator[Door]:
    made = Door()
    yield made
    made.requester.close()
    made.server.close()
    poll(lambda: weir_threads() == [])


@pytest.mark.parametrize("size", [0, 1, PIECE_BYTES_MAX - 1, PIECE_BYTES_MAX, 3 * PIECE_BYTES_MAX + 17])
def test_what_is_asked_arrives_whole_whatever_its_size_and_so_does_the_answer(door: Door, size: int) -> None:
    data = bytes(range(256)) * (size // 256 + 1)
    head, found = door.requester.ask({"path": "ä"}, data[:size], timeout_s=10)
    assert head == {"path": "ä"} and found.to_pybytes() == data[:size]


def test_many_threads_ask_at_once_and_each_gets_its_own_answer(door: Door) -> None:
    gate = threading.Barrier(16)

    def slow(head: dict[str, Any], data: pa.Buffer) -> Any:
        gate.wait(10)  # all sixteen are under way: none waits for another
        return head, data

    door.reply = slow
    found: list[tuple[int, Any]] = []
    threads = [
        threading.Thread(target=lambda n=n: found.append((n, door.requester.ask({"n": n}, b"x" * n, timeout_s=20))))
        for n in range(16)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert sorted((n, head["n"], data.size) for n, (head, data) in found) == [(n, n, n) for n in range(16)]


def test_a_request_or_an_answer_above_the_limit_is_refused_and_the_line_lives_on(door: Door) -> None:
    with pytest.raises(DataError, match="message_max"):
        door.requester.ask({}, b"x" * (8 * PIECE_BYTES_MAX), timeout_s=10)
    door.reply = lambda head, data: ({}, b"x" * (8 * PIECE_BYTES_MAX))
    head, _ = door.requester.ask({}, timeout_s=10)
    assert head["error"] == "DataError"
    door.reply = lambda head, data: ({"fine": True}, b"")
    assert door.requester.ask({}, timeout_s=10)[0] == {"fine": True}


def test_a_caller_that_does_not_keep_to_the_limit_is_cut_off(door: Door) -> None:
    careless = Requester(door.server.address, replace(LINES, message_bytes_max=1 << 30))
    with pytest.raises(TaskLost):
        careless.ask({}, b"x" * (20 * PIECE_BYTES_MAX), timeout_s=20)
    careless.close()


def test_more_requests_at_once_than_the_limit_end_the_line(door: Door) -> None:
    closes: list[str | None] = []
    line = connect(door.server.address, LINES, {HELLO: True}, on_frame=lambda _: None, on_close=closes.append)
    for number in range(REQUESTS_MAX + 1):  # the first piece of each, and never the last
        line.send(requests._PIECE.pack(requests._REQUEST, 0, 0, number) + b"x")
    poll(lambda: closes)
    line.close(0.2)


def test_an_answer_that_never_comes_is_a_lost_task_after_its_time(door: Door) -> None:
    over = threading.Event()
    door.reply = lambda head, data: ({"waited": over.wait(10)}, b"")
    with pytest.raises(TaskLost, match=r"no answer within 0\.1 s"):
        door.requester.ask({}, timeout_s=0.1)
    over.set()
    assert door.answers.settle(10)


def test_a_line_that_breaks_takes_its_requests_with_it_and_the_next_request_has_a_new_one(door: Door) -> None:
    over = threading.Event()
    door.reply = lambda head, data: ({"waited": over.wait(10)}, b"")
    errors: list[BaseException] = []

    def ask() -> None:
        try:
            door.requester.ask({}, timeout_s=20)
        except BaseException as error:
            errors.append(error)

    asking = threading.Thread(target=ask)
    asking.start()
    poll(lambda: door.answers._busy == 1)
    assert door.requester._line is not None
    door.requester._line.connection._cut()
    asking.join(10)
    assert isinstance(errors[0], TaskLost)
    over.set()
    door.reply = lambda head, data: ({"again": True}, b"")
    assert door.requester.ask({}, timeout_s=10)[0] == {"again": True}


def test_an_answer_that_cannot_be_made_is_an_error_of_the_answer_not_of_the_line(
    door: Door, caplog: pytest.LogCaptureFixture
) -> None:
    door.reply = lambda head, data: 1 / 0
    head, _ = door.requester.ask({}, timeout_s=10)
    assert head == {"error": "ZeroDivisionError", "message": "division by zero"}


def test_answers_settle_when_the_last_one_is_out(door: Door) -> None:
    assert door.answers.settle(0)
    begun, over = threading.Event(), threading.Event()
    door.reply = lambda head, data: ({"begun": begun.set(), "over": over.wait(10)}, b"")
    asking = threading.Thread(target=lambda: door.requester.ask({}, timeout_s=20))
    asking.start()
    assert begun.wait(10) and not door.answers.settle(0.05)
    over.set()
    assert door.answers.settle(10)
    asking.join(10)
