"""Snapshots of one subtask: written one after the other, acknowledged or declined, and read again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from tests.sim.ports import SimClock, SimControl
from tests.states import FrozenTable
from tests.unit.runtime.fakes import (
    FaultyStorage,
    KeptCopies,
    QueuedBackground,
    ShelfWriter,
    context,
    rows,
    run_all,
    run_one,
)
from weir.errors import CheckpointError, CorruptCheckpoint, StorageFull, StorageUnavailable, code_of
from weir.ids import AttemptId, CheckpointId, SubtaskId, Uid, VertexId
from weir.operators.base import KEY_GROUP_COLUMN, Frozen, key_group_range
from weir.runtime.storage.state_files import restored_part
from weir.runtime.task.sink_end import SinkEnd
from weir.runtime.task.snapshots import Snapshot, Snapshotter
from weir.snapshot.backoff import Backoff
from weir.snapshot.manifest import Manifest, OperatorSnapshot, PartOf, build, checksum
from weir.snapshot.messages import SnapshotDeclined, SnapshotTaken
from weir.snapshot.parts import FileRef, OperatorPart, PendingEpochs, Position, StatePart
from weir.state.frozen import StateWriter, encode_table

HERE = SubtaskId(VertexId(0), 0)
TABLE = pa.table({"n": [1, 2, 3]})


class Desk:
    """A snapshotter with everything around it."""

    def __init__(self, *, with_sink: bool = False) -> None:
        self.storage, self.background, self.control = FaultyStorage(), QueuedBackground(), SimControl()
        self.savepoint, self.copies = FaultyStorage(), KeptCopies()
        self.clock = SimClock()
        self.writer = ShelfWriter()
        self.sink = None
        if with_sink:
            self.sink = SinkEnd(
                context("sink"),
                self.writer,
                background=self.background,
                clock=self.clock,
                chance=lambda: 1.0,
                report=lambda c: None,
                retries_max=0,
                backoff=Backoff(100, 1_000),
            )
            self.sink.open(None, None)
        self.snapshotter = Snapshotter(
            HERE,
            AttemptId(3),
            storage=self.storage,
            background=self.background,
            control=self.control,
            clock=self.clock,
            sink=self.sink,
            copies=self.copies,
            opener=lambda uri, create=True: {"there": self.savepoint}[uri],
        )

    def begin(
        self,
        number: int,
        frozen: Frozen | None = None,
        *,
        numbers: tuple[int, ...] = (),
        savepoint: str | None = None,
    ) -> None:
        checkpoint = CheckpointId(number)
        prepare = None
        if self.sink is not None:
            self.sink.write(rows(*numbers))
            prepare = self.sink.prepare(checkpoint)
        parts = {} if frozen is None else {Uid("op"): frozen}
        self.snapshotter.begin(Snapshot(checkpoint, parts, prepare, self.clock.now_ms(), savepoint))

    @property
    def answers(self) -> list[Any]:
        return list(self.control.to_driver)


def state(table: pa.Table = TABLE) -> Frozen:
    return Frozen(None, {"values": FrozenTable(lambda: table)})


# --- Writing ------------------------------------------------------------------------------------------


def test_a_snapshot_is_acknowledged_with_length_and_checksum_of_what_was_written() -> None:
    desk = Desk()
    desk.begin(7, state())
    assert desk.answers == []
    desk.clock.time_ms = 12.0
    run_all(desk.background)
    (taken,) = desk.answers
    (part,) = taken.parts
    file = part.states["values"].files["00000"]
    data = desk.storage.read(file.path)
    assert (taken.checkpoint, taken.attempt, taken.subtask, taken.duration_ms) == (7, 3, HERE, 12)
    assert taken.uploaded_bytes == data.size
    assert file == FileRef("chk-0000000007/a3-op-0-values-00000", data.size, checksum(data))
    assert pa.ipc.open_file(data).read_all() == TABLE


def test_tables_are_built_in_the_background_only() -> None:
    desk = Desk()
    built: list[str] = []

    def build_table() -> pa.Table:
        built.append("built")
        return TABLE

    desk.begin(1, Frozen(None, {"values": FrozenTable(build_table)}))
    assert built == []
    run_all(desk.background)
    assert built == ["built"]


@pytest.mark.parametrize("savepoint", [None, "there", "nowhere"])
@pytest.mark.parametrize("failing", [False, True])
def test_a_state_is_discarded_in_the_background_after_all_was_written_or_failed(
    savepoint: str | None, failing: bool
) -> None:
    calls: list[str] = []

    class Noted(FrozenTable):
        def discard(self, breathe: Callable[[], None]) -> None:
            breathe()
            calls.append("discarded")

        def released(self) -> None:
            calls.append("released")

    def build_table() -> pa.Table:
        calls.append("built")
        return TABLE

    desk = Desk()
    if failing:
        desk.storage.fail("write", StorageFull("no room"))
    desk.begin(1, Frozen(None, {"values": Noted(build_table)}), savepoint=savepoint)
    run_all(desk.background)
    times = 2 if savepoint == "there" and not failing else 1
    assert calls == ["built"] * times + ["discarded", "released"]


def test_what_lay_in_storage_already_does_not_count_as_uploaded() -> None:
    class Known(FrozenTable):
        def write(self, out: StateWriter) -> StatePart:
            new = out.put("new", b"12345", shared=True)
            return StatePart("some", {"new": new, "old": FileRef("shared/old", 1_000, "")})

    desk = Desk()
    desk.begin(1, Frozen(None, {"values": Known(lambda: TABLE)}))
    run_all(desk.background)
    assert desk.answers[0].uploaded_bytes == 5


def test_snapshots_are_written_one_at_a_time_and_in_order() -> None:
    desk = Desk(with_sink=True)
    for number in (1, 2, 3):
        desk.begin(number, numbers=(number,))
    assert len(desk.background.waiting) == 1
    run_all(desk.background)
    assert desk.writer.prepared == [[1], [2], [3]]
    assert [answer.checkpoint for answer in desk.answers] == [1, 2, 3]


def test_a_snapshot_carries_every_epoch_that_is_not_committed_yet_and_none_that_comes_later() -> None:
    desk = Desk(with_sink=True)
    desk.begin(1, numbers=(1,))
    desk.begin(2, numbers=(2,))
    desk.begin(3)
    run_all(desk.background)
    pending = [answer.parts[-1].inline.epochs for answer in desk.answers]
    assert pending == [((1, [1]),), ((1, [1]), (2, [2])), ((1, [1]), (2, [2]))]


@pytest.mark.parametrize("error", [StorageFull("no room"), StorageUnavailable("no reply"), OSError("strange")])
def test_a_storage_error_declines_the_checkpoint_and_the_next_is_taken(error: OSError) -> None:
    desk = Desk()
    desk.storage.fail("write", error)
    desk.begin(1, state())
    desk.begin(2, state())
    run_all(desk.background)
    declined, taken = desk.answers
    assert isinstance(declined, SnapshotDeclined) and str(error) in declined.reason and declined.checkpoint == 1
    assert declined.code == code_of(error), "so that the driver knows whether to wait for storage"
    assert isinstance(taken, SnapshotTaken) and taken.checkpoint == 2


def test_a_declined_checkpoint_keeps_its_epoch_for_the_next() -> None:
    desk = Desk(with_sink=True)
    desk.storage.fail("write", StorageFull("no room"))
    desk.begin(1, state(), numbers=(1,))
    desk.begin(2, numbers=(2,))
    run_all(desk.background)
    assert desk.answers[-1].parts[-1].inline == PendingEpochs(((1, [1]), (2, [2])))


def test_an_aborted_snapshot_writes_no_state_but_prepares_its_epoch_all_the_same() -> None:
    desk = Desk(with_sink=True)
    desk.begin(1)
    desk.begin(2, state(), numbers=(2,))
    desk.snapshotter.abort(CheckpointId(2))
    run_all(desk.background)
    assert isinstance(desk.answers[1], SnapshotDeclined)
    assert desk.storage.calls == []
    assert desk.writer.prepared == [[], [2]]
    desk.begin(3)
    run_all(desk.background)
    assert desk.answers[-1].parts[-1].inline == PendingEpochs(((2, [2]),))


def test_an_abort_of_what_is_not_in_the_queue_does_not_skip_a_later_one() -> None:
    desk = Desk()
    desk.snapshotter.abort(CheckpointId(1))
    desk.begin(1, state())
    run_all(desk.background)
    assert isinstance(desk.answers[0], SnapshotTaken)


def test_an_epoch_that_cannot_be_made_durable_ends_the_attempt() -> None:
    desk = Desk(with_sink=True)
    desk.writer.prepare_error = StorageFull("no room for the epoch")
    desk.begin(1, state(), numbers=(1,))
    with pytest.raises(StorageFull, match="no room for the epoch"):
        run_one(desk.background)
    assert desk.answers == []


def test_an_error_in_building_a_table_ends_the_attempt() -> None:
    desk = Desk()

    def fail() -> pa.Table:
        raise ValueError("our bug")

    desk.begin(1, Frozen(None, {"values": FrozenTable(fail)}))
    with pytest.raises(ValueError, match="our bug"):
        run_one(desk.background)


# --- Reading ------------------------------------------------------------------------------------------


def keyed(groups: range) -> pa.Table:
    """Two rows for each key group."""
    doubled = [group for group in groups for _ in range(2)]
    return pa.table({KEY_GROUP_COLUMN: pa.array(doubled, pa.int16()), "n": list(range(len(doubled)))})


def written(storage: FaultyStorage, parallelism: int, max_parallelism: int = 8) -> Manifest:
    """A manifest whose operator `op` has a table for the key groups of each subtask."""
    parts: dict[SubtaskId, tuple[OperatorPart, ...]] = {}
    for index in range(parallelism):
        data = encode_table(keyed(key_group_range(index, parallelism, max_parallelism)))
        storage.write(f"part-{index}", data)
        file = FileRef(f"part-{index}", data.size, checksum(data))
        state = StatePart("arrow", {"0": file})
        parts[SubtaskId(VertexId(0), index)] = (
            OperatorPart(Uid("op"), Position(f"inline {index}"), {"values": state}),
        )
    return build(
        job="test",
        checkpoint=CheckpointId(1),
        attempt=AttemptId(1),
        max_parallelism=max_parallelism,
        created_ms=0,
        parts=parts,
        parallelism={VertexId(0): parallelism},
    )


def read_all(manifest: Manifest, storage: FaultyStorage, **where: int) -> list[pa.Table]:
    part = restored_part(manifest, context("op", **where), storage)
    assert part is not None
    return list(part.tables("values"))


@pytest.mark.parametrize("old", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("new", [1, 2, 3, 5, 8])
def test_every_row_is_restored_by_the_owner_of_its_key_group_at_any_parallelism(old: int, new: int) -> None:
    storage = FaultyStorage()
    manifest = written(storage, old)
    restored: list[int] = []
    for index in range(new):
        own = context("op", index=index, parallelism=new)
        part = restored_part(manifest, own, storage)
        assert part is not None
        assert [inline.value for inline in part.inline] == [Position(f"inline {i}") for i in range(old)]
        groups = [g for table in part.tables("values") for g in table[KEY_GROUP_COLUMN].to_pylist()]
        assert set(groups) == set(own.key_groups)
        restored += groups
    assert sorted(restored) == sorted([*range(8)] * 2)


def test_an_operator_that_the_checkpoint_does_not_know_starts_fresh() -> None:
    storage = FaultyStorage()
    assert restored_part(written(storage, 1), context("new"), storage) is None


def test_a_subtask_reads_only_the_files_that_hold_its_key_groups() -> None:
    storage = FaultyStorage()
    manifest = written(storage, 4)
    storage.calls.clear()
    read_all(manifest, storage, index=0, parallelism=2)
    assert storage.calls == [("read", "part-0"), ("read", "part-1")]


def test_a_missing_file_is_named() -> None:
    storage = FaultyStorage()
    manifest = written(storage, 1)
    storage.delete("part-0")
    with pytest.raises(CheckpointError, match="part-0 is missing although the manifest names it"):
        read_all(manifest, storage)


@pytest.mark.parametrize("at", [0, 17, -1])
def test_an_altered_byte_is_found(at: int) -> None:
    storage = FaultyStorage()
    manifest = written(storage, 1)
    data = bytearray(storage.read("part-0").to_pybytes())
    data[at] ^= 1
    storage.write("part-0", bytes(data))
    with pytest.raises(CorruptCheckpoint, match="part-0 has checksum"):
        read_all(manifest, storage)


def test_a_file_that_was_cut_off_is_found() -> None:
    storage = FaultyStorage()
    manifest = written(storage, 1)
    storage.write("part-0", storage.read("part-0").to_pybytes()[:-1])
    with pytest.raises(CorruptCheckpoint, match=r"part-0 has \d+ bytes; the manifest says"):
        read_all(manifest, storage)


def test_a_file_that_is_not_arrow_is_an_error_that_says_so() -> None:
    storage = FaultyStorage()
    manifest = written(storage, 1)
    storage.write("part-0", b"not arrow")
    file = FileRef("part-0", 9, checksum(b"not arrow"))
    altered = replace(
        manifest,
        operators={Uid("op"): OperatorSnapshot(1, (PartOf(0, None, {"values": StatePart("arrow", {"0": file})}),))},
    )
    with pytest.raises(CorruptCheckpoint, match="part-0 is not an Arrow file"):
        read_all(altered, storage)


# --- Savepoints -----------------------------------------------------------------------------------------


def test_a_savepoint_holds_the_states_as_whole_tables_and_nothing_that_is_still_to_be_committed() -> None:
    desk = Desk(with_sink=True)
    desk.begin(7, state(), numbers=(1, 2), savepoint="there")
    run_all(desk.background)
    (taken,) = desk.answers
    assert [part.uid for part in taken.parts] == ["op", "sink"]
    (exported,) = taken.exported
    assert exported.uid == "op" and taken.export_refused is None
    part = exported.states["values"]
    assert part.format == "arrow"
    (file,) = part.files.values()
    assert "/" not in file.path, "relative to the savepoint's own directory"
    data = desk.savepoint.read(file.path)
    assert (data.size, checksum(data)) == (file.length_bytes, file.checksum)
    assert pa.ipc.open_file(data).read_all() == TABLE


def test_copies_are_kept_of_the_checkpoint_and_not_of_the_savepoint() -> None:
    desk = Desk()
    desk.begin(7, state(), savepoint="there")
    run_all(desk.background)
    (taken,) = desk.answers
    ours = taken.parts[0].states["values"].files["00000"]
    assert taken.exported and desk.copies.kept == {ours.path: desk.storage.read(ours.path).to_pybytes()}


@pytest.mark.parametrize("error", [StorageFull("no room"), PermissionError("not yours"), ValueError("odd")], ids=repr)
def test_a_savepoint_that_cannot_be_written_harms_the_checkpoint_in_no_way(error: Exception) -> None:
    desk = Desk()
    desk.savepoint.fail("write", error)
    desk.begin(7, state(), savepoint="there")
    run_all(desk.background)
    (taken,) = desk.answers
    assert isinstance(taken, SnapshotTaken) and len(taken.parts) == 1
    assert taken.exported == () and str(error) in (taken.export_refused or "")
