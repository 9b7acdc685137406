"""Commits and parts of sinks, broken on purpose: each variant loses, repeats or hides rows that were safe."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

from tests.sim.patching import all_of, patched
from tests.sim.storage import SimDirectory
from weir.connectors.files import parts
from weir.connectors.files.part_names import CommitNote
from weir.connectors.files.parts import META, PartDirectory, pending_directory
from weir.connectors.files.sink import FileSinkWriter
from weir.runtime.driver.claims import ClaimDesk


def finish_removes_all_that_is_pending() -> AbstractContextManager[None]:
    """At its end a driver deletes whatever is pending then, be it its successor's."""

    def finish(self: PartDirectory, owner: Any, fence: Any) -> None:
        self._storage.delete(pending_directory(owner.lineage))

    def unfenced(self: ClaimDesk, plan: Any, done: Any, *, drained: bool) -> None:
        def tidy_up() -> None:
            self._sinks.finish(plan)
            self._store.finish(drained=drained)

        self._background.run(tidy_up, done)

    return all_of(patched(PartDirectory, "finish", finish), patched(ClaimDesk, "finish", unfenced))


def parts_without_lineage() -> AbstractContextManager[None]:
    """Part files of all lineages have the same names, in the same place."""
    cut = FileSinkWriter._cut

    def nameless(self: FileSinkWriter) -> Any:
        name, batches = cut(self)
        self._written[-1] = replace(name, lineage="0" * 10)
        return self._written[-1], batches

    return all_of(
        patched(FileSinkWriter, "_cut", nameless),
        patched(parts, "pending_directory", lambda lineage: f"{META}/pending"),
    )


def commit_replaces_parts() -> AbstractContextManager[None]:
    """Parts of all attempts have the same names, and a commit replaces what is there."""
    original = FileSinkWriter._cut

    def cut(self: FileSinkWriter) -> Any:
        name, batches = original(self)
        self._written[-1] = replace(name, attempt=0)
        return self._written[-1], batches

    def commit(self: PartDirectory, names: Any, note: Any, *, before: Any, sink: str) -> None:
        for name in names:
            path = f"{pending_directory(name.lineage)}/{name}"
            try:
                self._storage.publish(str(name), self._storage.read(path).to_pybytes())
            except FileNotFoundError:
                continue
            self._storage.delete(path)

    return all_of(patched(FileSinkWriter, "_cut", cut), patched(PartDirectory, "commit", commit))


def compacted_parts_are_insisted_on() -> AbstractContextManager[None]:
    """What a checkpoint has to commit is pending, or lies where it was committed; else the job does not start."""
    return patched(CommitNote, "tells_of", lambda self, part: False)


def output_without_checkpoints_is_resumed() -> AbstractContextManager[None]:
    """A resume finds no checkpoints, and output of the job; and begins at the beginning."""
    check = PartDirectory.check

    def accepts(self: PartDirectory, owner: Any, **how: Any) -> None:
        if not owner.resume:
            check(self, owner, **how)

    return patched(PartDirectory, "check", accepts)


def output_that_was_moved_away_is_not_missed() -> AbstractContextManager[None]:
    """A resume finds no checkpoints, and no output, since its reader has moved it; and begins at the beginning."""
    return patched(PartDirectory, "_has_committed", lambda self: False)


def restart_removes_what_is_to_be_committed() -> AbstractContextManager[None]:
    """An attempt takes all that older ones left pending for void."""
    original = PartDirectory.recover

    def recover(self: PartDirectory, owner: Any, uid: str, attempt: Any, keep: Any, fence: Any) -> None:
        original(self, owner, uid, attempt, (), fence)

    return patched(PartDirectory, "recover", recover)


def restart_removes_what_newer_attempts_wrote() -> AbstractContextManager[None]:
    """An attempt that was overtaken takes what its successors have pending for void."""

    def recover(self: PartDirectory, owner: Any, uid: str, attempt: Any, keep: Any, fence: Any) -> None:
        kept, directory = set(keep), pending_directory(owner.lineage)
        for name in self._storage.list(directory):
            if name not in kept:
                self._storage.delete(f"{directory}/{name}")

    return patched(PartDirectory, "recover", recover)


def move_deletes_first() -> AbstractContextManager[None]:
    """A part that is moved is gone for a moment."""
    original = SimDirectory.move

    def move(self: SimDirectory, source: str, target: str) -> None:
        if META not in source:
            original(self, source, target)
            return
        data = self.read(source).to_pybytes()
        self.delete(source)
        self.publish(target, data)

    return patched(SimDirectory, "move", move)


SINK_VARIANTS = (
    finish_removes_all_that_is_pending,
    parts_without_lineage,
    commit_replaces_parts,
    compacted_parts_are_insisted_on,
    output_without_checkpoints_is_resumed,
    output_that_was_moved_away_is_not_missed,
    restart_removes_what_is_to_be_committed,
    restart_removes_what_newer_attempts_wrote,
    move_deletes_first,
)
