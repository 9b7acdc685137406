"""Going back to an older checkpoint: it is copied, and the copy is the newest.

Comes in: the manifest to go back to. Goes out: the same checkpoint under an id and names
that were never used. A driver that was overtaken long ago may still delete the old files;
the copy is none of those, and no later checkpoint builds on them.
"""

from __future__ import annotations

from dataclasses import replace

from weir.ids import AttemptId, CheckpointId
from weir.runtime.ports import Storage
from weir.runtime.storage import layout
from weir.runtime.storage.state_files import CheckpointFiles
from weir.snapshot.manifest import Manifest
from weir.snapshot.parts import FileRef


def copied(storage: Storage, manifest: Manifest, checkpoint: CheckpointId, attempt: AttemptId) -> Manifest:
    """Copy the files, each checked against what the manifest says, and say where they are now."""
    files = CheckpointFiles(storage)
    copies: dict[str, FileRef] = {}
    for file in manifest.files:
        if file.path not in copies:
            path = layout.shared_path(checkpoint, attempt, f"copy-{len(copies):05d}")
            storage.write(path, files.read(file))
            copies[file.path] = replace(file, path=path)
    operators = {
        uid: replace(
            operator,
            parts=tuple(
                replace(
                    part,
                    states={
                        name: replace(state, files={key: copies[file.path] for key, file in state.files.items()})
                        for name, state in part.states.items()
                    },
                )
                for part in operator.parts
            ),
        )
        for uid, operator in manifest.operators.items()
    }
    return replace(manifest, checkpoint=checkpoint, attempt=attempt, operators=operators)
