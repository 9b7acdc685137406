"""What is there of a lineage's checkpoints: what of it counts, and what is said when some of it is gone or damaged."""

from __future__ import annotations

import pytest

from tests.unit.runtime.fakes import FaultyStorage
from tests.unit.runtime.stores import claimed, files_of, manifest, newest, store_of
from weir.errors import CheckpointError, CorruptCheckpoint, OwnershipError
from weir.ids import CheckpointId
from weir.runtime.storage import layout
from weir.runtime.storage.checkpoints import CheckpointStore
from weir.snapshot.manifest import encode


def damaged(storage: FaultyStorage, checkpoint: int) -> None:
    path = layout.manifest_path(CheckpointId(checkpoint))
    files_of(storage).write(path, files_of(storage).read(path).to_pybytes()[:-1])


def with_checkpoints(*checkpoints: int) -> tuple[FaultyStorage, CheckpointStore]:
    storage, store = claimed()
    for checkpoint in checkpoints:
        store.publish(manifest(checkpoint, 1))
    return storage, store_of(storage)


def test_the_newest_checkpoint_that_cannot_be_read_stops_the_job_and_says_what_can_be_done() -> None:
    storage, store = with_checkpoints(1, 2)
    damaged(storage, 2)
    with pytest.raises(CorruptCheckpoint, match=r"chk-0000000002/manifest.json.*does not fall back by itself.*--at"):
        store.claim()


@pytest.mark.parametrize("gone", ["the manifest", "its directory", "all"])
def test_a_checkpoint_that_is_gone_is_never_fallen_back_from_in_silence(gone: str) -> None:
    storage, store = with_checkpoints(1, 2)
    directory = layout.checkpoint_directory(CheckpointId(2))
    files_of(storage).delete({"the manifest": f"{directory}/manifest.json", "its directory": directory}.get(gone, ""))
    with pytest.raises(CheckpointError, match=r"had completed checkpoint 2, and .*chk-0+2/manifest.json is gone"):
        store.claim()


def test_a_damaged_manifest_that_nobody_needs_blocks_nothing() -> None:
    """One is older than the newest; the other was never told to be complete: its writer was overtaken."""
    storage, _ = with_checkpoints(1, 2)
    overtaken = store_of(storage)
    third = overtaken.claim()
    store_of(storage).claim()
    with pytest.raises(OwnershipError):
        overtaken.publish(manifest(third.next_checkpoint, third.attempt))
    damaged(storage, 1)
    damaged(storage, third.next_checkpoint)
    assert newest(store_of(storage).claim())[1] == 2


@pytest.mark.parametrize("call", ["list", "read"])
@pytest.mark.parametrize("nth", range(6))
def test_a_listing_does_not_mind_a_retirement_at_the_same_time(call: str, nth: int) -> None:
    storage, store = with_checkpoints(1, 2)
    for _ in range(nth):
        storage.then(call, lambda: None)
    storage.then(call, lambda: files_of(storage).delete("chk-0000000001"))
    assert store.listing().valid in ((1, 2), (2,))
    assert store.claim().restore is not None


@pytest.mark.parametrize("name", ["attempts/0000000001.00000000aa.start", "attempts/0000000001.00000000aa.completed"])
def test_a_damaged_note_is_named_and_says_what_to_do(name: str) -> None:
    storage, store = with_checkpoints(1)
    storage.write(name, storage.read(name).to_pybytes()[:10])
    with pytest.raises(CorruptCheckpoint, match=rf"{name} \(10 bytes\) is not what was written.*backup.*--at"):
        store.claim()
    assert store.claim(back_to=CheckpointId(1)).restore is not None


def test_a_damaged_owner_is_named() -> None:
    storage, store = with_checkpoints(1)
    storage.write(layout.JOB_FILE, b"{")
    with pytest.raises(CorruptCheckpoint, match=r"job.json \(1 bytes\) is not what was written"):
        store.adopt("run-2", resume=True)


def test_a_manifest_of_another_job_in_our_directory_is_refused() -> None:
    storage, _ = with_checkpoints(1)
    files_of(storage).write(layout.manifest_path(CheckpointId(1)), encode(manifest(1, 1, job="theirs")))
    with pytest.raises(CheckpointError, match="belongs to job 'theirs', not 'job'"):
        store_of(storage).claim()
