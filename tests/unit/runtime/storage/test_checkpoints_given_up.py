"""What drivers leave that have given up, and what users may still go to: healthy jobs are not disturbed by it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import pytest

from tests.unit.runtime.driving import running, two_tasks
from tests.unit.runtime.fakes import FaultyStorage, run_all
from tests.unit.runtime.job.test_handle import WITHIN_S, ObedientCluster
from tests.unit.runtime.storage.test_retirement import check_whole, referring, share, upload
from tests.unit.runtime.stores import LIFE, NEXT_LIFE, manifest, store_of
from weir.config import Checkpoints, FixedDelay, JobConfig, NoRestart, Settings
from weir.errors import JobError, OwnershipError, StorageUnavailable
from weir.ids import AttemptId, CheckpointId
from weir.runtime.driver.notices import JobEnded, SavepointCompleted
from weir.runtime.driver.sink_desk import SinkDesk
from weir.runtime.driver.verdicts import Failed
from weir.runtime.job import handle as job_module
from weir.runtime.job.asks import Ask, Asks
from weir.runtime.job.handle import Job
from weir.runtime.storage import layout
from weir.runtime.storage.checkpoints import CheckpointStore
from weir.runtime.storage.fsck import examined, repair
from weir.runtime.storage.opening import open_storage
from weir.snapshot.coordinator.events import CheckpointRequested, Then
from weir.snapshot.manifest import encode
from weir.snapshot.records import seal

LOST = StorageUnavailable("the reply was lost")


def begun(storage: FaultyStorage) -> CheckpointStore:
    """A driver that has completed two checkpoints, of which the second builds on the first."""
    store = store_of(storage)
    store.adopt("run-1", resume=False)
    store.claim()
    first = share(storage, 1)
    store.publish(referring(1, 1, first, upload(storage, 1, 1)))
    store.publish(referring(2, 1, first, share(storage, 2), upload(storage, 2, 1)))
    return store


def resumed(storage: FaultyStorage, run: str) -> CheckpointStore:
    """One that has looked, and has not claimed yet."""
    store = store_of(storage, is_found=True)
    store.adopt(run, resume=True)
    return store


def test_a_start_that_goes_back_and_is_overtaken_while_it_copies_publishes_nothing() -> None:
    storage = FaultyStorage()
    begun(storage)
    late, healthy = resumed(storage, "run-2"), store_of(storage, is_found=True)

    def overtake() -> None:
        healthy.adopt("run-3", resume=True)
        healthy.claim()

    storage.then("write", overtake)
    with pytest.raises(OwnershipError, match="taken over"):
        late.claim(CheckpointId(1))
    assert [name for name in storage.list(LIFE) if name.startswith("chk-")] == ["chk-0000000001", "chk-0000000002"]


def test_weir_fsck_takes_nothing_for_a_leftover_that_is_under_way_below_a_void_checkpoint() -> None:
    storage = FaultyStorage()
    begun(storage)
    healthy = resumed(storage, "run-2")
    claim = healthy.claim()
    number = claim.next_checkpoint
    # Of somebody who was overtaken, or has ended, just before its manifest was there, and has withdrawn its claim.
    gone = AttemptId(1_002)
    for path in (layout.claim_path(gone), layout.withdrawal_path(gone, LIFE)):
        storage.write(path, seal({"run": "run-3", "attempt": gone}))
    storage.write(f"{LIFE}/{layout.manifest_path(CheckpointId(number + 64))}", encode(manifest(number + 64, 1_002)))
    under_way = referring(number, claim.attempt, share(storage, number, claim.attempt), upload(storage, number, 2))
    report = examined(storage)
    assert report.is_whole
    assert repair(storage, report) == 0
    healthy.publish(under_way)
    check_whole(healthy)


def test_a_claim_whose_reply_was_lost_is_withdrawn_when_the_next_try_is_refused() -> None:
    storage = FaultyStorage()
    begun(storage)
    late, healthy = resumed(storage, "run-2"), store_of(storage, is_found=True)
    create = storage.create

    def hanging(path: str, data: Any) -> bool:
        storage.create = create  # type: ignore[method-assign]
        healthy.adopt("run-3", resume=True)
        healthy.claim()
        create(path, data)
        raise LOST

    storage.create = hanging  # type: ignore[method-assign]
    with pytest.raises(StorageUnavailable):
        late.claim(CheckpointId(1))
    with pytest.raises(OwnershipError, match="with attempt 2 while this one was starting"):
        late.claim(CheckpointId(1))
    healthy.publish(manifest(65, 2))


def test_a_job_that_is_cancelled_before_it_has_an_attempt_withdraws_what_it_may_have_claimed(
    monkeypatch: pytest.MonkeyPatch, eventually: Callable[..., Any]
) -> None:
    """By the job's own thread, behind the end of its driver: what waits in its background is dropped then."""
    storage = FaultyStorage()
    before = begun(storage)
    storage.lose_reply("create", None, *[LOST] * 100)
    monkeypatch.setattr(job_module, "SparkCluster", ObedientCluster)
    config = JobConfig("job", Checkpoints(every=None), FixedDelay(attempts=100, delay="1h"), Settings(), resume=True)
    store = store_of(storage, is_found=True)
    job = Job(
        two_tasks(),
        config,
        run="run-2",
        session=None,  # type: ignore[arg-type]
        store=store,
        opener=open_storage,
        storage_uri=None,
    )
    job.start()
    claim = layout.claim_path(AttemptId(2)).rpartition("/")[2]
    eventually(lambda: claim in storage.list(layout.ATTEMPTS), within_s=WITHIN_S)
    job.cancel()
    storage.calm()
    before.publish(manifest(3, 1))


