"""The checkpoint directory: who may use it, which checkpoints count, and what storage that fails can do to it."""

from __future__ import annotations

import pytest

from tests.unit.runtime.fakes import FaultyStorage
from tests.unit.runtime.stores import LIFE, NEXT_LIFE, claimed, files_of, manifest, newest, store_of
from weir.errors import OwnershipError, StorageFull, StorageUnavailable
from weir.ids import AttemptId, CheckpointId
from weir.runtime.storage import layout
from weir.runtime.storage.attempts import current_lineage
from weir.runtime.storage.checkpoints import IDS_LEASED, CheckpointStore
from weir.runtime.storage.layout import AttemptNote
from weir.snapshot.manifest import encode
from weir.snapshot.records import seal, unseal

LOST = StorageUnavailable("the reply was lost")


# --- Adopting -----------------------------------------------------------------------------------------


def test_a_start_that_is_tried_again_is_refused_when_another_has_begun_meanwhile() -> None:
    """Its first try made the job's file, and got no reply: that it is there says nothing of what came since."""
    storage = FaultyStorage()
    slow = store_of(storage)
    slow.adopt("run-1", resume=False)
    quick = store_of(storage, NEXT_LIFE)
    quick.adopt("run-2", resume=True)
    claim = quick.claim()
    quick.publish(manifest(1, claim.attempt))
    with pytest.raises(OwnershipError, match="has checkpoints of an earlier run"):
        slow.adopt("run-1", resume=False)


def test_a_fresh_directory_is_taken_also_when_resuming() -> None:
    for resume in (False, True):
        storage = FaultyStorage()
        store_of(storage).adopt("run-1", resume=resume)
        store_of(storage).adopt("run-1", resume=resume)


def test_the_directory_of_another_job_is_refused_by_name_even_when_resuming() -> None:
    storage = FaultyStorage()
    store_of(storage, job="theirs").adopt("run-1", resume=False)
    for resume in (False, True):
        with pytest.raises(OwnershipError, match=r"belongs to job 'theirs', not 'ours'; choose another location"):
            store_of(storage, job="ours").adopt("run-2", resume=resume)


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
        store_of(storage, NEXT_LIFE).adopt("run-2", resume=False)
    store_of(storage).adopt("run-2", resume=True)


def test_a_finished_run_makes_room_for_a_new_one_in_a_lineage_of_its_own() -> None:
    storage = FaultyStorage()
    run_with_checkpoint(storage, finished=True)
    assert current_lineage(storage) == LIFE
    second = store_of(storage, NEXT_LIFE)
    second.adopt("run-2", resume=False)
    claim = second.claim()
    assert newest(claim) == (2, None)
    assert claim.next_checkpoint == 1, "ids are those of a lineage"
    second.clear_others()
    assert storage.list("") == [layout.ATTEMPTS, layout.JOB_FILE]
    second.publish(manifest(1, claim.attempt))
    assert current_lineage(storage) == NEXT_LIFE
    with pytest.raises(OwnershipError):
        store_of(storage, "00000000cc").adopt("run-3", resume=False)


def test_a_run_that_never_completed_a_checkpoint_makes_room_and_cannot_complete_one_any_more() -> None:
    storage = FaultyStorage()
    first = store_of(storage)
    first.adopt("run-1", resume=False)
    attempt = first.claim().attempt
    second = store_of(storage, NEXT_LIFE)
    second.adopt("run-2", resume=False)
    second.claim()
    with pytest.raises(OwnershipError, match="taken over"):
        first.publish(manifest(1, attempt))


def test_a_run_that_completes_its_first_checkpoint_while_we_look_is_not_cleared_away() -> None:
    storage = FaultyStorage()
    first = store_of(storage)
    first.adopt("run-1", resume=False)
    attempt = first.claim().attempt
    second = store_of(storage, NEXT_LIFE)
    second.adopt("run-2", resume=False)
    first.publish(manifest(1, attempt))
    with pytest.raises(OwnershipError, match="pass resume=True"):
        second.claim()
    assert current_lineage(storage) == LIFE, "a resume goes on with it"
    assert first.listing().valid == (1,)


def test_two_runs_that_begin_anew_at_once_clear_nothing_of_each_other() -> None:
    """Both found the directory free; the second has a checkpoint when the first goes on."""
    storage = FaultyStorage()
    run_with_checkpoint(storage, finished=True)
    first, second = store_of(storage, NEXT_LIFE), store_of(storage, "00000000cc")
    first.adopt("run-2", resume=False)
    first.claim()
    second.adopt("run-3", resume=False)
    second.publish(manifest(1, second.claim().attempt))
    with pytest.raises(OwnershipError, match="taken over"):
        first.clear_others()
    assert second.listing().valid == (1,)


