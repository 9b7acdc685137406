"""Whether a checkpoint fits the plan that is to restore it.

Comes in: a manifest, a plan, and the schemas of what is stored. Goes out: what becomes of
each state, or a CheckpointError that lists all that does not fit and says what to do. Reads
schemas at most, through the function that it is given. `weir check`, a start and a resume all
ask here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

import pyarrow as pa

from weir.errors import CheckpointError
from weir.graph.plan import Plan, PlannedOperator
from weir.ids import Uid
from weir.operators.base import OperatorSpec, key_group_range
from weir.operators.functions.declared import FunctionStates, states_of_class
from weir.operators.sink import Sink
from weir.operators.source import Source
from weir.runtime.ports import Storage
from weir.runtime.storage.state_files import CheckpointFiles
from weir.snapshot.manifest import Manifest, OperatorSnapshot
from weir.snapshot.parts import PendingEpochs, Position, is_missed, meaning_of, read_as
from weir.state.frozen import RestoredPart, StateFiles, part_schema
from weir.state.values.evolution import EVOLVED, MIGRATED, SAME

DROP = "allow_dropped_state=True (weir run --allow-dropped-state)"

WHOLE_JOB = "(job)"
"""Instead of a uid: what concerns all of them."""
POSITION, PENDING = "(position)", "(pending epochs)"
"""Instead of a state: what lies beside the states."""

NO_OPERATOR = "there is no operator with this uid"
LEFT_TO_OPEN = "if the function's open() declares it; tasks refuse it otherwise"


class Fate(Enum):
    """What becomes of a state."""

    RESTORED = "restored"
    EVOLVED = "evolved"
    MIGRATED = "migrated"
    NEW = "new"
    DROPPED = "dropped"
    REFUSED = "refused"


@dataclass(frozen=True)
class Finding:
    """One state, or what an operator keeps beside its states, and what becomes of it."""

    uid: str
    state: str
    fate: Fate
    reason: str = ""


Stored: TypeAlias = Callable[[OperatorSnapshot, str], pa.Schema]
"""Reads the schema of an operator's state."""

_FATES = {SAME: Fate.RESTORED, EVOLVED: Fate.EVOLVED, MIGRATED: Fate.MIGRATED}


# --- Deciding -----------------------------------------------------------------------------------------


def findings_of(manifest: Manifest, plan: Plan, stored: Stored, *, names_only: bool = False) -> list[Finding]:
    """A finding for each state that the checkpoint holds or the job declares. State is matched by uid. `names_only`:
    whether what is stored can be read as the types of now is not asked."""
    findings: list[Finding] = []
    if manifest.max_parallelism != plan.max_parallelism:
        reason = (
            f"max_parallelism was {manifest.max_parallelism}, the job has {plan.max_parallelism}: keys would land in "
            "other key groups. Set Settings.max_parallelism back"
        )
        findings.append(Finding(WHOLE_JOB, "max_parallelism", Fate.REFUSED, reason))
    operators = _operators(plan)
    for uid, snapshot in manifest.operators.items():
        operator = operators.get(uid)
        findings += _beside_states(uid, snapshot, operator)
        findings += _held_states(uid, snapshot, operator, stored, names_only=names_only)
    for uid, operator in operators.items():
        held = _states(manifest.operators[uid]) if uid in manifest.operators else set()
        findings += [Finding(uid, s, Fate.NEW, "starts empty") for s in _declared(operator) if s not in held]
    return findings


def misfits_of(findings: Sequence[Finding], *, may_drop: bool = False) -> list[Finding]:
    """Those with which the job does not start. `may_drop`: the user wants it dropped what no operator claims."""
    wrong = (Fate.REFUSED,) if may_drop else (Fate.REFUSED, Fate.DROPPED)
    return [finding for finding in findings if finding.fate in wrong]


def _beside_states(uid: Uid, snapshot: OperatorSnapshot, operator: PlannedOperator | None) -> Iterator[Finding]:
    spec = None if operator is None else operator.spec
    held = [part.inline for part in snapshot.parts if is_missed(part.inline)]
    if isinstance(spec, Source):
        held = [read_as(part.inline, Position) or part.inline for part in snapshot.parts]
    for state, kind, taker, word in ((POSITION, Position, Source, "source"), (PENDING, PendingEpochs, Sink, "sink")):
        if not any(isinstance(meaning_of(inline), kind) and is_missed(inline) for inline in held):
            continue
        if operator is None:
            yield Finding(uid, state, Fate.DROPPED, NO_OPERATOR)
        elif not isinstance(spec, taker):
            yield Finding(uid, state, Fate.DROPPED, f"the operator with this uid is no {word}")
        else:
            yield Finding(uid, state, Fate.RESTORED)


