"""What would become of a checkpoint's state under changed code, and that it does."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import weir
from weir.api.upgrade import check_upgrade
from weir.connectors import Discard
from weir.errors import CheckpointError
from weir.graph.plan import Plan
from weir.ids import AttemptId, CheckpointId, SubtaskId
from weir.operators.base import OperatorContext, OperatorSpec
from weir.runtime.driver.compatibility import POSITION, Fate, Finding, check_compatible, check_names, misfits_of
from weir.runtime.storage import layout
from weir.runtime.storage.opening import open_storage
from weir.runtime.storage.savepoints import origin_at
from weir.runtime.storage.state_files import CheckpointWriter
from weir.snapshot.manifest import build, encode
from weir.snapshot.parts import OperatorPart, Position

ROWS = [("a", 1), ("b", 2)]
AGGREGATES = {"n": weir.count(), "sum": weir.sum("value")}
CHECKPOINT, ATTEMPT = CheckpointId(3), AttemptId(1)


def totals(rows: pl.DataFrame, state: pl.DataFrame) -> Any:
    return None


class Old(weir.ProcessFunction):
    """The states before the upgrade."""

    kept = weir.ValueState("int", default=0)
    wider = weir.ValueState("struct<a: int>")
    odd = weir.ValueState("string")
    dropped = weir.ListState("long")

    def process(self, row: Any, context: Any) -> Any:
        return None


class New(weir.ProcessFunction):
    """The states after it."""

    kept = weir.ValueState("int", default=0)
    wider = weir.ValueState("struct<a: bigint, b: string>")
    odd = weir.ValueState("long", migrate=int)
    fresh = weir.MapState("string", "long")

    def process(self, row: Any, context: Any) -> Any:
        return None


class Wrong(New):
    """One state cannot be read any more."""

    odd = weir.ValueState("long")


def job(function: weir.ProcessFunction, *, values: dict[str, weir.ValueState], extra: Any = None) -> Plan:
    env = weir.Environment(parallelism=1)
    rows = env.from_collection(ROWS, "key string, value long", uid="rows")
    keyed = rows.key_by("key")
    keyed.process(function, "x long", uid="process").write(Discard(), uid="one")
    keyed.process_batches(totals, "x long", state=values, uid="batches").write(Discard(), uid="two")
    if extra:
        keyed.agg(**extra, uid="agg").write(Discard(), uid="three")
    return env.plan()


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """A checkpoint of the old job, with empty states."""
    storage = open_storage(str(tmp_path))
    plan = job(Old(), values={"total": weir.ValueState("int"), "gone": weir.ValueState("long")}, extra=AGGREGATES)
    parts = {}
    for vertex in plan.vertices:
        subtask = SubtaskId(vertex.id, 0)
        found = []
        for operator in vertex.operators:
            states = {}
            if isinstance(operator.spec, OperatorSpec):
                made = operator.spec.make()
                made.open(OperatorContext("job", operator.uid, operator.name, 0, 1, 128, ATTEMPT), None)
                for name, state in made.freeze().states.items():
                    writer = CheckpointWriter(
                        storage,
                        CHECKPOINT,
                        ATTEMPT,
                        uid=operator.uid,
                        subtask=subtask,
                        state=name,
                        breathe=lambda: None,
                    )
                    states[name] = state.write(writer)
            found.append(OperatorPart(operator.uid, Position(5) if operator.uid == "rows" else None, states))
        parts[subtask] = tuple(found)
    manifest = build(
        job="job",
        checkpoint=CHECKPOINT,
        attempt=ATTEMPT,
        max_parallelism=128,
        created_ms=0,
        parts=parts,
        parallelism={vertex.id: 1 for vertex in plan.vertices},
    )
    storage.publish(layout.manifest_path(CHECKPOINT), encode(manifest))
    return tmp_path / layout.checkpoint_directory(CHECKPOINT)


def fates(checkpoint: Path, plan: Plan) -> dict[tuple[str, str | None], Fate]:
    return {(finding.uid, finding.state): finding.fate for finding in check_upgrade(checkpoint, plan)}


def test_the_same_job_restores_everything(checkpoint: Path) -> None:
    plan = job(Old(), values={"total": weir.ValueState("int"), "gone": weir.ValueState("long")}, extra=AGGREGATES)
    found = fates(checkpoint, plan)
    assert set(found.values()) == {Fate.RESTORED}
    assert {uid for uid, _ in found} == {"rows", "process", "batches", "agg"}


def test_each_state_of_a_changed_job_has_its_fate(checkpoint: Path) -> None:
    plan = job(New(), values={"total": weir.ValueState("long"), "more": weir.ValueState("string")})
    assert fates(checkpoint, plan) == {
        ("rows", POSITION): Fate.RESTORED,
        ("process", "kept"): Fate.RESTORED,
        ("process", "wider"): Fate.EVOLVED,
        ("process", "odd"): Fate.MIGRATED,
        ("process", "dropped"): Fate.DROPPED,
        ("process", "fresh"): Fate.NEW,
        ("batches", "state"): Fate.EVOLVED,
        ("batches", "state.gone"): Fate.DROPPED,
        ("agg", "aggregate"): Fate.DROPPED,
    }


def test_an_aggregate_that_is_left_out_is_dropped_and_one_more_is_refused(checkpoint: Path) -> None:
    values = {"total": weir.ValueState("int"), "gone": weir.ValueState("long")}
    less = fates(checkpoint, job(Old(), values=values, extra={"n": weir.count()}))
    assert less["agg", "aggregate"] is Fate.EVOLVED and less["agg", "aggregate.sum"] is Fate.DROPPED
    more = fates(checkpoint, job(Old(), values=values, extra={**AGGREGATES, "least": weir.min("value")}))
    assert more["agg", "aggregate"] is Fate.REFUSED


def test_values_that_would_be_lost_are_refused_at_the_start_unless_the_user_says_so(checkpoint: Path) -> None:
    values = {"total": weir.ValueState("int"), "gone": weir.ValueState("long")}
    origin = origin_at(str(checkpoint))
    manifest, storage = origin.read(origin.open(open_storage)), origin.open(open_storage)
    check_compatible(manifest, job(Old(), values=values, extra=AGGREGATES), storage)
    without_value = job(Old(), values={"total": values["total"]}, extra=AGGREGATES)
    with pytest.raises(CheckpointError, match=r"(?s)batches state.gone: dropped: .*allow_dropped_state"):
        check_compatible(manifest, without_value, storage)
    without_aggregate = job(Old(), values=values, extra={"n": weir.count()})
    with pytest.raises(CheckpointError, match=r"(?s)agg aggregate.sum: dropped: .*allow_dropped_state"):
        check_compatible(manifest, without_aggregate, storage)
    for plan in (without_value, without_aggregate):
        check_compatible(manifest, plan, storage, may_drop=True)


def test_what_cannot_be_read_is_refused_with_both_types(checkpoint: Path) -> None:
    plan = job(Wrong(), values={"total": weir.ValueState("date")})
    refused = {f.state: f.reason for f in check_upgrade(checkpoint, plan) if f.fate is Fate.REFUSED}
    assert set(refused) == {"odd", "state"}
    assert "stored as string, declared as bigint" in refused["odd"]
    assert "stored as int, declared as date" in refused["state"]


def test_another_max_parallelism_is_refused(checkpoint: Path) -> None:
    env = weir.Environment(parallelism=1, settings=weir.Settings(max_parallelism=64))
    env.from_collection(ROWS, "key string, value long", uid="rows").write(Discard(), uid="one")
    findings = check_upgrade(checkpoint, env.plan())
    refused = [finding for finding in findings if finding.fate is Fate.REFUSED]
    assert [(finding.uid, finding.state) for finding in refused] == [("(job)", "max_parallelism")]
    assert "max_parallelism was 128, the job has 64" in refused[0].reason
    assert ("agg", Fate.DROPPED) in {(finding.uid, finding.fate) for finding in findings}


VALUES = {"total": weir.ValueState("int"), "gone": weir.ValueState("long")}


def renamed() -> Plan:
    """Every operator has another uid, and the source's is a sink's now."""
    env = weir.Environment(parallelism=1)
    env.from_collection(ROWS, "key string, value long", uid="others").write(Discard(), uid="rows")
    return env.plan()


def with_fewer_key_groups() -> Plan:
    plan = job(New(), values={"total": weir.ValueState("date")})
    return Plan(plan.vertices, plan.edges, 64)


MISFITS: dict[str, Callable[[], Plan]] = {
    "nothing": lambda: job(Old(), values=VALUES, extra=AGGREGATES),
    "an operator is gone": lambda: job(Old(), values=VALUES),
    "a state is gone": lambda: job(New(), values=VALUES, extra=AGGREGATES),
    "a value is gone": lambda: job(Old(), values={"total": VALUES["total"]}, extra=AGGREGATES),
    "an aggregate is gone": lambda: job(Old(), values=VALUES, extra={"n": weir.count()}),
    "an aggregate is new": lambda: job(Old(), values=VALUES, extra={**AGGREGATES, "least": weir.min("value")}),
    "types that do not fit": lambda: job(Wrong(), values={"total": weir.ValueState("date")}, extra=AGGREGATES),
    "all uids are others": renamed,
    "other key groups, and all the rest": with_fewer_key_groups,
}


@pytest.mark.parametrize("may_drop", [False, True])
@pytest.mark.parametrize("misfit", MISFITS)
def test_a_start_refuses_with_all_that_weir_check_has_found_and_in_its_words(
    checkpoint: Path, misfit: str, may_drop: bool
) -> None:
    plan, origin = MISFITS[misfit](), origin_at(str(checkpoint))
    manifest, storage = origin.read(origin.open(open_storage)), origin.open(open_storage)
    expected = misfits_of(check_upgrade(checkpoint, plan), may_drop=may_drop)
    assert refused_by(lambda: check_compatible(manifest, plan, storage, may_drop=may_drop)) == expected
    assert (misfit == "nothing") == (misfits_of(check_upgrade(checkpoint, plan)) == [])
    by_name = [finding for finding in expected if finding.uid == "(job)" or finding.fate is Fate.DROPPED]
    assert set(by_name) <= set(refused_by(lambda: check_names(manifest, plan, storage, may_drop=may_drop)))


def refused_by(check: Callable[[], None]) -> list[Finding]:
    """What the error of a start lists, as `weir check` would say it."""
    try:
        check()
    except CheckpointError as error:
        first, *lines = str(error).splitlines()
        assert "checkpoint 3 does not fit the job:" in first
        found = [line.strip().split(": ", 2) for line in lines if ": dropped: " in line or ": refused: " in line]
        return [Finding(*what.split(" ", 1), Fate(fate), reason) for what, fate, reason in found]
    return []


def test_what_a_source_or_a_sink_had_kept_is_not_taken_over_by_something_else(checkpoint: Path) -> None:
    found = {(finding.uid, finding.state): finding for finding in check_upgrade(checkpoint, renamed())}
    assert found["rows", POSITION] == Finding("rows", POSITION, Fate.DROPPED, "the operator with this uid is no source")
