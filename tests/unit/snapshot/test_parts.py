"""What is inline: each kind comes back as it was; what has no tag is what its reader takes it for."""

from __future__ import annotations

import json

import pytest

from weir.ids import CheckpointId
from weir.snapshot.parts import (
    Inline,
    Json,
    PendingEpochs,
    Position,
    Progress,
    SplitProgress,
    Untagged,
    inline_json,
    inline_of,
    is_missed,
    meaning_of,
    read_as,
    untagged_of,
)

KINDS: list[Inline] = [
    Position({"watermark_us": 5}),
    Position(None),
    PendingEpochs(((CheckpointId(3), {"parts": ["a"]}), (CheckpointId(4), None))),
    Progress(5),
    Progress(-(1 << 63), rows_late=2, wake_ms=1.5),
    SplitProgress(5, {"": 7}),
    Untagged({"kind": "position"}),
]


@pytest.mark.parametrize("inline", KINDS, ids=str)
def test_each_kind_comes_back_from_json_as_it_was(inline: Inline) -> None:
    assert inline_of(json.loads(json.dumps(inline_json(inline)))) == inline
    assert inline_of(inline_json(None)) is None


@pytest.mark.parametrize("value", [{}, {"kind": "no such"}, {"kind": "progress"}, {"kind": "progress", "x": 1}, [1], 5])
def test_what_no_kind_has_written_is_refused(value: Json) -> None:
    with pytest.raises((KeyError, TypeError, ValueError)):
        inline_of(value)


@pytest.mark.parametrize("inline", KINDS[:-1], ids=str)
def test_a_tag_is_believed_whatever_is_in_it(inline: Inline) -> None:
    assert meaning_of(inline) is inline
    kinds = [kind for kind in (Position, PendingEpochs, Progress, SplitProgress) if read_as(inline, kind) is not None]
    assert kinds == [type(inline)]


@pytest.mark.parametrize(
    ("value", "meant"),
    [
        ({"pending": [[3, {"x": 1}]]}, PendingEpochs(((CheckpointId(3), {"x": 1}),))),
        ({"pending": []}, PendingEpochs(())),
        ({"watermark_us": 5}, Progress(5)),
        ({"watermark_us": 5, "rows_late": 2}, Progress(5, 2)),
        ({"watermark_us": 5, "rows_late": 2, "wake_ms": 1.5}, Progress(5, 2, 1.5)),
        ({"watermark_us": 5, "splits": {"": 7}}, SplitProgress(5, {"": 7})),
        ({"splits": 128, "rounds": {"0": 3}}, Position({"splits": 128, "rounds": {"0": 3}})),
        ({"pending": 3}, Position({"pending": 3})),
        ({"pending": [1, 2]}, Position({"pending": [1, 2]})),
        (7, Position(7)),
    ],
)
def test_what_has_no_tag_is_told_by_its_keys_and_a_source_gets_it_as_it_was(value: Json, meant: Inline) -> None:
    untagged = untagged_of(value)
    assert meaning_of(untagged) == read_as(untagged, type(meant)) == meant  # type: ignore[type-var]
    assert read_as(untagged, Position) == Position(value)


def test_what_is_missed_is_a_position_or_an_epoch_and_not_how_far_time_had_come() -> None:
    assert [is_missed(inline) for inline in KINDS] == [True, True, True, False, False, False, True]
    assert not is_missed(None) and not is_missed(untagged_of({"watermark_us": 5, "rows_late": 0}))
