"""Local directories of a run, and local copies of state files."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pyarrow as pa
import pytest

from weir.config import RocksDb, Settings
from weir.errors import ConfigError
from weir.ids import AttemptId, CheckpointId, SubtaskId, TaskIndex, Uid, VertexId
from weir.runtime.net.lines import Secret
from weir.runtime.storage import layout
from weir.runtime.storage.local_copies import LocalCopies
from weir.runtime.storage.local_directory import RunDirectory, TaskDirectory, run_directory
from weir.runtime.storage.opening import open_storage
from weir.runtime.storage.state_files import CheckpointFiles, CheckpointWriter
from weir.snapshot.manifest import build, encode
from weir.snapshot.parts import FileRef, OperatorPart, StatePart


def directory(path: Path, attempt: int, task: int) -> TaskDirectory:
    settings = Settings(backend=RocksDb(directory=str(path)))
    return TaskDirectory(run_directory(settings, "a/job", Secret("secret")), AttemptId(attempt), TaskIndex(task))


def test_a_task_has_a_directory_that_nobody_else_may_enter_and_that_goes_with_it(tmp_path: Path) -> None:
    first = directory(tmp_path, 3, 0)
    first.make()
    for path in (first.path, os.path.dirname(first.path), os.path.dirname(os.path.dirname(first.path))):
        assert stat.S_IMODE(os.stat(path).st_mode) == 0o700
    assert first.path.startswith(str(tmp_path)) and "secret" not in first.path
    first.remove(copies=False)
    assert not os.path.exists(os.path.dirname(first.path))


def test_the_next_attempt_of_a_task_removes_what_a_killed_one_left_and_nothing_of_other_tasks(tmp_path: Path) -> None:
    killed, other, newer = directory(tmp_path, 3, 0), directory(tmp_path, 3, 1), directory(tmp_path, 5, 0)
    for each in (killed, other, newer):
        each.make()
        os.makedirs(os.path.join(each.path, "some", "database"))
    again = directory(tmp_path, 4, 0)
    again.make()
    assert not os.path.exists(killed.path)
    assert os.path.exists(other.path) and os.path.exists(newer.path) and os.path.exists(again.path)


def test_a_directory_of_somebody_elses_making_is_refused(tmp_path: Path) -> None:
    mine = directory(tmp_path, 1, 0)
    os.makedirs(os.path.dirname(os.path.dirname(mine.path)))
    os.symlink(tmp_path, os.path.dirname(mine.path))
    with pytest.raises(ConfigError, match="belongs to somebody else"):
        mine.make()


def test_the_driver_removes_the_whole_run_and_copies_outlive_attempts_only(tmp_path: Path) -> None:
    settings = Settings(backend=RocksDb(directory=str(tmp_path)))
    task = directory(tmp_path, 1, 0)
    task.make()
    os.makedirs(task.copies)
    task.remove(copies=False)
    assert os.path.exists(task.copies)
    RunDirectory(settings, os.path.dirname(task.path)).remove()
    assert not os.path.exists(os.path.dirname(task.path))


# --- Copies ---


class World:
    def __init__(self, path: Path) -> None:
        self.stored = path / "stored"
        self.copies = path / "copies"
        self.path = path
        self.storage = open_storage(str(self.stored))
        self.local = LocalCopies(self.storage, str(self.copies))
        self.files = CheckpointFiles(self.storage, self.local)

    def writer(self, checkpoint: int, attempt: int = 1) -> CheckpointWriter:
        return CheckpointWriter(
            self.storage,
            CheckpointId(checkpoint),
            AttemptId(attempt),
            uid=Uid("sum"),
            subtask=SubtaskId(VertexId(0), 0),
            state="s",
            breathe=lambda: None,
            copies=self.local,
        )

    def publish(self, checkpoint: int, files: list[FileRef]) -> None:
        part = StatePart("arrow", {str(i): file for i, file in enumerate(files)})
        manifest = build(
            job="job",
            checkpoint=CheckpointId(checkpoint),
            attempt=AttemptId(1),
            max_parallelism=128,
            created_ms=0,
            parts={SubtaskId(VertexId(0), 0): (OperatorPart(Uid("sum"), None, {"s": part}),)},
            parallelism={VertexId(0): 1},
        )
        self.storage.publish(layout.manifest_path(CheckpointId(checkpoint)), encode(manifest))

    def kept(self) -> set[str]:
        return {path.relative_to(self.copies).as_posix() for path in self.copies.rglob("*") if path.is_file()}


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_what_is_written_is_read_from_the_copy_when_storage_has_lost_it(world: World, tmp_path: Path) -> None:
    local = tmp_path / "000007.sst"
    local.write_bytes(b"sorted")
    put = world.writer(1).put("00000", b"a table")
    linked = world.writer(1).put_file("000007.sst", str(local), shared=True)
    assert os.stat(world.copies / linked.path).st_nlink == 2
    for file in (put, linked):
        world.storage.delete(file.path)
    assert world.files.read(put).to_pybytes() == b"a table"
    world.files.fetch(linked, str(tmp_path / "fetched"))
    assert (tmp_path / "fetched").read_bytes() == b"sorted"


@pytest.mark.parametrize("altered", [b"a tablE", b"a", b""])
def test_an_altered_copy_is_not_used_and_replaced_by_what_storage_has(
    world: World, tmp_path: Path, altered: bytes
) -> None:
    file = world.writer(1).put("00000", b"a table")
    copy = world.copies / file.path
    copy.write_bytes(altered)
    assert world.files.read(file).to_pybytes() == b"a table"
    assert not copy.exists()
    copy.write_bytes(altered)
    world.files.fetch(file, str(tmp_path / "fetched"))
    assert (tmp_path / "fetched").read_bytes() == b"a table"
    assert copy.read_bytes() == b"a table"


def test_a_copy_that_cannot_be_written_does_not_harm_the_checkpoint(world: World) -> None:
    world.copies.write_bytes(b"a file where the directory should be")
    file = world.writer(1).put("00000", b"a table")
    assert world.files.read(file).to_pybytes() == b"a table"


def test_completion_removes_the_copies_that_no_checkpoint_from_it_on_wants(world: World) -> None:
    shared = world.writer(1).put("00000", b"shared", shared=True)
    old = world.writer(1).put("00001", b"old")
    aborted = world.writer(2).put("00000", b"aborted", shared=True)
    new = world.writer(3).put("00000", b"new")
    later = world.writer(4).put("00000", b"later", shared=True)
    world.publish(3, [shared, new])
    world.local.completed(CheckpointId(3))
    assert {old.path, aborted.path} <= world.kept()
    latest = world.writer(4).put("00001", b"the next file", shared=True)
    assert world.kept() == {shared.path, new.path, later.path, latest.path}


def test_copies_stay_when_the_manifest_cannot_be_read(world: World) -> None:
    file = world.writer(1).put("00000", b"a table")
    world.local.completed(CheckpointId(2))
    world.local.tidy()
    assert world.kept() == {file.path}
    assert isinstance(world.files.read(file), pa.Buffer)


def test_tasks_that_keep_the_same_file_at_once_do_not_write_into_each_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when a state is divided over more tasks. Each keeps its file by a link: it goes on working with the file."""
    link, storage = os.link, open_storage(str(tmp_path / "storage"))
    first, second = (LocalCopies(storage, str(tmp_path / "copies")) for _ in range(2))
    mine, others = tmp_path / "mine.sst", tmp_path / "others.sst"
    mine.write_bytes(b"mine")
    others.write_bytes(b"others")

    def in_between(source: str, target: str) -> None:
        """The first one has made its link, and has not given it its name yet, when the second makes its own."""
        with monkeypatch.context() as patched:
            patched.setattr(os, "link", link)
            patched.setattr(os, "replace", lambda source, target: None)
            first.keep_file("chk-0000000001/a", str(mine))
        link(source, target)

    monkeypatch.setattr(os, "link", in_between)
    second.keep_file("chk-0000000001/a", str(others))
    assert mine.read_bytes() == b"mine" and (tmp_path / "copies/chk-0000000001/a").read_bytes() == b"others"
