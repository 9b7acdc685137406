"""What must hold when a simulated job has finished, whatever was broken on the way."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

import polars as pl
import pyarrow as pa

from tests.sim.at_most_once import check_at_most_once
from tests.sim.compaction import compacted_parts
from tests.sim.externals import Row, SimSource
from tests.sim.stage import SimulationFailed
from tests.sim.timed import straggles
from tests.sim.workload import SinkExpectation
from weir.connectors import FileSink
from weir.ids import CheckpointId, Uid
from weir.runtime.storage import layout
from weir.runtime.storage.state_files import CheckpointFiles
from weir.snapshot.manifest import Manifest, checksum, decode
from weir.snapshot.parts import Position
from weir.state.frozen import RestoredPart, RestoredParts

if TYPE_CHECKING:
    from tests.sim.world import World


def check(world: World) -> None:
    """The run is over: raise SimulationFailed with what is wrong."""
    world.settle()
    world.hands.finish()
    with world.storage.quiet():
        check_no_leaks(world)
    world.linger()
    check_now(world)
    with world.storage.quiet():
        world.users.check()


def check_now(world: World) -> None:
    """What must hold whenever the job has finished or was stopped, also when somebody goes on with it."""
    world.hands.finish()
    with world.storage.quiet():
        manifest = check_storage(world)
        if world.kept.is_wanted:
            if not world.hands.went_back:
                check_at_most_once(world, lambda expectation: committed_rows(world, expectation))
            return
        read = world.job.rows
        if world.stopped is not None or manifest.attempt in world.users.drained:
            read = world.job.rows_read(manifest, CheckpointFiles(world.store().storage))
        exactly_once = world.job.checkpoints.mode != "at_least_once"
        for expectation in world.job.expectations(read):
            committed = committed_rows(world, expectation)
            is_exact = exactly_once and not world.hands.went_back
            if expectation.kind in ("final", "conserved"):
                if is_exact and not expectation.is_unclear and not world.users.went_on_after_draining:
                    _check_timed(world, expectation, committed)
            elif is_exact:
                _CHECK[expectation.kind](expectation, committed)
            else:
                check_nothing_lost(expectation, committed)
        if exactly_once:
            check_state(world, manifest, CheckpointFiles(world.store().storage), read)
        # A start that had looked before the stop may have gone on behind it, until it was killed.
        if world.stopped is not None and [owner for _, owner in world.launched][-1:] == [world.stopped]:
            check_paused(world, manifest)


# --- Rows -----------------------------------------------------------------------------------------------


def committed_rows(world: World, expectation: SinkExpectation) -> list[tuple[Any, ...]]:
    """What a reader of the sink's output sees."""
    if not isinstance(expectation.sink, FileSink):
        return world.external.rows_of(expectation.uid)
    parts = expectation.sink.parts()
    contents = [(name, parts.read(name).to_pybytes()) for name in parts.committed()]
    contents += [("of the users", data) for data in compacted_parts(world, expectation.sink)]
    rows: list[tuple[Any, ...]] = []
    for name, data in contents:
        try:
            rows += _READERS[expectation.sink.format](data).rows()
        except Exception as error:
            raise SimulationFailed(f"the committed file {name} cannot be read: {error!r}") from error
    return rows


_READERS = {
    "jsonl": lambda data: pl.read_ndjson(io.BytesIO(data)),
    "csv": lambda data: pl.read_csv(io.BytesIO(data)),
    "parquet": lambda data: pl.read_parquet(io.BytesIO(data)),
    "arrow": lambda data: pl.DataFrame(pa.ipc.open_file(pa.BufferReader(data)).read_all()),
}


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


def check_nothing_lost(expectation: SinkExpectation, committed: list[tuple[Any, ...]]) -> None:
    if expectation.kind == "exact":
        if lost := Counter(expectation.rows) - Counter(committed):
            raise SimulationFailed(f"sink {expectation.uid}: lost {sorted(lost)[:5]}")
        return
    most: dict[int, int] = {}
    for key, count, _ in committed:
        most[key] = max(most.get(key, 0), count)
    if short := [key for key, count, _ in expectation.rows if most.get(key, 0) < count]:
        raise SimulationFailed(f"sink {expectation.uid}: keys {short[:5]} end below their count")


_CHECK = {"exact": _check_exact, "running": _check_running}


def _check_timed(world: World, expectation: SinkExpectation, committed: list[tuple[Any, ...]]) -> None:
    """What comes out in event time. A stopped job has not put everything out yet, and one that went on from a
    savepoint need not put out again what was out before."""
    is_over, goes_on = world.stopped is None, bool(world.job.before)
    if expectation.kind == "conserved":
        _check_conserved(expectation, committed, is_whole=is_over and not goes_on)
    elif is_over and not goes_on:
        _check_exact(expectation, committed)
    elif not world.users.drained:
        if extra := Counter(committed) - Counter(expectation.whole):
            raise SimulationFailed(f"sink {expectation.uid}: wrong or twice: {sorted(extra.elements())[:5]}")
        if is_over and (lost := Counter(expectation.needed) - Counter(committed)):
            raise SimulationFailed(f"sink {expectation.uid}: lost {sorted(lost.elements())[:5]}")


