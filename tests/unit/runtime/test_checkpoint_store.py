"""The checkpoint directory: who may use it, which checkpoints count, and what storage that fails can do to it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.unit.runtime.fakes import FaultyStorage
from weir.errors import CheckpointError, CorruptCheckpoint, OwnershipError, StorageFull, StorageUnavailable
from weir.ids import AttemptId, CheckpointId, Uid
from weir.runtime import layout
from weir.runtime.checkpoint_store import CheckpointStore, Claim
from weir.snapshot.manifest import VERSION, Manifest, OperatorSnapshot, PartOf, encode
from weir.snapshot.messages import FileRef, StatePart

LOST = StorageUnavailable("the reply was lost")


def store_of(storage: FaultyStorage, job: str = "job") -> CheckpointStore:
    return CheckpointStore(storage, job, retries_max=3)


def manifest(checkpoint: int, attempt: int, *, job: str = "job", marker: str = "") -> Manifest:
    operators = {Uid("op"): OperatorSnapshot(1, (PartOf(0, marker),))}
    return Manifest(VERSION, job, CheckpointId(checkpoint), AttemptId(attempt), 8, 0.0, operators)


def newest(claim: Claim) -> tuple[int, int | None]:
    """The attempt, and the checkpoint that it starts from."""
    return claim.attempt, claim.restore.checkpoint if claim.restore else None


# --- Adopting -----------------------------------------------------------------------------------------


def test_a_fresh_directory_is_taken() -> None:
    storage = FaultyStorage()
    assert store_of(storage).adopt("run-1", resume=False) is False
    assert store_of(storage).adopt("run-1", resume=False) is False


def test_resume_in_a_fresh_directory_begins_a_run() -> None:
    assert store_of(FaultyStorage()).adopt("run-1", resume=True) is False


def test_the_directory_of_another_job_is_refused_by_name_even_when_resuming() -> None:
    storage = FaultyStorage()
    store_of(storage, "theirs").adopt("run-1", resume=False)
    for resume in (False, True):
        with pytest.raises(OwnershipError, match=r"belongs to job 'theirs', not 'ours'; choose another location"):
            store_of(storage, "ours").adopt("run-2", resume=resume)


def run_with_checkpoint(storage: FaultyStorage, *, finished: bool) -> CheckpointStore:
    store = store_of(storage)
    store.adopt("run-1", resume=False)
    store.publish(manifest(1, store.claim().attempt))
    if finished:
        store.finish()
    return store


def test_checkpoints_of_an_unfinished_run_are_refused_unless_it_is_resumed() -> None:
    storage = FaultyStorage()
    run_with_checkpoint(storage, finished=False)
    with pytest.raises(OwnershipError, match="pass resume=True"):
        store_of(storage).adopt("run-2", resume=False)
    assert store_of(storage).adopt("run-2", resume=True) is True


def test_a_finished_run_makes_room_for_a_new_one() -> None:
    storage = FaultyStorage()
    run_with_checkpoint(storage, finished=True)
    second = store_of(storage)
    assert second.adopt("run-2", resume=False) is False
    claim = second.claim()
    assert newest(claim) == (2, None)
    second.publish(manifest(1, claim.attempt))
    with pytest.raises(OwnershipError):
        store_of(storage).adopt("run-3", resume=False)


def test_a_run_that_never_completed_a_checkpoint_makes_room_for_a_new_one() -> None:
    storage = FaultyStorage()
    first = store_of(storage)
    first.adopt("run-1", resume=False)
    first.claim()
    assert store_of(storage).adopt("run-2", resume=False) is False


def test_a_run_that_makes_room_cannot_complete_a_checkpoint_any_more() -> None:
    storage = FaultyStorage()
    first = store_of(storage)
    first.adopt("run-1", resume=False)
    attempt = first.claim().attempt
    store_of(storage).adopt("run-2", resume=False)
    with pytest.raises(OwnershipError, match="taken over"):
        first.publish(manifest(1, attempt))


def test_a_run_that_completes_its_first_checkpoint_while_we_look_is_not_cleared_away() -> None:
    storage = FaultyStorage()
    first = store_of(storage)
    first.adopt("run-1", resume=False)
    attempt = first.claim().attempt
    looks = 3  # the directory twice, then the attempts
    for _ in range(looks - 1):
        storage.then("list", lambda: None)
    storage.then("list", lambda: first.publish(manifest(1, attempt)))
    with pytest.raises(OwnershipError, match="pass resume=True"):
        store_of(storage).adopt("run-2", resume=False)
    assert first.listing().valid == (1,)


def test_a_resumed_run_is_not_finished_any_more() -> None:
    storage = FaultyStorage()
    run_with_checkpoint(storage, finished=True)
    assert store_of(storage).adopt("run-2", resume=True) is True
    with pytest.raises(OwnershipError, match="earlier run"):
        store_of(storage).adopt("run-3", resume=False)


def test_a_driver_that_was_overtaken_while_it_finished_does_not_end_the_other_run() -> None:
    storage = FaultyStorage()
    first, second = store_of(storage), store_of(storage)
    first.adopt("run-1", resume=False)
    first.publish(manifest(1, first.claim().attempt))
    second.adopt("run-2", resume=True)
    second.claim()
    with pytest.raises(OwnershipError, match="taken over"):
        first.finish()
    with pytest.raises(OwnershipError, match="earlier run"):
        store_of(storage).adopt("run-3", resume=False)


def test_adopting_again_after_a_lost_reply_finds_that_it_is_done() -> None:
    storage = FaultyStorage()
    storage.lose_reply("create", LOST)
    with pytest.raises(StorageUnavailable):
        store_of(storage).adopt("run-1", resume=False)
    assert store_of(storage).adopt("run-1", resume=False) is False


@pytest.mark.parametrize("call", ["list", "delete", "publish", "create", "read"])
@pytest.mark.parametrize("nth", range(4))
@pytest.mark.parametrize("done", [False, True])
def test_clearing_up_after_a_finished_run_may_be_cut_short_anywhere_and_repeated(
    call: str, nth: int, done: bool
) -> None:
    storage = FaultyStorage()
    run_with_checkpoint(storage, finished=True)
    (storage.lose_reply if done else storage.fail)(call, *[None] * nth, LOST)
    second = store_of(storage)
    try:
        second.adopt("run-2", resume=False)
    except StorageUnavailable:
        second.adopt("run-2", resume=False)
    storage.calm()
    assert storage.list("") == [layout.ATTEMPTS, layout.JOB_FILE]
    claim = second.claim()
    assert newest(claim)[1] is None
    second.publish(manifest(1, claim.attempt))
    with pytest.raises(OwnershipError):
        store_of(storage).adopt("run-3", resume=False)


# --- Claiming -----------------------------------------------------------------------------------------


def test_the_first_claim_starts_from_nothing() -> None:
    claim = store_of(FaultyStorage()).claim()
    assert (claim.attempt, claim.restore, claim.next_checkpoint, claim.completed) == (1, None, 1, ())


def test_a_claim_starts_from_the_newest_checkpoint_and_knows_the_others() -> None:
    store = store_of(FaultyStorage())
    attempt = store.claim().attempt
    store.publish(manifest(1, attempt))
    store.publish(manifest(2, attempt, marker="two"))
    claim = store.claim()
    assert newest(claim) == (2, 2)
    assert claim.restore == manifest(2, attempt, marker="two")
    assert (claim.next_checkpoint, claim.completed) == (3, (1, 2))


def test_an_attempt_that_another_driver_claims_first_is_left_to_it() -> None:
    storage = FaultyStorage()
    # Between our look into the directory and our claim another driver comes; the look lists twice.
    storage.then("list", lambda: None)
    storage.then("list", lambda: storage.create(layout.claim_path(AttemptId(1)), b"{}"))
    assert store_of(storage).claim().attempt == 2


def test_a_claim_is_recorded_with_the_writer_of_what_it_restores() -> None:
    storage = FaultyStorage()
    store = store_of(storage)
    store.publish(manifest(1, store.claim().attempt))
    store.claim()
    start = storage.read(layout.start_path(AttemptId(2))).to_pybytes()
    assert start == b'{"restored_from": 1, "writer": 1}'


def test_a_driver_that_was_overtaken_between_its_claim_and_its_start_does_not_run() -> None:
    storage = FaultyStorage()
    store = store_of(storage)
    store.publish(manifest(1, store.claim().attempt))
    storage.then("publish", lambda: store_of(storage).claim())
    with pytest.raises(OwnershipError, match=r"another driver has taken over job 'job' with attempt 3"):
        store.claim()


def test_a_driver_that_was_overtaken_does_not_take_the_job_back_when_it_restarts() -> None:
    storage = FaultyStorage()
    old, new = store_of(storage), store_of(storage)
    old.adopt("run-1", resume=False)
    old.publish(manifest(1, old.claim().attempt))
    new.adopt("run-2", resume=True)
    assert newest(new.claim()) == (2, 1)
    with pytest.raises(OwnershipError, match=r"taken over job .job. with attempt 2; this one \(attempt 1\) stops"):
        old.claim()
    assert newest(new.claim()) == (3, 1)


def test_a_claim_of_ours_whose_reply_was_lost_is_not_taken_for_another_drivers() -> None:
    storage = FaultyStorage()
    store = store_of(storage)
    store.adopt("run-1", resume=False)
    store.claim()
    storage.lose_reply("create", LOST)
    with pytest.raises(StorageUnavailable):
        store.claim()
    assert store.claim().attempt == 3


def test_a_manifest_that_an_old_attempt_writes_after_the_new_one_has_started_does_not_count() -> None:
    storage = FaultyStorage()
    old, new = store_of(storage), store_of(storage)
    first = old.claim()
    old.publish(manifest(1, first.attempt))
    second = new.claim()
    with pytest.raises(OwnershipError, match="taken over"):
        old.publish(manifest(2, first.attempt))
    assert new.listing().valid == (1,)
    new.publish(manifest(3, second.attempt))
    third = new.claim()
    assert newest(third) == (3, 3)
    assert third.completed == (1, 3)


def test_the_newest_checkpoint_that_cannot_be_read_stops_the_job_and_says_what_can_be_done() -> None:
    storage = FaultyStorage()
    store = store_of(storage)
    attempt = store.claim().attempt
    for checkpoint in (1, 2):
        store.publish(manifest(checkpoint, attempt))
    path = layout.manifest_path(CheckpointId(2))
    storage.write(path, storage.read(path).to_pybytes()[:-1])
    with pytest.raises(CorruptCheckpoint, match=r"chk-0000000002/manifest.json.*does not fall back by itself"):
        store.claim()
    storage.delete(layout.checkpoint_directory(CheckpointId(2)))
    claim = store.claim()
    assert newest(claim)[1] == 1


def test_a_manifest_of_another_job_in_our_directory_is_refused() -> None:
    storage = FaultyStorage()
    storage.write(layout.manifest_path(CheckpointId(1)), encode(manifest(1, 1, job="theirs")))
    with pytest.raises(CheckpointError, match="belongs to job 'theirs', not 'job'"):
        store_of(storage).claim()


# --- Publishing ---------------------------------------------------------------------------------------


def claimed() -> tuple[FaultyStorage, CheckpointStore]:
    storage = FaultyStorage()
    store = store_of(storage)
    store.claim()
    return storage, store


def test_a_write_that_happened_although_its_reply_was_lost_is_a_success() -> None:
    storage, store = claimed()
    storage.lose_reply("create", LOST)
    store.publish(manifest(1, 1))
    assert store.listing().valid == (1,)
    assert [call for call, _ in storage.calls if call == "create"] == ["create"] * 2  # the claim's and one more


def test_a_write_that_did_not_happen_is_tried_again() -> None:
    storage, store = claimed()
    storage.fail("create", LOST, LOST)
    store.publish(manifest(1, 1))
    assert store.listing().valid == (1,)


def test_when_every_try_fails_nobody_knows_and_that_is_what_is_said() -> None:
    storage, store = claimed()
    storage.fail("create", LOST, LOST, LOST)
    with pytest.raises(StorageUnavailable, match="checkpoint 1: its manifest could not be written in 3 tries"):
        store.publish(manifest(1, 1))


def test_an_unknown_outcome_that_cannot_be_looked_up_is_not_called_a_failure() -> None:
    storage, store = claimed()
    storage.lose_reply("create", LOST)
    storage.fail("read", LOST)
    with pytest.raises(StorageUnavailable) as caught:
        store.publish(manifest(1, 1))
    assert not isinstance(caught.value, StorageFull)
    assert newest(store.claim()) == (2, 1)  # It was there all the same, and counts.


def test_a_full_disk_is_told_at_once() -> None:
    storage, store = claimed()
    storage.fail("create", StorageFull("no room"))
    with pytest.raises(StorageFull):
        store.publish(manifest(1, 1))
    assert store.listing().valid == ()


def test_a_manifest_that_another_attempt_left_under_the_same_id_is_not_replaced() -> None:
    storage, store = claimed()
    path = layout.manifest_path(CheckpointId(5))
    storage.write(path, encode(manifest(5, 0)))
    with pytest.raises(FileExistsError, match="there already"):
        store.publish(manifest(5, 1))
    assert storage.read(path).to_pybytes() == encode(manifest(5, 0))


def test_a_checkpoint_that_is_published_twice_is_published_once() -> None:
    _, store = claimed()
    store.publish(manifest(1, 1))
    store.publish(manifest(1, 1))
    assert store.listing().valid == (1,)


def test_a_driver_that_was_taken_over_must_not_let_its_new_checkpoint_be_committed() -> None:
    storage, store = claimed()
    storage.then("create", lambda: store_of(storage).claim())
    with pytest.raises(OwnershipError, match=r"attempt 2; this one \(attempt 1\) stops and commits nothing more"):
        store.publish(manifest(1, 1))


# --- Cleaning up --------------------------------------------------------------------------------------


def upload(storage: FaultyStorage, checkpoint: int, attempt: int, uid: str = "op") -> FileRef:
    name = layout.state_name(Uid(uid), 0, "values")
    path = layout.state_path(CheckpointId(checkpoint), AttemptId(attempt), name)
    storage.write(path, b"state")
    return FileRef(path, 5, "")


def test_discarding_frees_the_files_of_that_attempt_only_and_leaves_a_mark() -> None:
    storage, store = claimed()
    upload(storage, 4, attempt=1)
    upload(storage, 4, attempt=11)
    store.discard(CheckpointId(4), AttemptId(1))
    assert storage.list("chk-0000000004") == ["a11-op-0-values", "aborted"]


def test_an_aborted_id_is_never_given_out_again() -> None:
    _, store = claimed()
    store.discard(CheckpointId(4), AttemptId(1))
    assert store.claim().next_checkpoint == 5


def test_discarding_what_is_retired_already_leaves_nothing_behind() -> None:
    storage, store = claimed()
    store.retire(CheckpointId(5))
    upload(storage, 4, attempt=1)
    store.discard(CheckpointId(4), AttemptId(1))
    assert "chk-0000000004" not in storage.list("")


def test_retiring_deletes_everything_older_manifests_first() -> None:
    storage, store = claimed()
    for checkpoint in (1, 2, 3):
        upload(storage, checkpoint, attempt=1)
    for checkpoint in (1, 3):
        store.publish(manifest(checkpoint, 1))
    storage.calls.clear()
    store.retire(CheckpointId(3))
    deleted = [path for call, path in storage.calls if call == "delete"]
    assert deleted.index("chk-0000000001/manifest.json") < deleted.index("chk-0000000001")
    assert [name for name in storage.list("") if layout.checkpoint_of(name)] == ["chk-0000000003"]
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
    assert storage.list("chk-0000000001") == ["a1-op-0-values"]
    store.retire(CheckpointId(2))
    assert "chk-0000000001" not in storage.list("")


def share(storage: FaultyStorage, checkpoint: int, attempt: int = 1) -> FileRef:
    path = layout.shared_path(CheckpointId(checkpoint), AttemptId(attempt), "op-0-values-0")
    storage.write(path, b"shared")
    return FileRef(path, 6, "")


def referring(checkpoint: int, attempt: int, *files: FileRef) -> Manifest:
    state = StatePart("arrow", {str(number): file for number, file in enumerate(files)})
    operators = {Uid("op"): OperatorSnapshot(1, (PartOf(0, None, {"values": state}),))}
    return replace(manifest(checkpoint, attempt), operators=operators)


def test_a_shared_file_goes_when_the_last_manifest_that_names_it_goes_and_not_before() -> None:
    storage, store = claimed()
    first, second = share(storage, 1), share(storage, 2)
    store.publish(referring(1, 1, first))
    store.publish(referring(2, 1, first, second))
    store.retire(CheckpointId(2))
    assert len(storage.list("shared")) == 2
    store.publish(referring(3, 1, second))
    store.retire(CheckpointId(3))
    assert [f"shared/{name}" for name in storage.list("shared")] == [second.path]
    store.publish(referring(4, 1))
    store.retire(CheckpointId(4))
    assert storage.list("shared") == []


def test_shared_files_of_a_checkpoint_under_way_are_left_alone() -> None:
    storage, store = claimed()
    store.publish(referring(1, 1, share(storage, 1)))
    share(storage, 2)
    store.retire(CheckpointId(1))
    assert len(storage.list("shared")) == 2


def test_discarding_frees_the_shared_files_that_the_attempt_wrote_for_that_checkpoint_only() -> None:
    storage, store = claimed()
    kept = [share(storage, 3), share(storage, 4, attempt=11), share(storage, 41)]
    share(storage, 4)
    store.discard(CheckpointId(4), AttemptId(1))
    assert [f"shared/{name}" for name in storage.list("shared")] == sorted(file.path for file in kept)


def test_finishing_sweeps_up_what_late_uploads_have_left() -> None:
    storage, store = claimed()
    store.publish(manifest(2, 1))
    store.retire(CheckpointId(2))
    upload(storage, 1, attempt=1)
    store.finish()
    assert [name for name in storage.list("") if layout.checkpoint_of(name)] == ["chk-0000000002"]
    assert layout.FINISHED_FILE in storage.list("")
