"""From a plan to a running job: everything is checked before Spark is asked for slots.

Comes in: a plan, its settings and perhaps a Spark session. Goes out: a Job, started.
Errors name the operator or the setting, what was found and what to do.
"""

from __future__ import annotations

import logging
import re
import uuid
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from weir.config import JobConfig
from weir.errors import ConfigError, shown
from weir.graph.guarantees import check_at_most_once
from weir.graph.plan import Plan
from weir.ids import Lineage
from weir.operators.source import Source
from weir.runtime.driver.compatibility import check_compatible
from weir.runtime.driver.region import slots_of
from weir.runtime.driver.sink_desk import SinkDesk
from weir.runtime.job.finished import HandleOfFinished, is_left_nothing
from weir.runtime.job.handle import Job
from weir.runtime.job.memory import check_memory
from weir.runtime.ports import Opener, Storage
from weir.runtime.spark.session import check_private, check_slots, embedded_session
from weir.runtime.storage import layout
from weir.runtime.storage.attempts import current_lineage
from weir.runtime.storage.checkpoints import CheckpointStore
from weir.runtime.storage.locations import location_below
from weir.runtime.storage.lost_notes import lineage_to_go_back_in
from weir.runtime.storage.opening import claimable, open_writable, opener_of
from weir.runtime.storage.patience import patiently
from weir.runtime.storage.savepoints import going_on, left_to_commit, origin_at, without_pending
from weir.runtime.storage.stores.memory import MemoryStorage
from weir.snapshot.checkpoints import PublishedCheckpoint

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MEMORY_WITHOUT_CHECKPOINTS_BYTES = 1 << 28
"""Room for the final checkpoint of a job that has no checkpoint settings."""

_LOG = logging.getLogger(__name__)

_JOB_NAME = re.compile(r"(?!\.+$)[\w.\- ]{1,100}")


def submit(
    plan: Plan,
    config: JobConfig,
    session: SparkSession | None = None,
    *,
    plan_at: Callable[[int], Plan] | None = None,
) -> Job | HandleOfFinished:
    """Check the job, start it, and hand back its handle at once. `plan_at`: the same job at another parallelism. What
    is resumed, and had finished, is not started."""
    if not _JOB_NAME.fullmatch(config.name):
        raise ConfigError(
            f"job name {config.name!r}: use 1 to 100 letters, digits, spaces, '.', '-' or '_', and not dots alone"
        )
    if config.back_to is not None and not config.resume:
        raise ConfigError(
            f"going back to checkpoint {config.back_to} is a way to resume: give resume=True (--resume), too"
        )
    opener = opener_of(config.settings)
    storage, storage_uri = patiently(config, lambda: _storage(config, opener))
    run = uuid.uuid4().hex
    current = current_lineage(storage)
    is_resumed = config.resume and config.back_to is None
    config = _checked_origin(plan, config, storage, current, opener)
    store = _store(config, storage, current)
    # First of all, and without changing anything.
    store.check_free(config.resume)
    manifest = store.restorable(config.back_to) if config.resume else None
    if manifest is not None:
        check_compatible(manifest, plan, store.storage, may_drop=config.allow_dropped_state)
    sinks = SinkDesk(config, store.lineage, store.check_newest, lives=store.lives)
    _validate(plan, config, sinks)
    if is_resumed and manifest is not None and store.has_ended() and is_left_nothing(plan, manifest, sinks):
        _LOG.info("job %s had finished already, with checkpoint %s", config.name, manifest.checkpoint)
        return HandleOfFinished(config.name, plan, manifest)
    needed = slots_of(plan, config.settings)
    session = session or embedded_session(needed, config.name)
    check_private(session, trusted=config.settings.trust_spark_network)
    check_slots(session, needed)
    # Before sources touch the directory: they may keep there what an earlier run needs.
    store.adopt(run, config.resume)
    job = Job(
        plan,
        config,
        run=run,
        session=session,
        store=store,
        opener=opener,
        storage_uri=storage_uri,
        plan_at=plan_at,
    )
    job.start()
    return job


def _checked_origin(
    plan: Plan, config: JobConfig, directory: Storage, current: Lineage | None, opener: Opener
) -> JobConfig:
    """Refuse a savepoint that does not fit. One that is the very last checkpoint of the run that is here, as after
    `weir stop`, leaves nothing behind: then this run goes on from there, and its sinks with what they have written."""
    found = None
    if current is not None and config.back_to is None and (config.resume or config.from_savepoint is not None):
        found = CheckpointStore(directory, config.name, lineage=current).listing()
    if found is not None and config.resume:
        config = going_on(config, found)
    if config.from_savepoint is None:
        return config
    origin = origin_at(config.from_savepoint)
    storage = origin.open(opener)
    manifest = origin.read_whole(storage)
    # What a sink had still to commit is left to the other run, so this one need not have that sink.
    check_compatible(without_pending(manifest), plan, storage, may_drop=config.allow_dropped_state)
    last = None if found is None else found.newest_published
    is_last = manifest.lineage == current and last == PublishedCheckpoint(manifest.checkpoint, manifest.attempt)
    goes_on = is_last and manifest.job == config.name
    if not goes_on and (sinks := left_to_commit(manifest)):
        warnings.warn(
            f"{shown(origin.location)} is no savepoint but a checkpoint of a run whose sinks had rows still to commit "
            f"({', '.join(sinks)}). This run does not write them: they come out when that run goes on, if it does not "
            "run any more with weir run --resume, and where what it has noted is gone with --resume --at",
            stacklevel=3,
        )
    return replace(config, resume=config.resume or goes_on)


def _storage(config: JobConfig, opener: Opener) -> tuple[Storage, str | None]:
    checkpoints = config.checkpoints
    if checkpoints is None or checkpoints.to is None:
        if config.resume:
            raise ConfigError("resume needs checkpoints in storage; set Checkpoints(to=...) to a directory or URI")
        limit = checkpoints.memory_limit_bytes if checkpoints else MEMORY_WITHOUT_CHECKPOINTS_BYTES
        return MemoryStorage(limit), None
    # Absolute: tasks have other working directories than the driver.
    uri = location_below(checkpoints.to, config.name)
    storage = open_writable(uri, "Checkpoints.to: the checkpoint location", opener)
    return claimable(storage, uri, exclusive=checkpoints.exclusive_storage), uri


def _store(config: JobConfig, storage: Storage, current: Lineage | None) -> CheckpointStore:
    """The directory as this run sees it: in a new lineage, in the one that the notes tell of, or in that of the
    checkpoint that the user has named."""
    lineage = current if config.resume else None
    if config.back_to is not None:
        lineage = lineage_to_go_back_in(storage, config.name, config.back_to, config.back_to_lineage, current)
    return CheckpointStore(
        storage,
        config.name,
        lineage=lineage or layout.new_lineage(),
        is_found=lineage is not None and lineage == current,
        beside=current if config.back_to is not None else None,
    )


def _validate(plan: Plan, config: JobConfig, sinks: SinkDesk) -> None:
    if config.is_at_most_once:
        check_at_most_once(plan)
    for vertex in plan.vertices:
        if isinstance(source := vertex.operators[0].spec, Source):
            source.validate(vertex.operators[0].name)
    sinks.validate(plan)
    check_memory(plan, config.settings)
    if config.back_to is not None:
        for repeated in sinks.repeated(plan, config.back_to):
            warnings.warn(f"going back to checkpoint {config.back_to} writes again: {repeated}", stacklevel=3)
