"""What the head of a loop logs: any order of barriers, rows, cancel markers and aborts."""

from __future__ import annotations

import random

import pytest

from weir.errors import ProtocolViolation
from weir.ids import CheckpointId
from weir.snapshot.loop_log import (
    LOGS_OPEN_MAX,
    BarrierReturned,
    CancelReturned,
    CloseLog,
    Decline,
    DropLog,
    LogAborted,
    LogRows,
    LoopLog,
    OpenLog,
    RowsReturned,
    SnapshotBegun,
)


def n(number: int) -> CheckpointId:
    return CheckpointId(number)


def test_rows_are_logged_from_the_snapshot_until_the_barrier_is_back() -> None:
    log = LoopLog(1)
    assert log.handle(RowsReturned(0)) == []
    assert log.handle(SnapshotBegun(n(1))) == [OpenLog(n(1))]
    assert log.handle(RowsReturned(0)) == [LogRows((n(1),))]
    assert log.handle(BarrierReturned(0, n(1))) == [CloseLog(n(1))]
    assert log.handle(RowsReturned(0)) == []


def test_each_channel_is_logged_until_its_own_barrier() -> None:
    log = LoopLog(2)
    log.handle(SnapshotBegun(n(1)))
    assert log.handle(BarrierReturned(1, n(1))) == []
    assert log.handle(RowsReturned(1)) == []
    assert log.handle(RowsReturned(0)) == [LogRows((n(1),))]
    assert log.handle(BarrierReturned(0, n(1))) == [CloseLog(n(1))]


def test_several_barriers_may_go_round_at_once() -> None:
    log = LoopLog(1)
    log.handle(SnapshotBegun(n(1)))
    log.handle(SnapshotBegun(n(2)))
    assert log.handle(RowsReturned(0)) == [LogRows((n(1), n(2)))]
    assert log.handle(BarrierReturned(0, n(1))) == [CloseLog(n(1))]
    assert log.handle(RowsReturned(0)) == [LogRows((n(2),))]
    assert log.handle(BarrierReturned(0, n(2))) == [CloseLog(n(2))]


def test_a_cancel_marker_that_comes_back_drops_the_log_and_declines() -> None:
    log = LoopLog(2)
    log.handle(SnapshotBegun(n(1)))
    assert log.handle(CancelReturned(0, n(1))) == [
        DropLog(n(1)),
        Decline(n(1), "its barrier was cancelled in the loop"),
    ]
    assert log.handle(BarrierReturned(1, n(1))) == []
    assert log.handle(RowsReturned(0)) == []


def test_an_abort_drops_the_log_in_silence_and_its_barrier_may_still_come_back() -> None:
    log = LoopLog(1)
    log.handle(SnapshotBegun(n(1)))
    assert log.handle(LogAborted(n(1))) == [DropLog(n(1))]
    assert log.handle(LogAborted(n(1))) == []
    assert log.handle(BarrierReturned(0, n(1))) == []


def test_a_cancel_marker_that_this_head_sent_itself_comes_back_unnoticed() -> None:
    assert LoopLog(1).handle(CancelReturned(0, n(7))) == []


def test_a_newer_marker_says_that_the_older_barrier_will_not_come() -> None:
    log = LoopLog(1)
    log.handle(SnapshotBegun(n(1)))
    log.handle(SnapshotBegun(n(2)))
    dropped, declined, closed = log.handle(BarrierReturned(0, n(2)))
    assert (dropped, closed) == (DropLog(n(1)), CloseLog(n(2)))
    assert isinstance(declined, Decline)


def test_more_logs_than_the_limit_give_the_oldest_up() -> None:
    log = LoopLog(1)
    for number in range(LOGS_OPEN_MAX):
        assert len(log.handle(SnapshotBegun(n(number)))) == 1
    assert log.handle(SnapshotBegun(n(LOGS_OPEN_MAX)))[1] == DropLog(n(0))
    assert len(log.open_logs) == LOGS_OPEN_MAX


@pytest.mark.parametrize(
    "events",
    [
        [BarrierReturned(0, n(1))],
        [SnapshotBegun(n(1)), SnapshotBegun(n(1))],
        [SnapshotBegun(n(1)), BarrierReturned(0, n(1)), BarrierReturned(0, n(1))],
        [SnapshotBegun(n(1)), BarrierReturned(2, n(1))],
        [RowsReturned(-1)],
        ["rows"],
    ],
    ids=["never sent", "begun twice", "back twice", "no such channel", "no such channel for rows", "no such event"],
)
def test_what_cannot_be_is_our_bug_and_shows_the_last_events(events: list[object]) -> None:
    log = LoopLog(1)
    with pytest.raises(ProtocolViolation, match="last events"):
        for event in events:
            log.handle(event)  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", range(50))
def test_in_any_order_a_closed_log_holds_just_what_came_before_its_barriers(seed: int) -> None:
    rng = random.Random(seed)
    channels = rng.randint(1, 3)
    log = LoopLog(channels)
    loop: list[list[CheckpointId]] = [[] for _ in range(channels)]
    """By channel: the markers that are in it."""
    rows: dict[CheckpointId, list[int]] = {}
    wanted: dict[CheckpointId, list[int]] = {}
    begun, closed, ended = 0, [], set()
    for row in range(300):
        dice = rng.random()
        if dice < 0.15 and begun < 40:
            begun += 1
            log.handle(SnapshotBegun(n(begun)))
            rows[n(begun)], wanted[n(begun)] = [], []
            for queue in loop:
                queue.append(n(begun))
        elif dice < 0.2 and begun:
            log.handle(LogAborted(n(rng.randint(1, begun))))
        channel = rng.randrange(channels)
        if dice < 0.6:
            for checkpoint in loop[channel]:
                wanted[checkpoint].append(row)
            for effect in log.handle(RowsReturned(channel)):
                assert isinstance(effect, LogRows)
                for checkpoint in effect.checkpoints:
                    rows[checkpoint].append(row)
        elif loop[channel]:
            checkpoint = loop[channel].pop(0)
            made = CancelReturned if rng.random() < 0.1 else BarrierReturned
            for effect in log.handle(made(channel, checkpoint)):
                if isinstance(effect, CloseLog):
                    closed.append(effect.checkpoint)
                    assert rows[effect.checkpoint] == wanted[effect.checkpoint]
                ended.add(effect.checkpoint)
    assert closed == sorted(closed)
