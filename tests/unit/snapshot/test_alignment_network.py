"""Alignment in random dataflows with tiny queues: no order of events blocks for good or cuts wrongly.

A seed draws a graph, what each source does with each checkpoint (barrier, cancel
marker, or nothing at all), which ones the driver aborts, and the order of all steps.
"""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass, field

import pytest

from weir.ids import CheckpointId
from weir.snapshot.alignment import (
    AbortArrived,
    AtLeastOnceAlignment,
    BarrierArrived,
    BarrierCancelArrived,
    BlockChannel,
    ExactlyOnceAlignment,
    PassCancel,
    TakeSnapshot,
    UnblockChannels,
)
from weir.snapshot.elements import Barrier, BarrierCancelled

Row = int
Element = Row | Barrier | BarrierCancelled
SEEDS = 400
STEPS_MAX = 100_000


@dataclass
class Channel:
    """A bounded queue, what waits in front of it, and what was taken out of it."""

    capacity: int
    waiting: deque[Element] = field(default_factory=deque)
    queue: deque[Element] = field(default_factory=deque)
    taken: list[Element] = field(default_factory=list)

    def drain(self) -> None:
        while self.waiting and len(self.queue) < self.capacity:
            self.queue.append(self.waiting.popleft())


@dataclass
class Source:
    """Sends what was drawn for it, whenever its outputs have room."""

    script: deque[Element]
    outputs: list[Channel] = field(default_factory=list)

    def step(self, dice: random.Random) -> bool:
        if any(channel.waiting for channel in self.outputs) or not self.script:
            return False
        element = self.script.popleft()
        for channel in self.outputs:
            channel.waiting.append(element)
            channel.drain()
        return True


class Inner:
    """A subtask that passes every row on, over the machine under test."""

    def __init__(self, inputs: list[Channel], exactly_once: bool) -> None:
        self.inputs = inputs
        self.outputs: list[Channel] = []
        self.exactly_once = exactly_once
        self.machine = ExactlyOnceAlignment(len(inputs)) if exactly_once else AtLeastOnceAlignment(len(inputs))
        self.blocked: set[int] = set()
        self.snapshots: list[CheckpointId] = []
        self.passed: list[CheckpointId] = []

    def step(self, dice: random.Random) -> bool:
        if any(channel.waiting for channel in self.outputs):
            return False
        ready = [i for i, channel in enumerate(self.inputs) if channel.queue and i not in self.blocked]
        if not ready:
            return False
        index = dice.choice(ready)
        element = self.inputs[index].queue.popleft()
        self.inputs[index].taken.append(element)
        if isinstance(element, Barrier):
            self.align(BarrierArrived(index, element.checkpoint))
        elif isinstance(element, BarrierCancelled):
            self.align(BarrierCancelArrived(index, element.checkpoint))
        else:
            self.send(element)
        return True

    def align(self, event: BarrierArrived | BarrierCancelArrived | AbortArrived) -> None:
        for effect in self.machine.handle(event):
            if isinstance(effect, BlockChannel):
                self.blocked.add(effect.channel)
            elif isinstance(effect, UnblockChannels):
                self.blocked.clear()
            elif isinstance(effect, TakeSnapshot):
                self.check_cut(effect.checkpoint)
                self.snapshots.append(effect.checkpoint)
                self.pass_on(effect.checkpoint, Barrier(effect.checkpoint))
            else:
                assert isinstance(effect, PassCancel)
                self.pass_on(effect.checkpoint, BarrierCancelled(effect.checkpoint))
        assert self.blocked == self.machine.blocked

    def check_cut(self, checkpoint: CheckpointId) -> None:
        for channel in self.inputs:
            if self.exactly_once:
                assert channel.taken[-1] == Barrier(checkpoint), "a row behind the barrier is in the snapshot"
            assert Barrier(checkpoint) in channel.taken, "a row before the barrier is not in the snapshot"

    def pass_on(self, checkpoint: CheckpointId, marker: Element) -> None:
        assert not self.passed or self.passed[-1] < checkpoint, "markers must grow downstream"
        self.passed.append(checkpoint)
        self.send(marker)

    def send(self, element: Element) -> None:
        for channel in self.outputs:
            channel.waiting.append(element)
            channel.drain()


