"""What would become of a checkpoint's state if a job started from it.

Comes in: the location of a checkpoint or savepoint, and a job's plan. Goes out: a verdict
for each state. Reads schemas only; starts nothing and changes nothing.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from enum import Enum

from weir.graph.plan import Plan
from weir.operators.base import OperatorSpec
from weir.runtime.driver.compatibility import stored_schema
from weir.runtime.storage.savepoints import origin_at
from weir.runtime.storage.state_files import CheckpointFiles
from weir.snapshot.manifest import Manifest, OperatorSnapshot
from weir.snapshot.parts import is_missed
from weir.state.values.evolution import EVOLVED, MIGRATED, SAME


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
    """One state, or an operator's position, and what becomes of it."""

    uid: str
    state: str | None
    """None: what it keeps beside its states, such as a source's position."""
    fate: Fate
    reason: str = ""


_FATES = {SAME: Fate.RESTORED, EVOLVED: Fate.EVOLVED, MIGRATED: Fate.MIGRATED}


def check_upgrade(checkpoint: str | os.PathLike[str], plan: Plan) -> list[Finding]:
    """A finding for each state that the checkpoint holds or the job declares."""
    origin = origin_at(os.fspath(checkpoint))
    storage = origin.open()
    manifest = origin.read(storage)
    if manifest.max_parallelism != plan.max_parallelism:
        reason = f"max_parallelism was {manifest.max_parallelism}, the job has {plan.max_parallelism}"
        return [Finding(uid, None, Fate.REFUSED, reason) for uid in manifest.operators]
    specs = {operator.uid: operator.spec for vertex in plan.vertices for operator in vertex.operators}
    files = CheckpointFiles(storage)
    findings: list[Finding] = []
    for uid, operator in manifest.operators.items():
        findings += _operator(uid, operator, specs.get(uid), manifest=manifest, files=files, known=uid in specs)
    for uid, spec in specs.items():
        held = _states(manifest.operators[uid]) if uid in manifest.operators else set()
        declared = spec.states if isinstance(spec, OperatorSpec) else ()
        findings += [Finding(uid, state, Fate.NEW, "starts empty") for state in declared if state not in held]
    return findings


def _operator(
    uid: str, operator: OperatorSnapshot, spec: object, *, manifest: Manifest, files: CheckpointFiles, known: bool
) -> list[Finding]:
    findings = []
    if any(is_missed(part.inline) for part in operator.parts):
        gone = Finding(uid, None, Fate.DROPPED, "there is no operator with this uid")
        findings.append(Finding(uid, None, Fate.RESTORED) if known else gone)
    for state in sorted(_states(operator)):
        if not known:
            findings.append(Finding(uid, state, Fate.DROPPED, "there is no operator with this uid"))
        elif not isinstance(spec, OperatorSpec) or state not in spec.states:
            findings.append(Finding(uid, state, Fate.DROPPED, "the operator does not declare it any more"))
        else:
            schema = stored_schema(operator, state, files, manifest.max_parallelism)
            verdict = spec.verdict(state, schema)
            fate = _FATES.get(verdict, Fate.REFUSED)
            findings.append(Finding(uid, state, fate, verdict if fate is Fate.REFUSED else ""))
            lost = spec.dropped(state, lambda schema=schema: schema) if fate is not Fate.REFUSED else ()  # type: ignore[misc]
            reason = "the operator does not keep this value any more"
            findings += [Finding(uid, f"{state}.{name}", Fate.DROPPED, reason) for name in lost]
    return findings


def _states(operator: OperatorSnapshot) -> set[str]:
    return {name for part in operator.parts for name in part.states}
