"""The output side of a subtask: routing, order, and full channels."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest

from tests.states import split_by_owner
from tests.unit.runtime.fakes import Pass, Pipes, operator, plan_of, rows
from weir.errors import ProtocolViolation
from weir.graph.plan import Broadcast, Exchange, Forward, HashByKey, Rebalance
from weir.ids import ChannelId, CheckpointId, EdgeId, SubtaskId, VertexId
from weir.runtime.task.gate import Gate
from weir.snapshot.elements import Barrier, EndOfInput

BARRIER = Barrier(CheckpointId(1))


def gate_to(
    exchange: Exchange, *, targets: int = 2, index: int = 0, sources: int = 2, capacity: int = 100
) -> tuple[Gate, Pipes]:
    plan = plan_of((sources, [operator("up", Pass())]), (targets, [operator("down", Pass())]), edges=[(0, 1, exchange)])
    pipes = Pipes(capacity)
    return Gate(plan, SubtaskId(VertexId(0), index), pipes), pipes


def test_forward_goes_to_the_subtask_of_the_same_index() -> None:
    gate, pipes = gate_to(Forward(), index=1)
    gate.emit(rows(1))
    assert pipes.sent(0, 1, 1) == [[1]]
    assert list(pipes.channels) == [ChannelId(EdgeId(0), 1, 1)]


def test_broadcast_goes_to_everyone() -> None:
    gate, pipes = gate_to(Broadcast(), targets=3)
    gate.emit(rows(1, 2))
    assert [pipes.sent(0, 0, target) for target in range(3)] == [[[1, 2]]] * 3


def test_rebalance_takes_turns_and_each_sender_starts_at_another_target() -> None:
    for index in range(2):
        gate, pipes = gate_to(Rebalance(), targets=2, index=index)
        for number in range(4):
            gate.emit(rows(number))
        assert pipes.sent(0, index, index) == [[0], [2]]
        assert pipes.sent(0, index, 1 - index) == [[1], [3]]


def test_hash_sends_each_row_to_the_owner_of_its_key_group_in_order() -> None:
    gate, pipes = gate_to(HashByKey(("n",)), targets=3)
    batch = rows(*range(50), *range(50))
    gate.emit(batch)
    sent = {target: [n for part in pipes.sent(0, 0, target) for n in part] for target in range(3)}
    owners = dict(split_by_owner(batch, ("n",), parallelism=3, max_parallelism=8))
    assert sent == {target: part.column(0).to_pylist() for target, part in owners.items()}
    assert sorted(n for part in sent.values() for n in part) == sorted([*range(50)] * 2)
    assert all(part for part in sent.values())


def test_a_single_target_gets_whole_batches_whatever_the_exchange() -> None:
    for exchange in (HashByKey(("n",)), Rebalance(), Broadcast()):
        gate, pipes = gate_to(exchange, targets=1)
        gate.emit(rows(1, 2, 3))
        assert pipes.sent(0, 0, 0) == [[1, 2, 3]]


def test_all_batches_of_an_edge_have_the_schema_of_the_edge() -> None:
    gate, pipes = gate_to(Forward(), sources=1, targets=1)
    found = rows(1, 2).schema
    never_null = pa.schema([field.with_nullable(False) for field in found])
    gate.emit(pa.RecordBatch.from_arrays(rows(1, 2).columns, schema=never_null))
    (batch,) = pipes.channels[ChannelId(EdgeId(0), 0, 0)].inbox
    assert batch.schema == found and batch == rows(1, 2)


def test_a_batch_goes_out_on_every_edge() -> None:
    plan = plan_of(
        (1, [operator("up", Pass())]),
        (1, [operator("left", Pass())]),
        (2, [operator("right", Pass())]),
        edges=[(0, 1, Forward()), (0, 2, Broadcast())],
    )
    pipes = Pipes()
    gate = Gate(plan, SubtaskId(VertexId(0), 0), pipes)
    gate.emit(rows(1))
    gate.mark(BARRIER)
    assert [pipes.sent(0, 0, 0), pipes.sent(1, 0, 0), pipes.sent(1, 0, 1)] == [[[1], BARRIER]] * 3


def test_markers_go_to_every_channel_behind_what_was_emitted_before() -> None:
    gate, pipes = gate_to(Rebalance())
    gate.emit(rows(1))
    gate.mark(BARRIER)
    gate.emit(rows(2))
    assert pipes.sent(0, 0, 0) == [[1], BARRIER]
    assert pipes.sent(0, 0, 1) == [BARRIER, [2]]


def test_what_a_full_channel_refuses_waits_and_keeps_its_place() -> None:
    gate, pipes = gate_to(Forward(), capacity=1)
    channel = pipes.out(ChannelId(EdgeId(0), 0, 0))
    gate.emit(rows(1))
    gate.emit(rows(2))
    gate.mark(BARRIER)
    assert not gate.drain()
    assert pipes.sent(0, 0, 0) == [[1]]
    channel.pop()
    gate.emit(rows(3))  # There is room now, but others have waited longer.
    assert pipes.sent(0, 0, 0) == []
    arrived = []
    while not gate.drain() or channel.inbox:
        arrived += pipes.sent(0, 0, 0)
        channel.inbox.clear()
    assert arrived == [[2], BARRIER, [3]]


def test_a_full_channel_does_not_hold_up_the_others() -> None:
    gate, pipes = gate_to(Broadcast(), capacity=1)
    gate.emit(rows(1))
    pipes.out(ChannelId(EdgeId(0), 0, 1)).pop()
    gate.emit(rows(2))
    assert pipes.sent(0, 0, 0) == [[1]]
    assert pipes.sent(0, 0, 1) == [[2]]
    assert not gate.drain()


@pytest.mark.parametrize("exchange", [Broadcast(), HashByKey(("n",)), Rebalance()], ids=lambda e: type(e).__name__)
def test_whatever_is_refused_and_whenever_it_is_taken_nothing_is_lost_or_reordered(exchange: Exchange) -> None:
    rng = random.Random(7)
    for _ in range(20):
        narrow, pipes = gate_to(exchange, targets=3, capacity=rng.randint(1, 3))
        roomy, reference = gate_to(exchange, targets=3, capacity=10_000)
        taken: dict[int, list[object]] = {0: [], 1: [], 2: []}
        for step in range(60):
            element = rows(*(rng.randrange(100) for _ in range(rng.randint(1, 4))))
            for gate in (narrow, roomy):
                gate.emit(element)
                if step % 7 == 6:
                    gate.mark(Barrier(CheckpointId(step)))
            _take_some(rng, pipes, taken)
            narrow.drain()
        for gate in (narrow, roomy):
            gate.mark(EndOfInput())
        while not narrow.drain() or any(channel.inbox for channel in pipes.channels.values()):
            _take_some(rng, pipes, taken)
        assert taken == {target: reference.sent(0, 0, target) for target in range(3)}


def _take_some(rng: random.Random, pipes: Pipes, taken: dict[int, list[object]]) -> None:
    for target in range(3):
        channel = pipes.out(ChannelId(EdgeId(0), 0, target))
        for _ in range(rng.randint(0, len(channel.inbox))):
            taken[target].append(pipes.sent(0, 0, target)[0])
            channel.pop()


def test_a_subtask_without_outputs_is_never_full() -> None:
    plan = plan_of((1, [operator("only", Pass())]))
    gate = Gate(plan, SubtaskId(VertexId(0), 0), Pipes())
    gate.emit(rows(1))
    gate.mark(BARRIER)
    assert gate.drain()


def test_an_unknown_exchange_is_refused() -> None:
    class Teleport:
        pass

    with pytest.raises(ProtocolViolation, match="unknown exchange"):
        gate_to(Teleport())  # type: ignore[arg-type]
