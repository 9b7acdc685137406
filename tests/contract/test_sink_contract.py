"""One suite for every sink: rows become visible once, when their checkpoint is complete."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest

from tests.contract.sinks import CASES, SCHEMA, TABLES, SinkCase, adopted, context, grant, owner, rows, still_ours
from weir.errors import CheckpointError, OwnershipError
from weir.ids import AttemptId, CheckpointId
from weir.operators.sink import SinkWriter
from weir.snapshot.parts import Json


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest, tmp_path: Path) -> SinkCase:
    return validated(CASES[request.param](tmp_path))


@pytest.fixture(params=TABLES)
def table(request: pytest.FixtureRequest, tmp_path: Path) -> SinkCase:
    return validated(TABLES[request.param](tmp_path))


def validated(made: SinkCase) -> SinkCase:
    made.sink.check(SCHEMA, "the sink")
    adopted(made.sink, owner())
    return made


def opened(case: SinkCase, restored: list[Json] | None = None, **where: int) -> SinkWriter:
    # Through pickle, as on Spark.
    writer = pickle.loads(pickle.dumps(case.sink)).writer()
    writer.open(context(**where), restored)
    return writer


def recovered(case: SinkCase, attempt: int, *committables: Json, oldest: int | None = None) -> None:
    """What the driver has a sink do before an attempt that restores these."""
    kept = None if oldest is None else CheckpointId(oldest)
    case.sink.recover(owner(resume=True), AttemptId(attempt), committables, still_ours, oldest=kept)


def epoch(writer: SinkWriter, checkpoint: int, *numbers: int) -> Json:
    """Write rows, close the epoch, make it durable; the committable as it comes back from a manifest."""
    for number in numbers:
        writer.write(rows(number))
    return json.loads(json.dumps(writer.prepare(CheckpointId(checkpoint))()))


def visible(case: SinkCase) -> list[int]:
    assert case.visible is not None
    return sorted(case.visible())


def test_nothing_is_visible_before_the_commit_and_everything_after(table: SinkCase) -> None:
    writer = opened(table)
    first = epoch(writer, 1, 1, 2, 3)
    assert visible(table) == []
    writer.write(rows(4))
    writer.commit(grant(1), [first])
    assert visible(table) == [1, 2, 3]


def test_a_repeated_commit_changes_nothing(table: SinkCase) -> None:
    writer = opened(table)
    first, second = epoch(writer, 1, 1, 2, 3), epoch(writer, 2, 4)
    writer.commit(grant(1), [first])
    writer.commit(grant(1), [first, second])
    writer.commit(grant(1), [second, first])
    assert visible(table) == [1, 2, 3, 4]


def test_epochs_may_be_prepared_before_the_one_before_is_durable(table: SinkCase) -> None:
    writer = opened(table)
    writer.write(rows(1))
    first = writer.prepare(CheckpointId(1))
    writer.write(rows(2))
    second = writer.prepare(CheckpointId(2))
    writer.write(rows(3))
    later, earlier = second(), first()
    writer.commit(grant(1), [earlier, later])
    assert visible(table) == [1, 2]


def test_a_writer_of_a_later_attempt_commits_what_the_checkpoint_holds(table: SinkCase) -> None:
    committable = epoch(opened(table), 1, 1, 2)
    later = opened(table, [committable], attempt=2)
    later.commit(grant(1), [committable])
    assert visible(table) == [1, 2]


def test_the_old_and_the_new_attempt_may_both_commit(table: SinkCase) -> None:
    old = opened(table)
    committable = epoch(old, 1, 1, 2)
    new = opened(table, [committable], attempt=2)
    old.commit(grant(1), [committable])
    new.commit(grant(1), [committable])
    old.commit(grant(1), [committable])
    assert visible(table) == [1, 2]


def test_what_an_older_attempt_left_uncommitted_never_shows_and_is_removed(table: SinkCase) -> None:
    old = opened(table)
    kept, void = epoch(old, 1, 1, 2), epoch(old, 2, 3)
    assert void is not None
    recovered(table, 2, kept)
    new = opened(table, [kept], attempt=2)
    new.commit(grant(1), [kept])
    new.commit(grant(1), [epoch(new, 2, 3, 4)])
    assert visible(table) == [1, 2, 3, 4]
    assert table.leftovers() == []


def test_a_fresh_start_after_a_failure_without_checkpoint_is_clean(table: SinkCase) -> None:
    epoch(opened(table), 1, 1, 2)
    recovered(table, 2)
    new = opened(table, None, attempt=2)
    assert table.leftovers() == []
    new.commit(grant(1), [epoch(new, 1, 1, 2)])
    assert visible(table) == [1, 2]


def test_an_old_attempt_that_lingers_overwrites_nothing(table: SinkCase) -> None:
    old = opened(table)
    new = opened(table, None, attempt=2)
    mine = epoch(new, 1, 1, 2)
    epoch(old, 1, 7, 8)
    new.commit(grant(1), [mine])
    epoch(old, 2, 9)
    assert visible(table) == [1, 2]
    table.sink.finish(owner(), still_ours)
    assert table.leftovers() == []
    assert visible(table) == [1, 2]


def test_subtasks_do_not_touch_each_others_epochs(table: SinkCase) -> None:
    old = [opened(table, index=index, parallelism=2) for index in range(2)]
    committables = [epoch(old[0], 1, 1), epoch(old[1], 1, 2)]
    first = opened(table, [committables[0]], index=0, parallelism=2, attempt=2)
    first.commit(grant(1), [committables[0]])
    second = opened(table, [committables[1]], index=1, parallelism=2, attempt=2)
    second.commit(grant(1), [committables[1]])
    assert visible(table) == [1, 2]


def test_epochs_are_committed_at_another_parallelism(table: SinkCase) -> None:
    old = [opened(table, index=index, parallelism=4) for index in range(4)]
    committables = [epoch(writer, 1, number) for number, writer in enumerate(old)]
    for index in range(3):
        mine = [committables[j] for j in range(4) if j % 3 == index]
        opened(table, mine, index=index, parallelism=3, attempt=2).commit(grant(1), mine)
    assert visible(table) == [0, 1, 2, 3]


def test_an_epoch_handed_on_over_two_changes_of_parallelism_is_not_lost(table: SinkCase) -> None:
    """Subtask 3 of 4 wrote it, subtask 1 of 2 carried it on without committing, subtask 1 of 3 has it now."""
    carried = epoch(opened(table, index=3, parallelism=4), 1, 1, 2)
    recovered(table, 2, carried)
    opened(table, [], index=0, parallelism=2, attempt=2)
    opened(table, [carried], index=1, parallelism=2, attempt=2)
    recovered(table, 3, carried)
    opened(table, [], index=0, parallelism=3, attempt=3)
    opened(table, [], index=2, parallelism=3, attempt=3)
    opened(table, [carried], index=1, parallelism=3, attempt=3).commit(grant(1), [carried])
    assert visible(table) == [1, 2]


def test_committables_that_vanished_are_an_error_that_names_them(table: SinkCase) -> None:
    writer = opened(table)
    committable = epoch(writer, 1, 1)
    table.sink.finish(owner(), still_ours)  # removes what is pending
    with pytest.raises(CheckpointError, match=r"'the sink'.*part-0000000000-out-00000-1-0-0.*lost"):
        writer.commit(grant(1), [committable])


def test_void_parts_of_attempts_long_ago_are_removed_and_nothing_that_is_named(table: SinkCase) -> None:
    kept = epoch(opened(table), 1, 1)
    epoch(opened(table, attempt=2), 2, 7)
    epoch(opened(table, attempt=3), 2, 8)
    recovered(table, 5, kept)
    opened(table, [kept], attempt=5).commit(grant(1), [kept])
    assert table.leftovers() == []
    assert visible(table) == [1]


def test_a_driver_that_was_overtaken_removes_nothing(table: SinkCase) -> None:
    """It looked, froze, and goes on when the part that it found belongs to a checkpoint of its successor."""
    theirs = epoch(opened(table, attempt=2), 1, 1)

    def overtaken() -> None:
        raise OwnershipError("another driver has taken over")

    with pytest.raises(OwnershipError):
        table.sink.finish(owner(), overtaken)
    with pytest.raises(OwnershipError):
        table.sink.recover(owner(), AttemptId(3), [], overtaken, oldest=CheckpointId(1))
    opened(table, [theirs], attempt=3).commit(grant(1), [theirs])
    assert visible(table) == [1]


def test_a_sink_knows_up_to_where_it_has_committed(table: SinkCase) -> None:
    assert table.sink.committed_up_to(owner()) is None
    writer = opened(table)
    first, second = epoch(writer, 3, 1), epoch(writer, 4, 2)
    writer.commit(grant(3), [first])
    assert table.sink.committed_up_to(owner()) == 3
    writer.commit(grant(4), [second])
    assert table.sink.committed_up_to(owner()) == 4
    recovered(table, 2)
    recovered(table, 9, oldest=9)
    assert table.sink.committed_up_to(owner()) == 4, "whatever is tidied up"
    assert table.sink.committed_up_to(owner(lineage="ffffffffff")) is None, "that is another life"


def test_an_empty_epoch_commits_nothing(case: SinkCase) -> None:
    writer = opened(case)
    assert epoch(writer, 1) is None
    writer.write(rows())
    assert epoch(writer, 2) is None
    writer.commit(grant(1), [])
    writer.commit(grant(1), [None])
    writer.close()
    if case.visible is not None:
        assert visible(case) == []


def test_a_writer_can_be_closed_with_an_open_epoch(case: SinkCase) -> None:
    writer = opened(case)
    writer.write(rows(1))
    writer.close()
    case.sink.finish(owner(), still_ours)
    if case.visible is not None:
        assert visible(case) == []
    assert case.leftovers() == []


def test_rows_keep_their_order_within_a_subtask(table: SinkCase) -> None:
    writer = opened(table)
    for number in range(5):
        writer.commit(grant(1), [epoch(writer, number + 1, 2 * number, 2 * number + 1)])
    assert table.visible is not None
    assert table.visible() == list(range(10))


def test_the_guarantee_is_stated(case: SinkCase) -> None:
    assert case.sink.guarantee in ("exactly_once", "at_least_once")
