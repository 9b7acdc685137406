"""What an operator is given of a checkpoint: what was put in of its own kind, dealt out to the subtasks of now."""

from __future__ import annotations

from weir.ids import CheckpointId
from weir.operators.base import InlinePart, Restored, RestoredInline
from weir.snapshot.parts import Inline, PendingEpochs, Position, Progress, Untagged
from weir.snapshot.watermarks import END_US, NEVER_US

EPOCHS = PendingEpochs(((CheckpointId(1), "part"),))


def restored(*inline: Inline | None) -> Restored:
    return Restored([RestoredInline(index, len(inline), value) for index, value in enumerate(inline)])


def test_a_source_is_given_the_positions_of_all_old_readers_as_it_had_told_them() -> None:
    parts = restored(Position({"offset": 3}), None, Untagged({"watermark_us": 5})).positions
    assert parts == [InlinePart(0, 3, {"offset": 3}), InlinePart(1, 3, None), InlinePart(2, 3, {"watermark_us": 5})]


def test_a_source_under_the_uid_of_something_else_starts_from_the_beginning() -> None:
    assert restored(EPOCHS, None).positions is None
    assert restored(Progress(5)).positions is None


def test_old_subtasks_fall_to_those_of_now_and_only_what_is_of_the_kind() -> None:
    parts = restored(Progress(5, 1), Progress(6, 2), None, EPOCHS, Untagged({"watermark_us": 7, "rows_late": 4}))
    assert parts.inline_for(0, 2, Progress) == [Progress(5, 1), Progress(7, 4)]
    assert parts.inline_for(1, 2, PendingEpochs) == [EPOCHS]
    assert parts.inline_of(1, 5, Progress) == [Progress(6, 2)] and parts.inline_of(1, 2, Progress) == []


def test_event_time_goes_on_from_the_slowest_and_anew_where_the_input_had_been_drained() -> None:
    assert restored(Progress(5), None, Untagged({"watermark_us": 3}), EPOCHS).watermark_us == 3
    assert restored(Progress(END_US)).watermark_us == restored(None).watermark_us == NEVER_US
