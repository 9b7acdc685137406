"""The end of a chain with a sink: when epochs are committed, and what happens when that fails."""

from __future__ import annotations

import pytest

from tests.sim.ports import SimClock
from tests.unit.runtime.fakes import QueuedBackground, ShelfWriter, context, restored, rows, run_all, run_one
from weir.errors import CheckpointError, StorageUnavailable, Unavailable
from weir.ids import CheckpointId
from weir.operators.base import Restored
from weir.runtime.task.sink_end import SinkEnd
from weir.snapshot.backoff import Backoff
from weir.snapshot.parts import PendingEpochs


class Stand:
    """A sink end, its writer and what it reported."""

    def __init__(self, *, index: int = 0, parallelism: int = 1, retries_max: int = 2) -> None:
        self.writer, self.background, self.clock = ShelfWriter(), QueuedBackground(), SimClock()
        self.reported: list[int] = []
        own = context("out", index=index, parallelism=parallelism)
        self.end = SinkEnd(
            own,
            self.writer,
            background=self.background,
            clock=self.clock,
            chance=lambda: 1.0,
            report=self.reported.append,
            retries_max=retries_max,
            backoff=Backoff(initial_ms=100, maximum_ms=1_000),
        )

    def open(self, part: Restored | None = None, checkpoint: int | None = None) -> Stand:
        self.end.open(part, None if checkpoint is None else CheckpointId(checkpoint))
        return self

    def epoch(self, checkpoint: int, *numbers: int) -> None:
        """Write rows and make them durable for a checkpoint."""
        self.end.write(rows(*numbers))
        durable = self.end.prepare(CheckpointId(checkpoint))
        self.end.prepared(CheckpointId(checkpoint), durable())

    def wait_ms(self, ms: float) -> None:
        """So much time passes, and the loop looks after the sink."""
        self.clock.time_ms += ms
        self.end.tick()


def test_nothing_is_committed_before_its_checkpoint_is_complete() -> None:
    stand = Stand().open()
    stand.epoch(1, 10, 11)
    run_all(stand.background)
    assert stand.writer.commits == []
    stand.end.completed(CheckpointId(1))
    assert stand.writer.commits == []  # Not on the stream's own thread.
    run_all(stand.background)
    assert stand.writer.commits == [[[10, 11]]]
    assert stand.reported == [1]
    assert stand.end.inline is None


def test_an_empty_epoch_is_reported_without_a_commit() -> None:
    stand = Stand().open()
    stand.epoch(1)
    stand.end.completed(CheckpointId(1))
    assert not stand.background.waiting
    assert stand.reported == [1]


def test_the_epoch_of_an_aborted_checkpoint_is_committed_with_the_next() -> None:
    stand = Stand().open()
    stand.epoch(1, 10)
    stand.epoch(2, 20)
    stand.end.completed(CheckpointId(2))
    run_all(stand.background)
    assert stand.writer.commits == [[[10], [20]]]
    assert stand.reported == [2]


def test_what_is_being_committed_stays_in_snapshots_until_the_commit_is_known_to_be_done() -> None:
    stand = Stand().open()
    stand.epoch(1, 10)
    stand.end.completed(CheckpointId(1))
    stand.epoch(2, 20)
    assert stand.end.inline == PendingEpochs(((1, [10]), (2, [20])))
    run_all(stand.background)
    assert stand.end.inline == PendingEpochs(((2, [20]),))


def test_a_failed_commit_is_tried_again_with_the_same_epochs() -> None:
    stand = Stand(retries_max=2).open()
    stand.writer.commit_errors.extend([StorageUnavailable("lost"), OSError("odd")])
    stand.epoch(1, 10)
    stand.end.completed(CheckpointId(1))
    for delay_ms in (100, 200):
        run_all(stand.background)
        stand.wait_ms(delay_ms)
    run_all(stand.background)
    assert stand.writer.commits == [[[10]]] * 3
    assert stand.reported == [1]


