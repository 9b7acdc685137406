"""Savepoints in storage: written by tasks and the driver, found again when a job starts from one.

Comes in: the location of a savepoint, or of any checkpoint of another run. Goes out: its
files, its manifest, and where they lie. A savepoint's directory holds all that it needs:

    manifest.json                          only with this is it a savepoint; written last
    0000000012-a3-UID-0-STATE-00000        a state of one subtask, as a whole table
"""

from __future__ import annotations

import posixpath
import re
import secrets
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace

from weir.config import JobConfig
from weir.errors import CheckpointError, ConfigError, CorruptCheckpoint
from weir.ids import CheckpointId, Uid
from weir.runtime.ports import Background, Opener, Storage
from weir.runtime.storage import layout
from weir.runtime.storage.locations import absolute_location, location_below, scheme_of
from weir.runtime.storage.state_files import CheckpointWriter
from weir.snapshot.checkpoints import Listing
from weir.snapshot.manifest import Manifest, PartOf, decode, encode
from weir.snapshot.parts import PendingEpochs, read_as


def new_savepoint(directory: str, job: str) -> str:
    """A place of its own for a savepoint below a directory, never used before."""
    name = re.sub(r"[^\w.-]", "-", job)
    return location_below(directory, f"{name}-{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{secrets.token_hex(4)}")


class SavepointWriter(CheckpointWriter):
    """Puts the files of one state of one operator of one subtask into a savepoint. All are its own."""

    def _path(self, name: str, shared: bool) -> str:
        return f"{layout.shared_prefix(self._checkpoint, self._attempt)}{self._name}-{name}"


# --- On the driver --------------------------------------------------------------------------------------


def publish_savepoint(storage: Storage, manifest: Manifest) -> None:
    """Make the savepoint exist. Whatever this raises, the caller removes what there is of it."""
    if not storage.create(layout.MANIFEST, encode(manifest)):
        raise CheckpointError(f"another {layout.MANIFEST} is there already")


class SavepointDesk:
    """Publishes a job's savepoints, and removes those that failed, behind its driver's back."""

    def __init__(self, background: Background, opener: Opener) -> None:
        self._background = background
        self._opener = opener
        self._failed: dict[str, CheckpointId] = {}
        """Where each lay, and the first checkpoint that could begin after it had failed."""
        self._publishing = 0
        self._closed: Callable[[], None] | None = None

    def publish(self, place: str, manifest: Manifest, done: Callable[[BaseException | None], None]) -> None:
        """Make the savepoint exist; `done` hears what became of it."""

        def published(result: BaseException | None) -> None:
            self._publishing -= 1
            done(result)
            self._close()

        self._publishing += 1
        self._background.run(lambda: publish_savepoint(self._opener(place), manifest), published)

    def discard(self, place: str, following: CheckpointId) -> None:
        """Nothing comes of this one. Tasks may still write to it for a while, hence `sweep` and `close`."""
        self._failed[place] = following
        self._background.run(lambda: self._remove([place]), _best_effort)

    def sweep(self, checkpoint: CheckpointId) -> None:
        """Every task has answered this checkpoint: nobody writes any more to what had failed when it began."""
        if places := [place for place, following in self._failed.items() if following <= checkpoint]:
            self._failed = {place: following for place, following in self._failed.items() if following > checkpoint}
            self._background.run(lambda: self._remove(places), _best_effort)

    def close(self, done: Callable[[], None]) -> None:
        """The job's tasks are gone. When `done` is called, so is all that was written to savepoints that failed."""
        self._closed = done
        self._close()

    def _close(self) -> None:
        if self._closed is None or self._publishing:
            return
        done, self._closed = self._closed, None
        places, self._failed = list(self._failed), {}
        if places:
            self._background.run(lambda: self._remove(places), lambda result: done())
        else:
            done()

    def _remove(self, places: list[str]) -> None:
        for place in places:
            with suppress(Exception):
                discard_savepoint(self._opener(place))


def discard_savepoint(storage: Storage) -> None:
    """Remove what was written of a savepoint that failed. The manifest first: half of one is none."""
    storage.delete(layout.MANIFEST)
    for name in storage.list(""):
        storage.delete(name)
    storage.delete("")