@pytest.mark.parametrize("is_cleared", [False, True])
def test_a_lineage_that_was_begun_while_a_resume_looked_is_not_overruled_by_the_old_one(is_cleared: bool) -> None:
    storage = FaultyStorage()
    run_with_checkpoint(storage, finished=True)
    resumed, begun = store_of(storage, is_found=True), store_of(storage, NEXT_LIFE)
    begun.adopt("run-3", resume=False)
    begun.claim()
    if is_cleared:
        begun.clear_others()
    resumed.adopt("run-2", resume=True)
    with pytest.raises(OwnershipError, match="started anew or deleted by somebody else"):
        resumed.claim()


def test_a_resumed_run_is_not_finished_any_more() -> None:
    storage = FaultyStorage()
    run_with_checkpoint(storage, finished=True)
    second = store_of(storage)
    second.adopt("run-2", resume=True)
    second.claim()
    with pytest.raises(OwnershipError, match="earlier run"):
        store_of(storage, NEXT_LIFE).adopt("run-3", resume=False)


def test_a_driver_that_was_overtaken_while_it_finished_does_not_end_the_other_run() -> None:
    storage = FaultyStorage()
    first, second = run_with_checkpoint(storage, finished=False), store_of(storage)
    second.adopt("run-2", resume=True)
    second.claim()
    with pytest.raises(OwnershipError, match="taken over"):
        first.finish()
    with pytest.raises(OwnershipError, match="earlier run"):
        store_of(storage, NEXT_LIFE).adopt("run-3", resume=False)


def test_a_note_that_a_run_is_finished_which_comes_late_does_not_end_the_run_that_goes_on() -> None:
    """The driver had looked, then froze; another has resumed the job since."""
    storage = FaultyStorage()
    first, second = run_with_checkpoint(storage, finished=False), store_of(storage)
    second.adopt("run-2", resume=True)
    storage.then("list", lambda: second.claim())
    with pytest.raises(OwnershipError, match="taken over"):
        first.finish()
    assert f"attempts/0000000001.{LIFE}.finished" in [path for call, path in storage.calls if call == "publish"]
    with pytest.raises(OwnershipError, match="earlier run"):
        store_of(storage, NEXT_LIFE).adopt("run-3", resume=False)


def test_adopting_again_after_a_lost_reply_finds_that_it_is_done() -> None:
    storage = FaultyStorage()
    storage.lose_reply("create", LOST)
    with pytest.raises(StorageUnavailable):
        store_of(storage).adopt("run-1", resume=False)
    store_of(storage).adopt("run-1", resume=False)


@pytest.mark.parametrize("call", ["list", "delete", "publish", "create", "read"])
@pytest.mark.parametrize("nth", range(4))
@pytest.mark.parametrize("done", [False, True])
def test_clearing_up_after_a_finished_run_may_be_cut_short_anywhere_and_repeated(
    call: str, nth: int, done: bool
) -> None:
    storage = FaultyStorage()
    run_with_checkpoint(storage, finished=True)
    second = store_of(storage, NEXT_LIFE)
    second.adopt("run-2", resume=False)
    claim = second.claim()
    (storage.lose_reply if done else storage.fail)(call, *[None] * nth, LOST)
    try:
        second.clear_others()
    except StorageUnavailable:
        second.clear_others()
    storage.calm()
    assert storage.list("") == [layout.ATTEMPTS, layout.JOB_FILE]
    second.publish(manifest(1, claim.attempt))
    with pytest.raises(OwnershipError):
        store_of(storage, "00000000cc").adopt("run-3", resume=False)


def test_what_is_not_ours_is_never_cleared() -> None:
    storage = FaultyStorage()
    run_with_checkpoint(storage, finished=True)
    theirs = [
        "thesis.txt",
        "photos/1.jpg",
        f"{LIFE}/mine.txt",
        f"{LIFE}/chk-0000000001/mine.txt",
        f"{LIFE}/shared/mine",
    ]
    theirs += ["savepoints/job-1/manifest.json"]
    for path in theirs:
        storage.write(path, b"x")
    second = store_of(storage, NEXT_LIFE)
    second.adopt("run-2", resume=False)
    second.claim()
    second.clear_others()
    for path in theirs:
        assert storage.read(path).to_pybytes() == b"x"
    assert storage.list(f"{LIFE}/chk-0000000001") == ["mine.txt"]


