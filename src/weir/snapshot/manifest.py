"""What makes a checkpoint: the manifest, as a value and as bytes.

Comes in: what the subtasks acknowledged, or the bytes of a manifest. Goes out: the
other of the two. Reads and writes no file. Any altered or missing byte is detected:

    {"body":{"version":2,"job":…,"operators":{UID:{"parallelism":…,"parts":[…]}}},"sha256":"…"}

is a sealed record (records.py). Format 1, which is still read, did not say of what kind
inline parts are.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, TypeAlias

from weir.errors import CheckpointError, CorruptCheckpoint, ProtocolViolation
from weir.ids import AttemptId, CheckpointId, Lineage, SubtaskId, Uid, VertexId
from weir.snapshot.parts import FileRef, Inline, Json, OperatorPart, StatePart, inline_json, inline_of, untagged_of
from weir.snapshot.records import seal, unseal

VERSION = 2
"""The format that is written, and the newest that can be read."""
UNTAGGED_VERSION = 1
"""The last format whose inline parts have no tags."""

Kind: TypeAlias = Literal["checkpoint", "savepoint"]

HASHED_BYTES = 4 << 20
"""Of a file, that are hashed at once: some milliseconds of work."""


@dataclass(frozen=True)
class PartOf:
    """What subtask `index` put in for one operator."""

    index: int
    inline: Inline | None = None
    states: Mapping[str, StatePart] = field(default_factory=dict)


@dataclass(frozen=True)
class OperatorSnapshot:
    """One operator's parts, one for each subtask, by index."""

    parallelism: int
    parts: tuple[PartOf, ...]


@dataclass(frozen=True)
class Manifest:
    """A whole checkpoint: once its bytes are published, the checkpoint exists."""

    job: str
    checkpoint: CheckpointId
    attempt: AttemptId
    max_parallelism: int
    created_ms: float
    """Processing time then, in milliseconds since 1970: no task had gone further in it."""
    operators: Mapping[Uid, OperatorSnapshot]
    kind: Kind = "checkpoint"
    """A checkpoint's paths are relative to the job's directory; a savepoint's to its own, and it refers to nothing
    else."""
    lineage: Lineage | None = None
    """The life of the job that took it: ids and attempts count within one."""

    @property
    def files(self) -> tuple[FileRef, ...]:
        """Every file that restoring this checkpoint needs."""
        parts = [part for operator in self.operators.values() for part in operator.parts]
        return tuple(file for part in parts for state in part.states.values() for file in state.files.values())


def checksum(data: Any, between: Callable[[], None] = lambda: None) -> str:
    """The checksum of a state file; takes anything with a buffer. SHA-256 is the fastest strong hash in the standard
    library where the processor knows it, which is nearly everywhere. `between` is called every few milliseconds."""
    hashed = hashlib.sha256()
    rest = memoryview(data).cast("B")
    while rest:
        hashed.update(rest[:HASHED_BYTES])
        rest = rest[HASHED_BYTES:]
        between()
    return f"sha256:{hashed.hexdigest()}"


# --- From acknowledgements ----------------------------------------------------------------------------


