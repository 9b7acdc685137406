"""Looks whether a job's checkpoints are whole, and removes what nobody needs.

Comes in: the storage of a job's directory. Goes out: what was found, checkpoint by
checkpoint and file by file; with `repair`, deletions of leftovers. May run beside the job:
what its retirement takes away meanwhile is not called damage, and what may still become
part of a checkpoint is no leftover.

Laws:
  1. Where anything is damaged, or nobody can say which lineage a resume goes on with,
     nothing is a leftover.
  2. Nor is anything of another lineage as long as the job has no checkpoint of its own: it
     may have been started from there.
  3. Nor is what sources keep, unless the start of their lineage is noted: they begin
     before that.
  4. Nor is anything when checkpoints came or went during the look: one that began before
     may name what those name that are gone by now. Before anything is deleted, all
     manifests are looked at again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from weir.errors import CheckpointError, CorruptCheckpoint
from weir.ids import CheckpointId, Lineage
from weir.runtime.ports import Storage
from weir.runtime.storage import layout
from weir.runtime.storage.attempts import current_lineage, read_record
from weir.runtime.storage.below import Below
from weir.runtime.storage.checkpoints import CheckpointStore
from weir.runtime.storage.lost_notes import checkpoints_of, lineages_of, lost_lineages, notes_of, started, unnoted
from weir.runtime.storage.retirement import begun_only, files_of_lineage, prune_all
from weir.runtime.storage.state_files import CheckpointFiles
from weir.snapshot.checkpoints import Listing
from weir.snapshot.manifest import Manifest, decode

_OURS = (layout.JOB_FILE, layout.ATTEMPTS, layout.SAVEPOINTS)
_UNKNOWN = "?"
_NO_EXPIRY = "If a lifecycle rule of the bucket expires old objects, end it: what a job needs may be as old as the job"

Progress = Callable[[str], None]
"""Told the path of each file before it is read."""


@dataclass(frozen=True)
class CheckedCheckpoint:
    """A checkpoint or savepoint, and what is wrong with it."""

    name: str
    files: int
    bytes: int
    problems: tuple[str, ...] = ()
    counts: bool = True
    """Whether a resume could come to it. A driver that was overtaken may publish one late, whose files are gone by
    then; what was gone back behind is there for a while."""


@dataclass
class Report:
    """What a job's directory holds."""

    job: str
    lineage: Lineage | None = None
    checkpoints: list[CheckedCheckpoint] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    """Damage that belongs to no single checkpoint."""
    leftovers: list[str] = field(default_factory=list)
    """Paths of files that nobody needs, and of directories of checkpoints that are over and seem empty."""
    unclaimed: list[str] = field(default_factory=list)
    """Paths of what sources keep for starts that have not claimed anything: under way, or given up."""
    strays: list[str] = field(default_factory=list)
    """Paths of what Weir did not write: they are left alone."""

    @property
    def is_whole(self) -> bool:
        return not self.problems and not any(checked.problems for checked in self.checkpoints if checked.counts)


def job_directories(storage: Storage) -> list[str]:
    """The job directories at a location: itself, as an empty path, or those directly below."""
    if _is_job(storage):
        return [""]
    return [name for name in storage.list("") if _is_job(Below(storage, name))]


def strays_beside(storage: Storage, directories: list[str]) -> list[str]:
    """What else there is beside these job directories."""
    return [] if directories == [""] else [name for name in storage.list("") if name not in directories]


def examined(storage: Storage, progress: Progress = lambda path: None) -> Report:
    """Look at everything in one job's directory, and read every file that a checkpoint names."""
    report = Report(_UNKNOWN, current_lineage(storage))
    _check_owner(storage, report)
    for name in storage.list(layout.ATTEMPTS):
        if layout.is_record(name):
            _check_record(storage, f"{layout.ATTEMPTS}/{name}", report)
    if lost := lost_lineages(storage):
        for lineage in lost:
            _check_lost(storage, report, lineage, progress)
    elif report.lineage is not None:
        _check_lineage(storage, report, report.lineage, progress)
    report.unclaimed += [f"{lineage}/{layout.SOURCES}" for lineage in begun_only(storage)]
    for name in storage.list(layout.SAVEPOINTS):
        _check_savepoint(Below(storage, f"{layout.SAVEPOINTS}/{name}"), name, report, progress)
    report.strays += [name for name in storage.list("") if name not in _OURS and not layout.is_lineage(name)]
    return report