# --- Claiming -----------------------------------------------------------------------------------------


def test_the_first_claim_starts_from_nothing() -> None:
    claim = store_of(FaultyStorage()).claim()
    assert (claim.attempt, claim.restore, claim.next_checkpoint, claim.completed) == (1, None, 1, ())
    assert claim.ids_below == 1 + IDS_LEASED


def test_a_claim_starts_from_the_newest_checkpoint_and_knows_the_others() -> None:
    store = store_of(FaultyStorage())
    attempt = store.claim().attempt
    store.publish(manifest(1, attempt))
    store.publish(manifest(2, attempt, marker="two"))
    claim = store.claim()
    assert newest(claim) == (2, 2)
    assert claim.restore == manifest(2, attempt, marker="two")
    assert (claim.next_checkpoint, claim.completed) == (3, (1, 2))


def test_ids_that_another_driver_may_still_give_out_are_never_given_out_again() -> None:
    """It has triggered checkpoints of which storage shows nothing yet; some of its files are in shared/ alone."""
    storage = FaultyStorage()
    first = store_of(storage)
    claim = first.claim()
    first.lease(claim.attempt, CheckpointId(200))
    files_of(storage).write(layout.shared_path(CheckpointId(210), claim.attempt, "op-0-s-0"), b"x")
    assert store_of(storage).claim().next_checkpoint == 211
    assert first.listing().next_checkpoint(frozenset({claim.attempt})) >= 211


def test_a_driver_goes_on_with_its_own_ids_when_it_restarts() -> None:
    store = store_of(FaultyStorage())
    store.claim()
    assert store.claim(given_out=CheckpointId(7)).next_checkpoint == 7


def test_an_attempt_that_another_driver_claims_first_is_left_to_it() -> None:
    storage = FaultyStorage()
    storage.then("list", lambda: storage.create(layout.claim_path(AttemptId(1)), b"{}"))
    assert store_of(storage).claim().attempt == 2


def test_a_claim_is_noted_with_the_writer_of_what_it_restores() -> None:
    storage = FaultyStorage()
    store = store_of(storage)
    store.publish(manifest(1, store.claim().attempt))
    store.claim()
    start = unseal(storage.read(AttemptNote(AttemptId(2), LIFE, "start").path).to_pybytes(), "the start")
    assert start == {"restored_from": 1, "writer": 1, "ids_below": 2 + IDS_LEASED, "origin": None, "run": ""}


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
    new.publish(manifest(second.next_checkpoint, second.attempt))
    third = new.claim()
    assert newest(third) == (3, second.next_checkpoint)
    assert third.completed == (1, second.next_checkpoint)


# --- Publishing ---------------------------------------------------------------------------------------


def test_a_write_that_happened_although_its_reply_was_lost_is_a_success() -> None:
    storage, store = claimed()
    storage.lose_reply("create", LOST)
    store.publish(manifest(1, 1))
    assert store.listing().valid == (1,)
    assert [call for call, _ in storage.calls if call == "create"] == ["create"] * 2  # the claim's and one more


def test_a_write_that_did_not_happen_may_still_and_nobody_knows() -> None:
    storage, store = claimed()
    storage.fail("create", LOST)
    with pytest.raises(StorageUnavailable):
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


def test_a_disk_that_is_full_behind_the_manifest_does_not_unmake_the_checkpoint() -> None:
    storage, store = claimed()
    storage.fail("publish", StorageFull("no room"))
    with pytest.raises(StorageUnavailable) as caught:
        store.publish(manifest(1, 1))
    assert not isinstance(caught.value, StorageFull), "or the coordinator would take it for one that does not exist"
    assert newest(store.claim()) == (2, 1)


def test_a_manifest_that_is_there_under_the_same_id_is_not_replaced() -> None:
    storage, store = claimed()
    path = layout.manifest_path(CheckpointId(5))
    files_of(storage).write(path, encode(manifest(5, 0)))
    with pytest.raises(FileExistsError, match="there already"):
        store.publish(manifest(5, 1))
    assert files_of(storage).read(path).to_pybytes() == encode(manifest(5, 0))


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


def test_a_record_of_another_job_is_sealed_like_any_other() -> None:
    assert unseal(seal({"job": "x"}), "it") == {"job": "x"}
