"""Users who put committed parts of a sink together, beside the job: what they write, and how it is read again.

Comes in: the simulated storage and a sink. Goes out: files of theirs, with all that was in the parts.
"""

from __future__ import annotations

import base64
import json
import random
from typing import TYPE_CHECKING

from weir.connectors import FileSink

if TYPE_CHECKING:
    from tests.sim.world import World

COMPACTED = "compacted-"
"""What the names of users' own files begin with, in the directories of sinks."""


def compact(world: World, sink: FileSink, number: int, *, rng: random.Random) -> None:
    """Some parts become one file."""
    storage = world.storage.below(sink.path.split("://")[1])
    names = [name for name in parts_of(world, sink) if rng.random() < 0.8]
    data = [storage.read(name).to_pybytes() for name in names]
    world.log(f"users compact {len(names)} parts of {sink.path}")
    if data:
        body = json.dumps([base64.b64encode(part).decode() for part in data]).encode()
        place = world.storage.below(archive_of(sink)) if rng.random() < 0.5 else storage
        place.write(f"{COMPACTED}{number}", body)
    for name in names:
        storage.delete(name)


def parts_of(world: World, sink: FileSink) -> list[str]:
    """What they may touch: where a move is not one step, a part that is still pending as well is left alone."""
    prefix = f"{sink.path.split('://')[1]}/_weir/"
    files = world.storage.files
    pending = {name.rpartition("/")[2] for name in files if name.startswith(prefix)}
    return [name for name in sink.parts().committed() if name not in pending]


def archive_of(sink: FileSink) -> str:
    """Where users put what they do not want in the sink's directory."""
    return sink.path.split("://")[1].replace("/out/", "/archive/")


def compacted_parts(world: World, sink: FileSink) -> list[bytes]:
    """The parts that users have put into files of their own."""
    prefixes = f"{sink.path.split('://')[1]}/{COMPACTED}", f"{archive_of(sink)}/{COMPACTED}"
    files = [data for name, data in world.storage.files.items() if name.startswith(prefixes)]
    return [base64.b64decode(part) for data in files for part in json.loads(data)]