def test_a_claim_that_goes_through_behind_the_end_and_whose_reply_is_lost_is_withdrawn() -> None:
    storage = FaultyStorage()
    before = begun(storage)
    late = resumed(storage, "run-2")
    storage.then("create", late.close)
    storage.lose_reply("create", LOST)
    with pytest.raises(StorageUnavailable):
        late.claim()
    before.publish(manifest(3, 1))


@pytest.mark.parametrize("note", ["ids", "completed", "finished"])
def test_an_attempt_whose_start_may_be_noted_is_not_withdrawn_whatever_else_is_refused_behind_the_end(
    note: Literal["ids", "completed", "finished"],
) -> None:
    storage = FaultyStorage()
    begun(storage)
    store = resumed(storage, "run-2")
    attempts = store._attempts
    attempts.note(attempts.take(), "start", {})
    attempts.close()
    with pytest.raises(OwnershipError):
        attempts.note(AttemptId(2), note, {})
    store.give_up()
    assert not [name for name in storage.list(layout.ATTEMPTS) if name.endswith(".withdrawn")]


def test_an_attempt_is_started_or_withdrawn_when_its_driver_ends_while_the_start_is_noted() -> None:
    storage = FaultyStorage()
    begun(storage)
    store = resumed(storage, "run-2")
    attempts = store._attempts
    attempt = attempts.take()
    publish = storage.publish

    def ending(path: str, data: bytes) -> None:
        storage.publish = publish  # type: ignore[method-assign]
        attempts.close()
        store.give_up()
        publish(path, data)

    storage.publish = ending  # type: ignore[method-assign]
    attempts.note(attempt, "start", {})
    assert not [name for name in storage.list(layout.ATTEMPTS) if name.endswith(".withdrawn")]


def test_sinks_are_not_told_to_forget_what_is_kept_beside_a_checkpoint_that_was_gone_back_to() -> None:
    storage = FaultyStorage()
    begun(storage)
    store = resumed(storage, "run-2")
    claim = store.claim(CheckpointId(1))
    store.publish(manifest(claim.next_checkpoint, claim.attempt))
    desk = SinkDesk(
        JobConfig("job", Checkpoints(every="1s", retain=2), NoRestart(), Settings()), LIFE, store.check_newest
    )
    assert desk._oldest_kept(store.claim()) is None
    store.publish(manifest(claim.next_checkpoint + 100, 1_003))
    store.retire(claim.next_checkpoint)
    assert desk._oldest_kept(store.claim()) == claim.next_checkpoint