def test_a_failed_commit_is_left_alone_until_its_delay_is_over() -> None:
    stand = Stand(retries_max=2).open()
    stand.writer.commit_errors.append(StorageUnavailable("throttled"))
    stand.epoch(1, 10)
    stand.end.completed(CheckpointId(1))
    run_all(stand.background)
    assert stand.end.wake_ms == 100
    stand.wait_ms(99)
    assert not stand.background.waiting
    stand.wait_ms(1)
    assert len(stand.background.waiting) == 1 and stand.end.wake_ms is None
    run_all(stand.background)
    assert stand.reported == [1]


def test_after_too_many_failures_the_attempt_ends_with_the_sink_and_the_cause() -> None:
    stand = Stand(retries_max=1).open()
    stand.writer.commit_errors.extend([StorageUnavailable("lost")] * 2)
    stand.epoch(1, 10)
    stand.end.completed(CheckpointId(1))
    run_one(stand.background)
    stand.wait_ms(100)
    with pytest.raises(StorageUnavailable, match=r"'the out' \(uid 'out'\) cannot commit: .*failed 2 times.*lost"):
        run_one(stand.background)
    assert stand.reported == []


@pytest.mark.parametrize(
    ("error", "kind"), [(ConnectionResetError("gone"), StorageUnavailable), (KeyError("column"), Unavailable)]
)
def test_only_files_and_connections_that_fail_are_an_outage(error: Exception, kind: type[Unavailable]) -> None:
    stand = Stand(retries_max=0).open()
    stand.writer.commit_errors.append(error)
    stand.epoch(1, 10)
    stand.end.completed(CheckpointId(1))
    with pytest.raises(Unavailable, match="cannot commit") as caught:
        run_one(stand.background)
    assert type(caught.value) is kind


def test_an_error_that_no_retry_can_help_ends_the_attempt_at_once() -> None:
    stand = Stand(retries_max=5).open()
    stand.writer.commit_errors.append(CheckpointError("the part is gone"))
    stand.epoch(1, 10)
    stand.end.completed(CheckpointId(1))
    with pytest.raises(CheckpointError, match="the part is gone"):
        run_one(stand.background)
    assert len(stand.writer.commits) == 1


def test_the_pending_epochs_of_a_restored_checkpoint_are_committed_before_anything_else_happens() -> None:
    part = restored(PendingEpochs(((3, [30]), (4, [40]))))
    stand = Stand().open(part, checkpoint=4)
    assert stand.writer.restored == [[30], [40]]
    run_all(stand.background)
    assert stand.writer.commits == [[[30], [40]]]
    assert stand.reported == [4]


def test_a_restored_checkpoint_without_pending_epochs_is_reported_as_committed() -> None:
    stand = Stand().open(restored(PendingEpochs(())), checkpoint=4)
    assert stand.writer.restored == []
    assert stand.reported == [4]


def test_at_another_parallelism_each_old_subtask_is_taken_over_by_exactly_one() -> None:
    part = restored(*(PendingEpochs(((4, [i]),)) for i in range(5)))
    taken = [Stand(index=index, parallelism=2).open(part, checkpoint=4).writer.restored for index in range(2)]
    assert taken == [[[0], [2], [4]], [[1], [3]]]


def test_a_subtask_beyond_the_old_parallelism_still_reports() -> None:
    stand = Stand(index=3, parallelism=4).open(restored(PendingEpochs(((4, [1]),))), checkpoint=4)
    assert stand.writer.restored == []
    assert stand.reported == [4]


def test_a_sink_that_the_checkpoint_does_not_know_starts_fresh() -> None:
    stand = Stand().open(None, checkpoint=4)
    assert stand.writer.restored is None


def test_restored_epochs_that_are_not_committed_yet_are_in_the_next_snapshot() -> None:
    stand = Stand().open(restored(PendingEpochs(((4, [40]),))), checkpoint=4)
    stand.epoch(5, 50)
    assert stand.end.inline == PendingEpochs(((4, [40]), (5, [50])))
    run_all(stand.background)
    assert stand.end.inline == PendingEpochs(((5, [50]),))


def test_rows_are_counted_and_closing_closes_the_writer() -> None:
    stand = Stand().open()
    stand.end.write(rows(1, 2))
    assert (stand.end.counters.rows_in, stand.end.counters.bytes_in) == (2, 16)
    stand.end.close()
    assert stand.writer.closed
