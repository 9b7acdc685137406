"""Checkpoints whose notes are gone: the user names the one to go on from, and nothing of it is lost."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.unit.runtime.fakes import FaultyStorage
from tests.unit.runtime.stores import LIFE, NEXT_LIFE, manifest, newest, store_of
from weir.config import JobConfig
from weir.errors import CheckpointError, OwnershipError
from weir.ids import CheckpointId, Lineage, Uid
from weir.runtime.job.launch import _store
from weir.runtime.storage import layout
from weir.runtime.storage.attempts import ATTEMPTS_SKIPPED, current_lineage
from weir.runtime.storage.checkpoints import CheckpointStore
from weir.runtime.storage.fsck import examined
from weir.runtime.storage.lost_notes import checkpoints_of, lost_lineages
from weir.snapshot.commit import pending_of
from weir.snapshot.manifest import OperatorSnapshot, PartOf
from weir.snapshot.parts import PendingEpochs

PENDING = PendingEpochs(((CheckpointId(2), "part-1"),))


def written(storage: FaultyStorage, lineage: Lineage, *ids: int, attempts: int = 1) -> None:
    store = store_of(storage, lineage)
    store.adopt(f"run of {lineage}", resume=False)
    for _ in range(attempts):
        attempt = store.claim().attempt
    for id in ids:
        operators = {Uid("out"): OperatorSnapshot(1, (PartOf(0, PENDING),))}
        store.publish(replace(manifest(id, attempt), operators=operators))


def going_back(
    storage: FaultyStorage, checkpoint: int, lineage: Lineage | None = None, run: str = "later"
) -> CheckpointStore:
    """What a launch does with `--resume --at`."""
    config = JobConfig("job", resume=True, back_to=CheckpointId(checkpoint), back_to_lineage=lineage)
    store = _store(config, storage, current_lineage(storage))
    store.check_free(True)
    store.restorable(config.back_to)
    store.adopt(run, resume=True)
    return store


@pytest.mark.parametrize("lineage", [None, LIFE])
def test_the_checkpoint_that_a_user_names_is_gone_on_from_with_what_it_has_to_commit(lineage: Lineage | None) -> None:
    storage = FaultyStorage()
    written(storage, LIFE, 1, 2, attempts=3)
    storage.delete(layout.ATTEMPTS)
    store = going_back(storage, 2, lineage)
    claim = store.claim(CheckpointId(2))
    assert (store.lineage, claim.attempt) == (LIFE, 3 + ATTEMPTS_SKIPPED + 1)
    assert claim.restore is not None and pending_of(claim.restore, Uid("out")) == ["part-1"]
    assert claim.restore.checkpoint > 2
    store.publish(manifest(claim.next_checkpoint, claim.attempt))
    assert current_lineage(storage) == LIFE and lost_lineages(storage) == []
    resumed = store_of(storage, LIFE, is_found=True)
    resumed.adopt("the next", resume=True)
    assert newest(resumed.claim()) == (claim.attempt + 1, claim.next_checkpoint)


def test_a_plain_start_is_refused_and_says_how_to_go_on() -> None:
    storage = FaultyStorage()
    written(storage, LIFE, 1, 2)
    storage.delete(layout.ATTEMPTS)
    for resume in (False, True):
        with pytest.raises(CheckpointError, match=rf"weir run --resume --at {LIFE}/chk-0000000002"):
            _store(JobConfig("job", resume=resume), storage, None).check_free(resume)


def test_of_two_lineages_without_notes_the_user_names_one() -> None:
    storage = FaultyStorage()
    written(storage, LIFE, 1)
    storage.delete(layout.ATTEMPTS)
    backup = {path: storage.read(path) for path in [f"{LIFE}/chk-0000000001/manifest.json"]}
    storage.delete(LIFE)
    written(storage, NEXT_LIFE, 1)
    storage.delete(layout.ATTEMPTS)
    for path, data in backup.items():
        storage.write(path, data)
    with pytest.raises(CheckpointError, match=rf"--at {LIFE}/chk-0000000001, {NEXT_LIFE}/chk-0000000001"):
        going_back(storage, 1)
    with pytest.raises(CheckpointError, match=rf"--at {LIFE}/chk-0000000001 or {NEXT_LIFE}/chk-0000000001;"):
        store_of(storage, "00000000cc").check_free(True)
    assert going_back(storage, 1, NEXT_LIFE).claim(CheckpointId(1)).restore is not None
    assert current_lineage(storage) == NEXT_LIFE


def with_an_earlier_life() -> FaultyStorage:
    """The start of the newest lineage is gone, and an earlier one's is there."""
    storage = FaultyStorage()
    written(storage, LIFE, 1)
    store = store_of(storage, LIFE, is_found=True)
    store.adopt("again", resume=True)
    store.claim()
    store.finish()
    written(storage, NEXT_LIFE, 7)
    storage.delete(f"attempts/0000000003.{NEXT_LIFE}.start")
    return storage


