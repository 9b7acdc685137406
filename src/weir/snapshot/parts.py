"""What a subtask puts into a checkpoint: files by state, and a little inline, in the manifest itself.

Comes in: what operators froze, or the JSON of it. Goes out: the other of the two. Touches
no file. What is inline says with a tag what it is; manifests of format 1 had no tags, and
only here is their form known.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, TypeAlias, TypeVar

from weir.ids import AttemptId, CheckpointId, Uid

Json: TypeAlias = Any
"""What json.dumps takes: None, bool, int, float, str, list, dict with string keys."""


# --- Inline -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Position:
    """Where a reader of a source goes on."""

    value: Json


@dataclass(frozen=True)
class Reserved:
    """How far the readers of one source have come for good: no later attempt hands out again what is before that."""

    positions: tuple[Json, ...]
    """By the subtask's index; there are as many as there were readers."""


NOT_READ = CheckpointId(0)
"""Nothing was read behind any checkpoint."""


@dataclass(frozen=True)
class ReservedSources:
    """The same of all sources of a job that are read at most once, as it was noted under an attempt."""

    attempt: AttemptId
    sources: Mapping[Uid, Reserved]
    read_behind: CheckpointId = NOT_READ
    """The newest checkpoint behind which rows were read: what its state, and that of older ones, would put out may be
    out already."""


NONE_RESERVED = ReservedSources(AttemptId(0), {})


@dataclass(frozen=True)
class PendingEpochs:
    """What a sink has prepared and has still to commit: checkpoint and committable, oldest first."""

    epochs: tuple[tuple[CheckpointId, Json], ...]


@dataclass(frozen=True)
class Progress:
    """How far event time had come for an operator. Nothing to be missed when the operator is gone."""

    watermark_us: int
    rows_late: int = 0
    """Rows that were left out."""
    wake_ms: float | None = None
    """When something was due by the wall clock."""
    rows_numbered: int = 0
    """Where rows are numbered as they come: how many numbers were given."""


@dataclass(frozen=True)
class SplitProgress:
    """How far event time had come where watermarks are made. Nothing to be missed either."""

    watermark_us: int
    splits: Mapping[str, int]
    """The latest time of each split of the source."""


@dataclass(frozen=True)
class Untagged:
    """From a manifest of format 1, which does not say what it is: it is what its reader takes it for."""

    value: Json


Inline: TypeAlias = Position | PendingEpochs | Progress | SplitProgress | Untagged

_TAGS: Mapping[str, type[Inline]] = {
    "position": Position,
    "pending_epochs": PendingEpochs,
    "progress": Progress,
    "split_progress": SplitProgress,
    "untagged": Untagged,
}
_TAG_OF = {kind: tag for tag, kind in _TAGS.items()}

K = TypeVar("K", Position, PendingEpochs, Progress, SplitProgress)


def inline_json(inline: Inline | None) -> Json:
    """The JSON of it, with its tag."""
    if inline is None:
        return None
    return {"kind": _TAG_OF[type(inline)], **{field.name: getattr(inline, field.name) for field in fields(inline)}}


def inline_of(value: Json) -> Inline | None:
    """What `inline_json` made; KeyError or TypeError when it is nothing of that."""
    if value is None:
        return None
    held = dict(value)
    kind = _TAGS[held.pop("kind")]
    if kind is PendingEpochs:
        return PendingEpochs(tuple((CheckpointId(id), committable) for id, committable in held["epochs"]))
    make: Callable[..., Inline] = kind
    return make(**held)


def untagged_of(value: Json) -> Inline | None:
    """What a manifest of format 1 holds."""
    return None if value is None else Untagged(value)


def read_as(inline: Inline | None, kind: type[K]) -> K | None:
    """What is there of this kind; None: nothing is."""
    if isinstance(inline, Untagged) and kind is Position:
        # Only the source knows what its position looks like: perhaps like something else.
        inline = Position(inline.value)
    meant = meaning_of(inline)
    return meant if isinstance(meant, kind) else None


def meaning_of(inline: Inline | None) -> Position | PendingEpochs | Progress | SplitProgress | None:
    """What it is, to those who do not know its operator. What has no tag is told by its keys."""
    if not isinstance(inline, Untagged):
        return inline
    held = inline.value
    if isinstance(held, dict) and "watermark_us" in held:
        if "splits" in held:
            return SplitProgress(held["watermark_us"], held["splits"])
        return Progress(held["watermark_us"], held.get("rows_late", 0), held.get("wake_ms"))
    epochs = held["pending"] if isinstance(held, dict) and set(held) == {"pending"} else None
    if isinstance(epochs, list) and all(isinstance(epoch, list) and len(epoch) == 2 for epoch in epochs):
        return PendingEpochs(tuple((CheckpointId(id), committable) for id, committable in epochs))
    return Position(held)


def is_missed(inline: Inline | None) -> bool:
    """Whether something is lost with it when its operator is gone. How far event time had come is nothing."""
    meant = meaning_of(inline)
    return isinstance(meant, Position) or (isinstance(meant, PendingEpochs) and bool(meant.epochs))


# --- Files --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FileRef:
    """One file of a snapshot, by its path relative to the job's checkpoint directory."""

    path: str
    length_bytes: int
    checksum: str


@dataclass(frozen=True)
class StatePart:
    """One state of one subtask: its files by name, and how they are read."""

    format: str
    files: Mapping[str, FileRef] = field(default_factory=dict)
    detail: Json = None
    """What the format needs to know besides."""


@dataclass(frozen=True)
class OperatorPart:
    """What one operator of one subtask put into a checkpoint."""

    uid: Uid
    inline: Inline | None = None
    states: Mapping[str, StatePart] = field(default_factory=dict)
    """By the name of the state."""