class Network:
    """A random graph with a random future."""

    def __init__(self, seed: int, exactly_once: bool) -> None:
        self.dice = random.Random(seed)
        self.last = CheckpointId(self.dice.randint(1, 8))
        self.aborted = {n for n in self.checkpoints(self.last - 1) if self.dice.random() < 0.3}
        self.disturbed = set(self.aborted)
        self.sources = [Source(self.script()) for _ in range(self.dice.randint(1, 3))]
        self.inners: list[Inner] = []
        self.aborts: list[tuple[Inner, CheckpointId]] = []
        for _ in range(self.dice.randint(1, 6)):
            self.add_inner(exactly_once)

    def checkpoints(self, last: int) -> list[CheckpointId]:
        return [CheckpointId(n) for n in range(1, last + 1)]

    def script(self) -> deque[Element]:
        elements: list[Element] = []
        for checkpoint in self.checkpoints(self.last):
            elements += range(self.dice.randint(0, 5))
            fate = (
                "barrier"
                if checkpoint == self.last
                else self.dice.choices(("barrier", "cancel", "nothing"), (0.8, 0.1, 0.1))[0]
            )
            if fate == "barrier":
                elements.append(Barrier(checkpoint))
            else:
                self.disturbed.add(checkpoint)
            if fate == "cancel":
                elements.append(BarrierCancelled(checkpoint))
        return deque([*elements, *range(self.dice.randint(0, 5))])

    def add_inner(self, exactly_once: bool) -> None:
        above: list[Source | Inner] = [*self.sources, *self.inners]
        inputs: list[Channel] = []
        for upstream in self.dice.sample(above, self.dice.randint(1, min(4, len(above)))):
            channel = Channel(self.dice.randint(1, 4))
            upstream.outputs.append(channel)
            inputs.append(channel)
        inner = Inner(inputs, exactly_once)
        self.inners.append(inner)
        self.aborts += [(inner, checkpoint) for checkpoint in self.aborted if self.dice.random() < 0.9]

    def run(self) -> None:
        """Take random steps until nothing can move."""
        for _ in range(STEPS_MAX):
            if self.aborts and self.dice.random() < 0.05:
                inner, checkpoint = self.aborts.pop(self.dice.randrange(len(self.aborts)))
                inner.align(AbortArrived(checkpoint))
                continue
            nodes: list[Source | Inner] = [*self.sources, *self.inners]
            for channel in [channel for node in nodes for channel in node.outputs]:
                channel.drain()
            self.dice.shuffle(nodes)
            if not any(node.step(self.dice) for node in nodes) and not self.aborts:
                return
        raise AssertionError("the network does not come to rest")


@pytest.mark.parametrize("exactly_once", [True, False], ids=["exactly_once", "at_least_once"])
def test_random_dataflows_never_stay_blocked_and_snapshot_at_the_cut(exactly_once: bool) -> None:
    for seed in range(SEEDS):
        network = Network(seed, exactly_once)
        network.run()
        where = f"seed {seed}"
        assert not any(source.script for source in network.sources), where
        for inner in network.inners:
            assert not any(channel.queue or channel.waiting for channel in inner.inputs), where
            assert not inner.blocked, where
            undisturbed = {n for n in network.checkpoints(network.last) if n not in network.disturbed}
            assert undisturbed <= set(inner.snapshots), where
            assert network.last == inner.snapshots[-1], where


def test_the_random_dataflows_reach_what_they_are_meant_to_reach() -> None:
    dropped = snapshots = 0
    for seed in range(100):
        network = Network(seed, True)
        network.run()
        dropped += sum(len(inner.passed) - len(inner.snapshots) for inner in network.inners)
        snapshots += sum(len(inner.snapshots) for inner in network.inners)
    assert dropped > 100
    assert snapshots > 1_000
