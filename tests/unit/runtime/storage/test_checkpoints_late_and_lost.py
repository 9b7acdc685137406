"""The checkpoint directory when writes come late, starts break off, and notes are taken away."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.unit.runtime.driving import DELAY_MS, Stage
from tests.unit.runtime.fakes import FaultyStorage, Pass, QueuedBackground, Script, operator, plan_of, run_all
from tests.unit.runtime.stores import LIFE, NEXT_LIFE, files_of, manifest, newest, store_of
from weir.config import JobConfig
from weir.errors import CheckpointError, OwnershipError, StorageFull, StorageUnavailable
from weir.ids import AttemptId, CheckpointId
from weir.runtime.driver.claims import ClaimDesk
from weir.runtime.driver.compatibility import check_compatible
from weir.runtime.driver.notices import AttemptRunning
from weir.runtime.storage import layout
from weir.runtime.storage.attempts import current_lineage
from weir.runtime.storage.checkpoints import CheckpointStore, Claim
from weir.runtime.storage.layout import AttemptNote
from weir.runtime.storage.opening import open_storage
from weir.runtime.storage.stores.retry import Patience, PatientStorage
from weir.snapshot.manifest import encode
from weir.snapshot.records import seal, unseal

LOST = StorageUnavailable("the reply was lost")


def with_checkpoints(*ids: int, storage: FaultyStorage | None = None) -> tuple[FaultyStorage, CheckpointStore]:
    storage = storage or FaultyStorage()
    store = store_of(storage)
    store.adopt("run-1", resume=False)
    attempt = store.claim().attempt
    for id in ids:
        store.publish(manifest(id, attempt))
    return storage, store


def resumed(storage: FaultyStorage) -> CheckpointStore:
    store = store_of(storage, current_lineage(storage) or NEXT_LIFE, is_found=current_lineage(storage) is not None)
    store.check_free(True)
    store.adopt("run-2", resume=True)
    return store


# --- Writes whose outcome is not known ------------------------------------------------------------------


def test_a_lost_reply_and_then_no_room_does_not_make_a_manifest_that_is_there_one_that_is_not() -> None:
    storage = FaultyStorage()
    store = store_of(PatientStorage(storage, Patience(), pause_s=lambda seconds: None))
    attempt = store.claim().attempt
    storage.lose_reply("create", LOST)
    storage.fail("create", None, StorageFull("no room"))
    store.publish(manifest(1, attempt))
    assert store.listing().newest == 1


def test_no_room_behind_the_effect_is_looked_at_too() -> None:
    storage, store = with_checkpoints()
    storage.lose_reply("create", StorageFull("the directory could not be synced"))
    store.publish(manifest(1, AttemptId(1)))
    storage.fail("create", StorageFull("no room"))
    with pytest.raises(StorageFull):
        store.publish(manifest(2, AttemptId(1)))


def test_a_create_that_may_have_happened_does_not_end_as_no_room() -> None:
    storage = FaultyStorage()
    storage.fail("create", LOST, StorageFull("no room"))
    with pytest.raises(StorageUnavailable, match="an earlier try may have succeeded") as caught:
        PatientStorage(storage, Patience(), pause_s=lambda seconds: None).create("claim", b"mine")
    assert not isinstance(caught.value, StorageFull)


def test_a_publication_that_hung_until_the_next_attempt_ran_changes_nothing() -> None:
    stage = Stage().up().pass_ms(1_000).complete(1)
    stage.pass_ms(1_000).acknowledge(2)
    publish, done = stage.background.take(0)
    stage.fail("worker lost").stage_ends().pass_ms(DELAY_MS)
    run_all(stage.background)
    stage.register().run()
    assert stage.said(AttemptRunning)[-1].restored == 1
    with pytest.raises(StorageUnavailable, match="attempt 2 has begun meanwhile") as caught:
        publish()
    done(caught.value)
    stage.fail("worker lost").stage_ends().pass_ms(DELAY_MS)
    run_all(stage.background)
    stage.register().run()
    assert stage.said(AttemptRunning)[-1].restored == 1
    assert stage.driver.status == "running"


# --- Attempts beside the line of descent ----------------------------------------------------------------


def test_the_note_of_a_start_that_was_stuck_does_not_block_the_newer_one() -> None:
    storage, first = with_checkpoints(9)
    stuck, newer = resumed(storage), resumed(storage)
    stuck._attempts.take()
    taken, stuck._attempts.take = AttemptId(2), lambda above=0: AttemptId(2)  # type: ignore[method-assign]

    def meanwhile() -> None:
        with pytest.raises(OwnershipError):
            first.publish(manifest(10, AttemptId(1)))
        with pytest.raises(OwnershipError):
            stuck.claim()  # it finds 10, and notes that it starts from there

    real = newer._published.restored

    def looked(listing: Any) -> Any:
        found = real(listing)
        meanwhile()
        return found

    newer._published.restored = looked  # type: ignore[method-assign]
    assert newest(newer.claim()) == (taken + 1, 9)
    newer._published.restored = real  # type: ignore[method-assign]
    assert newest(newer.claim(given_out=CheckpointId(20))) == (taken + 2, 9)


def test_a_start_that_was_asked_to_go_back_and_broke_off_leaves_nothing_that_counts() -> None:
    storage, _ = with_checkpoints(3, 9)
    storage.fail("publish", RuntimeError("killed before its start is noted"))
    with pytest.raises(RuntimeError):
        resumed(storage).claim(CheckpointId(3))
    assert newest(resumed(storage).claim())[1] == 9


def test_a_going_back_that_was_overtaken_while_its_rival_looked_takes_nothing_from_the_line() -> None:
    storage, _ = with_checkpoints(1)
    back, plain = resumed(storage), resumed(storage)
    back._attempts.take()
    back._attempts.take = lambda above=0: AttemptId(2)  # type: ignore[method-assign]
    real = plain._published.restored

    def looked(listing: Any) -> Any:
        found = real(listing)
        with pytest.raises(OwnershipError):
            back.claim(CheckpointId(1))  # its start is noted all the same
        return found

    plain._published.restored = looked  # type: ignore[method-assign]
    assert newest(plain.claim()) == (3, 1)
    assert plain.listing().missing is None and plain.listing().valid == (1,)


def test_a_late_start_where_everything_was_deleted_is_not_gone_on_with() -> None:
    storage, _ = with_checkpoints(1)
    path = AttemptNote(AttemptId(1), LIFE, "start").path
    late = storage.read(path).to_pybytes()
    for name in ("attempts", LIFE, layout.JOB_FILE):
        storage.delete(name)
    anew = store_of(storage, NEXT_LIFE)
    anew.adopt("run-2", resume=False)
    anew.claim()
    storage.write(AttemptNote(AttemptId(7), LIFE, "start").path, late)
    assert current_lineage(storage) == NEXT_LIFE
    assert anew.claim().attempt == 8
    anew.finish()
    storage.write(AttemptNote(AttemptId(9), LIFE, "completed").path, late)
    store_of(storage, LIFE).check_free(resume=False)


def test_what_was_damaged_before_a_going_back_is_of_no_interest_after_it() -> None:
    storage, _ = with_checkpoints(3, 4)
    path = f"attempts/{1:010d}.{LIFE}.completed"
    storage.write(path, storage.read(path).to_pybytes()[:-5])
    back = resumed(storage)
    claim = back.claim(CheckpointId(4))
    back.publish(manifest(claim.next_checkpoint, claim.attempt))
    assert newest(back.claim()) == (claim.attempt + 1, claim.next_checkpoint)
    assert resumed(storage).restorable(None) is not None


def test_a_manifest_that_is_too_new_does_not_keep_from_going_back_to_another() -> None:
    storage, _ = with_checkpoints(4, 5)
    path = layout.manifest_path(CheckpointId(5))
    body = unseal(files_of(storage).read(path).to_pybytes(), "manifest")
    files_of(storage).write(path, seal({**body, "version": 99}))
    with pytest.raises(CheckpointError, match="version"):
        resumed(storage).restorable(None)
    assert newest(resumed(storage).claim(CheckpointId(4)))[1] is not None


def test_a_driver_that_was_overtaken_while_it_looked_says_so_and_misses_nothing() -> None:
    storage, _ = with_checkpoints(1)
    slow = resumed(storage)

    def meanwhile() -> None:
        newer = resumed(storage)
        attempt = newer.claim().attempt
        newer.publish(manifest(100, attempt))
        newer.retire(CheckpointId(100))

    listed = slow._attempts.completed

    def completed(notes: Any) -> Any:
        found = listed(notes)
        meanwhile()
        return found

    slow._attempts.completed = completed  # type: ignore[method-assign]
    real = slow.storage.list
    slow.storage.list = lambda path: [n for n in real(path) if "100" not in n]  # type: ignore[attr-defined]
    with pytest.raises(OwnershipError, match="taken over"):
        slow.claim()


# --- Notes and directories that are gone ------------------------------------------------------------------


def test_a_driver_whose_directory_was_deleted_commits_nothing_more() -> None:
    storage, first = with_checkpoints(1)
    for name in ("attempts", LIFE, layout.JOB_FILE):
        storage.delete(name)
    with pytest.raises(OwnershipError, match="is gone"):
        first.check_newest()
    second = store_of(storage, NEXT_LIFE)
    second.adopt("run-2", resume=True)
    assert second.claim().attempt == 1, "the same as the first has"
    for act in (lambda: first.publish(manifest(2, AttemptId(1))), first.claim, first.clear_others, first.finish):
        with pytest.raises(OwnershipError, match="is gone"):
            act()
    second.publish(manifest(1, AttemptId(1)))


def test_old_notes_that_a_bucket_rule_has_removed_cost_no_checkpoint() -> None:
    storage, _ = with_checkpoints(700, 701)
    for name in storage.list("attempts"):
        if name.endswith((".claim", ".start")):
            storage.delete(f"attempts/{name}")
    assert newest(resumed(storage).claim()) == (2, 701)


@pytest.mark.parametrize("resume", [False, True])
def test_checkpoints_without_any_notes_are_neither_forgotten_nor_cleared(resume: bool) -> None:
    storage, _ = with_checkpoints(1)
    storage.delete("attempts")
    with pytest.raises(CheckpointError, match=r"has checkpoints here, such as .*chk-0000000001"):
        store_of(storage, NEXT_LIFE).check_free(resume)
    storage.delete(layout.JOB_FILE)
    with pytest.raises(CheckpointError, match=r"has checkpoints here"):
        store_of(storage, NEXT_LIFE).check_free(resume)


def test_a_check_that_storage_cut_off_is_made_again() -> None:
    storage = FaultyStorage()
    _, early = with_checkpoints(storage=storage)
    late = store_of(storage, NEXT_LIFE)
    late.adopt("run-2", resume=False)
    early.publish(manifest(1, 1))
    storage.fail("read", StorageUnavailable("away"))
    with pytest.raises(StorageUnavailable):
        late.claim()
    with pytest.raises(OwnershipError, match="has checkpoints of an earlier run here"):
        late.claim()


# --- What is restored must fit ----------------------------------------------------------------------------


def claimed_by(desk: ClaimDesk, plan: Any, background: QueuedBackground) -> Claim | BaseException | None:
    heard: list[Claim | BaseException | None] = []
    for _ in range(2):
        desk.claim(plan, plan, heard.append)
        run_all(background)
    return heard[-1]


def desk_of(
    store: CheckpointStore, config: JobConfig, check: Callable[..., None]
) -> tuple[ClaimDesk, QueuedBackground]:
    background = QueuedBackground()
    return ClaimDesk(
        config, run="run-2", store=store, background=background, opener=open_storage, check=check
    ), background


@pytest.mark.parametrize("back_to", [None, CheckpointId(3)])
def test_state_that_the_job_has_no_operator_for_is_refused_also_when_going_back(back_to: CheckpointId | None) -> None:
    storage, _ = with_checkpoints(3, 9)
    plan = plan_of((1, [operator("src", Script()), operator("other", Pass())]))
    desk, background = desk_of(
        store_of(storage, is_found=True),
        JobConfig("job", resume=True, back_to=back_to),
        lambda found, at: check_compatible(found, plan, at, may_drop=False),
    )
    found = claimed_by(desk, plan, background)
    assert isinstance(found, CheckpointError) and "op (position): dropped: there is no operator" in str(found)


def test_ids_above_a_savepoint_are_taken_with_the_claim(tmp_path: Path) -> None:
    (tmp_path / layout.MANIFEST).write_bytes(encode(manifest(1_000, 7)))
    plan = plan_of((1, [operator("src", Script()), operator("op", Pass())]))
    config = JobConfig("job", resume=True, from_savepoint=str(tmp_path))
    storage = FaultyStorage()
    first, second = (desk_of(store_of(storage), config, lambda found, at: None) for _ in range(2))
    claim = claimed_by(first[0], plan, first[1])
    assert isinstance(claim, Claim) and claim.next_checkpoint == 1_001
    rival = claimed_by(second[0], plan, second[1])
    assert isinstance(rival, Claim) and rival.next_checkpoint >= claim.ids_below


def test_a_lease_behind_a_newer_claim_is_none() -> None:
    storage, first = with_checkpoints(1)
    resumed(storage).claim()
    with pytest.raises(OwnershipError):
        first.lease(AttemptId(1), CheckpointId(500))
