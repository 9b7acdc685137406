"""Channels between tasks: FIFO, bounded, fenced, and never in each other's way."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest

from tests.conftest import poll
from weir.errors import ProtocolViolation, TaskLost
from weir.graph.plan import Broadcast, Edge, Forward, HashByKey, Plan, Vertex
from weir.ids import AttemptId, ChannelId, CheckpointId, EdgeId, TaskIndex, VertexId
from weir.runtime.clock import Mailbox
from weir.runtime.net import wire_format as codec
from weir.runtime.net.channels import LocalChannel
from weir.runtime.net.exchange import TaskTransport
from weir.runtime.net.flight import connect
from weir.runtime.net.lines import Lines, Secret
from weir.snapshot.elements import Barrier, EndOfInput

LINES = Lines(Secret("a-secret-token"))
HOST = "127.0.0.1"
SCHEMA = pa.schema([("n", pa.int64())])


def plan_of(parallelism: int, exchanges: int = 1) -> Plan:
    """A chain of vertices with all-to-all exchanges, and a forward edge at its end."""
    vertices = tuple(Vertex(VertexId(i), (), parallelism) for i in range(exchanges + 2))
    edges = [
        Edge(EdgeId(i), VertexId(i), VertexId(i + 1), HashByKey(("n",)) if i % 2 == 0 else Broadcast(), SCHEMA)
        for i in range(exchanges)
    ]
    edges.append(Edge(EdgeId(exchanges), VertexId(exchanges), VertexId(exchanges + 1), Forward(), SCHEMA))
    return Plan(vertices, tuple(edges), 128)


def batch(*numbers: int) -> pa.RecordBatch:
    return pa.record_batch([pa.array(numbers, pa.int64())], schema=SCHEMA)


def channel(edge: int, source: int, target: int) -> ChannelId:
    return ChannelId(EdgeId(edge), source, target)


class Tasks:
    """All tasks of a plan in this process."""

    def __init__(self, plan: Plan, capacity: int, attempt: int = 1) -> None:
        self.mailboxes = [Mailbox() for _ in range(plan.parallelism)]
        self.transports = [
            TaskTransport(
                plan, TaskIndex(i), AttemptId(attempt), lines=LINES, host=HOST, capacity=capacity, wake=mailbox.wake
            )
            for i, mailbox in enumerate(self.mailboxes)
        ]

    @property
    def addresses(self) -> list[str]:
        return [transport.address for transport in self.transports]

    def connect(self) -> None:
        for transport in self.transports:
            transport.connect(self.addresses)

    def close(self) -> None:
        for transport in self.transports:
            transport.close()


@pytest.fixture
def tasks() -> Iterator[Callable[..., Tasks]]:
    made: list[Tasks] = []

    def make(*, parallelism: int = 2, exchanges: int = 1, capacity: int = 8, connected: bool = True) -> Tasks:
        made.append(Tasks(plan_of(parallelism, exchanges), capacity))
        if connected:
            made[-1].connect()
        return made[-1]

    yield make
    for one in made:
        one.close()


def test_within_a_task_a_batch_is_passed_by_reference() -> None:
    local = LocalChannel(2)
    first = batch(1, 2)
    assert local.peek() is None
    assert local.offer(first)
    assert local.offer(EndOfInput())
    assert not local.offer(Barrier(CheckpointId(1)))
    assert local.peek() is first
    assert local.pop() is first
    assert local.offer(Barrier(CheckpointId(2)))
    assert [local.pop(), local.pop()] == [EndOfInput(), Barrier(CheckpointId(2))]
    assert local.bytes_out == local.bytes_in == first.nbytes
    with pytest.raises(ProtocolViolation):
        local.pop()


def test_a_channel_to_the_task_itself_uses_no_socket(tasks: Callable[..., Tasks]) -> None:
    one = tasks(connected=False)
    rows = batch(1)
    assert one.transports[0].out(channel(0, 0, 0)).offer(rows)
    assert one.transports[0].into(channel(0, 0, 0)).pop() is rows


@pytest.mark.parametrize("capacity", [1, 2, 8])
def test_all_to_all_keeps_the_order_of_every_channel(tasks: Callable[..., Tasks], capacity: int) -> None:
    three = tasks(parallelism=3, exchanges=2, capacity=capacity)
    dice = random.Random(capacity)
    ids = list(plan_of(3, 2).channels)
    elements: dict[ChannelId, list[Any]] = {
        c: [dice.choice([batch(n), batch(*range(n % 50)), Barrier(CheckpointId(n)), EndOfInput()]) for n in range(40)]
        for c in ids
    }
    sent, received = defaultdict(int), defaultdict(list)
    deadline_s = time.monotonic() + 30
    while any(len(received[c]) < 40 for c in ids):
        assert time.monotonic() < deadline_s, {c: (sent[c], len(received[c])) for c in ids}
        c = dice.choice(ids)
        if sent[c] < 40 and three.transports[c.source].out(c).offer(elements[c][sent[c]]):
            sent[c] += 1
        into = three.transports[c.target].into(c)
        if dice.random() < 0.5 and into.peek() is not None:
            received[c].append(into.pop())
    assert dict(received) == elements
    assert all(transport.failure is None for transport in three.transports)


@pytest.mark.parametrize("capacity", [1, 3, 8])
def test_a_slow_receiver_stops_its_sender_and_only_that_channel(tasks: Callable[..., Tasks], capacity: int) -> None:
    two = tasks(exchanges=2, capacity=capacity)
    slow, brisk = channel(0, 0, 1), channel(1, 0, 1)
    out = two.transports[0].out(slow)
    assert [out.offer(batch(n)) for n in range(capacity + 3)] == [True] * capacity + [False] * 3
    for n in range(50):  # the full channel does not hold up the other one in the same connection
        poll(lambda: two.transports[0].out(brisk).offer(batch(n)))  # noqa: B023
        poll(lambda: two.transports[1].into(brisk).peek())
        assert two.transports[1].into(brisk).pop() == batch(n)
    assert not out.offer(batch(99))
    into = two.transports[1].into(slow)
    poll(into.peek)
    for n in range(capacity):
        poll(into.peek)
        assert into.pop() == batch(n)
    assert poll(lambda: out.offer(batch(100)))


@pytest.mark.parametrize("direction", [(0, 1), (1, 0)])
def test_what_is_offered_before_the_streams_are_open_arrives_first(
    tasks: Callable[..., Tasks], direction: tuple[int, int]
) -> None:
    two = tasks(capacity=2, connected=False)
    c = channel(0, *direction)
    out, into = two.transports[c.source].out(c), two.transports[c.target].into(c)
    assert [out.offer(batch(n)) for n in range(3)] == [True, True, False]
    two.connect()
    for n in range(2):
        poll(into.peek)
        assert into.pop() == batch(n)
    assert poll(lambda: out.offer(batch(2)))


def test_arrivals_and_returned_credit_wake_the_loops(tasks: Callable[..., Tasks]) -> None:
    two = tasks(capacity=1)
    sender, receiver = two.mailboxes
    out, into = two.transports[0].out(channel(0, 0, 1)), two.transports[1].into(channel(0, 0, 1))
    for mailbox in two.mailboxes:
        mailbox.wait(0)
    for n in range(100):
        assert out.offer(batch(n))
        while into.peek() is None:
            assert receiver.wait(10_000), "an arrival did not wake the receiver"
        into.pop()
        while not (free := out._used < out._granted):  # type: ignore[attr-defined]
            assert sender.wait(10_000), "credit did not wake the sender"
        assert free


def test_bytes_are_counted_at_both_ends(tasks: Callable[..., Tasks]) -> None:
    two = tasks()
    c = channel(0, 0, 1)
    assert two.transports[0].out(c).offer(batch(*range(1_000)))
    poll(two.transports[1].into(c).peek)
    assert two.transports[1].bytes_in(c) == 0
    two.transports[1].into(c).pop()
    assert two.transports[1].bytes_in(c) == two.transports[0].bytes_out(c) > 8_000


def test_a_batch_of_a_hundred_megabytes_passes(tasks: Callable[..., Tasks]) -> None:
    two = tasks(capacity=1)
    c = channel(0, 0, 1)
    rows = batch(*range(1_000))
    large = pa.Table.from_batches([rows] * 13_000).combine_chunks().to_batches()[0]
    assert large.nbytes > 100_000_000
    assert two.transports[0].out(c).offer(large)
    poll(two.transports[1].into(c).peek, within_s=30)
    assert two.transports[1].into(c).pop().equals(large)


def test_a_stream_of_another_attempt_is_fenced_off(tasks: Callable[..., Tasks]) -> None:
    new = tasks(connected=False)
    old = Tasks(plan_of(2), 8, attempt=0)
    with pytest.raises(TaskLost, match="attempt 0 calls, but this is attempt 1"):
        old.transports[0].connect(new.addresses)
    old.close()
    new.connect()
    assert new.transports[0].out(channel(0, 0, 1)).offer(batch(1))
    poll(new.transports[1].into(channel(0, 0, 1)).peek)
    assert new.transports[1].failure is None


@pytest.mark.parametrize(
    ("hello", "refusal"),
    [
        ({"attempt": 1, "from": 0, "to": 1}, "connected already"),
        ({"attempt": 1, "from": 0, "to": 2}, "this is task 1"),
        ({"attempt": 1, "from": 7, "to": 1}, "task 7"),
        ({"attempt": 1}, "not understood"),
    ],
)
def test_a_caller_that_does_not_belong_here_is_refused(
    tasks: Callable[..., Tasks], hello: dict[str, int], refusal: str
) -> None:
    two = tasks()
    with pytest.raises(TaskLost, match=refusal):
        connect(two.addresses[1], LINES, hello, on_frame=lambda _: None, on_close=lambda _: None)
    assert two.transports[1].failure is None


def test_a_peer_that_leaves_in_order_is_no_failure_and_its_last_elements_are_there(tasks: Callable[..., Tasks]) -> None:
    two = tasks()
    c = channel(0, 0, 1)
    assert two.transports[0].out(c).offer(batch(1))
    assert two.transports[0].out(c).offer(EndOfInput())
    two.transports[0].close()
    into = two.transports[1].into(c)
    assert into.pop() == batch(1)
    assert into.pop() == EndOfInput()
    assert two.transports[1].failure is None
    assert two.transports[0].failure is None


@pytest.mark.parametrize("nonsense", ["too many", "unknown channel"])
def test_frames_that_fit_no_channel_are_a_failure(tasks: Callable[..., Tasks], nonsense: str) -> None:
    two = tasks(capacity=1, connected=False)
    hello = {"attempt": 1, "from": 0, "to": 1}
    connection = connect(two.addresses[1], LINES, hello, on_frame=lambda _: None, on_close=lambda _: None)
    numbers = {c: number for number, c in enumerate(plan_of(2).channels)}
    good = codec.ElementCodec(SCHEMA).encode(batch(1), numbers[channel(0, 0, 1)])
    bad = codec.ElementCodec(SCHEMA).encode(batch(1), numbers[channel(0, 0, 0)])
    for frame in (good, good) if nonsense == "too many" else (bad,):
        connection.send(frame)
    failure = poll(lambda: two.transports[1].failure)
    assert isinstance(failure, ProtocolViolation)
    assert "task 0" in str(failure)
    connection.close()


PEER = """
import sys
from weir.ids import AttemptId, TaskIndex
from weir.runtime.clock import Mailbox
from weir.runtime.net.exchange import TaskTransport
from tests.unit.runtime.net.test_exchange import HOST, LINES, channel, plan_of

