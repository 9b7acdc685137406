"""How the coordinator finds out that a loop is empty, and ends it."""

from __future__ import annotations

from typing import Any

from weir.ids import AttemptId, CheckpointId, SubtaskId, VertexId
from weir.snapshot.coordinator.events import (
    AttemptEnded,
    AttemptStarted,
    CheckpointRequested,
    Loop,
    ManifestPublished,
    Then,
    TimePassed,
)
from weir.snapshot.coordinator.loops import ROUND_PAUSE_MIN_MS
from weir.snapshot.coordinator.machine import Coordinator
from weir.snapshot.coordinator.orders import FinishJob, SendAbort, SendCompleted, SendTrigger
from weir.snapshot.coordinator.under_way import CoordinatorSettings
from weir.snapshot.messages import SnapshotDeclined, SnapshotTaken, SubtaskFinished

SOURCE, HEADS, BODY = SubtaskId(VertexId(0), 0), [SubtaskId(VertexId(1), i) for i in (0, 1)], SubtaskId(VertexId(2), 0)
ALL = [SOURCE, *HEADS, BODY]
HEAD = VertexId(1)
LOOP = Loop(HEAD, frozenset(HEADS), frozenset([*HEADS, BODY]), frozenset([SOURCE]))
ATTEMPT = AttemptId(1)
PAUSE_MAX_MS = CoordinatorSettings().loop_pause_max_ms


class Job:
    """A coordinator, and what it orders."""

    def __init__(self) -> None:
        self.coordinator = Coordinator(CoordinatorSettings())
        self.now_ms = 0.0
        self.tell(AttemptStarted(ATTEMPT, frozenset(ALL), frozenset(), CheckpointId(1), (), loops=(LOOP,)))

    def tell(self, event: Any) -> list[Any]:
        return self.coordinator.handle(event, self.now_ms)

    def finish(self, *subtasks: SubtaskId) -> list[Any]:
        return [effect for s in subtasks for effect in self.tell(SubtaskFinished(ATTEMPT, s))]

    def complete(self, number: int, **said: dict[SubtaskId, bool]) -> SendCompleted:
        """All acknowledge, each with what it says of itself."""
        for subtask in ALL:
            of_subtask = {name: by_subtask.get(subtask, False) for name, by_subtask in said.items()}
            self.tell(SnapshotTaken(ATTEMPT, CheckpointId(number), subtask, (), **of_subtask))  # type: ignore[arg-type]
        effects = self.effects = self.tell(ManifestPublished(CheckpointId(number)))
        (completed,) = [effect for effect in effects if isinstance(effect, SendCompleted)]
        self.triggered = [effect for effect in effects if isinstance(effect, SendTrigger)]
        return completed


BOTH = dict.fromkeys(HEADS, True)


def test_a_loop_whose_input_has_ended_gets_checkpoints_without_being_asked() -> None:
    job = Job()
    assert job.coordinator.next_due_ms() is None
    assert job.finish(SOURCE) == [SendTrigger(CheckpointId(1))]


def test_event_time_ends_first_and_the_loop_with_the_next_round_that_finds_it_empty() -> None:
    job = Job()
    job.finish(SOURCE)
    assert job.complete(1, inputs_ended=BOTH) == SendCompleted(CheckpointId(1), time_over=(HEAD,))
    assert job.triggered == [SendTrigger(CheckpointId(2), base=CheckpointId(1))]
    assert job.complete(2, inputs_ended=BOTH, time_ended=BOTH) == SendCompleted(CheckpointId(2), ended=(HEAD,))
    assert job.triggered == []
    assert job.finish(*HEADS, BODY) == [SendTrigger(CheckpointId(3), base=CheckpointId(2))]
    assert job.complete(3, inputs_ended=BOTH, time_ended=BOTH) == SendCompleted(CheckpointId(3))
    assert job.effects[-1] == FinishJob()


