"""Whether a checkpoint fits the plan that is to restore it.

Comes in: a manifest, its files and a plan. Goes out: nothing, or a CheckpointError that
names what does not fit and what to do. Reads schemas at most.
"""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa

from weir.errors import CheckpointError
from weir.graph.plan import Plan
from weir.operators.base import OperatorSpec, key_group_range
from weir.runtime.ports import Storage
from weir.runtime.storage.state_files import CheckpointFiles
from weir.snapshot.manifest import Manifest, OperatorSnapshot
from weir.snapshot.parts import is_missed
from weir.state.frozen import RestoredPart, StateFiles, part_schema

DROP = "allow_dropped_state=True (weir run --allow-dropped-state)"


def check_compatible(manifest: Manifest, plan: Plan, storage: Storage, *, may_drop: bool = False) -> None:
    """State is matched by uid; what no operator claims is an error, never dropped in silence. `may_drop`: the user
    wants it dropped. `storage`: where the files are that the manifest names."""
    if manifest.max_parallelism != plan.max_parallelism:
        raise CheckpointError(
            f"checkpoint {manifest.checkpoint} was taken with max_parallelism {manifest.max_parallelism}, the job has "
            f"{plan.max_parallelism}: keys would land in other key groups. Set Settings.max_parallelism back"
        )
    if may_drop:
        return
    operators = {operator.uid: operator for vertex in plan.vertices for operator in vertex.operators}
    for uid, snapshot in manifest.operators.items():
        held = {state for part in snapshot.parts for state in part.states}
        inline = any(is_missed(part.inline) for part in snapshot.parts)
        operator = operators.get(uid)
        if operator is None:
            if held or inline:
                raise CheckpointError(
                    f"checkpoint {manifest.checkpoint} holds state of operator {uid!r}, which is not in the job. Its "
                    f"operators are {sorted(operators)}. Give the operator its old uid back, or drop its state "
                    f"with {DROP}"
                )
            continue
        known = set(operator.spec.states) if isinstance(operator.spec, OperatorSpec) else set()
        if unclaimed := held - known:
            raise CheckpointError(
                f"checkpoint {manifest.checkpoint} holds state {sorted(unclaimed)} of operator {uid!r} "
                f"({operator.name}), which now declares {sorted(known)}. Declare it "
                f"again, or drop it with {DROP}"
            )
        if isinstance(operator.spec, OperatorSpec):
            for state in sorted(held):
                lost = operator.spec.dropped(state, _schema(snapshot, state, storage, manifest.max_parallelism))
                if lost:
                    raise CheckpointError(
                        f"checkpoint {manifest.checkpoint} holds values {list(lost)} of operator {uid!r} "
                        f"({operator.name}), which it does not keep any more. Declare them again, or drop them with "
                        f"{DROP}"
                    )


def _schema(operator: OperatorSnapshot, state: str, storage: Storage, max_parallelism: int) -> Callable[[], pa.Schema]:
    return lambda: stored_schema(operator, state, CheckpointFiles(storage), max_parallelism)


def stored_schema(operator: OperatorSnapshot, state: str, files: StateFiles, max_parallelism: int) -> pa.Schema:
    """The schema of a state's tables."""
    for part in operator.parts:
        if state in part.states:
            held = key_group_range(part.index, operator.parallelism, max_parallelism)
            return part_schema(RestoredPart(part.states[state], held, files))
    raise CheckpointError(f"the checkpoint names state {state!r}, but none of its parts has it")
