"""Checkpoint directories for tests: stores of one lineage or another, and what lies in them."""

from __future__ import annotations

from tests.unit.runtime.fakes import FaultyStorage
from weir.ids import AttemptId, CheckpointId, Lineage, Uid
from weir.runtime.ports import Storage
from weir.runtime.storage.below import Below
from weir.runtime.storage.checkpoints import CheckpointStore, Claim
from weir.snapshot.manifest import Manifest, OperatorSnapshot, PartOf
from weir.snapshot.parts import Position

LIFE, NEXT_LIFE = Lineage("00000000aa"), Lineage("00000000bb")


def store_of(storage: Storage, lineage: str = LIFE, *, job: str = "job", is_found: bool = False) -> CheckpointStore:
    return CheckpointStore(storage, job, lineage=Lineage(lineage), is_found=is_found)


def files_of(storage: Storage) -> Below:
    """Where checkpoints of the first lineage lie."""
    return Below(storage, LIFE)


def claimed() -> tuple[FaultyStorage, CheckpointStore]:
    """A directory, and a driver that has claimed attempt 1 there."""
    storage = FaultyStorage()
    store = store_of(storage)
    store.claim()
    return storage, store


def manifest(checkpoint: int, attempt: int, *, job: str = "job", marker: str = "") -> Manifest:
    operators = {Uid("op"): OperatorSnapshot(1, (PartOf(0, Position(marker)),))}
    return Manifest(job, CheckpointId(checkpoint), AttemptId(attempt), 8, 0.0, operators)


def newest(claim: Claim) -> tuple[int, int | None]:
    """The attempt, and the checkpoint that it starts from."""
    return claim.attempt, claim.restore.checkpoint if claim.restore else None