@pytest.mark.parametrize("retain", [2, 3])
def test_what_is_beside_a_checkpoint_that_was_gone_back_to_is_kept_until_as_many_new_ones_are_complete(
    retain: int,
) -> None:
    storage = FaultyStorage()
    begun(storage)
    store = resumed(storage, "run-2")
    claim = store.claim(CheckpointId(1))
    completed = list(claim.completed)
    for new in range(1, retain + 1):
        completed.append(CheckpointId(claim.next_checkpoint + new))
        store.publish(manifest(completed[-1], claim.attempt))
        store.retire(completed[-retain:][0])
        if new == 1:  # A driver that takes over knows of it, too.
            store = resumed(storage, "run-3")
            claim = store.claim()
        there = [name for name in storage.list(LIFE) if name.startswith("chk-")]
        assert ("chk-0000000002" in there) == (new < retain)


def test_the_end_of_a_forgotten_driver_with_the_same_number_does_not_finish_the_run_that_is_there() -> None:
    storage = FaultyStorage()
    forgotten = begun(storage)
    backup = dict(storage._files)
    forgotten.claim()
    publish = storage.publish
    here: list[CheckpointStore] = []

    def hanging(path: str, data: bytes) -> None:
        storage.publish = publish  # type: ignore[method-assign]
        storage._files.clear()
        storage._files.update(backup)
        here.append(resumed(storage, "run-2"))
        here[0].claim()
        publish(path, data)

    storage.publish = hanging  # type: ignore[method-assign]
    with pytest.raises(OwnershipError):
        forgotten.finish()
    with pytest.raises(OwnershipError, match="has checkpoints of an earlier run here"):
        store_of(storage, NEXT_LIFE).adopt("run-3", resume=False)


def test_a_resume_looks_again_when_what_it_found_was_retired_during_the_look() -> None:
    storage = FaultyStorage()
    store = begun(storage)
    read = storage.read

    def slow(path: str) -> Any:
        if path.endswith("chk-0000000002/manifest.json"):
            storage.read = read  # type: ignore[method-assign]
            store.publish(referring(3, 1, upload(storage, 3, 1)))
            store.retire(CheckpointId(3))
        return read(path)

    storage.read = slow  # type: ignore[method-assign]
    found = store_of(storage, is_found=True).restorable(None)
    assert found is not None
    assert found.checkpoint == 3


def test_a_stop_whose_last_look_hangs_can_be_cancelled_and_is_one() -> None:
    stage = running()
    stage.driver.request(CheckpointRequested(None, Then.STOP, "stop"))
    stage.complete(1).commit(1).stage_ends()
    assert stage.driver.status == "stopping"
    stage.driver.cancel()
    assert stage.driver.status == "stopped"
    run_all(stage.background)
    assert len(stage.said(JobEnded)) == 1


def test_a_stop_that_is_cancelled_before_its_last_look_does_not_wait_for_it() -> None:
    stage = running()
    stage.driver.request(CheckpointRequested(None, Then.STOP, "stop"))
    stage.complete(1).commit(1)
    stage.driver.cancel()
    stage.stage_ends()
    assert stage.driver.status == "stopped"


def test_a_stop_that_failed_behind_its_savepoint_names_it() -> None:
    asks = Asks("job")
    told: list[str] = []
    ask = Ask("the stop", told.append, ends_job=True)
    asks.add(ask, is_running=True)
    asks.hear(SavepointCompleted(AttemptId(1), told[0], CheckpointId(1), "somewhere/sp-1"))
    asks.job_ended(Failed("why"))
    with pytest.raises(JobError, match="its savepoint is complete: somewhere/sp-1"):
        ask.future.result(0)