def test_heads_that_were_told_to_end_and_have_not_are_told_again() -> None:
    job = Job()
    job.finish(SOURCE)
    assert job.complete(1, inputs_ended=BOTH, time_ended=BOTH).ended == (HEAD,)
    job.now_ms = job.coordinator.next_due_ms() or 0.0
    assert job.tell(TimePassed()) == [SendTrigger(CheckpointId(2), base=CheckpointId(1))]
    job.finish(HEADS[0])
    assert job.complete(2, inputs_ended=BOTH, time_ended=BOTH).ended == (HEAD,)


def test_one_head_whose_input_goes_on_or_one_row_on_its_way_keeps_the_loop_open() -> None:
    job = Job()
    job.finish(SOURCE)
    assert job.complete(1, inputs_ended={HEADS[0]: True}) == SendCompleted(CheckpointId(1))
    job.now_ms += PAUSE_MAX_MS
    job.tell(TimePassed())
    assert job.complete(2, inputs_ended=BOTH, in_flight={HEADS[1]: True}) == SendCompleted(CheckpointId(2))
    job.now_ms += PAUSE_MAX_MS
    job.tell(TimePassed())
    assert job.complete(3, inputs_ended=BOTH, in_flight={BODY: True}) == SendCompleted(CheckpointId(3))
    job.now_ms += PAUSE_MAX_MS
    job.tell(TimePassed())
    half = {HEADS[0]: True}
    assert job.complete(4, inputs_ended=BOTH, time_ended=half) == SendCompleted(CheckpointId(4), time_over=(HEAD,))


def test_a_checkpoint_that_began_before_the_last_feeder_had_finished_says_nothing() -> None:
    job = Job()
    assert job.tell(CheckpointRequested()) == [SendTrigger(CheckpointId(1))]
    job.finish(SOURCE)
    assert job.complete(1, inputs_ended=BOTH) == SendCompleted(CheckpointId(1))


def test_rounds_that_find_rows_come_less_and_less_often() -> None:
    job = Job()
    job.finish(SOURCE)
    pauses = []
    for number in range(1, 12):
        job.complete(number, in_flight=BOTH)
        due_ms = job.coordinator.next_due_ms()
        assert due_ms is not None
        pauses.append(due_ms - job.now_ms)
        job.now_ms = due_ms
        assert job.tell(TimePassed()) == [SendTrigger(CheckpointId(number + 1), base=CheckpointId(number))]
    assert pauses[0] == ROUND_PAUSE_MIN_MS
    assert pauses == sorted(pauses)
    assert pauses[-1] == PAUSE_MAX_MS


def test_a_round_that_is_declined_is_tried_again() -> None:
    job = Job()
    job.finish(SOURCE)
    declined = job.tell(SnapshotDeclined(ATTEMPT, CheckpointId(1), HEADS[0], "cancelled"))
    assert isinstance(declined[0], SendAbort)
    job.now_ms = job.coordinator.next_due_ms() or 0.0
    assert job.tell(TimePassed()) == [SendTrigger(CheckpointId(2))]


def test_no_round_begins_behind_a_stop() -> None:
    job = Job()
    assert job.tell(CheckpointRequested(None, Then.STOP, "stop")) == [SendTrigger(CheckpointId(1), pause=True)]
    assert job.finish(SOURCE) == []
    job.complete(1, inputs_ended=BOTH)
    assert job.triggered == []


def test_what_was_found_in_one_attempt_does_not_count_in_the_next() -> None:
    job = Job()
    job.finish(SOURCE)
    job.complete(1, inputs_ended=BOTH, time_ended=BOTH)
    job.tell(AttemptEnded(ATTEMPT))
    started = AttemptStarted(
        AttemptId(2), frozenset(ALL), frozenset(), CheckpointId(3), (CheckpointId(1),), loops=(LOOP,)
    )
    assert job.tell(started) == []
    assert job.coordinator.next_due_ms() is None
