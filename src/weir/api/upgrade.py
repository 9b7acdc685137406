"""What would become of a checkpoint's state if a job started from it.

Comes in: the location of a checkpoint or savepoint, and a job's plan. Goes out: a finding
for each state, as a start decides it. Reads schemas only; starts nothing and changes nothing.
"""

from __future__ import annotations

import os

from weir.graph.plan import Plan
from weir.runtime.driver.compatibility import Finding, findings_of, stored_in
from weir.runtime.storage.opening import open_storage
from weir.runtime.storage.savepoints import origin_at


def check_upgrade(checkpoint: str | os.PathLike[str], plan: Plan) -> list[Finding]:
    """A finding for each state that the checkpoint holds or the job declares."""
    origin = origin_at(os.fspath(checkpoint))
    storage = origin.open(open_storage)
    manifest = origin.read(storage)
    return findings_of(manifest, plan, stored_in(storage, manifest))
