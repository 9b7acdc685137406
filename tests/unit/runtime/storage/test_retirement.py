"""What is deleted of checkpoints: all that nobody needs, and nothing that a published checkpoint names."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from tests.unit.runtime.fakes import FaultyStorage, QueuedBackground
from tests.unit.runtime.stores import LIFE, NEXT_LIFE, claimed, files_of, manifest, newest, store_of
from weir.errors import CheckpointError, CorruptCheckpoint, OwnershipError, StorageUnavailable
from weir.ids import AttemptId, CheckpointId, Uid
from weir.runtime.driver.retirement_desk import RetirementDesk
from weir.runtime.storage import layout
from weir.runtime.storage.attempts import ATTEMPTS_KEPT
from weir.runtime.storage.checkpoints import CheckpointStore
from weir.runtime.storage.state_files import CheckpointFiles
from weir.runtime.storage.stores.files import TEMPORARY, LocalStorage
from weir.snapshot.manifest import Manifest, OperatorSnapshot, PartOf, checksum
from weir.snapshot.parts import FileRef, StatePart

LOST = StorageUnavailable("the reply was lost")


def upload(storage: FaultyStorage, checkpoint: int, attempt: int, uid: str = "op") -> FileRef:
    name = layout.state_name(Uid(uid), 0, "values")
    path = layout.state_path(CheckpointId(checkpoint), AttemptId(attempt), name)
    files_of(storage).write(path, b"state")
    return FileRef(path, 5, checksum(b"state"))


def share(storage: FaultyStorage, checkpoint: int, attempt: int = 1) -> FileRef:
    path = layout.shared_path(CheckpointId(checkpoint), AttemptId(attempt), "op-0-values-0")
    files_of(storage).write(path, b"shared")
    return FileRef(path, 6, checksum(b"shared"))


def referring(checkpoint: int, attempt: int, *files: FileRef) -> Manifest:
    state = StatePart("arrow", {str(number): file for number, file in enumerate(files)})
    operators = {Uid("op"): OperatorSnapshot(1, (PartOf(0, None, {"values": state}),))}
    return replace(manifest(checkpoint, attempt), operators=operators)


def check_whole(store: CheckpointStore) -> None:
    """Every checkpoint that counts can be restored by a reader that starts now."""
    for checkpoint in store.listing().valid:
        for file in store.read(checkpoint).files:
            CheckpointFiles(store.storage).read(file)


def shared(storage: FaultyStorage) -> list[str]:
    return [f"shared/{name}" for name in files_of(storage).list("shared")]


def test_discarding_frees_the_files_of_that_attempt_only() -> None:
    storage, store = claimed()
    upload(storage, 4, attempt=1)
    upload(storage, 4, attempt=11)
    store.discard(CheckpointId(4), AttemptId(1))
    assert files_of(storage).list("chk-0000000004") == ["a11-op-0-values"]


def test_discarding_frees_the_shared_files_that_the_attempt_wrote_for_that_checkpoint_only() -> None:
    storage, store = claimed()
    kept = [share(storage, 3), share(storage, 4, attempt=11), share(storage, 41)]
    share(storage, 4)
    store.discard(CheckpointId(4), AttemptId(1))
    assert shared(storage) == sorted(file.path for file in kept)


def test_retiring_deletes_everything_older_manifests_first_and_each_file_by_name() -> None:
    storage, store = claimed()
    for checkpoint in (1, 2, 3):
        upload(storage, checkpoint, attempt=1)
    for checkpoint in (1, 3):
        store.publish(manifest(checkpoint, 1))
    files_of(storage).write("chk-0000000001/mine.txt", b"x")
    storage.calls.clear()
    store.retire(CheckpointId(3))
    deleted = [path for call, path in storage.calls if call == "delete"]
    first, second = f"{LIFE}/chk-0000000001", f"{LIFE}/chk-0000000002"
    assert deleted == [f"{first}/manifest.json", f"{first}/a1-op-0-values", f"{second}/a1-op-0-values"]
    assert files_of(storage).list("chk-0000000001") == ["mine.txt"]
    assert store.listing().valid == (3,)


def test_a_retirement_that_fails_in_the_middle_leaves_no_checkpoint_without_its_files() -> None:
    storage, store = claimed()
    upload(storage, 1, attempt=1)
    store.publish(manifest(1, 1))
    store.publish(manifest(2, 1))
    storage.fail("delete", None, LOST)
    with pytest.raises(StorageUnavailable):
        store.retire(CheckpointId(2))
    assert store.listing().valid == (2,)
    assert files_of(storage).list("chk-0000000001") == ["a1-op-0-values"]
    store.retire(CheckpointId(2))
    assert "chk-0000000001" not in files_of(storage).list("")


def test_a_shared_file_goes_when_the_last_manifest_that_names_it_goes_and_not_before() -> None:
    storage, store = claimed()
    first, second = share(storage, 1), share(storage, 2)
    store.publish(referring(1, 1, first))
    store.publish(referring(2, 1, first, second))
    store.retire(CheckpointId(2))
    assert len(shared(storage)) == 2
    store.publish(referring(3, 1, second))
    store.retire(CheckpointId(3))
    assert shared(storage) == [second.path]
    store.publish(referring(4, 1))
    store.retire(CheckpointId(4))
    assert shared(storage) == []


def test_shared_files_of_a_checkpoint_under_way_are_left_alone() -> None:
    storage, store = claimed()
    store.publish(referring(1, 1, share(storage, 1)))
    share(storage, 2)
    store.retire(CheckpointId(1))
    assert len(shared(storage)) == 2


def test_finishing_sweeps_up_what_late_uploads_have_left() -> None:
    storage, store = claimed()
    store.publish(manifest(2, 1))
    store.retire(CheckpointId(2))
    upload(storage, 1, attempt=1)
    store.finish()
    assert [name for name in files_of(storage).list("") if layout.checkpoint_of(name)] == ["chk-0000000002"]


def test_a_checkpoint_whose_writer_was_killed_leaves_no_directory_behind(tmp_path: Path) -> None:
    store = store_of(LocalStorage(str(tmp_path)))
    store.claim()
    half = tmp_path / LIFE / "chk-0000000001" / f"{TEMPORARY}abc"
    half.parent.mkdir(parents=True)
    half.write_bytes(b"half a manifest")
    os.utime(half, (0, 0))
    store.publish(manifest(2, 1))
    store.retire(CheckpointId(2))
    assert store.storage.list("") == ["chk-0000000002"]


# --- Two at once ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("nth", range(12))
def test_a_retirement_that_hangs_while_others_overtake_it_deletes_nothing_that_is_named(nth: int) -> None:
    """One of its looks hangs for some checkpoint intervals; what it had listed before is gone meanwhile."""
    storage, store = claimed()
    base = share(storage, 1)
    for checkpoint in (1, 2, 3):
        store.publish(referring(checkpoint, 1, base))

    def others() -> None:
        for checkpoint in (4, 5, 6):
            store.publish(referring(checkpoint, 1, base))
            store_of_same(store).retire(CheckpointId(checkpoint - 1))

    for _ in range(nth):
        storage.then("list", lambda: None)
    storage.then("list", others)
    store.retire(CheckpointId(2))
    storage.calm()
    check_whole(store)
    assert store.listing().newest is not None


def store_of_same(store: CheckpointStore) -> CheckpointStore:
    """The same driver, as another of its threads."""
    twin = CheckpointStore(store._directory, "job", lineage=LIFE)
    twin._attempts.claims.extend(store._attempts.claims)
    return twin


@pytest.mark.parametrize("call", ["list", "read", "delete"])
@pytest.mark.parametrize("nth", range(10))
def test_a_driver_that_freezes_inside_a_retirement_and_is_overtaken_deletes_nothing_of_its_successor(
    call: str, nth: int
) -> None:
    storage, store = claimed()
    base = share(storage, 1)
    for checkpoint in (1, 2, 3):
        upload(storage, checkpoint, attempt=1)
        store.publish(referring(checkpoint, 1, base))
    successor = store_of(storage)

    def takes_over() -> None:
        claim = successor.claim()
        for checkpoint in range(claim.next_checkpoint, claim.next_checkpoint + 3):
            own = share(storage, checkpoint, attempt=2)
            successor.publish(referring(checkpoint, 2, base, own))
        successor.retire(CheckpointId(claim.next_checkpoint + 1))

    for _ in range(nth):
        storage.then(call, lambda: None)
    storage.then(call, takes_over)
    try:
        store.retire(CheckpointId(3))
    except OwnershipError:
        pass
    storage.calm()
    check_whole(store_of(storage))


def test_a_driver_that_was_overtaken_deletes_nothing_at_all() -> None:
    storage, store = claimed()
    upload(storage, 1, attempt=1)
    for checkpoint in (1, 2):
        store.publish(manifest(checkpoint, 1))
    store_of(storage).claim()
    storage.calls.clear()
    for act in (
        lambda: store.retire(CheckpointId(2)),
        store.finish,
        lambda: store.discard(CheckpointId(1), AttemptId(1)),
    ):
        with pytest.raises(OwnershipError):
            act()
    assert [path for call, path in storage.calls if call in ("delete", "publish")] == []


def test_nothing_is_swept_while_a_manifest_cannot_be_read() -> None:
    storage, store = claimed()
    base = share(storage, 1)
    for checkpoint in (1, 2, 3):
        store.publish(referring(checkpoint, 1, base))
    path = layout.manifest_path(CheckpointId(3))
    files_of(storage).write(path, files_of(storage).read(path).to_pybytes()[:-1])
    store_of_same(store).retire(CheckpointId(3))
    assert shared(storage) == [base.path]


def test_nothing_goes_while_the_manifest_that_is_kept_is_not_there() -> None:
    storage, store = claimed()
    base = share(storage, 1)
    for checkpoint in (1, 2):
        store.publish(referring(checkpoint, 1, base))
    path = layout.manifest_path(CheckpointId(2))
    taken = files_of(storage).read(path).to_pybytes()
    files_of(storage).delete(path)
    store.retire(CheckpointId(2))
    assert shared(storage) == [base.path], "checkpoints under way may build on it"
    assert layout.MANIFEST in files_of(storage).list("chk-0000000001"), "the user may want to go back to it"
    files_of(storage).write(path, taken)
    store.publish(referring(3, 1))
    store.retire(CheckpointId(3))
    assert (store.listing().valid, shared(storage)) == ((3,), [])


def test_claims_and_notes_of_long_ago_are_forgotten_but_never_the_newest() -> None:
    storage, store = claimed()
    for _ in range(3 * ATTEMPTS_KEPT):
        claim = store.claim()
    store.publish(manifest(claim.next_checkpoint, claim.attempt))
    store.retire(claim.next_checkpoint)
    left = [a for name in storage.list(layout.ATTEMPTS) if (a := layout.claimed_attempt(name)) is not None]
    assert left == list(range(claim.attempt - ATTEMPTS_KEPT + 1, claim.attempt + 1))
    assert newest(store_of(storage).claim()) == (claim.attempt + 1, claim.next_checkpoint)


# --- Other lineages ---------------------------------------------------------------------------------------


def test_a_start_in_progress_keeps_what_its_sources_have_copied() -> None:
    """The sources of the second are ready before it claims, while the first clears up."""
    storage = FaultyStorage()
    first, second = store_of(storage), store_of(storage, NEXT_LIFE)
    first.adopt("run-1", resume=False)
    first.claim()
    second.adopt("run-2", resume=False)
    for lineage in (LIFE, NEXT_LIFE):
        storage.write(f"{lineage}/sources/table/rows/part-0", b"rows")
    first.clear_others()
    second.claim()
    second.clear_others()
    assert storage.list(f"{NEXT_LIFE}/sources/table") == ["rows"]
    assert LIFE not in storage.list(""), "it has lost, and nobody needs what it copied"


def test_what_was_copied_for_a_start_that_died_before_its_claim_goes_with_the_next_start() -> None:
    """One that began behind the claim of that may go on, and what lost its notes is no start."""
    storage, finished = claimed()
    finished.finish()
    died, hangs, later = (store_of(storage, f"00000000{name}") for name in ("d1", "d2", "d3"))
    for number, start in enumerate((died, hangs)):
        start.adopt(f"run-{number}", resume=False)
        storage.write(f"{start.lineage}/sources/table/rows/part-0", b"rows")
    storage.write("00000000ee/chk-0000000001/manifest.json", b"{}")
    store = store_of(storage, NEXT_LIFE)
    store.adopt("run-2", resume=False)
    storage.fail("create", LOST)
    with pytest.raises(StorageUnavailable):
        store.claim()
    later.adopt("run-3", resume=False)
    storage.write(f"{later.lineage}/sources/table/rows/part-0", b"rows")
    store.claim()
    store.clear_others()
    assert [name for name in storage.list("") if layout.is_lineage(name)] == [later.lineage, "00000000ee"]
    with pytest.raises(OwnershipError, match="while this one was starting"):
        hangs.claim()


def test_what_is_left_of_a_lineage_is_found_by_its_notes_until_all_of_it_is_gone() -> None:
    storage, store = claimed()
    store.publish(referring(1, 1, upload(storage, 1, 1)))
    store.finish()
    following = store_of(storage, NEXT_LIFE)
    following.claim()
    storage.fail("delete", None, LOST)
    with pytest.raises(StorageUnavailable):
        following.clear_others()
    assert LIFE in {note.lineage for note in following._attempts.notes()}
    following.clear_others()
    assert {note.lineage for note in following._attempts.notes()} == {NEXT_LIFE}
    assert LIFE not in storage.list("")


# --- Going back -------------------------------------------------------------------------------------------


def test_going_back_restores_a_copy_that_no_late_delete_can_meet() -> None:
    storage, store = claimed()
    base = share(storage, 1)
    for checkpoint in (1, 2, 3):
        upload(storage, checkpoint, attempt=1)
        store.publish(referring(checkpoint, 1, base, upload(storage, checkpoint, 1)))
    back = store_of(storage)
    claim = back.claim(back_to=CheckpointId(2))
    assert claim.restore is not None and claim.restore.checkpoint > 3
    named = {file.path for file in claim.restore.files}
    assert len(named) == 2 and not named & {base.path, upload(storage, 2, 1).path}
    for name in files_of(storage).list(""):
        if layout.checkpoint_of(name) in (1, 2, 3):
            files_of(storage).delete(name)
    files_of(storage).delete(base.path)
    check_whole(back)
    assert newest(store_of(storage).claim())[1] == claim.restore.checkpoint, "later starts go on from there"


def test_going_back_to_what_is_not_there_or_not_whole_says_so() -> None:
    storage, store = claimed()
    store.publish(referring(1, 1, upload(storage, 1, 1)))
    with pytest.raises(CheckpointError, match=r"no checkpoint 7 to go back to; there are: chk-0000000001"):
        store_of(storage).claim(back_to=CheckpointId(7))
    files_of(storage).write(upload(storage, 1, 1).path, b"STATE")
    with pytest.raises(CorruptCheckpoint, match="checksum"):
        store_of(storage).claim(back_to=CheckpointId(1))


def test_what_was_to_be_retired_when_the_job_ended_goes_with_the_last_sweep() -> None:
    _, store = claimed()
    background = QueuedBackground()
    desk = RetirementDesk(store, background)
    for checkpoint in (1, 2, 3):
        store.publish(manifest(checkpoint, 1))
        desk.retire(CheckpointId(checkpoint))
    background.waiting.clear()
    store.finish()
    assert store.listing().valid == (3,)
