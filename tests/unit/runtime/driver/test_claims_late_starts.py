"""Starts that hang, and drivers that have ended while something of theirs hangs: they take nothing over."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.unit.runtime.fakes import FaultyStorage
from tests.unit.runtime.stores import LIFE, NEXT_LIFE, manifest, newest, store_of
from weir.errors import CheckpointError, OwnershipError, StorageUnavailable
from weir.ids import AttemptId, CheckpointId, Lineage
from weir.runtime.storage import layout
from weir.runtime.storage.attempts import current_lineage
from weir.runtime.storage.checkpoints import CheckpointStore
from weir.snapshot.checkpoints import Listing, PublishedCheckpoint
from weir.snapshot.records import seal


def running(storage: FaultyStorage) -> CheckpointStore:
    """A driver that has completed a checkpoint."""
    store = store_of(storage)
    store.adopt("run-1", resume=False)
    store.publish(manifest(1, store.claim().attempt))
    return store


@pytest.mark.parametrize("completes", [False, True])
@pytest.mark.parametrize("resume", [False, True])
def test_of_two_that_begin_at_once_the_first_to_claim_goes_on(completes: bool, resume: bool) -> None:
    """Each has drawn a lineage of its own. The other hangs meanwhile, for hours perhaps, and then changes nothing."""
    storage = FaultyStorage()
    first, second = store_of(storage), store_of(storage, NEXT_LIFE)
    second.adopt("run-2", resume=resume)
    first.adopt("run-1", resume=resume)
    attempt = first.claim().attempt
    if completes:
        first.publish(manifest(1, attempt))
    before = dict(storage._files)
    with pytest.raises(OwnershipError, match="with attempt 1 while this one was starting; start again"):
        second.claim()
    assert storage._files == before
    first.publish(manifest(2, attempt))
    assert current_lineage(storage) == LIFE


def test_a_start_takes_over_from_the_run_that_it_found_also_when_that_has_begun_another_attempt_since() -> None:
    storage = FaultyStorage()
    early = running(storage)
    started = store_of(storage, is_found=True)
    started.adopt("run-2", resume=True)
    early.claim()
    assert newest(started.claim()) == (3, 1)
    with pytest.raises(OwnershipError, match="taken over"):
        early.check_newest()


def test_a_driver_that_has_ended_claims_notes_and_deletes_nothing_any_more() -> None:
    storage = FaultyStorage()
    store = running(storage)
    store.publish(manifest(2, AttemptId(1)))
    waiting = store_of(storage, NEXT_LIFE)
    waiting.adopt("run-2", resume=True)
    for ended in (store, waiting):
        ended.close()
        before = dict(storage._files)
        for act in (ended.claim, ended.check_newest, ended.finish):
            with pytest.raises(OwnershipError, match="this driver has ended"):
                act()
        assert storage._files == before
    with pytest.raises(OwnershipError, match="this driver has ended"):
        store.retire(CheckpointId(2))


def test_a_claim_that_hangs_until_its_driver_has_ended_goes_no_further() -> None:
    storage = FaultyStorage()
    store = store_of(storage)
    store.adopt("run-1", resume=False)
    create = storage.create

    def hangs(path: str, data: bytes) -> bool:
        store.close()
        return create(path, data)

    storage.create = hangs  # type: ignore[method-assign]
    with pytest.raises(OwnershipError, match="this driver has ended"):
        store.claim()
    assert [name for name in storage.list(layout.ATTEMPTS) if not name.endswith((".claim", ".withdrawn"))] == []


@pytest.mark.parametrize("attempts", [1, 2])
def test_a_start_that_is_noted_late_where_all_was_deleted_does_not_overrule_the_run_that_is_there(
    attempts: int,
) -> None:
    storage = FaultyStorage()
    frozen = store_of(storage, "0000000001")
    frozen.adopt("run-0", resume=False)
    for _ in range(attempts):
        taken = frozen.claim().attempt
    storage.delete(layout.ATTEMPTS)
    store = running(storage)
    for _ in range(attempts - 1):
        store.claim()
    frozen._attempts.note(taken, "start", {"restored_from": None, "writer": None, "ids_below": 65, "origin": None})
    assert current_lineage(storage) == LIFE
    store.finish()
    assert store_of(storage, NEXT_LIFE)._attempts.is_finished()


def test_a_claim_that_lands_where_all_was_deleted_and_begun_anew_is_withdrawn() -> None:
    storage = FaultyStorage()
    hanging = store_of(storage, "0000000001")
    hanging.adopt("run-0", resume=False)
    hanging.claim()
    hanging.claim()
    begun: list[CheckpointStore] = []

    def anew() -> None:
        storage.delete(layout.ATTEMPTS)
        begun.append(running(storage))

    storage.then("list", anew)
    with pytest.raises(OwnershipError, match="what this driver has noted about attempt 2 is gone"):
        hanging.claim()
    assert current_lineage(storage) == LIFE
    begun[0].publish(manifest(2, AttemptId(1)))  # not stopped by a claim that nobody goes on with


def test_a_first_claim_that_is_refused_stops_nobody() -> None:
    storage = FaultyStorage()
    store = store_of(storage)
    store.adopt("run-1", resume=False)
    attempt = store.claim().attempt
    late = store_of(storage, NEXT_LIFE)
    late.adopt("run-2", resume=False)
    store.publish(manifest(1, attempt))
    with pytest.raises(OwnershipError, match="pass resume=True"):
        late.claim()
    store.publish(manifest(2, attempt))


@pytest.mark.parametrize("lost", ["the look behind it", "its reply"])
def test_a_start_that_is_refused_withdraws_the_claims_of_earlier_tries_too(lost: str) -> None:
    storage = FaultyStorage()
    runs = store_of(storage)
    runs.adopt("run-1", resume=False)
    attempt = runs.claim().attempt
    refused = store_of(storage, NEXT_LIFE)
    refused.adopt("run-2", resume=False)
    runs.publish(manifest(1, attempt))
    if lost == "its reply":
        storage.lose_reply("create", StorageUnavailable("away"))
    else:
        storage.then("create", lambda: storage.fail("list", StorageUnavailable("away")))
    with pytest.raises(StorageUnavailable):
        refused.claim()
    with pytest.raises(OwnershipError, match="pass resume=True"):
        refused.claim()
    assert [a for name in storage.list(layout.ATTEMPTS) if (a := layout.claimed_attempt(name))] == [1, 2, 3]
    runs.publish(manifest(2, attempt))


@pytest.mark.parametrize("moment", ["create", "note"])
def test_the_claim_of_a_driver_that_has_ended_stops_nobody(moment: str) -> None:
    storage = FaultyStorage()
    runs = running(storage)
    ended = store_of(storage, is_found=True)
    ended.adopt("run-2", resume=True)
    if moment == "create":
        storage.then("create", ended.close)
    else:
        listing = ended.listing

        def hangs() -> Listing:
            found = listing()
            ended.close()
            return found

        ended.listing = hangs  # type: ignore[method-assign]
    with pytest.raises(OwnershipError, match="this driver has ended"):
        ended.claim()
    runs.publish(manifest(2, AttemptId(1)))


@pytest.mark.parametrize("lineage", [LIFE, NEXT_LIFE])
def test_an_attempt_whose_start_may_be_noted_is_not_withdrawn(lineage: Lineage) -> None:
    """What a resume would go on with must stop whoever runs: its note may be there, or land in hours."""
    storage = FaultyStorage()
    runs = store_of(storage)
    runs.adopt("run-1", resume=False)
    attempt = runs.claim().attempt
    other = store_of(storage, lineage, is_found=lineage == LIFE)
    other.adopt("run-2", resume=lineage == LIFE)
    storage.lose_reply("publish", StorageUnavailable("away"))
    with pytest.raises(StorageUnavailable):
        other.claim()
    storage.then("create", other.close)
    with pytest.raises(OwnershipError, match="this driver has ended"):
        other.claim()
    with pytest.raises(OwnershipError, match="taken over job 'job' with attempt 2"):
        runs.publish(manifest(1, attempt))


def test_a_start_goes_on_though_the_claim_that_it_found_is_forgotten_by_now() -> None:
    storage = FaultyStorage()
    runs = running(storage)
    waiting = store_of(storage, is_found=True)
    waiting.adopt("run-2", resume=True)
    runs.claim()
    storage.delete(layout.claim_path(AttemptId(1)))
    assert waiting.claim().attempt == 3


def test_going_back_to_what_is_retired_meanwhile_stops_nobody() -> None:
    storage = FaultyStorage()
    runs = running(storage)
    runs.publish(manifest(2, AttemptId(1)))
    start = store_of(storage, is_found=True)
    start.adopt("run-2", resume=True)
    runs.retire(CheckpointId(2))
    with pytest.raises(CheckpointError, match="has no checkpoint 1 to go back to; there are: chk-0000000002"):
        start.claim(CheckpointId(1))
    listing = start.listing
    start.listing = lambda: replace(  # type: ignore[method-assign]
        listing(), published=(PublishedCheckpoint(CheckpointId(1), AttemptId(1)),)
    )
    with pytest.raises(CheckpointError, match="checkpoint 1 was retired, or taken away, while this driver looked"):
        start.claim(CheckpointId(1))
    runs.publish(manifest(3, AttemptId(1)))


def test_a_start_that_goes_back_and_hangs_in_its_claim_gives_way_to_one_that_began_later() -> None:
    """Their numbers are far apart, so that neither is refused by the other's."""
    storage = FaultyStorage()
    running(storage)
    hangs = store_of(storage, is_found=True)
    hangs.adopt("run-2", resume=True)
    later: list[CheckpointStore] = []

    def started() -> None:
        later.append(store_of(storage, is_found=True))
        later[0].adopt("run-3", resume=True)
        assert later[0].claim().attempt == 2

    create = storage.create

    def hanging(path: str, data: bytes) -> bool:
        storage.create = create  # type: ignore[method-assign]
        started()
        return create(path, data)

    storage.create = hanging  # type: ignore[method-assign]
    with pytest.raises(OwnershipError, match="with attempt 2 while this one was starting"):
        hangs.claim(CheckpointId(1))
    later[0].publish(manifest(65, 2))