def repair(storage: Storage, report: Report) -> int:
    """Delete the leftovers, if nobody has taken the job over since they were found. How many of them are gone."""
    named = None if report.lineage is None else _named_now(storage, report.lineage)
    if named is None or current_lineage(storage) != report.lineage:
        return 0
    removed = sum(_remove(storage, path) for path in report.leftovers if path not in named)
    for directory in {path.rpartition("/")[0] for path in report.leftovers}:
        if layout.checkpoint_of(directory.rpartition("/")[2]) is not None:
            storage.prune(directory)
    for lineage in {path.partition("/")[0] for path in report.leftovers} - {report.lineage}:
        prune_all(storage, lineage)
    return removed


def _named_now(storage: Storage, lineage: Lineage) -> set[str] | None:
    """What the checkpoints of a lineage name; None: that cannot be said, since some came or went just now."""
    before = checkpoints_of(storage, lineage)
    named: set[str] = set()
    for checkpoint in before:
        try:
            manifest = decode(storage.read(f"{lineage}/{layout.manifest_path(checkpoint)}").to_pybytes())
        except (FileNotFoundError, CheckpointError):
            return None
        named.update(f"{lineage}/{file.path}" for file in manifest.files)
    return named if checkpoints_of(storage, lineage) == before else None


def _remove(storage: Storage, path: str) -> bool:
    """Whether it is gone: a directory stays while somebody may be writing in it."""
    directory, _, name = path.rpartition("/")
    if layout.checkpoint_of(name) is None:
        storage.delete(path)
        return True
    storage.prune(path)
    return name not in storage.list(directory)


# --- Whose it is --------------------------------------------------------------------------------------


def _is_job(storage: Storage) -> bool:
    """By its owner or, where that is lost, by its notes, or by its checkpoints."""
    names = storage.list("")
    if layout.JOB_FILE in names or bool(notes_of(storage)):
        return True
    return any(checkpoints_of(storage, Lineage(name)) for name in names if layout.is_lineage(name))


def _check_owner(storage: Storage, report: Report) -> None:
    try:
        report.job = read_record(storage, layout.JOB_FILE)["job"]
    except FileNotFoundError:
        report.problems.append(f"{layout.JOB_FILE} is gone; the next start writes it again. {_NO_EXPIRY}")
    except CorruptCheckpoint as error:
        report.problems.append(str(error))


def _check_record(storage: Storage, path: str, report: Report) -> None:
    try:
        read_record(storage, path)
    except FileNotFoundError:
        return  # forgotten meanwhile
    except CorruptCheckpoint as error:
        report.problems.append(str(error))


# --- Lineages -----------------------------------------------------------------------------------------


def _check_lost(storage: Storage, report: Report, lineage: Lineage, progress: Progress) -> None:
    _check_checkpoints(storage, report, lineage, progress)
    checkpoints = checkpoints_of(storage, lineage)
    newest = f"{lineage}/{layout.checkpoint_directory(max(checkpoints))}" if checkpoints else f"{lineage}/chk-…"
    report.problems.append(
        f"no start of lineage {lineage} is noted in {layout.ATTEMPTS}/, so a resume may not find {newest}. Bring the "
        f"notes back, or go on from the newest checkpoint that is whole (weir run --resume --at {newest}): what its "
        f"sinks have still to commit is committed then. {_NO_EXPIRY}"
    )


def _check_lineage(storage: Storage, report: Report, lineage: Lineage, progress: Progress) -> None:
    named = _check_checkpoints(storage, report, lineage, progress)
    listing = _check_line(storage, report, lineage)
    if listing is not None:
        void = {f"{lineage}/{layout.checkpoint_directory(id)}" for id in named if id not in listing.valid}
        report.checkpoints = [replace(c, counts=c.name not in void) for c in report.checkpoints]
    if not (named and listing is not None and listing.newest is not None and report.is_whole):
        return
    orphans = [f"{lineage}/{path}" for path in _orphans(Below(storage, lineage), named, listing.newest)]
    if checkpoints_of(storage, lineage) != sorted(named):
        return  # Next time, perhaps.
    report.leftovers += orphans
    known = started(notes_of(storage))
    for other in lineages_of(storage):
        if other != lineage:
            report.leftovers += _left_of(storage, other, is_started=other in known)


