"""Runs that were started from a savepoint: what a resume goes on from, and when the savepoint counts no more."""

from __future__ import annotations

import os
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

import weir
from tests.unit.runtime.fakes import FaultyStorage
from tests.unit.runtime.stores import LIFE, NEXT_LIFE, manifest, store_of
from weir import connectors as io
from weir.config import Checkpoints, JobConfig
from weir.errors import CheckpointError, ConfigError
from weir.graph.plan import Plan
from weir.ids import AttemptId, CheckpointId, Lineage, Uid
from weir.runtime.job.launch import _checked_origin, submit
from weir.runtime.storage.opening import open_storage
from weir.runtime.storage.savepoints import going_on
from weir.runtime.storage.stores.memory import MemoryStorage
from weir.snapshot.checkpoints import AttemptStart, Listing, PublishedCheckpoint
from weir.snapshot.manifest import Manifest, OperatorSnapshot, PartOf, encode
from weir.snapshot.parts import PendingEpochs

SAVEPOINT = "/savepoints/tuesday"


def resumed(listing: Listing, from_savepoint: str | None = None) -> str | None:
    return going_on(JobConfig("job", resume=True, from_savepoint=from_savepoint), listing).from_savepoint


def started(origin: str | None, *published: int) -> Listing:
    entries = tuple(PublishedCheckpoint(CheckpointId(id), AttemptId(1)) for id in published)
    return Listing(published=entries, starts=(AttemptStart(AttemptId(1), None, origin=origin),))


def test_a_resume_without_a_checkpoint_of_its_own_starts_from_the_same_savepoint_again() -> None:
    assert resumed(started(SAVEPOINT)) == SAVEPOINT
    assert resumed(started(SAVEPOINT), "/another") == "/another", "what the user names now counts"
    assert resumed(started(None)) is None
    assert resumed(Listing()) is None


def test_behind_a_checkpoint_of_its_own_the_savepoint_counts_no_more() -> None:
    assert resumed(started(SAVEPOINT, 1)) is None
    assert resumed(started(SAVEPOINT, 1), SAVEPOINT) is None, "it may be gone"
    missed = Listing(
        starts=(AttemptStart(AttemptId(1), None, origin=SAVEPOINT),),
        completed=(PublishedCheckpoint(CheckpointId(1), AttemptId(1)),),
    )
    assert resumed(missed) is None, "the claim will say what is missing"


def test_a_savepoint_that_needs_credentials_has_to_be_named_again() -> None:
    with pytest.raises(ConfigError, match=r"started from s3://…@bucket/tuesday.*name the savepoint again"):
        resumed(started("s3://…@bucket/tuesday"))


def test_a_claim_notes_where_the_run_comes_from_until_there_is_a_checkpoint() -> None:
    storage = FaultyStorage()
    store = store_of(storage)
    attempt = store.claim(origin=SAVEPOINT).attempt
    assert store.listing().origin == SAVEPOINT
    store.publish(manifest(1, attempt))
    assert store.listing().origin is None
    store.claim(origin=SAVEPOINT)
    assert [start.origin for start in store.listing().starts] == [SAVEPOINT, None]


# --- Whether a savepoint is the last checkpoint of the run that is here -------------------------------------


@pytest.fixture
def plan() -> Plan:
    env = weir.Environment(parallelism=1)
    env.from_collection([(1,)], "id long", uid="in").write(io.FileSink("out"), uid="out")
    return env.plan()


def savepoint(directory: Path, lineage: Lineage | None) -> str:
    directory.mkdir()
    content = Manifest("job", CheckpointId(1), AttemptId(1), 128, 0.0, {}, "savepoint", lineage)
    (directory / "manifest.json").write_bytes(encode(content))
    return os.fspath(directory)


def with_checkpoint() -> MemoryStorage:
    storage = FaultyStorage()
    store = store_of(storage)
    store.publish(manifest(1, store.claim().attempt))
    return storage


@pytest.mark.parametrize(("lineage", "goes_on"), [(LIFE, True), (NEXT_LIFE, False), (None, False)])
def test_a_savepoint_of_another_life_is_not_taken_for_the_newest_checkpoint(
    plan: Plan, tmp_path: Path, lineage: Lineage | None, goes_on: bool
) -> None:
    """Ids and attempts begin with 1 in every life."""
    config = JobConfig("job", Checkpoints(to="anywhere"), from_savepoint=savepoint(tmp_path / "s", lineage))
    assert _checked_origin(plan, config, with_checkpoint(), LIFE, open_storage).resume is goes_on


def test_a_service_that_names_its_savepoint_for_ever_starts_also_when_that_is_gone(plan: Plan, tmp_path: Path) -> None:
    gone = os.fspath(tmp_path / "gone")
    config = JobConfig("job", Checkpoints(to="anywhere"), resume=True, from_savepoint=gone)
    assert _checked_origin(plan, config, with_checkpoint(), LIFE, open_storage).from_savepoint is None
    with pytest.raises(CheckpointError, match="is no savepoint"):
        _checked_origin(plan, config, FaultyStorage(), None, open_storage)


def test_a_checkpoint_of_another_life_is_not_gone_back_to_by_its_number(plan: Plan, tmp_path: Path) -> None:
    to = tmp_path / "checkpoints"
    store = store_of(open_storage(to / "job"))
    store.publish(manifest(1, store.claim().attempt))
    back_to = CheckpointId(1)
    config = JobConfig("job", Checkpoints(to=os.fspath(to)), resume=True, back_to=back_to, back_to_lineage=NEXT_LIFE)
    with pytest.raises(CheckpointError, match=rf"checkpoint 1 of lineage {NEXT_LIFE} is none of those .*{LIFE}"):
        submit(plan, config)


@pytest.mark.parametrize("sink", ["out", "an older sink"])
@pytest.mark.parametrize("pending", [(), ((1, "a part"),)])
def test_a_start_from_a_checkpoint_says_which_sinks_of_its_run_have_still_to_commit_and_need_not_have_them(
    plan: Plan, tmp_path: Path, pending: Any, sink: str
) -> None:
    place = tmp_path / "chk-0000000001"
    place.mkdir()
    operators = {Uid(sink): OperatorSnapshot(1, (PartOf(0, PendingEpochs(pending)),))}
    content = Manifest("job", CheckpointId(1), AttemptId(1), 128, 0.0, operators, lineage=NEXT_LIFE)
    (place / "manifest.json").write_bytes(encode(content))
    config = JobConfig("job", Checkpoints(to="anywhere"), from_savepoint=os.fspath(place))
    words = rf"rows still to commit \({sink}\).*--resume --at"
    with pytest.warns(UserWarning, match=words) if pending else nullcontext():
        _checked_origin(plan, config, with_checkpoint(), LIFE, open_storage)