def _best_effort(result: object) -> None:
    """Files without a manifest are no savepoint: what could not be removed misleads nobody."""


# --- Starting from one --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Origin:
    """A savepoint, or a checkpoint of another run, that a job starts from."""

    location: str = field(repr=False)
    """As it was given, made absolute."""

    @property
    def root(self) -> str:
        """The directory that the manifest's paths are relative to."""
        place, mark, options = self._parts
        return f"{posixpath.dirname(place)}{mark}{options}" if self._is_checkpoint else self.location

    @property
    def manifest_path(self) -> str:
        return f"{posixpath.basename(self._parts[0])}/{layout.MANIFEST}" if self._is_checkpoint else layout.MANIFEST

    def open(self, opener: Opener) -> Storage:
        return opener(self.root, create=False)

    def read(self, storage: Storage) -> Manifest:
        """The manifest, without what the other run has still to commit: that is no business of this one."""
        return without_pending(self.read_whole(storage))

    def read_whole(self, storage: Storage) -> Manifest:
        try:
            return decode(storage.read(self.manifest_path).to_pybytes())
        except FileNotFoundError:
            raise CheckpointError(f"{self.location} is no savepoint: {self._missing(storage)}") from None
        except CorruptCheckpoint as error:
            raise CorruptCheckpoint(f"{self.location}/{layout.MANIFEST}: {error}") from error

    def _missing(self, storage: Storage) -> str:
        below = [name for name in storage.list("") if layout.is_lineage(name)]
        within = [f"{name}/{chk}" for name in below for chk in storage.list(name) if layout.checkpoint_of(chk)]
        within += [name for name in storage.list("") if layout.checkpoint_of(name) is not None]
        if within and not self._is_checkpoint:
            return (
                f"it is a job's checkpoint directory; name one of its checkpoints, such as {self.location}/{within[-1]}"
            )
        return f"there is no {layout.MANIFEST}. Without it a savepoint or checkpoint is not complete"

    @property
    def _is_checkpoint(self) -> bool:
        return layout.checkpoint_of(posixpath.basename(self._parts[0])) is not None

    @property
    def _parts(self) -> tuple[str, str, str]:
        place, mark, options = self.location.partition("?") if scheme_of(self.location) else (self.location, "", "")
        return place.rstrip("/"), mark, options


def origin_at(location: str) -> Origin:
    """What a user gave: a path or a URI."""
    return Origin(absolute_location(location))


def going_on(config: JobConfig, listing: Listing) -> JobConfig:
    """What a resume starts from, by what its lineage has noted. Behind a checkpoint of its own nobody looks at the
    savepoint again that it came from; before that it is the same for every start, named again or not."""
    if listing.newest is not None or listing.missing is not None:
        return replace(config, from_savepoint=None)
    if config.from_savepoint is not None or listing.origin is None:
        return config
    if "…" in listing.origin:
        raise ConfigError(
            f"job {config.name!r} was started from {listing.origin}, and has no checkpoint of its own yet: name the "
            "savepoint again, with what opens it (from_savepoint, weir run --resume --from)"
        )
    return replace(config, from_savepoint=listing.origin)


def left_to_commit(manifest: Manifest) -> list[Uid]:
    """The sinks that had still to commit something when the checkpoint was taken. In a savepoint none had."""
    return [
        uid
        for uid, operator in manifest.operators.items()
        if any(pending.epochs for part in operator.parts if (pending := _pending(part)) is not None)
    ]


def without_pending(manifest: Manifest) -> Manifest:
    """The same, as for a run that commits nothing of it."""
    operators = {
        uid: replace(operator, parts=tuple(map(_without_pending, operator.parts)))
        for uid, operator in manifest.operators.items()
    }
    return replace(manifest, operators=operators)


def _without_pending(part: PartOf) -> PartOf:
    return part if _pending(part) is None else replace(part, inline=None)


def _pending(part: PartOf) -> PendingEpochs | None:
    return read_as(part.inline, PendingEpochs)