def test_a_number_that_was_withdrawn_is_not_claimed_again() -> None:
    storage = FaultyStorage()
    first, waiting, third = store_of(storage), store_of(storage), store_of(storage)
    first.adopt("run-1", resume=True)
    attempt = first.claim().attempt
    waiting.adopt("run-2", resume=True)
    first._attempts.withdraw(attempt)
    third.adopt("run-3", resume=True)
    assert third.claim().attempt == attempt + 1
    with pytest.raises(OwnershipError, match="while this one was starting"):
        waiting.claim()


def test_a_withdrawal_that_lands_late_gives_up_no_claim_of_another_run() -> None:
    """Its directory was deleted and begun anew, and somebody else has the same number there."""
    storage = FaultyStorage()
    late = store_of(storage)
    late.adopt("run-0", resume=False)
    late.claim()
    taken = late.claim().attempt
    storage.delete(layout.ATTEMPTS)
    older, newer = store_of(storage), store_of(storage, is_found=True)
    older.adopt("run-1", resume=False)
    older.claim()
    newer.adopt("run-2", resume=True)
    assert newer.claim().attempt == taken
    late._attempts.withdraw(taken)
    with pytest.raises(OwnershipError, match="taken over"):
        older.check_newest()
    newer.check_newest()


def test_a_start_that_finds_a_withdrawn_claim_takes_over_from_the_run_below_it() -> None:
    storage = FaultyStorage()
    runs = store_of(storage)
    runs.adopt("run-1", resume=False)
    attempt = runs.claim().attempt
    refused = store_of(storage, NEXT_LIFE)
    refused.adopt("run-2", resume=False)
    runs.publish(manifest(1, attempt))
    with pytest.raises(OwnershipError, match="pass resume=True"):
        refused.claim()
    started = store_of(storage, is_found=True)
    started.adopt("run-3", resume=True)
    assert runs.claim().attempt == 3  # It restarts its tasks, stopped by nobody.
    assert newest(started.claim()) == (4, 1)


def test_a_damaged_withdrawal_withdraws_nothing() -> None:
    storage = FaultyStorage()
    runs = running(storage)
    storage.write(layout.claim_path(AttemptId(2)), seal({"run": "run-2", "attempt": 2}))
    storage.write(layout.withdrawal_path(AttemptId(2), LIFE), b"{")
    with pytest.raises(OwnershipError, match="taken over"):
        runs.check_newest()
