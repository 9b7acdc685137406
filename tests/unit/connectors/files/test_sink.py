"""The file sink: whose directory it is, and what is committed there."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from obstore.store import MemoryStore

from tests.contract.sinks import adopted, context, grant, owner, pending, read_numbers, rows, still_ours
from tests.unit.connectors.files.elsewhere import FileSinkIn
from weir.connectors import FileSink
from weir.errors import (
    CheckpointError,
    ConfigError,
    CorruptCheckpoint,
    JobError,
    OwnershipError,
    StorageUnavailable,
)
from weir.ids import AttemptId, CheckpointId
from weir.operators.base import NO_LINEAGE
from weir.runtime.storage.stores.files import LocalStorage
from weir.runtime.storage.stores.memory import MemoryStorage
from weir.runtime.storage.stores.objects import ObjectStorage
from weir.snapshot.parts import Json

NEXT_LIFE = "abcdef0123"
"""The lineage of a run that began anew."""


def write_and_commit(sink: FileSink, *numbers: int, attempt: int = 1, lineage: str = NO_LINEAGE) -> None:
    writer = sink.writer()
    writer.open(context(attempt=attempt, lineage=lineage), None)
    writer.write(rows(*numbers))
    writer.commit(grant(1), [writer.prepare(CheckpointId(1))()])
    writer.close()


def test_a_directory_of_another_job_is_refused_with_both_names(tmp_path: Path) -> None:
    adopted(FileSink(tmp_path), owner(job="first", resume=False))
    for resume in (False, True):
        with pytest.raises(OwnershipError, match=r"belongs to job 'first'.*job 'second'.*another directory"):
            adopted(FileSink(tmp_path, overwrite=True), owner(job="second", resume=resume))


def test_output_of_an_earlier_run_is_neither_mixed_nor_overwritten_unasked(tmp_path: Path) -> None:
    sink = FileSink(tmp_path)
    adopted(sink, owner(job="job", resume=False))
    write_and_commit(sink, 1, 2)
    with pytest.raises(OwnershipError, match=r"earlier run.*resume=True.*overwrite=True"):
        adopted(sink, owner(job="job", resume=False))
    adopted(sink, owner(job="job", resume=True))
    assert read_numbers(tmp_path, "parquet") == [1, 2]


def test_overwrite_clears_what_an_earlier_run_wrote_but_not_when_resuming(tmp_path: Path) -> None:
    sink = FileSink(tmp_path, overwrite=True)
    adopted(sink, owner(job="job", resume=False))
    write_and_commit(sink, 1, 2)
    adopted(sink, owner(job="job", resume=True))
    assert read_numbers(tmp_path, "parquet") == [1, 2]
    adopted(sink, owner(job="job", lineage=NEXT_LIFE))
    assert read_numbers(tmp_path, "parquet") == []
    write_and_commit(sink, 3, lineage=NEXT_LIFE)
    assert read_numbers(tmp_path, "parquet") == [3]


def test_a_resume_whose_checkpoints_are_lost_does_not_write_over_the_output(tmp_path: Path) -> None:
    """Its attempts begin at 1 again, and so do its epochs: without the lineage its parts would have the old names."""
    sink = FileSink(tmp_path)
    adopted(sink, owner(job="job"))
    write_and_commit(sink, 1, 2)
    with pytest.raises(OwnershipError, match=r"checkpoints are not where.*Checkpoints.to.*overwrite=True"):
        sink.validate(owner(job="job", resume=True, lineage=NEXT_LIFE))
    write_and_commit(sink, 3, lineage=NEXT_LIFE)
    assert sorted(read_numbers(tmp_path, "parquet")) == [1, 2, 3], "and even if somebody did, nothing is replaced"


def test_a_resume_whose_checkpoints_are_lost_does_not_repeat_output_that_was_moved_away(tmp_path: Path) -> None:
    sink = FileSink(tmp_path, "jsonl")
    adopted(sink, owner())
    write_and_commit(sink, 1, 2)
    for part in tmp_path.glob("part-*"):
        part.unlink()
    adopted(sink, owner(resume=True))
    with pytest.raises(OwnershipError, match=r"has held.*checkpoints are not where.*Checkpoints.to.*without resume"):
        sink.validate(owner(resume=True, lineage=NEXT_LIFE))
    adopted(sink, owner(lineage=NEXT_LIFE))


def test_a_resume_whose_checkpoints_are_lost_begins_where_nothing_was_committed(tmp_path: Path) -> None:
    sink = FileSink(tmp_path, "jsonl")
    adopted(sink, owner(resume=True))
    adopted(sink, owner(resume=True, lineage=NEXT_LIFE))


def test_a_part_never_replaces_another_file(tmp_path: Path) -> None:
    sink = FileSink(tmp_path, "jsonl")
    adopted(sink, owner())
    writer = sink.writer()
    writer.open(context(), None)
    writer.write(rows(1))
    committable = writer.prepare(CheckpointId(1))()
    (tmp_path / committable["parts"][0][0]).write_text('{"n": 7}\n')
    with pytest.raises(CheckpointError, match=r"that is not the part of that name"):
        writer.commit(grant(1), [committable])
    assert read_numbers(tmp_path, "jsonl") == [7]


@pytest.mark.parametrize("attempts", [2, 3])
def test_committed_parts_may_be_compacted_moved_and_deleted(tmp_path: Path, attempts: int) -> None:
    """The last manifest still names them: it was written before they were committed."""
    sink = FileSink(tmp_path, "jsonl")
    adopted(sink, owner())
    writer = sink.writer()
    writer.open(context(), None)
    writer.write(rows(1))
    committable = writer.prepare(CheckpointId(1))()
    writer.commit(grant(1), [committable])
    (tmp_path / committable["parts"][0][0]).rename(tmp_path / "compacted.jsonl")
    for attempt in range(2, attempts + 1):
        sink.recover(owner(resume=True), AttemptId(attempt), [committable], still_ours, oldest=None)
        writer = sink.writer()
        writer.open(context(attempt=attempt), [committable])
        writer.commit(grant(1), [committable])
    assert read_numbers(tmp_path, "jsonl") == [1]


def committed_in(sink: FileSink, checkpoint: int, *, attempt: int, index: int) -> Json:
    """A writer makes a part, which a checkpoint names, and commits it."""
    writer = sink.writer()
    writer.open(context(attempt=attempt, index=index, parallelism=2), None)
    writer.write(rows(checkpoint))
    committable = writer.prepare(CheckpointId(checkpoint))()
    writer.commit(grant(checkpoint), [committable])
    return committable


@pytest.mark.parametrize("back_to", [3, 4])
def test_a_job_may_go_back_to_any_checkpoint_that_is_kept_though_its_parts_were_compacted(
    tmp_path: Path, back_to: int
) -> None:
    sink = FileSink(tmp_path, "jsonl")
    adopted(sink, owner())
    parts = {3: committed_in(sink, 3, attempt=1, index=1), 4: committed_in(sink, 4, attempt=2, index=0)}
    for part in tmp_path.glob("part-*"):
        part.unlink()
    for attempt in (3, 4):  # Each restores checkpoint 5, which has nothing to commit.
        sink.recover(owner(resume=True), AttemptId(attempt), [], still_ours, oldest=CheckpointId(3))
    sink.recover(owner(resume=True), AttemptId(5), [parts[back_to]], still_ours, oldest=None)
    writer = sink.writer()
    writer.open(context(attempt=5), [parts[back_to]])
    writer.commit(grant(69), [parts[back_to]])
    assert read_numbers(tmp_path, "jsonl") == []


def test_notes_of_commits_do_not_pile_up(tmp_path: Path) -> None:
    """As many attempts as checkpoints, of which two are kept."""
    sink = FileSink(tmp_path, "jsonl")
    adopted(sink, owner())
    for attempt in range(1, 21):
        sink.recover(owner(resume=True), AttemptId(attempt), [], still_ours, oldest=CheckpointId(max(1, attempt - 2)))
        for index in range(2):
            committed_in(sink, attempt, attempt=attempt, index=index)
    notes = list((tmp_path / "_weir" / NO_LINEAGE / "commits").iterdir())
    assert len(notes) <= 8, "of the two that are kept, the one before, and the one after"


@pytest.mark.parametrize("keep", [0, 20, -1])
def test_a_damaged_note_of_what_was_committed_is_named(tmp_path: Path, keep: int) -> None:
    """Nobody can say then whether the rows are elsewhere or lost, and trying again does not help."""
    sink = FileSink(tmp_path, "jsonl")
    adopted(sink, owner())
    writer = sink.writer()
    writer.open(context(), None)
    writer.write(rows(1))
    committable = writer.prepare(CheckpointId(1))()
    writer.commit(grant(1), [committable])
    (tmp_path / committable["parts"][0][0]).unlink()
    (note,) = (tmp_path / "_weir" / NO_LINEAGE / "commits").iterdir()
    note.write_bytes(note.read_bytes()[:keep])
    writer = sink.writer()
    writer.open(context(attempt=2), [committable])
    with pytest.raises(CorruptCheckpoint, match=rf"sink 'the sink': {note} .*altered.*backup.*another directory"):
        writer.commit(grant(1), [committable])


def test_parts_that_were_compacted_while_a_commit_was_cut_off_are_not_written_again(tmp_path: Path) -> None:
    sink = FileSink(tmp_path, "jsonl", roll_rows=1)
    adopted(sink, owner())
    writer = sink.writer()
    writer.open(context(), None)
    writer.write(rows(1))
    writer.write(rows(2))
    committable = writer.prepare(CheckpointId(1))()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LocalStorage, "move", _once(LocalStorage.move))
        with pytest.raises(KeyboardInterrupt):
            writer.commit(grant(1), [committable])
    (first,) = tmp_path.glob("part-*")
    first.rename(tmp_path / "compacted.jsonl")
    writer = sink.writer()
    writer.open(context(attempt=2), [committable])
    writer.commit(grant(1), [committable])
    assert sorted(read_numbers(tmp_path, "jsonl")) == [1, 2]


def _once(move: Callable[..., None]) -> Callable[..., None]:
    """The process dies in its second move."""
    moves = iter([move])

    def moved(*given: object) -> None:
        if (perform := next(moves, None)) is None:
            raise KeyboardInterrupt
        perform(*given)

    return moved


@pytest.mark.parametrize("call", ["create", "list", "publish"])
def test_a_driver_that_was_overtaken_while_it_took_the_directory_over_does_not_get_in_the_way(
    call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is frozen inside of a call, and its sink writes another format than its successor's."""
    storage, is_overtaken = MemoryStorage(1 << 20), []
    successor, perform = FileSinkIn(storage, "parquet"), getattr(storage, call)

    def frozen(*given: object) -> object:
        monkeypatch.undo()
        is_overtaken.append(True)
        adopted(successor, owner(lineage=NEXT_LIFE))
        write_and_commit(successor, 1, lineage=NEXT_LIFE)
        return perform(*given)

    def fence() -> None:
        if is_overtaken:
            raise OwnershipError("another driver has taken over")

    monkeypatch.setattr(storage, call, frozen)
    with suppress(OwnershipError):
        FileSinkIn(storage, "csv").adopt(owner(), fence)
    assert is_overtaken
    adopted(successor, owner(lineage=NEXT_LIFE, resume=True))