def test_a_lineage_without_its_start_is_gone_on_with_though_the_notes_tell_of_another() -> None:
    storage = with_an_earlier_life()
    assert current_lineage(storage) == LIFE
    store = going_back(storage, 7, NEXT_LIFE)
    assert store.claim(CheckpointId(7)).restore is not None
    assert current_lineage(storage) == NEXT_LIFE


def test_a_checkpoint_that_is_not_there_is_said_to_be_missing() -> None:
    storage = FaultyStorage()
    with pytest.raises(CheckpointError, match="has no checkpoint 9 to go back to; there are: none"):
        going_back(storage, 9)
    written(storage, LIFE, 1)
    storage.delete(layout.ATTEMPTS)
    with pytest.raises(CheckpointError, match=rf"--at {LIFE}/chk-0000000001"):
        going_back(storage, 9)


def test_of_two_that_go_on_at_once_the_first_to_claim_does() -> None:
    storage = FaultyStorage()
    written(storage, LIFE, 1)
    storage.delete(layout.ATTEMPTS)
    first, second = going_back(storage, 1, run="one"), going_back(storage, 1, run="other")
    first.claim(CheckpointId(1))
    with pytest.raises(OwnershipError):
        second.claim(CheckpointId(1))


# --- Older notes in the place of the newest ---------------------------------------------------------------


def with_notes_of_before(*left: str) -> FaultyStorage:
    """A job was resumed and went on, and then what it had noted before that was put back. `left`: of the new notes."""
    storage = FaultyStorage()
    written(storage, LIFE, 1)
    store = store_of(storage, LIFE, is_found=True)
    store.adopt("again", resume=True)
    claim = store.claim()
    for following in range(2):
        store.publish(manifest(claim.next_checkpoint + following, claim.attempt))
    assert store_of(storage, LIFE, is_found=True).restorable(None) is not None
    for name in storage.list(layout.ATTEMPTS):
        if name.startswith(f"{claim.attempt:010d}") and not name.endswith(left):
            storage.delete(f"{layout.ATTEMPTS}/{name}")
    return storage


@pytest.mark.parametrize("left", [(), ("claim",)])
def test_notes_that_do_not_tell_of_who_wrote_the_newest_checkpoint_are_not_gone_on_by(left: tuple[str, ...]) -> None:
    storage = with_notes_of_before(*left)
    newest = checkpoints_of(storage, LIFE)[-1]
    store = store_of(storage, LIFE, is_found=True)
    assert store.listing().newest == 1
    name = f"{LIFE}/{layout.checkpoint_directory(newest)}"
    with pytest.raises(CheckpointError, match=rf"{name} was written by attempt 2, .*--resume --at {name}\)"):
        store.restorable(None)
    report = examined(storage)
    assert not report.is_whole and report.leftovers == []
    assert f"{name} was written by attempt 2" in report.problems[0]
    restored = going_back(storage, newest).claim(CheckpointId(newest)).restore
    assert restored is not None and restored.checkpoint > newest
    assert store_of(storage, LIFE, is_found=True).restorable(None) == restored
    assert examined(storage).is_whole


def test_the_copy_of_a_start_that_broke_off_is_not_taken_for_unnoted() -> None:
    storage = with_notes_of_before("start", "claim")
    broken = store_of(storage, LIFE, is_found=True)
    broken.adopt("back", resume=True)
    storage.fail("publish", OwnershipError("killed"))
    with pytest.raises(OwnershipError):
        broken.claim(CheckpointId(1))
    newest = checkpoints_of(storage, LIFE)[-2]
    restored = store_of(storage, LIFE, is_found=True).restorable(None)
    assert restored is not None and restored.checkpoint == newest
    assert examined(storage).is_whole


class Beside(FaultyStorage):
    """Somebody does something between a look at the notes and one at the checkpoints."""

    def __init__(self) -> None:
        super().__init__()
        self.beside: list[Callable[[], None]] = []

    def list(self, path: str) -> list[str]:
        if path.strip("/") == LIFE and self.beside:
            self.beside.pop()()
        return super().list(path)


def test_what_an_attempt_writes_that_is_claimed_beside_the_look_is_not_taken_for_unnoted() -> None:
    storage = Beside()
    written(storage, LIFE, 1)
    looking, resumed = store_of(storage, LIFE, is_found=True), store_of(storage, LIFE, is_found=True)
    resumed.adopt("again", resume=True)

    def go_on() -> None:
        claim = resumed.claim()
        resumed.publish(manifest(claim.next_checkpoint, claim.attempt))

    storage.beside.append(go_on)
    restored = looking.restorable(None)
    assert restored is not None and restored.attempt == 2
    storage.beside.append(go_on)
    assert examined(storage).is_whole