def build(
    *,
    job: str,
    checkpoint: CheckpointId,
    attempt: AttemptId,
    max_parallelism: int,
    created_ms: float,
    parts: Mapping[SubtaskId, tuple[OperatorPart, ...]],
    parallelism: Mapping[VertexId, int],
    kind: Kind = "checkpoint",
    lineage: Lineage | None = None,
) -> Manifest:
    """Put the parts of all subtasks together. A part that is missing or that comes twice is our bug."""
    expected = {SubtaskId(vertex, index) for vertex, count in parallelism.items() for index in range(count)}
    if expected != set(parts):
        missing = sorted(map(str, expected - set(parts)))
        unknown = sorted(map(str, set(parts) - expected))
        raise ProtocolViolation(f"manifest of checkpoint {checkpoint}: missing {missing}, unknown {unknown}")
    collected: dict[Uid, dict[int, PartOf]] = {}
    vertices: dict[Uid, VertexId] = {}
    for subtask in sorted(parts):
        for part in parts[subtask]:
            of_operator = collected.setdefault(part.uid, {})
            if subtask.index in of_operator or vertices.setdefault(part.uid, subtask.vertex) != subtask.vertex:
                raise ProtocolViolation(f"manifest of checkpoint {checkpoint}: operator {part.uid!r} twice ({subtask})")
            of_operator[subtask.index] = PartOf(subtask.index, part.inline, dict(part.states))
    operators: dict[Uid, OperatorSnapshot] = {}
    for uid, by_index in collected.items():
        count = parallelism[vertices[uid]]
        if len(by_index) != count:
            raise ProtocolViolation(
                f"manifest of checkpoint {checkpoint}: operator {uid!r} has parts of subtasks {sorted(by_index)}, "
                f"expected all {count}"
            )
        operators[uid] = OperatorSnapshot(count, tuple(by_index[index] for index in range(count)))
    return Manifest(job, checkpoint, attempt, max_parallelism, created_ms, operators, kind, lineage)


# --- Bytes --------------------------------------------------------------------------------------------


def encode(manifest: Manifest) -> bytes:
    """The bytes to publish."""
    body = {
        "version": VERSION,
        "kind": manifest.kind,
        "job": manifest.job,
        "lineage": manifest.lineage,
        "checkpoint": manifest.checkpoint,
        "attempt": manifest.attempt,
        "max_parallelism": manifest.max_parallelism,
        "created_ms": manifest.created_ms,
        "operators": {uid: _operator_json(operator) for uid, operator in manifest.operators.items()},
    }
    return seal(body)


def decode(data: bytes) -> Manifest:
    """The manifest, CorruptCheckpoint when any byte is not what was written, or CheckpointError when it is too new."""
    body = unseal(data, "the manifest")
    version = body.get("version") if isinstance(body, dict) else None
    if not isinstance(version, int):
        raise CorruptCheckpoint(f"the manifest has format version {version!r}; expected a whole number")
    if version > VERSION:
        raise CheckpointError(
            f"the manifest has format version {version}, and this Weir reads versions up to {VERSION}; "
            "restore it with the Weir that wrote it, or a newer one"
        )
    inline = inline_of if version > UNTAGGED_VERSION else untagged_of
    try:
        return Manifest(
            job=body["job"],
            checkpoint=CheckpointId(body["checkpoint"]),
            attempt=AttemptId(body["attempt"]),
            max_parallelism=body["max_parallelism"],
            created_ms=body["created_ms"],
            operators={Uid(uid): _operator(value, inline) for uid, value in body["operators"].items()},
            kind=body.get("kind", "checkpoint"),
            lineage=body.get("lineage"),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CorruptCheckpoint(
            f"the manifest lacks what format version {version} has: {type(error).__name__} {error}"
        ) from error


def _operator_json(operator: OperatorSnapshot) -> Json:
    parts = [
        {
            "index": part.index,
            "inline": inline_json(part.inline),
            "states": {name: asdict(state) for name, state in part.states.items()},
        }
        for part in operator.parts
    ]
    return {"parallelism": operator.parallelism, "parts": parts}


def _operator(value: Json, inline: Callable[[Json], Inline | None]) -> OperatorSnapshot:
    parts = tuple(
        PartOf(part["index"], inline(part["inline"]), {name: _state(state) for name, state in part["states"].items()})
        for part in value["parts"]
    )
    return OperatorSnapshot(value["parallelism"], parts)


def _state(value: Json) -> StatePart:
    files = {name: FileRef(**file) for name, file in value["files"].items()}
    for file in files.values():
        # A manifest may come from anywhere: nothing that it names lies outside its directory.
        if file.path.startswith("/") or ".." in file.path.split("/"):
            raise CorruptCheckpoint(f"the manifest names a file outside its directory: {file.path!r}")
    return StatePart(value["format"], files, value["detail"])