def test_a_start_over_output_that_appeared_since_it_was_validated_is_refused_by_object_stores_too() -> None:
    store = MemoryStore()
    sink = FileSinkIn(ObjectStorage(store, "out", location="objects://out"), "jsonl")
    adopted(sink, owner())
    sink.validate(owner(lineage=NEXT_LIFE))
    write_and_commit(sink, 1)
    with pytest.raises(OwnershipError, match="earlier run"):
        sink.adopt(owner(lineage=NEXT_LIFE), still_ours)


def test_a_sink_that_resumes_where_nothing_is_may_change_its_format(tmp_path: Path) -> None:
    adopted(FileSink(tmp_path, "csv"), owner())
    adopted(FileSink(tmp_path, "jsonl"), owner(resume=True))
    write_and_commit(FileSink(tmp_path, "jsonl"), 1)
    adopted(FileSink(tmp_path, "jsonl"), owner(resume=True))


def test_overwrite_may_change_the_format(tmp_path: Path) -> None:
    adopted(FileSink(tmp_path, "csv"), owner(job="job", resume=False))
    write_and_commit(FileSink(tmp_path, "csv"), 1)
    adopted(FileSink(tmp_path, "jsonl", overwrite=True), owner(job="job", resume=False))
    with pytest.raises(OwnershipError, match="earlier run"):
        write_and_commit(FileSink(tmp_path, "jsonl"), 1)
        adopted(FileSink(tmp_path, "jsonl"), owner(job="job", resume=False))


