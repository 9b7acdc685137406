"""`weir fsck`: what runtime/storage/fsck.py finds at a location, for people and for programs."""

from __future__ import annotations

import json
from dataclasses import asdict

import typer
from rich.console import Console
from rich.text import Text

from weir.errors import ConfigError
from weir.runtime.storage.below import Below
from weir.runtime.storage.fsck import CheckedCheckpoint, Report, examined, job_directories, strays_beside
from weir.runtime.storage.fsck import repair as repaired
from weir.runtime.storage.locations import shown_location
from weir.runtime.storage.opening import open_storage


def run_fsck(location: str, *, repair: bool, as_json: bool) -> bool:
    """Look, show, and remove leftovers if that is wanted. False when anything is damaged."""
    storage = open_storage(location, create=False)
    directories = job_directories(storage)
    if not directories:
        raise ConfigError(
            f"{shown_location(location)} holds no checkpoints of a job: there is no job.json in it, nor directly below"
        )
    for name in strays_beside(storage, directories):
        typer.echo(_stray(name), err=as_json)
    progress, reports = Console(stderr=True), []
    for directory in directories:
        below = Below(storage, directory) if directory else storage
        with progress.status(Text(f"reading {directory or shown_location(location)}")) as status:
            report = examined(below, lambda path: status.update(Text(f"reading {path}")))
        removed = repaired(below, report) if repair else 0
        reports.append({"directory": directory, **asdict(report), "is_whole": report.is_whole, "removed": removed})
        if not as_json:
            _show(report, removed, repair=repair)
    if as_json:
        typer.echo(json.dumps(reports))
    return all(report["is_whole"] for report in reports)


def _show(report: Report, removed: int, *, repair: bool) -> None:
    typer.echo(f"job {report.job!r}, lineage {report.lineage or '(no start is noted)'}")
    for checked in report.checkpoints:
        typer.echo(f"  {checked.name}  {checked.files} files, {checked.bytes:,} bytes: {_verdict(checked)}")
        for problem in checked.problems if checked.counts else ():
            typer.echo(f"    {problem}")
    for problem in report.problems:
        typer.echo(f"  {problem}")
    for path in report.unclaimed:
        typer.echo(f"  {path} was copied for a start that has claimed nothing; the next that is not --from removes it")
    for path in report.strays:
        typer.echo(f"  {_stray(path)}")
    if repair:
        typer.echo(f"  {removed} leftovers removed")
    elif report.leftovers:
        typer.echo(f"  {len(report.leftovers)} leftovers that nobody needs; --repair removes them")


def _verdict(checked: CheckedCheckpoint) -> str:
    if checked.counts:
        return "DAMAGED" if checked.problems else "whole"
    return "not whole, and of no use to anybody" if checked.problems else "whole; only --at goes on from it"


def _stray(path: str) -> str:
    return f"{path} was not written by Weir, and is left alone"
