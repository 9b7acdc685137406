"""Alignment: every order in which barriers, cancel markers and aborts can meet.

Drives one machine by hand; test_alignment_network.py drives whole dataflows.
"""

from __future__ import annotations

import itertools
import typing

import pytest

from weir.errors import ProtocolViolation
from weir.ids import CheckpointId
from weir.snapshot import alignment
from weir.snapshot.alignment import (
    AbortArrived,
    Aligning,
    AlignmentEffect,
    AlignmentEvent,
    AtLeastOnceAlignment,
    BarrierArrived,
    BarrierCancelArrived,
    BlockChannel,
    Counting,
    ExactlyOnceAlignment,
    Flowing,
    PassCancel,
    TakeSnapshot,
    UnblockChannels,
)

Machine = ExactlyOnceAlignment | AtLeastOnceAlignment
MACHINES = (ExactlyOnceAlignment, AtLeastOnceAlignment)


def barrier(channel: int, checkpoint: int) -> BarrierArrived:
    return BarrierArrived(channel, CheckpointId(checkpoint))


def cancel(channel: int, checkpoint: int) -> BarrierCancelArrived:
    return BarrierCancelArrived(channel, CheckpointId(checkpoint))


def abort(checkpoint: int) -> AbortArrived:
    return AbortArrived(CheckpointId(checkpoint))


def snapshot(checkpoint: int) -> TakeSnapshot:
    return TakeSnapshot(CheckpointId(checkpoint))


def pass_cancel(checkpoint: int) -> PassCancel:
    return PassCancel(CheckpointId(checkpoint))


def run(machine: Machine, *events: AlignmentEvent) -> list[AlignmentEffect]:
    """The effects of the last event."""
    effects: list[AlignmentEffect] = []
    for event in events:
        effects = machine.handle(event)
    return effects


# --- Both modes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("machine", "phases"), [(ExactlyOnceAlignment, (Flowing, Aligning)), (AtLeastOnceAlignment, (Counting,))]
)
def test_every_phase_has_an_answer_to_every_event(machine: type[Machine], phases: tuple[type, ...]) -> None:
    events = (BarrierArrived, BarrierCancelArrived, AbortArrived)
    assert set(machine.handlers) == set(itertools.product(phases, events))


@pytest.mark.parametrize("machine", MACHINES)
def test_a_single_channel_snapshots_at_once_and_never_blocks(machine: type[Machine]) -> None:
    assert run(machine(1), barrier(0, 1)) == [snapshot(1)]


@pytest.mark.parametrize("machine", MACHINES)
def test_a_late_abort_changes_nothing(machine: type[Machine]) -> None:
    one = machine(2)
    run(one, barrier(0, 1), barrier(1, 1))
    assert run(one, abort(1)) == []
    assert run(one, barrier(0, 2), barrier(1, 2))[0] == snapshot(2)


@pytest.mark.parametrize("machine", MACHINES)
def test_an_abort_that_overtakes_the_barrier_becomes_one_cancel_in_its_place(machine: type[Machine]) -> None:
    one = machine(3)
    assert run(one, abort(1)) == []
    assert run(one, barrier(0, 1)) == [pass_cancel(1)]
    assert run(one, barrier(1, 1)) == []
    assert run(one, cancel(2, 1)) == []
    assert one.blocked == frozenset()


@pytest.mark.parametrize("machine", MACHINES)
def test_an_abort_of_a_later_checkpoint_leaves_the_present_one_alone(machine: type[Machine]) -> None:
    one = machine(2)
    assert pass_cancel(2) not in run(one, barrier(0, 1), abort(2))
    assert snapshot(1) in run(one, barrier(1, 1))
    assert run(one, barrier(0, 2)) == [pass_cancel(2)]
    assert run(one, barrier(1, 2)) == []
    assert snapshot(3) in run(one, barrier(1, 3), barrier(0, 3))


@pytest.mark.parametrize("machine", MACHINES)
def test_a_cancel_before_any_barrier_is_passed_on_once(machine: type[Machine]) -> None:
    one = machine(3)
    assert run(one, cancel(1, 1)) == [pass_cancel(1)]
    assert run(one, barrier(0, 1)) == []
    assert run(one, cancel(2, 1)) == []


@pytest.mark.parametrize("machine", MACHINES)
def test_an_abort_is_told_twice_and_acted_on_once(machine: type[Machine]) -> None:
    one = machine(2)
    run(one, barrier(0, 1))
    assert pass_cancel(1) in run(one, abort(1))
    assert run(one, abort(1)) == []
    assert run(one, barrier(1, 1)) == []


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("second", [barrier(0, 1), cancel(0, 1), barrier(0, 0)])
def test_a_marker_that_does_not_grow_on_its_channel_is_a_violation_that_shows_the_events(
    machine: type[Machine], second: AlignmentEvent
) -> None:
    one = machine(2)
    run(one, abort(7), barrier(0, 1))
    with pytest.raises(ProtocolViolation) as caught:
        one.handle(second)
    assert "AbortArrived(checkpoint=7)" in str(caught.value)
    assert repr(second) in str(caught.value)


@pytest.mark.parametrize("machine", MACHINES)
def test_an_unknown_channel_event_or_number_of_channels_is_a_violation(machine: type[Machine]) -> None:
    for channel in (-1, 2):
        with pytest.raises(ProtocolViolation, match="not one of the 2 inputs"):
            machine(2).handle(barrier(channel, 1))
    with pytest.raises(ProtocolViolation, match="no such event"):
        machine(2).handle("barrier")  # type: ignore[arg-type]
    with pytest.raises(ProtocolViolation, match="nothing to align"):
        machine(0)


