"""Looks whether a job's checkpoints are whole, and removes what nobody needs.

Comes in: the storage of a job's directory. Goes out: what was found, checkpoint by
checkpoint and file by file; with `repair`, deletions of leftovers. May run beside the job:
what its retirement takes away meanwhile is not called damage, and what may still become
part of a checkpoint is no leftover.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from weir.errors import CheckpointError, CorruptCheckpoint
from weir.ids import CheckpointId, Lineage
from weir.runtime import layout
from weir.runtime.attempts import current_lineage, read_record
from weir.runtime.checkpoint_store import CheckpointStore
from weir.runtime.layout import AttemptNote
from weir.runtime.ports import Storage
from weir.runtime.retirement import files_of_lineage, prune_all
from weir.runtime.state_files import CheckpointFiles
from weir.runtime.storage import Below
from weir.snapshot.manifest import Manifest, decode

_OURS = (layout.JOB_FILE, layout.ATTEMPTS, layout.SAVEPOINTS)

Progress = Callable[[str], None]
"""Told the path of each file before it is read."""


@dataclass(frozen=True)
class CheckedCheckpoint:
    """A checkpoint or savepoint, and what is wrong with it."""

    name: str
    files: int
    bytes: int
    problems: tuple[str, ...] = ()


@dataclass
class Report:
    """What a job's directory holds."""

    job: str
    lineage: Lineage | None = None
    checkpoints: list[CheckedCheckpoint] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    """Damage that belongs to no single checkpoint."""
    leftovers: list[str] = field(default_factory=list)
    """Paths of files that nobody needs: safe to delete."""
    strays: list[str] = field(default_factory=list)
    """Paths of what Weir did not write: they are left alone."""

    @property
    def is_whole(self) -> bool:
        return not self.problems and not any(checked.problems for checked in self.checkpoints)


def job_directories(storage: Storage) -> list[str]:
    """The job directories at a location: itself, as an empty path, or those directly below."""
    if layout.JOB_FILE in storage.list(""):
        return [""]
    return [name for name in storage.list("") if layout.JOB_FILE in storage.list(name)]


def strays_beside(storage: Storage, directories: list[str]) -> list[str]:
    """What else there is beside these job directories."""
    return [] if directories == [""] else [name for name in storage.list("") if name not in directories]


def examined(storage: Storage, progress: Progress = lambda path: None) -> Report:
    """Look at everything in one job's directory, and read every file that a checkpoint names."""
    report = Report("?")
    try:
        report.job = read_record(storage, layout.JOB_FILE)["job"]
    except CorruptCheckpoint as error:
        report.problems.append(str(error))
    report.lineage = current_lineage(storage)
    for name in storage.list(layout.ATTEMPTS):
        if layout.claimed_attempt(name) is not None or AttemptNote.parse(name) is not None:
            _check_record(storage, f"{layout.ATTEMPTS}/{name}", report)
    for name in storage.list(""):
        if layout.is_lineage(name) and name != report.lineage:
            report.leftovers += files_of_lineage(storage, name)
    if report.lineage is not None:
        _check_lineage(storage, report, report.lineage, progress)
    for name in storage.list(layout.SAVEPOINTS):
        _check_savepoint(Below(storage, f"{layout.SAVEPOINTS}/{name}"), name, report, progress)
    report.strays += [name for name in storage.list("") if name not in _OURS and not layout.is_lineage(name)]
    return report


def repair(storage: Storage, report: Report) -> int:
    """Delete the leftovers, if nobody has taken the job over since they were found. How many there were."""
    if current_lineage(storage) != report.lineage:
        return 0
    for path in report.leftovers:
        storage.delete(path)
    for lineage in {path.partition("/")[0] for path in report.leftovers}:
        prune_all(storage, lineage)
    return len(report.leftovers)


def _check_record(storage: Storage, path: str, report: Report) -> None:
    try:
        read_record(storage, path)
    except FileNotFoundError:
        return  # forgotten meanwhile
    except CorruptCheckpoint as error:
        report.problems.append(str(error))


def _check_lineage(storage: Storage, report: Report, lineage: Lineage, progress: Progress) -> None:
    below = Below(storage, lineage)
    named: dict[CheckpointId, set[str]] = {}
    damaged = False
    for name in below.list(""):
        checkpoint = layout.checkpoint_of(name)
        if checkpoint is None or layout.MANIFEST not in below.list(name):
            continue
        path = layout.manifest_path(checkpoint)
        try:
            manifest = decode(below.read(path).to_pybytes())
        except FileNotFoundError:
            continue  # retired meanwhile
        except CheckpointError as error:
            damaged = True
            report.checkpoints.append(CheckedCheckpoint(f"{lineage}/{name}", 0, 0, (str(error),)))
            continue
        named[checkpoint] = {file.path for file in manifest.files}
        checked = _checked(below, f"{lineage}/{name}", manifest, progress)
        if layout.MANIFEST in below.list(name):
            report.checkpoints.append(checked)
    _check_line(storage, report, lineage)
    if named and not damaged:
        report.leftovers += [f"{lineage}/{path}" for path in _orphans(below, named)]


def _check_line(storage: Storage, report: Report, lineage: Lineage) -> None:
    """Whether what a resume would start from is there."""
    try:
        listing = CheckpointStore(storage, report.job, lineage=lineage).listing()
    except CheckpointError as error:
        if str(error) not in report.problems:
            report.problems.append(str(error))
        return
    if listing.missing is not None:
        path = layout.manifest_path(listing.missing)
        report.problems.append(
            f"{lineage}/{path} was complete, and is gone or damaged: the job cannot be resumed from it"
        )


def _orphans(below: Storage, named: dict[CheckpointId, set[str]]) -> Iterator[str]:
    """Files that were written for a checkpoint before the newest, which can complete no more, and that no manifest
    names. A manifest that came meanwhile is newer than all of these, and builds on what the newest names."""
    newest, used = max(named), set().union(*named.values())
    for name in below.list(""):
        checkpoint = layout.checkpoint_of(name)
        if checkpoint is not None and checkpoint < newest:
            ours = [f"{name}/{file}" for file in below.list(name) if layout.is_of_checkpoint(file)]
            yield from (path for path in ours if path not in used and path != layout.manifest_path(checkpoint))
    for name in below.list(layout.SHARED):
        since, path = layout.shared_since(name), f"{layout.SHARED}/{name}"
        if since is not None and since < newest and path not in used:
            yield path


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