task = int(sys.argv[1])
mailbox = Mailbox()
transport = TaskTransport(
    plan_of(2, 2), TaskIndex(task), AttemptId(1), lines=LINES, host=HOST, capacity=2, wake=mailbox.wake
)
print(transport.address, flush=True)
transport.connect(sys.stdin.readline().split())
print("connected", flush=True)
into, out = transport.into(channel(0, 1 - task, task)), transport.out(channel(1, task, 1 - task))
while transport.failure is None:
    if into.peek() is not None and out.offer(into.peek()):
        into.pop()
    else:
        mailbox.wait(1000)
"""


@pytest.mark.parametrize("here", [0, 1])
def test_a_killed_task_is_noticed_by_its_peer_within_a_second(tasks: Callable[..., Tasks], here: int) -> None:
    there = 1 - here
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(["src", ".", *sys.path])}
    peer = subprocess.Popen(
        [sys.executable, "-c", PEER, str(there)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    )
    try:
        transport = tasks(exchanges=2, capacity=2, connected=False).transports[here]
        addresses = [transport.address] * 2
        addresses[there] = peer.stdout.readline().strip()
        peer.stdin.write(" ".join(addresses) + "\n")
        peer.stdin.flush()
        transport.connect(addresses)
        assert peer.stdout.readline().strip() == "connected"
        out, into = transport.out(channel(0, here, there)), transport.into(channel(1, there, here))
        latencies_s = []
        for n in range(200):
            started_s = time.perf_counter()
            assert poll(lambda: out.offer(batch(n)))  # noqa: B023
            while into.peek() is None:
                assert transport.failure is None
            assert into.pop() == batch(n)
            latencies_s.append(time.perf_counter() - started_s)
        assert sorted(latencies_s)[100] < 0.05
        peer.send_signal(signal.SIGKILL)
        failure = poll(lambda: transport.failure, within_s=1.0)
        assert isinstance(failure, TaskLost)
        assert f"task {there}" in str(failure)
        out.offer(batch(0))
        started_s = time.monotonic()
        transport.close()
        assert time.monotonic() - started_s < 2
    finally:
        peer.kill()
        peer.communicate()
