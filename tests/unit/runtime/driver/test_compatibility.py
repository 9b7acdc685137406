"""Whether a checkpoint fits a plan, and what is said when it does not."""

from __future__ import annotations

import base64
from typing import Any

import pyarrow as pa
import pytest

from tests.unit.runtime.fakes import Pass, Script, Shelf, operator, plan_of
from weir.errors import CheckpointError
from weir.graph.plan import Forward, Plan
from weir.ids import AttemptId, CheckpointId, Uid
from weir.runtime.driver.compatibility import Fate, check_compatible, findings_of
from weir.runtime.storage.stores.memory import MemoryStorage
from weir.snapshot.manifest import Manifest, OperatorSnapshot, PartOf
from weir.snapshot.parts import FileRef, Inline, PendingEpochs, Position, Progress, StatePart, Untagged

SCHEMA = base64.b64encode(pa.schema([("key", pa.int64())]).serialize()).decode()
STATE = StatePart("arrow", {"0": FileRef("f", 1, "sha256:0")}, {"schema": SCHEMA})


def plan(uid: str = "sum", states: tuple[str, ...] = ("values",), max_parallelism: int = 8) -> Plan:
    made = plan_of(
        (1, [operator("source", Script()), operator(uid, Pass(states))]),
        (1, [operator("sink", Shelf())]),
        edges=[(0, 1, Forward())],
    )
    return Plan(made.vertices, made.edges, max_parallelism)


def manifest(max_parallelism: int = 8, **operators: tuple[Inline | None, dict[str, StatePart]]) -> Manifest:
    parts = {Uid(uid): PartOf(0, inline, files) for uid, (inline, files) in operators.items()}
    snapshots = {uid: OperatorSnapshot(1, (part,)) for uid, part in parts.items()}
    return Manifest("job", CheckpointId(4), AttemptId(1), max_parallelism, 0.0, snapshots)


def test_a_checkpoint_of_the_same_plan_fits() -> None:
    full: dict[str, Any] = {
        "source": (Position(3), {}),
        "sum": (None, {"values": STATE}),
        "sink": (PendingEpochs(()), {}),
    }
    check_compatible(manifest(**full), plan(), MemoryStorage(0))


def test_an_operator_that_the_checkpoint_does_not_know_is_new() -> None:
    check_compatible(manifest(source=(Position(3), {})), plan(), MemoryStorage(0))


def test_another_max_parallelism_is_refused_with_both_numbers() -> None:
    with pytest.raises(
        CheckpointError, match=r"max_parallelism was 16, the job has 8.*Set Settings.max_parallelism back"
    ):
        check_compatible(manifest(16), plan(), MemoryStorage(0))


@pytest.mark.parametrize("held", [(None, {"values": STATE}), (Position(0), {})], ids=["table", "inline"])
def test_state_that_no_operator_claims_is_refused_with_the_uids_that_exist(held: Any) -> None:
    message = r"(?s)checkpoint 4 .*sum .*: dropped: there is no operator with.*\['sink', 'source', 'total'\].*uid"
    with pytest.raises(CheckpointError, match=message):
        check_compatible(manifest(sum=held), plan(uid="total"), MemoryStorage(0))


def test_state_that_no_operator_claims_may_be_dropped_when_the_user_says_so_but_not_the_number_of_key_groups() -> None:
    full: dict[str, Any] = {"gone": (None, {"values": STATE}), "sum": (None, {"values": STATE, "counts": STATE})}
    with pytest.raises(CheckpointError, match="allow_dropped_state=True"):
        check_compatible(manifest(**full), plan(), MemoryStorage(0))
    check_compatible(manifest(**full), plan(), MemoryStorage(0), may_drop=True)
    with pytest.raises(CheckpointError, match="max_parallelism was 16"):
        check_compatible(manifest(16), plan(), MemoryStorage(0), may_drop=True)


def test_an_operator_without_state_may_be_removed() -> None:
    check_compatible(manifest(gone=(None, {})), plan(), MemoryStorage(0))
    # How far event time had come is nothing to be missed.
    check_compatible(manifest(gone=(Progress(5, 1), {})), plan(), MemoryStorage(0))


def test_a_state_table_that_the_operator_no_longer_has_is_refused_by_name() -> None:
    with pytest.raises(CheckpointError, match=r"sum counts: dropped: the operator does not declare it any more"):
        check_compatible(manifest(sum=(None, {"values": STATE, "counts": STATE})), plan(), MemoryStorage(0))


def test_a_table_under_the_uid_of_a_sink_is_refused() -> None:
    with pytest.raises(CheckpointError, match=r"sink values: dropped: the operator does not declare it any more"):
        check_compatible(manifest(sink=(None, {"values": STATE})), plan(), MemoryStorage(0))


def test_everything_that_does_not_fit_is_listed_and_not_the_first_only() -> None:
    found = manifest(
        16,
        gone=(Position(1), {}),
        sum=(None, {"counts": STATE}),
        sink=(None, {"values": STATE}),
        source=(Position(3), {}),
    )
    with pytest.raises(CheckpointError) as refused:
        check_compatible(found, plan(), MemoryStorage(0))
    lines = [line.strip() for line in str(refused.value).splitlines()]
    assert [line.split(":")[0] for line in lines if ": dropped: " in line or ": refused: " in line] == [
        "(job) max_parallelism",
        "gone (position)",
        "sum counts",
        "sink values",
    ]


def test_what_a_source_kept_is_no_sinks_and_what_a_sink_kept_no_sources() -> None:
    epochs = PendingEpochs(((CheckpointId(3), "part"),))
    found = manifest(source=(epochs, {}), sink=(Position(3), {}), sum=(Position(3), {}))
    fates = {(f.uid, f.state): (f.fate, f.reason) for f in findings_of(found, plan(), _no_schema) if f.reason}
    assert fates["source", "(pending epochs)"] == (Fate.DROPPED, "the operator with this uid is no sink")
    assert fates["sink", "(position)"] == fates["sum", "(position)"]
    assert fates["sum", "(position)"] == (Fate.DROPPED, "the operator with this uid is no source")


def test_a_source_takes_what_an_untagged_manifest_holds_for_its_position_whatever_it_looks_like() -> None:
    for value in ({"pending": []}, {"pending": [[1, 2]]}, {"watermark_us": 5}, 7):
        (found,) = [
            f for f in findings_of(manifest(source=(Untagged(value), {})), plan(), _no_schema) if f.uid == "source"
        ]
        assert (found.state, found.fate) == ("(position)", Fate.RESTORED)


def test_a_sink_that_has_committed_all_may_be_removed() -> None:
    check_compatible(manifest(gone=(PendingEpochs(()), {})), plan(), MemoryStorage(0))


def _no_schema(operator: OperatorSnapshot, state: str) -> pa.Schema:
    raise AssertionError("nothing is read")
