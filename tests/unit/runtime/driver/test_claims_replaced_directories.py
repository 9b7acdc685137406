"""Directories that are deleted, begun anew or put back from a backup under a driver that goes on: of two that hold the
same attempt one stops, and commits, replaces and deletes nothing."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pytest

from tests.unit.runtime.fakes import FaultyStorage
from tests.unit.runtime.stores import LIFE, NEXT_LIFE, manifest, store_of
from weir.errors import CheckpointError, OwnershipError, StorageUnavailable
from weir.ids import AttemptId, CheckpointId, Lineage, Uid
from weir.runtime.storage import layout
from weir.runtime.storage.attempts import ATTEMPTS_SKIPPED, current_lineage
from weir.runtime.storage.checkpoints import CheckpointStore
from weir.runtime.storage.fsck import examined
from weir.snapshot.manifest import Manifest, OperatorSnapshot, PartOf, checksum
from weir.snapshot.parts import FileRef, StatePart

GONE = "what this driver has noted about attempt 2 is gone"


def begun(storage: FaultyStorage, run: str, lineage: Lineage = LIFE) -> CheckpointStore:
    store = store_of(storage, lineage)
    store.adopt(run, resume=False)
    return store


def put_back(storage: FaultyStorage, backup: dict[str, bytes]) -> None:
    storage._files.clear()
    storage._files.update(backup)


def test_a_driver_under_which_a_backup_is_put_back_stops_when_another_has_its_attempt() -> None:
    storage = FaultyStorage()
    lingering = begun(storage, "run-1")
    lingering.publish(manifest(1, lingering.claim().attempt))
    backup = dict(storage._files)
    attempt = lingering.claim().attempt
    lingering.publish(manifest(2, attempt))
    put_back(storage, backup)
    resumed = store_of(storage, is_found=True)
    resumed.adopt("run-2", resume=True)
    assert resumed.claim().attempt == attempt
    for act in (
        lingering.check_newest,
        lambda: lingering.publish(manifest(3, attempt)),
        lambda: lingering.retire(CheckpointId(3)),
    ):
        with pytest.raises(OwnershipError, match=GONE):
            act()
    assert layout.manifest_path(CheckpointId(1)) in [path.partition("/")[2] for path in storage._files]
    resumed.publish(manifest(65, attempt))


def test_going_back_to_a_checkpoint_from_a_backup_takes_a_number_that_nobody_has() -> None:
    storage = FaultyStorage()
    lingering = begun(storage, "run-1")
    lingering.publish(manifest(1, lingering.claim().attempt))
    backup = dict(storage._files)
    taken = [lingering.claim().attempt for _ in range(5)]
    put_back(storage, backup)
    resumed = store_of(storage, is_found=True)
    resumed.adopt("run-2", resume=True)
    assert resumed.claim(CheckpointId(1)).attempt == ATTEMPTS_SKIPPED + 2 > max(taken)
    assert resumed.claim().attempt == ATTEMPTS_SKIPPED + 3


def with_base(checkpoint: int, file: FileRef) -> Manifest:
    part = PartOf(0, None, {"sum": StatePart("arrow", {"0": file})})
    return replace(manifest(checkpoint, 1), operators={Uid("op"): OperatorSnapshot(1, (part,))})


def test_a_checkpoint_that_builds_on_files_which_are_gone_is_not_published() -> None:
    storage = FaultyStorage()
    store = begun(storage, "run-1")
    store.publish(manifest(1, store.claim().attempt))
    backup = dict(storage._files)
    path = layout.shared_path(CheckpointId(2), AttemptId(1), "op-0-sum-00000")
    store.storage.write(path, b"state")
    file = FileRef(path, 5, checksum(pa.py_buffer(b"state")))
    store.publish(with_base(2, file))
    store.publish(with_base(3, file))
    put_back(storage, backup)
    with pytest.raises(OwnershipError, match=r"shared/0000000002-a1-op-0-sum-00000, which checkpoint 4 needs, is gone"):
        store.publish(with_base(4, file))
    assert store_of(storage, is_found=True).restorable(None) == manifest(1, 1)


def test_a_list_that_lags_behind_stops_nobody() -> None:
    storage = FaultyStorage()
    store = begun(storage, "run-1")
    path = layout.shared_path(CheckpointId(1), store.claim().attempt, "op-0-sum-00000")
    store.storage.write(path, b"state")
    before = storage.list
    storage.list = lambda path: [] if path.endswith("/shared") else before(path)  # type: ignore[method-assign]
    store.publish(with_base(2, FileRef(path, 5, checksum(pa.py_buffer(b"state")))))


def test_of_two_lives_that_have_the_same_attempt_the_one_whose_claim_is_gone_does_not_start() -> None:
    storage = FaultyStorage()
    late = begun(storage, "run-0", NEXT_LIFE)
    late.claim()
    there: list[CheckpointStore] = []
    note = late._attempts.note

    def hangs(*given: object) -> None:
        put_back(storage, {})
        there.append(begun(storage, "run-1"))
        there[0].publish(manifest(1, there[0].claim().attempt))
        there[0]._attempts.take()
        note(*given)  # type: ignore[arg-type]

    late._attempts.note = hangs  # type: ignore[assignment, method-assign]
    with pytest.raises(OwnershipError, match=GONE):
        late.claim()
    there[0].check_newest()


def test_a_claim_without_a_start_does_not_hide_that_the_directory_is_anothers() -> None:
    storage = FaultyStorage()
    late = begun(storage, "run-0", NEXT_LIFE)
    storage.fail("publish", StorageUnavailable("away"))
    with pytest.raises(StorageUnavailable):
        late.claim()
    there: list[CheckpointStore] = []

    def anew() -> None:
        put_back(storage, {})
        there.append(begun(storage, "run-1"))
        there[0]._attempts.take()

    storage.then("list", anew)
    with pytest.raises(OwnershipError, match="what this driver has noted about attempt 1 is gone"):
        late.claim()
    there[0].check_newest()


@pytest.mark.parametrize("finished", [False, True])
def test_a_first_claim_that_hangs_until_all_was_deleted_and_begun_anew_takes_nothing_over(finished: bool) -> None:
    storage = FaultyStorage()
    before = begun(storage, "run-0", Lineage("0000000001"))
    before.publish(manifest(1, before.claim().attempt))
    before.finish()
    late = begun(storage, "run-1", NEXT_LIFE)
    there: list[CheckpointStore] = []

    def anew() -> None:
        put_back(storage, {})
        there.append(begun(storage, "run-2"))
        there[0].publish(manifest(1, there[0].claim().attempt))
        if finished:
            there[0].finish()

    storage.then("list", anew)
    with pytest.raises(OwnershipError, match="was deleted, or started anew, by somebody else"):
        late.claim()
    assert current_lineage(storage) == LIFE
    there[0].check_newest()


def test_one_late_note_does_not_keep_fsck_from_looking_at_the_run_that_is_there() -> None:
    storage = FaultyStorage()
    late = begun(storage, "run-0", NEXT_LIFE)
    late.claim()
    attempt = late.claim().attempt
    put_back(storage, {})
    store = begun(storage, "run-1")
    store.publish(manifest(1, store.claim().attempt))
    late._attempts.note(attempt, "completed", {"checkpoint": 70})
    report = examined(storage)
    assert [checked.name for checked in report.checkpoints] == [f"{LIFE}/chk-0000000001"]
    assert report.is_whole


def test_a_checkpoint_that_is_retired_while_a_start_looks_at_it_is_named() -> None:
    storage = FaultyStorage()
    runs = begun(storage, "run-1")
    attempt = runs.claim().attempt
    runs.publish(manifest(1, attempt))
    start = store_of(storage, is_found=True)
    listing = start.listing()
    runs.publish(manifest(2, attempt))
    runs.retire(CheckpointId(2))
    start.listing = lambda: listing  # type: ignore[method-assign]
    with pytest.raises(CheckpointError, match="checkpoint 1 was retired, or taken away, while this driver looked"):
        start.restorable(None)
