"""What must hold when a simulated job has finished, whatever was broken on the way."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pyarrow as pa

from tests.sim.workload import SinkExpectation
from tests.sim.world import SimulationFailed, World
from weir.runtime import layout
from weir.runtime.checkpoint_store import CheckpointStore
from weir.snapshot.manifest import Manifest, checksum, decode


def check(world: World) -> None:
    """Raise SimulationFailed with what is wrong."""
    check_no_leaks(world)
    world.linger()
    exactly_once = world.job.checkpoints.mode == "exactly_once"
    for expectation in world.job.expectations:
        committed = [
            row
            for name, rows in world.external.committed.items()
            if name.startswith(expectation.uid + "/")
            for row in rows
        ]
        if exactly_once:
            _CHECK[expectation.kind](expectation, committed)
        else:
            _check_nothing_lost(expectation, committed)
    manifest = check_storage(world)
    if exactly_once:
        check_state(world, manifest)


def _check_exact(expectation: SinkExpectation, committed: list[tuple[Any, ...]]) -> None:
    found, wanted = Counter(committed), Counter(expectation.rows)
    if found != wanted:
        lost, extra = list((wanted - found).elements()), list((found - wanted).elements())
        raise SimulationFailed(
            f"sink {expectation.uid}: {len(lost)} lost {lost[:5]}, {len(extra)} repeated {extra[:5]}"
        )


def _check_running(expectation: SinkExpectation, committed: list[tuple[Any, ...]]) -> None:
    twice = [row for row, times in Counter((key, count) for key, count, _ in committed).items() if times > 1]
    if twice:
        raise SimulationFailed(f"sink {expectation.uid}: running values committed twice: {twice[:5]}")
    last: dict[int, tuple[int, int]] = {}
    for key, count, total in committed:
        last[key] = max(last.get(key, (0, 0)), (count, total))
    wanted = {key: (count, total) for key, count, total in expectation.rows}
    if last != wanted:
        raise SimulationFailed(f"sink {expectation.uid}: ends with {last}, should be {wanted}")


def _check_nothing_lost(expectation: SinkExpectation, committed: list[tuple[Any, ...]]) -> None:
    if expectation.kind == "exact":
        if lost := Counter(expectation.rows).keys() - Counter(committed).keys():
            raise SimulationFailed(f"sink {expectation.uid}: lost {sorted(lost)[:5]}")
        return
    most = {key: 0 for key, _, _ in expectation.rows}
    for key, count, _ in committed:
        most[key] = max(most[key], count)
    if short := [key for key, count, _ in expectation.rows if most[key] < count]:
        raise SimulationFailed(f"sink {expectation.uid}: keys {short[:5]} end below their count")


_CHECK = {"exact": _check_exact, "running": _check_running}


def check_storage(world: World) -> Manifest:
    """Every checkpoint that is listed can be read in full. Returns the newest."""
    files = world.job_storage.files
    newest: Manifest | None = None
    for name in world.job_storage.list(""):
        checkpoint = layout.checkpoint_of(name)
        path = f"sim/{name}/manifest.json"
        if checkpoint is None or path not in files:
            continue
        manifest = decode(files[path])
        for operator in manifest.operators.values():
            for part in operator.parts:
                for file in part.files.values():
                    data = files.get(f"sim/{file.path}")
                    if data is None or len(data) != file.length_bytes or checksum(data) != file.checksum:
                        raise SimulationFailed(f"{path} refers to {file.path}, which is missing or altered")
        newest = manifest
    if newest is None:
        raise SimulationFailed("the finished job has no readable checkpoint")
    return newest


def check_state(world: World, manifest: Manifest) -> None:
    """The state in the last checkpoint is what a single thread would have computed."""
    for uid, wanted in world.job.states.items():
        tables: dict[str, list[pa.Table]] = {}
        for part in manifest.operators[uid].parts:
            for state, file in part.files.items():
                tables.setdefault(state, []).append(
                    pa.ipc.open_file(pa.BufferReader(world.job_storage.files[f"sim/{file.path}"])).read_all()
                )
        found: dict[int, tuple[int, ...]] = {}
        for state in sorted(tables):
            for row in pa.concat_tables(tables[state]).to_pylist():
                values = list(row.values())
                found[row["key"]] = (*found.get(row["key"], ()), *values[2:])
        if found != wanted:
            raise SimulationFailed(f"state of {uid} is {found}, should be {wanted}")


def check_no_leaks(world: World) -> None:
    """Only what is retained is left, and no transaction is left open."""
    directories = [id for name in world.job_storage.list("") if (id := layout.checkpoint_of(name)) is not None]
    valid = CheckpointStore(world.job_storage, "sim", retries_max=1).listing().valid
    if not valid:
        raise SimulationFailed("the finished job has no checkpoint")
    if world.storage_was_calm and len(valid) > world.job.checkpoints.retain:
        raise SimulationFailed(f"checkpoints {valid} are kept, {world.job.checkpoints.retain} should be")
    if world.storage_was_calm and (stale := [id for id in directories if id < valid[0]]):
        raise SimulationFailed(f"left behind: {stale}")
    if len(set(world.completed_ids)) != len(world.completed_ids):
        raise SimulationFailed(f"a checkpoint id was used twice: {world.completed_ids}")
