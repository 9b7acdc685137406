"""Parts that a checkpoint names somewhere: nobody deletes them, takes them for his own, or commits a damaged one."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import pytest

import weir
from tests.contract.sinks import NO_LINEAGE, adopted, context, grant, owner, rows, still_ours
from weir.config import Checkpoints, JobConfig
from weir.connectors import FileSink
from weir.connectors.files.parts import PartDirectory, pending_directory
from weir.errors import ConfigError, CorruptCheckpoint, OwnershipError
from weir.graph.plan import Plan
from weir.ids import AttemptId, CheckpointId, Lineage, Uid
from weir.runtime.driver.claims import ClaimDesk
from weir.runtime.storage.checkpoints import CheckpointStore, Claim
from weir.runtime.storage.opening import open_storage
from weir.runtime.storage.stores.files import LocalStorage
from weir.snapshot.commit import pending_of
from weir.snapshot.manifest import Manifest, OperatorSnapshot, PartOf
from weir.snapshot.parts import PendingEpochs

NEXT_LIFE = "00000000bb"


def prepared(sink: FileSink, *numbers: int, attempt: int = 1) -> Any:
    """An epoch that is durable and not committed."""
    writer = sink.writer()
    writer.open(context(attempt=attempt), None)
    writer.write(rows(*numbers))
    return writer.prepare(CheckpointId(1))()


def pending(directory: Path, lineage: str = NO_LINEAGE) -> list[str]:
    place = directory / pending_directory(lineage)
    return sorted(os.listdir(place)) if place.exists() else []


# --- Of runs whose checkpoints are elsewhere ----------------------------------------------------------------


def test_what_a_run_elsewhere_has_still_to_commit_is_not_cleared_away(tmp_path: Path) -> None:
    sink = FileSink(tmp_path, "jsonl")
    adopted(sink, owner())
    committable = prepared(sink, 3, 4, 5)
    with pytest.raises(OwnershipError, match=rf"has still to commit \(_weir/{NO_LINEAGE}\).*checkpoints are elsewhere"):
        sink.validate(owner(lineage=NEXT_LIFE, lives=()))
    later = sink.writer()
    later.open(context(attempt=2), [committable])
    later.commit(grant(1), [committable])
    assert pending(tmp_path) == []


def test_a_run_that_could_not_be_resumed_leaves_nothing_that_anybody_wants(tmp_path: Path) -> None:
    sink = FileSink(tmp_path, "jsonl")
    adopted(sink, owner(is_durable=False))
    prepared(sink, 1)
    adopted(sink, owner(lineage=NEXT_LIFE, lives=()))
    assert pending(tmp_path) == []


def test_overwriting_is_said_in_so_many_words(tmp_path: Path) -> None:
    adopted(FileSink(tmp_path, "jsonl"), owner())
    prepared(FileSink(tmp_path, "jsonl"), 1)
    adopted(FileSink(tmp_path, "jsonl", overwrite=True), owner(lineage=NEXT_LIFE, lives=()))
    assert pending(tmp_path) == []


class LateMove(LocalStorage):
    """Storage in which a task of a run that was given up does its move just behind a look, or a look at the claim."""

    def __init__(self, root: Path, path: str, look: int, move: Callable[[], None]) -> None:
        super().__init__(str(root))
        self._path, self._left, self._move = path, look, move

    def list(self, path: str) -> list[str]:
        found = super().list(path)
        if path == self._path:
            self._left -= 1
            if self._left == 0:
                self._move()
        return found


@pytest.mark.parametrize("path", ["", "_weir", pending_directory(NO_LINEAGE)])
@pytest.mark.parametrize("look", [1, 2, 3])
@pytest.mark.parametrize("overwrite", [True, False])
def test_what_a_task_that_was_left_behind_commits_late_is_no_row_of_the_next_run(
    tmp_path: Path, path: str, look: int, overwrite: bool
) -> None:
    sink = FileSink(tmp_path, "jsonl")
    adopted(sink, owner(is_durable=False))
    prepared(sink, 1)
    (name,) = pending(tmp_path)

    def move() -> None:
        with suppress(FileNotFoundError):
            os.rename(tmp_path / pending_directory(NO_LINEAGE) / name, tmp_path / name)

    parts = PartDirectory(LateMove(tmp_path, path, look, move), str(tmp_path))
    with nullcontext() if overwrite else suppress(OwnershipError):
        parts.adopt(owner(lineage=NEXT_LIFE, lives=()), still_ours, format="jsonl", overwrite=overwrite)
        move()
        assert parts.committed() == []


# --- Damage -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("damage", ["cut short", "altered"])
def test_a_part_that_was_damaged_since_its_checkpoint_is_not_committed(tmp_path: Path, damage: str) -> None:
    sink = FileSink(tmp_path, "jsonl")
    adopted(sink, owner())
    committable = prepared(sink, 1, 2, 3, 4)
    (name,) = pending(tmp_path)
    part = tmp_path / pending_directory(NO_LINEAGE) / name
    content = part.read_bytes()
    part.write_bytes(content[: len(content) // 2] if damage == "cut short" else content.replace(b"1", b"7"))
    later = sink.writer()
    later.open(context(attempt=2), [committable])
    with pytest.raises(CorruptCheckpoint, match=r"the part .*part-.* is damaged.*--at goes back"):
        later.commit(grant(1), [committable])
    assert not [found for found in os.listdir(tmp_path) if found.startswith("part-")]
    part.write_bytes(content)
    later.commit(grant(1), [committable])
    later.commit(grant(1), [committable])  # committed parts are their readers', and not looked at


def test_parts_of_checkpoints_that_say_nothing_of_their_length_are_committed(tmp_path: Path) -> None:
    sink = FileSink(tmp_path, "jsonl")
    adopted(sink, owner())
    committable = {"parts": [entry[0] for entry in prepared(sink, 1)["parts"]]}
    later = sink.writer()
    later.open(context(attempt=2), [committable])
    later.commit(grant(1), [committable])
    assert pending(tmp_path) == []


def test_a_damaged_note_matters_only_where_no_other_tells_of_the_part(tmp_path: Path) -> None:
    sink = FileSink(tmp_path, "jsonl")
    adopted(sink, owner())
    committable = prepared(sink, 1)
    for attempt in (2, 3):
        writer = sink.writer()
        writer.open(context(attempt=attempt), [committable])
        writer.commit(grant(attempt), [committable])
    (tmp_path / committable["parts"][0][0]).unlink()  # compacted by its reader
    older, newer = sorted((tmp_path / "_weir" / NO_LINEAGE / "commits").iterdir())
    older.write_bytes(older.read_bytes()[:-1])
    writer.commit(grant(3), [committable])
    newer.unlink()
    with pytest.raises(CorruptCheckpoint, match=older.name):
        writer.commit(grant(3), [committable])


def test_storage_that_may_replace_a_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weir.runtime.storage.stores.files.can_rename_exclusively", lambda directory, prefix: False)
    with pytest.raises(ConfigError, match=r"'the sink': .* cannot move a file without replacing"):
        FileSink(tmp_path).validate(owner())


# --- Going back, and backups ----------------------------------------------------------------------------------


class AtOnce:
    """Background work that is done where it is asked for."""

    def run(self, work: Callable[[], Any], done: Callable[[Any], None]) -> None:
        try:
            result = work()
        except Exception as error:
            result = error
        done(result)

    def breathe(self) -> None:
        """There is time."""


class Run:
    """What the driver and one task of a job do around a start, on real directories."""

    def __init__(self, checkpoints: Path, out: Path, *, back_to: int | None = None, resume: bool = True) -> None:
        self.plan = plan_of(out)
        self.sink = FileSink(out, "jsonl")
        storage = open_storage(checkpoints / "job")
        self.store = CheckpointStore(storage, "job", lineage=Lineage(NO_LINEAGE))
        self.store.adopt(os.urandom(8).hex(), resume)
        going_back = None if back_to is None else CheckpointId(back_to)
        config = JobConfig("job", Checkpoints(to=os.fspath(checkpoints)), resume=resume, back_to=going_back)
        desk = ClaimDesk(
            config,
            run="run",
            store=self.store,
            background=AtOnce(),
            opener=open_storage,
            check=lambda found, storage: None,
        )
        desk._is_adopted = True
        answers: list[Claim | BaseException | None] = []
        desk.claim(self.plan, self.plan, answers.append)
        (claim,) = answers
        if not isinstance(claim, Claim):
            raise claim or AssertionError("no claim")
        self.claim = claim
        self.next = claim.next_checkpoint
        self.writer = self.sink.writer()
        self.restored = [] if claim.restore is None else _pending(claim.restore)
        self.writer.open(context(attempt=claim.attempt), self.restored)

    def checkpoint(self, *numbers: int) -> list[Any]:
        """Published, and not committed."""
        self.writer.write(rows(*numbers))
        committable = self.writer.prepare(self.next)()
        part = PartOf(0, PendingEpochs(((self.next, committable),)))
        operators = {Uid("out"): OperatorSnapshot(1, (part,))}
        self.store.publish(Manifest("job", self.next, self.claim.attempt, 128, 0.0, operators))
        self.next = CheckpointId(self.next + 1)
        return [committable]

    def commit(self, committables: list[Any]) -> None:
        self.writer.commit(grant(self.next - 1), committables)


def _pending(manifest: Manifest) -> list[Any]:
    return pending_of(manifest, Uid("out"))


def plan_of(out: Path) -> Plan:
    env = weir.Environment(parallelism=1)
    env.from_collection([(1,)], "id long", uid="in").write(FileSink(out, "jsonl"), uid="out")
    return env.plan()


def test_going_back_by_mistake_can_be_undone_while_the_newer_checkpoint_is_there(tmp_path: Path) -> None:
    checkpoints, out = tmp_path / "checkpoints", tmp_path / "out"
    first = Run(checkpoints, out, resume=False)
    first.commit(first.checkpoint(1))
    first.checkpoint(2, 3)  # killed before the commit
    Run(checkpoints, out, back_to=1)
    again = Run(checkpoints, out, back_to=2)
    again.commit(again.restored)
    assert len([name for name in os.listdir(out) if name.startswith("part-")]) == 2


def test_checkpoints_from_a_backup_can_be_gone_back_to_and_no_name_of_a_part_comes_twice(tmp_path: Path) -> None:
    checkpoints, backup, out, archive = (tmp_path / name for name in ("checkpoints", "backup", "out", "archive"))
    first = Run(checkpoints, out, resume=False)
    first.commit(first.checkpoint(1))
    shutil.copytree(checkpoints, backup)
    second = Run(checkpoints, out)
    second.commit(second.checkpoint(10, 11))
    archive.mkdir()
    seen = [name for name in os.listdir(out) if name.startswith("part-")]
    for name in seen:
        (out / name).rename(archive / name)  # their reader's right
    shutil.rmtree(checkpoints)
    shutil.copytree(backup, checkpoints)
    back = Run(checkpoints, out, back_to=1)
    assert back.claim.attempt > AttemptId(2)
    back.commit(back.checkpoint(77))
    again = [name for name in os.listdir(out) if name.startswith("part-")]
    assert again and not set(again) & set(seen)


def test_a_fence_is_all_that_a_driver_needs_to_find_the_newest_attempt(tmp_path: Path) -> None:
    sink = FileSink(tmp_path, "jsonl")
    assert sink.attempts_up_to(owner()) is None
    sink.adopt(owner(), still_ours)
    prepared(sink, 1, attempt=7)
    assert sink.attempts_up_to(owner()) == 7
    assert sink.attempts_up_to(owner(uid="other")) is None
    assert sink.attempts_up_to(owner(lineage=NEXT_LIFE)) is None
