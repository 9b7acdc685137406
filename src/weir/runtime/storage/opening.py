"""Storage is opened here: a location in, the `Storage` port out.

Comes in: a location, and how patiently it is asked; or what the user says of it. Goes out: storage, checked where
somebody will write. The implementations are in stores/; what a location is, locations.py knows. Keeps no record of
what was opened, and nothing that is shared: whoever opens storage by location has been handed an `Opener`.
"""

from __future__ import annotations

import os
import uuid
from functools import partial

from weir.config import Settings
from weir.errors import ConfigError, JobError
from weir.runtime.ports import Opener, Storage
from weir.runtime.storage.below import Unshared
from weir.runtime.storage.locations import (
    HADOOP,
    KNOWN_SCHEMES,
    absolute_location,
    local_path,
    scheme_of,
    shown_location,
)
from weir.runtime.storage.stores.files import TEMPORARY, LocalStorage
from weir.runtime.storage.stores.readable import ReadableOpener, ReadableStorage
from weir.runtime.storage.stores.retry import DEFAULT_PATIENCE, Patience, PatientStorage, patience_of


def opener_of(settings: Settings) -> ReadableOpener:
    """What opens storage for a job: as patiently as its settings say. Can be pickled."""
    return partial(open_storage, patience=patience_of(settings))


def open_storage(
    location: str | os.PathLike[str], create: bool = True, *, patience: Patience = DEFAULT_PATIENCE
) -> ReadableStorage:
    """The storage at a local path or URI; `create` makes the directory when it is not there. It is asked again, with
    `patience`, when a call fails."""
    text = absolute_location(location)
    scheme = scheme_of(text)
    if scheme is None or scheme == "file":
        return PatientStorage(LocalStorage(local_path(text), create=create), patience)
    if scheme not in KNOWN_SCHEMES:
        raise ConfigError(
            f"storage location {text!r}: the scheme {scheme!r} is not known; "
            f"use a local path or one of {', '.join(f'{known}://' for known in KNOWN_SCHEMES)}"
        )
    return PatientStorage(_open_remote(text, scheme), patience)


def _open_remote(text: str, scheme: str) -> ReadableStorage:
    if scheme in HADOOP:
        from weir.runtime.storage.stores.hdfs import open_hdfs

        return open_hdfs(text, shown_location(text))
    from weir.runtime.storage.stores.clouds import open_object_store
    from weir.runtime.storage.stores.objects import ObjectStorage

    opened = open_object_store(text, shown_location(text))
    return ObjectStorage(
        opened.store, opened.root, location=shown_location(text), secrets=opened.secrets, repeating=opened.repeating
    )


def open_writable(location: str, what: str, opener: Opener) -> Storage:
    """Open and probe a location for validation; `what` names it in the JobError."""
    place = f"{what} at {shown_location(location)!r}"
    try:
        storage = opener(location)
    except ConfigError as error:
        raise ConfigError(f"{what}: {error}") from error
    except OSError as error:
        raise _not_writable(place, error) from error
    check_writable(storage, place)
    return storage


def claimable(storage: Storage, location: str, *, exclusive: bool) -> Storage:
    """Refuse storage in which two drivers could both take themselves for the owner of a job's checkpoints. `exclusive`:
    the user says that there is only one who writes."""
    try:
        if storage.creates_atomically:
            return storage
    except OSError as error:
        raise _not_writable(
            f"Checkpoints.to: the checkpoint location at {shown_location(location)!r}", error
        ) from error
    if exclusive:
        return Unshared(storage)
    raise ConfigError(
        f"Checkpoints.to: {shown_location(location)!r} cannot create a file atomically, so two drivers of one job "
        f"could not tell which of them owns its checkpoints. Choose other storage, or set "
        f"Checkpoints(exclusive_storage=True) if no other process will ever write there"
    )


def check_writable(storage: Storage, what: str) -> None:
    """Write and delete a probe. A JobError names `what` and the cause when that fails."""
    probe = f"{TEMPORARY}{uuid.uuid4().hex}"  # one's own: others may try the same at this moment
    try:
        storage.write(probe, b"probe")
        storage.delete(probe)
    except OSError as error:
        raise _not_writable(what, error) from error


def _not_writable(what: str, error: OSError) -> JobError:
    return JobError(f"{what} cannot be written: {error}. Choose another location, or make this one writable.")