def _check_checkpoints(
    storage: Storage, report: Report, lineage: Lineage, progress: Progress
) -> dict[CheckpointId, set[str]]:
    """The files that each checkpoint of a lineage names."""
    below = Below(storage, lineage)
    named: dict[CheckpointId, set[str]] = {}
    for checkpoint in checkpoints_of(storage, lineage):
        name = f"{lineage}/{layout.checkpoint_directory(checkpoint)}"
        try:
            manifest = decode(below.read(layout.manifest_path(checkpoint)).to_pybytes())
        except FileNotFoundError:
            continue  # retired meanwhile
        except CheckpointError as error:
            report.checkpoints.append(CheckedCheckpoint(name, 0, 0, (str(error),)))
            continue
        report.job = manifest.job if report.job == _UNKNOWN else report.job
        named[checkpoint] = {file.path for file in manifest.files}
        checked = _checked(below, name, manifest, progress)
        if layout.MANIFEST in storage.list(name):
            report.checkpoints.append(checked)
    return named


def _check_line(storage: Storage, report: Report, lineage: Lineage) -> Listing | None:
    """Look whether what a resume would start from is there. None: nobody can say."""
    try:
        store = CheckpointStore(storage, report.job, lineage=lineage)
        listing = store.listing()
    except CheckpointError as error:
        if str(error) not in report.problems:
            report.problems.append(str(error))
        return None
    # A driver that claims an attempt beside the look may have noted it behind the look at the notes.
    if listing.unnoted is not None and (wrong := unnoted(store.listing(), lineage)):
        report.problems.append(wrong)
    if listing.missing is not None:
        path = layout.manifest_path(listing.missing)
        report.problems.append(
            f"{lineage}/{path} was complete, and is gone or damaged: the job cannot be resumed from it"
        )
    return listing


def _orphans(below: Storage, named: dict[CheckpointId, set[str]], newest: CheckpointId) -> Iterator[str]:
    """Files that were written for a checkpoint before the newest that counts, which can complete no more, and that no
    manifest names. A manifest that came meanwhile is newer than all of these, and builds on what the newest names. A
    void one tells nothing: its id may be above those that are under way."""
    used = set().union(*named.values())
    for name in below.list(""):
        checkpoint = layout.checkpoint_of(name)
        if checkpoint is not None and checkpoint < newest:
            files = below.list(name)
            ours = [f"{name}/{file}" for file in files if layout.is_of_checkpoint(file)]
            yield from (path for path in ours if path not in used and path != layout.manifest_path(checkpoint))
            if not files:
                yield name
    for name in below.list(layout.SHARED):
        since, path = layout.shared_since(name), f"{layout.SHARED}/{name}"
        if since is not None and since < newest and path not in used:
            yield path


def _left_of(storage: Storage, lineage: Lineage, *, is_started: bool) -> Iterator[str]:
    """What is left of a lineage that is over."""
    kept = f"{lineage}/{layout.SOURCES}"
    yield from (path for path in files_of_lineage(storage, lineage) if is_started or path != kept)
    for name in storage.list(lineage):
        if layout.checkpoint_of(name) is not None and not storage.list(f"{lineage}/{name}"):
            yield f"{lineage}/{name}"


# --- Files --------------------------------------------------------------------------------------------


def _checked(below: Storage, name: str, manifest: Manifest, progress: Progress) -> CheckedCheckpoint:
    files, problems = CheckpointFiles(below), []
    for file in manifest.files:
        progress(file.path)
        try:
            files.read(file)
        except CheckpointError as error:
            problems.append(str(error))
    total = sum(file.length_bytes for file in manifest.files)
    return CheckedCheckpoint(name, len(manifest.files), total, tuple(problems))


def _check_savepoint(below: Storage, name: str, report: Report, progress: Progress) -> None:
    shown = f"{layout.SAVEPOINTS}/{name}"
    if not below.list(""):
        report.strays.append(shown)
        return
    try:
        manifest = decode(below.read(layout.MANIFEST).to_pybytes())
    except FileNotFoundError:
        return  # being written, or given up: without a manifest it is none
    except CheckpointError as error:
        report.checkpoints.append(CheckedCheckpoint(shown, 0, 0, (str(error),)))
        return
    report.checkpoints.append(_checked(below, shown, manifest, progress))
