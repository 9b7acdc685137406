"""Names in the checkpoint directory: distinct where they must be, and read back as they were made."""

from __future__ import annotations

import itertools

import pytest

from weir.ids import AttemptId, CheckpointId, Lineage, Uid
from weir.runtime.storage import layout
from weir.runtime.storage.layout import AttemptNote


@pytest.mark.parametrize("number", [0, 1, 9_999_999_999, 10_000_000_000])
def test_names_are_read_back_as_they_were_made(number: int) -> None:
    assert layout.checkpoint_of(layout.checkpoint_directory(CheckpointId(number))) == number
    assert layout.claimed_attempt(layout.claim_path(AttemptId(number)).split("/")[1]) == number
    note = AttemptNote(AttemptId(number), Lineage("00000000aa"), "start")
    assert AttemptNote.parse(note.path.split("/")[1]) == note


@pytest.mark.parametrize("name", ["", "chk-", "chk-1", "chk-00000000x1", "xchk-0000000001", "chk-0000000001.tmp"])
def test_other_names_are_no_checkpoints(name: str) -> None:
    assert layout.checkpoint_of(name) is None


def test_a_claim_is_not_taken_for_a_start_nor_a_temporary_file_for_either() -> None:
    withdrawal = layout.withdrawal_path(AttemptId(3), Lineage("00000000aa")).split("/")[1]
    assert layout.withdrawn_attempt(withdrawal) == 3
    assert AttemptNote.parse(withdrawal) is None and layout.claimed_attempt(withdrawal) is None
    assert layout.is_record(withdrawal) and layout.is_record("0000000001.claim") and not layout.is_record("1.claim")
    assert AttemptNote.parse("0000000001.claim") is None
    assert layout.claimed_attempt("0000000001.00000000aa.start") is None
    assert AttemptNote.parse("0000000001.00000000aa.start.tmp") is None
    assert AttemptNote.parse("0000000001.aa.start") is None


def test_no_two_states_share_a_file() -> None:
    uids = ["a", "a-1", "a/1", "a%2F1", "a-1-x", "é", "..", "a b"]
    states = ["s", "0-s", "x", "s.arrow"]
    combinations = itertools.product([1, 11], uids, [0, 1, 10], states)
    paths = [
        layout.state_path(CheckpointId(1), AttemptId(attempt), layout.state_name(Uid(uid), index, state))
        for attempt, uid, index, state in combinations
    ]
    assert len(set(paths)) == len(paths)
    assert all(path.count("/") == 1 for path in paths)


def test_the_files_of_an_attempt_are_told_from_those_of_another() -> None:
    name = layout.state_path(CheckpointId(1), AttemptId(11), layout.state_name(Uid("op"), 0, "s")).split("/")[1]
    assert name.startswith(layout.state_prefix(AttemptId(11)))
    assert not name.startswith(layout.state_prefix(AttemptId(1)))


def test_names_sort_in_the_order_of_their_numbers() -> None:
    numbers = [2, 10, 100]
    assert sorted(layout.checkpoint_directory(CheckpointId(n)) for n in numbers) == [
        layout.checkpoint_directory(CheckpointId(n)) for n in numbers
    ]