def test_parts_without_the_rest_of_their_directory_are_not_called_somebody_elses(tmp_path: Path) -> None:
    """The directory was moved away under a running job, which wrote on in a new one of the same name."""
    sink = FileSink(tmp_path)
    write_and_commit(sink, 1)
    (tmp_path / "_weir" / "owner.json").unlink(missing_ok=True)
    with pytest.raises(OwnershipError, match=r"holds parts that a sink wrote, and not its _weir/owner.json.*Put its"):
        adopted(sink, owner(job="job", resume=True))


def test_files_that_no_sink_wrote_are_never_touched(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("x")
    for overwrite in (False, True):
        with pytest.raises(OwnershipError, match="did not write"):
            adopted(FileSink(tmp_path, overwrite=overwrite), owner(job="job", resume=False))
    assert (tmp_path / "thesis.txt").exists()
    (tmp_path / "thesis.txt").unlink()
    sink = FileSink(tmp_path, overwrite=True)
    adopted(sink, owner(job="job", resume=False))
    write_and_commit(sink, 1)
    (tmp_path / "thesis.txt").write_text("x")
    with pytest.raises(OwnershipError, match=r"thesis.txt was not written"):
        adopted(sink, owner(job="job", resume=False))
    assert (tmp_path / "thesis.txt").exists()


def test_two_formats_do_not_mix_in_one_directory(tmp_path: Path) -> None:
    adopted(FileSink(tmp_path, "csv"), owner(job="job", resume=False))
    write_and_commit(FileSink(tmp_path, "csv"), 1)
    with pytest.raises(OwnershipError, match=r"holds csv files.*writes jsonl"):
        adopted(FileSink(tmp_path, "jsonl"), owner(job="job", resume=True))


def test_two_sinks_of_one_job_may_share_a_directory(tmp_path: Path) -> None:
    sink = FileSink(tmp_path, "jsonl")
    adopted(sink, owner(job="job", resume=False))
    adopted(sink, owner(job="job", resume=False))
    committables = {}
    for uid in ("a", "b"):
        writer = sink.writer()
        writer.open(context(uid=uid), None)
        writer.write(rows(1))
        committables[uid] = writer.prepare(CheckpointId(1))()
    for uid in ("a", "b"):
        writer = sink.writer()
        writer.open(context(uid=uid, attempt=2), [committables[uid]])
        writer.commit(grant(1), [committables[uid]])
    assert read_numbers(tmp_path, "jsonl") == [1, 1]


def test_an_altered_owner_file_is_refused(tmp_path: Path) -> None:
    adopted(FileSink(tmp_path), owner(job="job", resume=False))
    (tmp_path / "_weir" / "owner.json").write_text("{nonsense")
    with pytest.raises(OwnershipError, match="unreadable"):
        adopted(FileSink(tmp_path), owner(job="job", resume=False))


def test_pending_parts_of_a_run_that_committed_nothing_are_removed_by_the_next(tmp_path: Path) -> None:
    sink = FileSink(tmp_path)
    adopted(sink, owner(job="job", resume=False))
    writer = sink.writer()
    writer.open(context(), None)
    writer.write(rows(1))
    writer.prepare(CheckpointId(1))()
    assert len(pending(tmp_path)) == 1
    adopted(sink, owner(job="job", resume=True))
    assert len(pending(tmp_path)) == 1, "a resumed run may still need them"
    adopted(sink, owner(job="job", lineage=NEXT_LIFE))
    assert pending(tmp_path) == []


def test_an_unwritable_directory_names_the_sink_and_the_place(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(JobError, match=r"sink 'the sink': the directory at '.*file/out' cannot be written"):
        adopted(FileSink(tmp_path / "file" / "out"), owner(job="job", resume=False))
    with pytest.raises(ConfigError, match=r"sink 'the sink'.*scheme 'foo' is not known"):
        adopted(FileSink("foo://x/y"), owner(job="job", resume=False))


class _LostReplies(MemoryStorage):
    """Moves happen, and their replies are lost."""

    def move(self, source: str, target: str) -> None:
        super().move(source, target)
        raise StorageUnavailable("the reply was lost")


def test_a_commit_whose_reply_was_lost_is_repeated_without_harm() -> None:
    storage = _LostReplies(1 << 20)
    sink = FileSinkIn(storage, "jsonl", roll_rows=1)
    adopted(sink, owner(job="job", resume=False))
    writer = sink.writer()
    writer.open(context(), None)
    writer.write(rows(1))
    writer.write(rows(2))
    committable = writer.prepare(CheckpointId(1))()
    for _ in range(2):
        with pytest.raises(StorageUnavailable):
            writer.commit(grant(1), [committable])
    writer.commit(grant(1), [committable])
    assert len([name for name in storage.list("") if name.startswith("part-")]) == 2