@pytest.mark.parametrize("machine", MACHINES)
def test_aborts_whose_barrier_never_comes_take_bounded_room(machine: type[Machine]) -> None:
    one = machine(2)
    count = alignment.ABORTS_REMEMBERED_MAX + 50
    for checkpoint in range(count):
        one.handle(abort(checkpoint))
    assert len(one._aborted) == alignment.ABORTS_REMEMBERED_MAX
    assert run(one, barrier(0, count - 1)) == [pass_cancel(count - 1)]
    assert one._aborted == set()


# --- Exactly once -------------------------------------------------------------------------------------


def test_channels_block_until_the_last_barrier_then_the_snapshot_comes_first() -> None:
    one = ExactlyOnceAlignment(3)
    assert run(one, barrier(1, 1)) == [BlockChannel(1)]
    assert run(one, barrier(0, 1)) == [BlockChannel(0)]
    assert one.blocked == {0, 1}
    assert run(one, barrier(2, 1)) == [snapshot(1), UnblockChannels()]
    assert one.blocked == frozenset()


def test_a_newer_barrier_in_mid_alignment_drops_the_older_and_aligns_exactly() -> None:
    one = ExactlyOnceAlignment(2)
    run(one, barrier(0, 1))
    assert run(one, barrier(1, 2)) == [UnblockChannels(), pass_cancel(1), BlockChannel(1)]
    assert one.phase == Aligning(CheckpointId(2), frozenset({1}))
    assert run(one, barrier(0, 2)) == [snapshot(2), UnblockChannels()]


def test_a_newer_barrier_that_is_aborted_already_drops_the_older_and_goes_on_as_a_cancel() -> None:
    one = ExactlyOnceAlignment(2)
    assert run(one, barrier(0, 1), abort(2), barrier(1, 2)) == [UnblockChannels(), pass_cancel(1), pass_cancel(2)]
    assert one.phase == Flowing()


def test_an_abort_in_mid_alignment_unblocks_and_the_late_barrier_is_ignored() -> None:
    one = ExactlyOnceAlignment(2)
    assert run(one, barrier(0, 1), abort(1)) == [UnblockChannels(), pass_cancel(1)]
    assert run(one, barrier(0, 2)) == [BlockChannel(0)]
    assert run(one, barrier(1, 1)) == []
    assert run(one, barrier(1, 2)) == [snapshot(2), UnblockChannels()]


def test_a_cancel_on_one_channel_ends_the_alignment_that_another_began() -> None:
    one = ExactlyOnceAlignment(3)
    assert run(one, barrier(0, 1), cancel(1, 1)) == [UnblockChannels(), pass_cancel(1)]
    assert run(one, barrier(2, 1)) == []


def test_a_cancel_of_a_newer_checkpoint_ends_the_alignment_as_well() -> None:
    one = ExactlyOnceAlignment(2)
    assert run(one, barrier(0, 1), cancel(1, 2)) == [UnblockChannels(), pass_cancel(1), pass_cancel(2)]
    assert run(one, barrier(0, 2)) == []


@pytest.mark.parametrize("marker", [barrier, cancel])
def test_an_older_marker_in_mid_alignment_is_passed_on_as_a_cancel_once(
    marker: typing.Callable[[int, int], AlignmentEvent],
) -> None:
    one = ExactlyOnceAlignment(3)
    assert run(one, barrier(0, 2), marker(1, 1)) == [pass_cancel(1)]
    assert run(one, marker(2, 1)) == []
    assert run(one, abort(1)) == []
    assert run(one, barrier(1, 2)) == [BlockChannel(1)]
    assert run(one, barrier(2, 2)) == [snapshot(2), UnblockChannels()]


def test_a_blocked_channel_that_delivers_is_a_violation() -> None:
    one = ExactlyOnceAlignment(2)
    with pytest.raises(ProtocolViolation, match="channel 0 is blocked"):
        run(one, barrier(0, 1), barrier(0, 2))


# --- At least once ------------------------------------------------------------------------------------


def test_without_alignment_several_checkpoints_are_counted_at_once() -> None:
    one = AtLeastOnceAlignment(2)
    assert run(one, barrier(0, 1), barrier(0, 2), barrier(0, 3)) == []
    assert run(one, barrier(1, 1)) == [snapshot(1)]
    assert run(one, barrier(1, 2)) == [snapshot(2)]
    assert run(one, barrier(1, 3)) == [snapshot(3)]


def test_a_cancel_waits_for_older_checkpoints_so_that_ids_grow_downstream() -> None:
    one = AtLeastOnceAlignment(2)
    assert run(one, barrier(0, 1), barrier(0, 2), abort(2)) == []
    assert run(one, barrier(1, 1)) == [snapshot(1), pass_cancel(2)]
    assert run(one, barrier(1, 2)) == []


def test_a_channel_that_left_a_checkpoint_out_makes_it_hopeless() -> None:
    one = AtLeastOnceAlignment(2)
    assert run(one, barrier(0, 1), barrier(1, 2)) == [pass_cancel(1)]
    assert run(one, barrier(0, 2)) == [snapshot(2)]
    assert run(one, barrier(0, 4), barrier(1, 3)) == [pass_cancel(3)]


def test_too_many_pending_checkpoints_drop_the_oldest() -> None:
    one = AtLeastOnceAlignment(2)
    limit = alignment.CHECKPOINTS_PENDING_MAX
    assert run(one, *(barrier(0, checkpoint) for checkpoint in range(1, limit + 1))) == []
    assert run(one, barrier(0, limit + 1)) == [pass_cancel(1)]
    assert run(one, barrier(1, 1)) == []
    assert run(one, barrier(1, 2)) == [snapshot(2)]