def _held_states(
    uid: Uid, snapshot: OperatorSnapshot, operator: PlannedOperator | None, stored: Stored, *, names_only: bool
) -> Iterator[Finding]:
    held = _states(snapshot)
    new = [] if operator is None else sorted(set(_declared(operator)) - held)
    for state in sorted(held):
        if operator is None:
            yield Finding(uid, state, Fate.DROPPED, NO_OPERATOR)
        elif isinstance(operator.spec, OperatorSpec) and _is_left_to_open(operator.spec, state):
            yield Finding(uid, state, Fate.RESTORED, LEFT_TO_OPEN)
        elif state not in _declared(operator):
            yield Finding(uid, state, Fate.DROPPED, "the operator does not declare it any more" + _renamed(state, new))
        else:
            verdict = SAME if names_only else _keeper(operator).verdict(state, stored(snapshot, state))
            fate = _FATES.get(verdict, Fate.REFUSED)
            yield Finding(uid, state, fate, verdict if fate is Fate.REFUSED else "")
            if fate is not Fate.REFUSED and isinstance(operator.spec, OperatorSpec):
                yield from _lost_values(uid, snapshot, state, operator.spec, stored)


def _renamed(state: str, new: Sequence[str]) -> str:
    """What to do if one of the new states is this one under another name."""
    return f"; if it is now called {' or '.join(map(repr, new))}, declare that with name={state!r}" if new else ""


def _is_left_to_open(spec: OperatorSpec, state: str) -> bool:
    return spec.declares_in_open and state not in spec.states


def _lost_values(
    uid: Uid, snapshot: OperatorSnapshot, state: str, spec: OperatorSpec, stored: Stored
) -> Iterator[Finding]:
    for name in spec.dropped(state, lambda: stored(snapshot, state)):
        yield Finding(uid, f"{state}.{name}", Fate.DROPPED, "the operator does not keep this value any more")


def _operators(plan: Plan) -> Mapping[Uid, PlannedOperator]:
    return {operator.uid: operator for vertex in plan.vertices for operator in vertex.operators}


def _declared(operator: PlannedOperator) -> tuple[str, ...]:
    keeper = _keeper(operator)
    return keeper.states if isinstance(keeper, OperatorSpec) else keeper.names


def _keeper(operator: PlannedOperator) -> OperatorSpec | FunctionStates:
    """What knows of its states: of a source or a sink, the class of its readers or writers."""
    spec = operator.spec
    if isinstance(spec, OperatorSpec):
        return spec
    kind: type | None = spec.reader_class if isinstance(spec, Source) else spec.writer_class
    return states_of_class(kind, operator.name)


def _states(operator: OperatorSnapshot) -> set[str]:
    return {name for part in operator.parts for name in part.states}


# --- Refusing -----------------------------------------------------------------------------------------


def check_compatible(manifest: Manifest, plan: Plan, storage: Storage, *, may_drop: bool = False) -> None:
    """Refuse a checkpoint that does not fit, with all that does not. `storage`: where the files are that the manifest
    names."""
    findings = findings_of(manifest, plan, stored_in(storage, manifest))
    _refuse(manifest, plan, misfits_of(findings, may_drop=may_drop))


def check_names(manifest: Manifest, plan: Plan, storage: Storage, *, may_drop: bool = False) -> None:
    """The same for an attempt of a run, whose claim should not wait for state files: types are not looked at. Those of
    the checkpoint that it began with are known to fit, and tasks refuse what they cannot read."""
    findings = findings_of(manifest, plan, stored_in(storage, manifest), names_only=True)
    _refuse(manifest, plan, misfits_of(findings, may_drop=may_drop))


def _refuse(manifest: Manifest, plan: Plan, misfits: Sequence[Finding]) -> None:
    if not misfits:
        return
    lines = [f"{finding.uid} {finding.state}: {finding.fate.value}: {finding.reason}" for finding in misfits]
    advice = []
    if any(finding.fate is Fate.DROPPED for finding in misfits):
        advice.append(
            f"The job's operators are {sorted(_operators(plan))}. Give them their old uids back, declare again what "
            f"they kept, or drop it with {DROP}"
        )
    if any(finding.fate is Fate.REFUSED and finding.uid != WHOLE_JOB for finding in misfits):
        advice.append("What is refused this code cannot read: change it back, or give the operator another uid")
    raise CheckpointError("\n  ".join([f"checkpoint {manifest.checkpoint} does not fit the job:", *lines, *advice]))


def stored_in(storage: Storage, manifest: Manifest) -> Stored:
    """Reads schemas from the checkpoint's files."""
    files = CheckpointFiles(storage)
    return lambda operator, state: stored_schema(operator, state, files, manifest.max_parallelism)


def stored_schema(operator: OperatorSnapshot, state: str, files: StateFiles, max_parallelism: int) -> pa.Schema:
    """The schema of a state's tables."""
    for part in operator.parts:
        if state in part.states:
            held = key_group_range(part.index, operator.parallelism, max_parallelism)
            return part_schema(RestoredPart(part.states[state], held, files))
    raise CheckpointError(f"the checkpoint names state {state!r}, but none of its parts has it")