def _check_conserved(expectation: SinkExpectation, committed: list[tuple[Any, ...]], *, is_whole: bool) -> None:
    """Each row is in its window or comes out alone, once, and a window comes out once."""
    windows = [row[:2] for row in committed if row[4] < 0]
    alone = [row[4] for row in committed if row[4] >= 0]
    for name, found in (("window", windows), ("late row", alone)):
        if twice := [what for what, times in Counter(found).items() if times > 1]:
            raise SimulationFailed(f"sink {expectation.uid}: {name} came out twice: {twice[:5]}")
    if wrong := [id for id in alone if not straggles(id)]:
        raise SimulationFailed(f"sink {expectation.uid}: rows {wrong[:5]} are not late")
    totals: dict[tuple[int, int], tuple[int, int]] = {}
    for key, start, count, total, _ in committed:
        counted, added = totals.get((key, start), (0, 0))
        totals[key, start] = counted + count, added + total
    wanted = {(key, start): (count, total) for key, start, count, total in expectation.rows}
    if is_whole and totals != wanted:
        wrong_at = [at for at in {*totals, *wanted} if totals.get(at) != wanted.get(at)]
        shown = [(at, totals.get(at), wanted.get(at)) for at in sorted(wrong_at)[:5]]
        raise SimulationFailed(f"sink {expectation.uid}: windows with their late rows, found and wanted: {shown}")


# --- Checkpoints and what is left behind ------------------------------------------------------------------


def check_storage(world: World) -> Manifest:
    """Every checkpoint that counts can be read in full. Returns the newest."""
    files = world.job_storage.files
    store = world.store()
    root = f"{world.place}/sim/{store.lineage}"
    newest: Manifest | None = None
    for checkpoint in store.listing().valid:
        path = f"{root}/{layout.manifest_path(checkpoint)}"
        manifest = decode(files[path])
        for file in manifest.files:
            data = files.get(f"{root}/{file.path}")
            if data is None or len(data) != file.length_bytes or checksum(data) != file.checksum:
                raise SimulationFailed(f"{path} refers to {file.path}, which is missing or altered")
        newest = manifest
    if newest is None:
        raise SimulationFailed("the job has no readable checkpoint")
    return newest


def check_state(world: World, manifest: Manifest, files: CheckpointFiles, read: Sequence[Row]) -> None:
    """The state in a checkpoint is what a single thread would have computed from the rows that were read before it."""
    for uid, wanted in {**world.job.states(read), **world.job.loop_states(manifest, files)}.items():
        tables: dict[str, list[pa.Table]] = {}
        for part in manifest.operators[Uid(uid)].parts:
            for name, state in part.states.items():
                held = RestoredParts([RestoredPart(state, range(1 << 15), files)], range(1 << 15))
                tables.setdefault(name, []).extend(held.tables())
        found: dict[int, tuple[int, ...]] = {}
        for table in sorted(tables):
            for row in pa.concat_tables(tables[table]).to_pylist():
                values = list(row.values())
                found[row["key"]] = (*found.get(row["key"], ()), *values[2:])
        if found != wanted:
            raise SimulationFailed(f"state of {uid} is {found}, should be {wanted}")


def check_paused(world: World, manifest: Manifest) -> None:
    """Of a stopped job no source has read on behind the barrier of its last checkpoint."""
    for uid, source in world.job.named_sources:
        if not isinstance(source, SimSource):
            continue
        parts = manifest.operators[Uid(uid)].parts
        saved = {int(split): n for part in parts for split, n in cast(Position, part.inline).value.items()}
        newest = world.store().lineage, manifest.attempt
        reached = {split: n for (*attempt, split), n in source.reached.items() if tuple(attempt) == newest}
        if ahead := {split: n for split, n in reached.items() if n != saved[split]}:
            raise SimulationFailed(f"{uid} has read on behind the stop: {ahead}, saved {saved}")


def check_no_leaks(world: World) -> None:
    """Only what is retained is left, and nothing is pending in a sink's directory. What a stopped job leaves, whoever
    goes on with it tidies up."""
    if world.stopped is not None:
        return
    storage, listing = world.store().storage, world.store().listing()
    valid = listing.valid
    directories = [id for name in storage.list("") if (id := layout.checkpoint_of(name)) is not None]
    if not valid:
        raise SimulationFailed("the finished job has no checkpoint")
    if world.is_tidy and len(valid) > world.job.checkpoints.retain:
        raise SimulationFailed(f"checkpoints {valid} are kept, {world.job.checkpoints.retain} should be")
    # Beside the copy that was gone back to, all is kept that users may want instead.
    copies = {start.restored_from for start in listing.starts if start.goes_back}
    if world.is_tidy and valid[0] not in copies:
        if stale := [id for id in directories if id < valid[0]]:
            raise SimulationFailed(f"left behind: {stale}")
        _check_shared(world, valid)
    # Of a lineage that was given up, tasks may have written on.
    lineage = world.store().lineage
    if world.is_tidy and (pending := [n for n in world.storage.files if _is_pending(world, n) and lineage in n]):
        raise SimulationFailed(f"still pending after the end: {pending}")
    if len(set(world.ids_since_backup)) != len(world.ids_since_backup):
        raise SimulationFailed(f"a checkpoint id was used twice: {world.ids_since_backup}")


def _is_pending(world: World, name: str) -> bool:
    return name.startswith(f"{world.place}/") and "/_weir/" in name and "/pending/" in name


def _check_shared(world: World, valid: tuple[CheckpointId, ...]) -> None:
    """Shared files of retired checkpoints are there only if a manifest that is left names them, be it a late one of an
    attempt that was over."""
    store = world.store()
    named = {file.path for entry in store.listing().published for file in store.read(entry.checkpoint).files}
    paths = [f"{layout.SHARED}/{name}" for name in store.storage.list(layout.SHARED)]
    since = {path: layout.shared_since(path.rpartition("/")[2]) for path in paths}
    if stale := [path for path in paths if path not in named and (since[path] or 0) < valid[0]]:
        raise SimulationFailed(f"shared files that nobody names: {stale}")
