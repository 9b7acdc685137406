"""weir fsck: every checkpoint is read in full, damage is named, and only what nobody needs is removed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.unit.runtime.fakes import FaultyStorage
from tests.unit.runtime.storage.test_retirement import check_whole, referring, share, upload
from tests.unit.runtime.stores import LIFE, NEXT_LIFE, files_of, manifest, newest, store_of
from weir.errors import CorruptCheckpoint
from weir.ids import CheckpointId
from weir.runtime.storage import layout
from weir.runtime.storage.below import Below
from weir.runtime.storage.fsck import examined, job_directories, repair, strays_beside
from weir.runtime.storage.stores.files import TEMPORARY, LocalStorage
from weir.snapshot.manifest import encode


def with_checkpoints() -> FaultyStorage:
    """Two checkpoints that share a file."""
    storage = FaultyStorage()
    store = store_of(storage)
    store.adopt("run-1", resume=False)
    store.claim()
    base = share(storage, 1)
    for checkpoint in (1, 2):
        store.publish(referring(checkpoint, 1, base, upload(storage, checkpoint, 1)))
    return storage


def with_finished_run() -> FaultyStorage:
    """The same, and there will be no more of them."""
    storage = with_checkpoints()
    store = store_of(storage)
    store.claim()
    store.finish()
    return storage


def test_whole_checkpoints_are_whole() -> None:
    report = examined(with_checkpoints())
    assert report.is_whole and report.leftovers == []
    assert (report.job, report.lineage) == ("job", LIFE)
    assert [(checked.name, checked.files, checked.bytes) for checked in report.checkpoints] == [
        (f"{LIFE}/chk-0000000001", 2, 11),
        (f"{LIFE}/chk-0000000002", 2, 11),
    ]


def test_a_damaged_shared_file_is_seen_in_every_checkpoint_that_names_it() -> None:
    storage = with_checkpoints()
    files_of(storage).write(share(storage, 1).path, b"SHARED")
    report = examined(storage)
    assert [len(checked.problems) for checked in report.checkpoints] == [1, 1]
    assert "checksum" in report.checkpoints[0].problems[0]
    assert not report.is_whole


def test_a_damaged_shared_file_is_got_round_by_going_back_to_a_checkpoint_that_is_whole() -> None:
    """Deleting the newest checkpoint would not: the one before names the same file."""
    storage = with_checkpoints()
    store = store_of(storage)
    store.adopt("run-1", resume=True)
    attempt = store.claim().attempt
    later = share(storage, 3, attempt)
    for checkpoint in (3, 4):
        store.publish(referring(checkpoint, attempt, share(storage, 1), later))
    files_of(storage).write(later.path, b"SHARED")
    whole = [checked.name for checked in examined(storage).checkpoints if not checked.problems]
    assert whole == [f"{LIFE}/chk-0000000001", f"{LIFE}/chk-0000000002"]
    for back_to, is_whole in ((3, False), (2, True)):
        start = store_of(storage, is_found=True)
        start.adopt(f"run-{back_to}", resume=True)
        if is_whole:
            claim = start.claim(CheckpointId(back_to))
            check_whole(start)
            assert claim.restore is not None and later.path not in [file.path for file in claim.restore.files]
        else:
            with pytest.raises(CorruptCheckpoint, match="checksum"):
                start.claim(CheckpointId(back_to))


def test_missing_files_damaged_manifests_and_damaged_notes_are_each_named() -> None:
    storage = with_checkpoints()
    files_of(storage).delete(upload(storage, 1, 1).path)
    path = layout.manifest_path(CheckpointId(2))
    files_of(storage).write(path, files_of(storage).read(path).to_pybytes()[:-1])
    storage.write(f"attempts/0000000001.{LIFE}.start", b"{")
    report = examined(storage)
    text = "\n".join([*report.problems, *(problem for checked in report.checkpoints for problem in checked.problems)])
    for part in ("chk-0000000001/a1-op-0-values is missing", "the manifest", f"attempts/0000000001.{LIFE}.start"):
        assert part in text
    assert report.leftovers == [], "while a manifest cannot be read, nobody can say what it names"


def test_a_newest_checkpoint_that_is_gone_is_damage() -> None:
    storage = with_checkpoints()
    files_of(storage).delete("chk-0000000002")
    report = examined(storage)
    assert not report.is_whole
    assert "chk-0000000002/manifest.json was complete" in report.problems[0]


def test_leftovers_are_found_and_removed_and_nothing_that_is_named_or_under_way_is() -> None:
    storage = with_checkpoints()
    void = [f"{LIFE}/{share(storage, 1, attempt=7).path}", f"{LIFE}/{upload(storage, 1, 9).path}"]
    share(storage, 3)
    upload(storage, 3, 1)
    files_of(storage).write("chk-0000000001/mine.txt", b"x")
    earlier = f"{NEXT_LIFE}/chk-0000000001/manifest.json"
    storage.write(earlier, encode(referring(1, 1)))
    report = examined(storage)
    assert report.is_whole
    assert sorted(report.leftovers) == sorted([*void, earlier])
    assert repair(storage, report) == 3
    check_whole(store_of(storage))
    assert examined(storage).leftovers == []
    assert files_of(storage).list("chk-0000000001") == ["a1-op-0-values", "manifest.json", "mine.txt"]
    assert len(files_of(storage).list("shared")) == 2
    assert newest(store_of(storage).claim())[1] == 2


def test_without_any_note_nothing_is_a_leftover_and_the_checkpoints_are_named() -> None:
    storage = with_checkpoints()
    storage.delete("attempts")
    report = examined(storage)
    assert (report.leftovers, report.lineage) == ([], None)
    assert len(report.checkpoints) == 2
    assert f"weir run --resume --at {LIFE}/chk-0000000002" in report.problems[0]
    assert repair(storage, report) == 0
    assert examined(storage).checkpoints == report.checkpoints


def test_a_job_without_its_owner_and_notes_is_known_by_its_checkpoints() -> None:
    storage = with_checkpoints()
    storage.delete(layout.ATTEMPTS)
    storage.delete(layout.JOB_FILE)
    assert job_directories(storage) == [""]
    report = examined(storage)
    assert not report.is_whole and any("no start of lineage" in problem for problem in report.problems)


@pytest.mark.parametrize("oldest", ["attempts/0000000001.claim", "job.json"])
def test_notes_that_a_lifecycle_rule_has_expired_are_missed(oldest: str) -> None:
    """The job ran for longer than objects may live; what it wrote last is there."""
    storage = with_checkpoints()
    for path in (oldest, f"attempts/0000000001.{LIFE}.start"):
        storage.delete(path)
    assert job_directories(storage) == [""]
    report = examined(storage)
    assert (report.job, report.leftovers) == ("job", [])
    assert "lifecycle rule" in report.problems[-1]
    assert f"may not find {LIFE}/chk-0000000002" in report.problems[-1]


def test_a_newer_lineage_whose_start_is_gone_is_no_leftover_of_the_one_before() -> None:
    storage = with_finished_run()
    following = store_of(storage, NEXT_LIFE)
    following.publish(manifest(3, following.claim().attempt))
    storage.delete(f"attempts/0000000003.{NEXT_LIFE}.start")
    report = examined(storage)
    assert report.leftovers == []
    assert NEXT_LIFE in report.problems[0]


def test_nothing_of_another_lineage_is_a_leftover_until_the_job_has_a_checkpoint_of_its_own() -> None:
    """A job may have been started from a checkpoint of an earlier lineage."""
    storage = with_finished_run()
    following = store_of(storage, NEXT_LIFE)
    attempt = following.claim().attempt
    assert (examined(storage).leftovers, examined(storage).is_whole) == ([], True)
    following.publish(manifest(3, attempt))
    report = examined(storage)
    assert f"{LIFE}/chk-0000000002/manifest.json" in report.leftovers
    repair(storage, report)
    assert LIFE not in storage.list("")


def test_what_a_start_in_progress_has_copied_is_no_leftover() -> None:
    storage = with_finished_run()
    storage.write(f"{NEXT_LIFE}/sources/table/rows/part-0", b"rows")
    report = examined(storage)
    assert (report.leftovers, report.unclaimed) == ([], [f"{NEXT_LIFE}/sources"])
    following = store_of(storage, NEXT_LIFE)
    following.claim()
    assert repair(storage, report) == 0
    assert examined(storage).unclaimed == []
    assert storage.list(f"{NEXT_LIFE}/sources/table") == ["rows"]


def test_a_directory_in_which_a_writer_was_killed_is_a_leftover(tmp_path: Path) -> None:
    storage = LocalStorage(str(tmp_path))
    store = store_of(storage)
    store.adopt("run-1", resume=False)
    store.claim()
    store.publish(manifest(3, 1))
    for checkpoint in ("chk-0000000001", "chk-0000000002"):
        (tmp_path / LIFE / checkpoint).mkdir()
        (tmp_path / LIFE / checkpoint / f"{TEMPORARY}abc").touch()
    os.utime(tmp_path / LIFE / "chk-0000000001" / f"{TEMPORARY}abc", (0, 0))
    report = examined(storage)
    assert report.leftovers == [f"{LIFE}/chk-0000000001", f"{LIFE}/chk-0000000002"]
    assert repair(storage, report) == 1, "in the other one somebody may be writing"
    assert examined(storage).leftovers == [f"{LIFE}/chk-0000000002"]


def test_nothing_is_removed_when_somebody_has_begun_anew_meanwhile() -> None:
    storage = with_checkpoints()
    storage.write(f"{NEXT_LIFE}/chk-0000000001/manifest.json", encode(referring(1, 1)))
    report = examined(storage)
    anew = store_of(storage, NEXT_LIFE)._attempts
    anew.note(anew.take(), "start", {})
    assert repair(storage, report) == 0


def test_savepoints_are_looked_at_too() -> None:
    storage = with_checkpoints()
    place = Below(storage, "savepoints/job-1")
    place.write("manifest.json", encode(referring(1, 1)))
    storage.write("savepoints/half/0000000001-a1-op-0-s-0", b"x")
    assert [checked.name for checked in examined(storage).checkpoints][-1] == "savepoints/job-1"
    place.write("manifest.json", b"{")
    assert not examined(storage).is_whole


def test_a_location_may_be_one_job_or_several() -> None:
    storage = FaultyStorage()
    for name in ("first", "second"):
        store_of(Below(storage, name), job=name).adopt("run-1", resume=False)
    storage.write("other/thing", b"x")
    assert job_directories(storage) == ["first", "second"]
    assert job_directories(Below(storage, "first")) == [""]


def test_files_of_the_users_are_named_and_nothing_else_happens_to_them(tmp_path: Path) -> None:
    storage = LocalStorage(str(tmp_path))
    for name in ("first", "second"):
        store_of(Below(storage, name), job=name).adopt("run-1", resume=False)
    for path in ("README", "first/thesis.txt", "first/savepoints/notes.txt", "first/photos/1.jpg"):
        storage.write(path, b"x")
    assert job_directories(storage) == ["first", "second"]
    assert strays_beside(storage, ["first", "second"]) == ["README"]
    first = Below(storage, "first")
    assert strays_beside(first, job_directories(first)) == []
    report = examined(first)
    assert report.is_whole
    assert sorted(report.strays) == ["photos", "savepoints/notes.txt", "thesis.txt"]
    repair(first, report)
    assert first.read("savepoints/notes.txt").to_pybytes() == b"x"


def test_what_overlapping_checkpoints_name_is_no_leftover_of_one_that_goes_during_the_look() -> None:
    """Checkpoint 8 began when 6 was the newest complete one and 7 was under way: it names what was written for 6."""
    storage = FaultyStorage()
    job = store_of(storage)
    job.adopt("run", resume=False)
    job.claim()
    chunks = {checkpoint: share(storage, checkpoint) for checkpoint in (5, 6, 7)}
    for checkpoint, chunk in chunks.items():
        job.publish(referring(checkpoint, 1, chunk))
    job.retire(CheckpointId(5))
    looked: list[str] = []

    def meanwhile(path: str) -> None:
        if not looked:
            job.publish(referring(8, 1, chunks[6]))
            job.publish(referring(9, 1, share(storage, 9)))
            job.retire(CheckpointId(7))
        looked.append(path)

    report = examined(storage, meanwhile)
    assert report.is_whole and report.leftovers == []
    report.leftovers.append(f"{LIFE}/{chunks[6].path}")  # as an earlier look may have found
    assert repair(storage, report) == 0
    assert examined(storage).is_whole


def test_nothing_is_removed_while_checkpoints_come_and_go() -> None:
    storage = with_checkpoints()
    orphan = share(storage, 1, attempt=11)
    report = examined(storage)
    assert report.leftovers == [f"{LIFE}/{orphan.path}"]
    storage.then("read", lambda: storage.delete(f"{LIFE}/{layout.manifest_path(CheckpointId(1))}"))
    assert repair(storage, report) == 0
    assert repair(storage, report) == 1
