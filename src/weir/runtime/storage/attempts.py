"""The claims of a job's attempts, and what drivers note about them, in the job's directory.

Comes in: the storage port and a lineage. Goes out: claims that exactly one driver holds,
notes, and what all of them come to. Decides nothing about checkpoints (snapshot/checkpoints.py).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

from weir.errors import CorruptCheckpoint, OwnershipError, StorageUnavailable
from weir.ids import AttemptId, Lineage
from weir.runtime.ports import Storage
from weir.runtime.storage import layout
from weir.runtime.storage.layout import AttemptNote, Note
from weir.snapshot.checkpoints import AttemptStart, PublishedCheckpoint, overtaken_by
from weir.snapshot.parts import Json
from weir.snapshot.records import seal, unseal

ATTEMPTS_KEPT = 64
"""The latest attempts whose claims and notes are kept, also when nothing is left of what they wrote."""


ATTEMPTS_SKIPPED = 1000
"""Numbers that are left out when a job goes back: its checkpoints may be from a backup."""


def current_lineage(storage: Storage) -> Lineage | None:
    """The lineage of the newest attempt that has run, which a resume goes on with."""
    newest = newest_run(storage, storage.list(layout.ATTEMPTS))
    return None if newest is None else newest.lineage


def newest_run(storage: Storage, names: list[str]) -> AttemptNote | None:
    """The start of the newest attempt that was claimed and started. Where claims or starts were taken away, what is
    left tells."""
    claimed = set(_claimed(names))
    notes = [note for name in names if (note := AttemptNote.parse(name)) is not None]
    # A start without its claim, or with the claim of another run, may be a late one, of somebody whose directory was
    # deleted.
    starts = [note for note in notes if note.note == "start" and note.attempt in claimed]
    starts.sort(key=lambda note: note.attempt, reverse=True)
    newest = next((note for note in starts if len(starts) == 1 or _is_of_its_claim(storage, note)), None)
    return newest or max(starts or notes, key=lambda note: note.attempt, default=None)


def _is_of_its_claim(storage: Storage, note: AttemptNote) -> bool:
    """Whether who has claimed the attempt has noted this. What is damaged or does not say is believed."""
    try:
        noted = read_record(storage, note.path).get("run")
        claimed = read_record(storage, layout.claim_path(note.attempt)).get("run")
    except (FileNotFoundError, CorruptCheckpoint):
        return True
    return noted is None or noted == claimed


def read_record(storage: Storage, path: str) -> Any:
    """What a sealed record says, or FileNotFoundError. One that is damaged is named, with what can be done."""
    try:
        return unseal(storage.read(path).to_pybytes(), path)
    except CorruptCheckpoint as error:
        way_out = (
            "or delete it: the next start writes it again"
            if path == layout.JOB_FILE
            else "or go back to a checkpoint that you name (weir run --resume --at)"
        )
        raise CorruptCheckpoint(f"{error}, {way_out}") from error


def _claimed(names: list[str]) -> list[AttemptId]:
    return [attempt for name in names if (attempt := layout.claimed_attempt(name)) is not None]


class Attempts:
    """The attempts of one job, as a driver of one lineage sees them."""

    def __init__(self, storage: Storage, job: str, lineage: Lineage) -> None:
        self._storage = storage
        self._job = job
        self._lineage = lineage
        self._run = ""
        self.bears_damage = False
        """Notes that are damaged are passed over: the user has said where to go on from."""
        self.claims: deque[AttemptId] = deque(maxlen=ATTEMPTS_KEPT)
        """The latest that this driver has made, oldest first."""
        self._needed_from = AttemptId(0)
        """The last attempt that went back: what is damaged of those before it does not matter any more."""
        self._tried = AttemptId(0)
        """The newest of these whose start may be noted, now or when a call takes effect that hangs."""
        self._started: AttemptId | None = None
        """The newest of these whose start is noted."""
        self._found: tuple[AttemptId, str | None] | None = None
        """The newest claim when this run began, and the run that had made it."""
        self._is_closed = False
        self._last_reserved: AttemptNote | None = None
        """The newest note of how far sources had come for good, as of the last look at all notes."""

    @property
    def own(self) -> AttemptId | None:
        """The newest that this driver has claimed."""
        return self.claims[-1] if self.claims else None

    def begin(self, run: str) -> None:
        """From now on claims are made for this run. Whoever claims from here on was started later, unless it is the
        run that was found: a start that hangs, and goes on when another runs, gives way to it."""
        self._run = run
        if self._found is None:
            names = self._storage.list(layout.ATTEMPTS)
            standing = (a for a in sorted(_claimed(names), reverse=True) if not self._is_withdrawn(a, names))
            newest = next(standing, AttemptId(0))
            self._found = newest, self._run_of(newest)

    def close(self) -> None:
        """The driver has ended: whatever of it still hangs in storage claims, deletes and notes nothing more."""
        self._is_closed = True

    def take(self, above: int = 0) -> AttemptId:
        """Claim the next attempt above this one. The first claim of a run takes the job over from the run that it
        found; a later one does not take it back from a newer driver."""
        try:
            return self._take(above)
        except OwnershipError:
            self.give_up()  # An earlier try may have claimed one, though its reply was lost.
            raise
        except StorageUnavailable:
            if self._is_closed:
                self.give_up()  # So may this one, and nobody tries again.
            raise

    def _take(self, above: int) -> AttemptId:
        while True:
            self._check_open()
            names = self._storage.list(layout.ATTEMPTS)
            self._check_first(names)
            self._check_still_there(names)
            noted = [note.attempt for name in names if (note := AttemptNote.parse(name)) is not None]
            attempt = AttemptId(max([above, *_claimed(names), *noted]) + 1)
            self._check_open()
            # No two claims have the same content, so that one whose reply was lost is known by it.
            if self._storage.create(layout.claim_path(attempt), seal({"run": self._run, "attempt": attempt})):
                try:
                    # It may have hung until this driver had ended, until another had claimed a number that this one has
                    # left out, or until the directory was another run's.
                    self._check_open()
                    names = self._storage.list(layout.ATTEMPTS)
                    self._check_first([name for name in names if layout.claimed_attempt(name) != attempt])
                    self._check_still_there(names)
                except OwnershipError:
                    self.withdraw(attempt)
                    raise
                self.claims.append(attempt)
                return attempt

    def above_a_backup(self, above: AttemptId) -> AttemptId:
        """A number above all that a run may have claimed which still goes on although an older state of the directory
        was put back under it."""
        names = self._storage.list(layout.ATTEMPTS)
        return AttemptId(max([above, *_claimed(names)]) + ATTEMPTS_SKIPPED)

    def withdraw(self, attempt: AttemptId) -> None:
        """Give up a claim under which nothing has been noted or written, and those before it whose replies were lost,
        or behind which nobody could look: nobody is to be stopped by them. The claims themselves stay: their numbers
        are never used again, however late this takes effect."""
        with suppress(StorageUnavailable):
            self._withdraw([*(earlier for earlier in self._unstarted() if earlier < attempt), attempt])

    def give_up(self) -> None:
        """This driver claims nothing more: withdraw all under which nothing has been noted or written."""
        with suppress(StorageUnavailable):
            self._withdraw(self._unstarted())

    def _withdraw(self, attempts: list[AttemptId]) -> None:
        for attempt in attempts:
            if attempt in self.claims:
                self.claims.remove(attempt)
            record = seal({"run": self._run, "attempt": attempt})
            self._storage.publish(layout.withdrawal_path(attempt, self._lineage), record)

    def _unstarted(self) -> list[AttemptId]:
        """The claims of this run for which it has tried to note no start: what counts once for whoever resumes the job
        must stop whoever runs it."""
        first = max(self._tried, self._found[0] if self._found else AttemptId(0)) + 1
        claimed = _claimed(self._storage.list(layout.ATTEMPTS))
        return [attempt for attempt in claimed if attempt >= first and self._is_of(attempt, {self._run})]

    def check_newest(self, *, but_own: bool = False) -> None:
        """OwnershipError when another driver has claimed a newer attempt, or this one has ended. `but_own`: a claim of
        this run's own may stand there whose reply was lost, while a region waits to claim once more."""
        self._check_open()
        if self.own is None:
            raise OwnershipError(f"job {self._job!r}: this driver has not claimed an attempt")
        names = self._storage.list(layout.ATTEMPTS)
        newer = [attempt for attempt in _claimed(names) if attempt > self.own]
        standing = [attempt for attempt in newer if not self._is_withdrawn(attempt, names)]
        if but_own:
            standing = [attempt for attempt in standing if not self._is_of(attempt, {self._run})]
        if (by := overtaken_by(standing, self.own)) is not None:
            raise self._overtaken(by)
        self._check_there(names)

    def note(self, attempt: AttemptId, note: Note, body: Json) -> None:
        """Write down something about an attempt of this driver's, in place of what it said before."""
        if note == "start":
            tried, self._tried = self._tried, attempt  # Before the look: what gives up behind the end leaves it alone.
            if self._is_closed:
                self._tried = tried
        self._check_open()
        self._storage.publish(AttemptNote(attempt, self._lineage, note).path, seal({**body, "run": self._run}))
        if note == "start":
            self._started = attempt

    def notes(self) -> list[AttemptNote]:
        """All that there are, of every lineage."""
        names = self._storage.list(layout.ATTEMPTS)
        notes = [note for name in names if (note := AttemptNote.parse(name)) is not None]
        reserved = [note for note in notes if note.note == "reserved" and note.lineage == self._lineage]
        self._last_reserved = max(reserved, key=lambda note: note.attempt, default=None)
        return notes

    def last_reserved(self) -> tuple[AttemptId, Json] | None:
        """How far the sources of this lineage had come for good, and the attempt under which that was noted, as of the
        last look at all notes."""
        note = self._last_reserved
        if note is None or self.bears_damage or note.attempt < self._needed_from:
            return None
        try:
            return note.attempt, read_record(self._storage, note.path)
        except FileNotFoundError:
            return None  # removed since the look, with all that is older than what is restored

    def claimed(self) -> tuple[AttemptId, ...]:
        """All that there are, withdrawn ones included."""
        return tuple(_claimed(self._storage.list(layout.ATTEMPTS)))

    def starts(self, notes: list[AttemptNote]) -> tuple[AttemptStart, ...]:
        """Where the attempts of this lineage started from."""
        found: list[AttemptStart] = []
        for note, body in self._read(sorted(notes, key=lambda note: note.attempt, reverse=True), "start"):
            restored_from, writer, ids_below = body["restored_from"], body["writer"], body["ids_below"]
            found.append(AttemptStart(note.attempt, restored_from, writer, ids_below, body.get("origin")))
            if found[-1].goes_back:
                self._needed_from = max(self._needed_from, note.attempt)
        return tuple(reversed(found))

    def completed(self, notes: list[AttemptNote]) -> tuple[PublishedCheckpoint, ...]:
        """The last checkpoint of each attempt of this lineage that was told to be complete."""
        read = self._read(notes, "completed")
        return tuple(PublishedCheckpoint(body["checkpoint"], note.attempt) for note, body in read)

    def leases(self, notes: list[AttemptNote]) -> tuple[PublishedCheckpoint, ...]:
        """Ids that attempts of this lineage have taken since they started."""
        return tuple(PublishedCheckpoint(body["below"], note.attempt) for note, body in self._read(notes, "ids"))

    def is_finished(self) -> bool:
        """Whether the newest attempt that has run, of whatever lineage, has ended and committed everything."""
        return self._end() is not None

    def has_ended(self) -> bool:
        """The same of an attempt of this lineage whose input was at its end, rather than drained. Earlier versions have
        not noted which."""
        end = self._end()
        if end is None or end.lineage != self._lineage:
            return False
        try:
            return read_record(self._storage, end.path).get("drained") is False
        except (FileNotFoundError, CorruptCheckpoint):
            return False

    def _end(self) -> AttemptNote | None:
        """The note that the newest attempt that has run is finished."""
        names = self._storage.list(layout.ATTEMPTS)
        newest = newest_run(self._storage, names)
        if newest is None:
            return None
        end = replace(newest, note="finished")
        # Where a backup was put back, a driver that nobody knows of may have had the same number.
        is_there = end.path.rpartition("/")[2] in names and _is_of_its_claim(self._storage, end)
        return end if is_there else None

    def forget(self, oldest_needed: AttemptId) -> list[str]:
        """The paths of claims and notes that nobody needs: of attempts below this one, the latest few apart. Claims of
        the newest stay for ever: that is how older drivers find that they were overtaken."""
        claimed = sorted(self.claimed())[-ATTEMPTS_KEPT:]
        below = min([oldest_needed, *claimed])
        paths = []
        for name in self._storage.list(layout.ATTEMPTS):
            note = AttemptNote.parse(name)
            attempt = (layout.claimed_attempt(name) or layout.withdrawn_attempt(name)) if note is None else note.attempt
            if attempt is not None and attempt < below:
                paths.append(f"{layout.ATTEMPTS}/{name}")
        return paths

    def _read(self, notes: list[AttemptNote], kind: Note) -> Iterator[tuple[AttemptNote, Any]]:
        for note in notes:
            if note.lineage != self._lineage or note.note != kind:
                continue
            try:
                yield note, read_record(self._storage, note.path)
            except FileNotFoundError:
                continue  # removed since the look, with all that its attempt had written
            except CorruptCheckpoint:
                if not self.bears_damage and note.attempt >= self._needed_from:
                    raise

    def _check_open(self) -> None:
        if self._is_closed:
            raise OwnershipError(f"job {self._job!r}: this driver has ended, and changes nothing more")

    def _check_still_there(self, names: list[str]) -> None:
        """OwnershipError when the directory was deleted since this run looked at it, and may be another's by now."""
        if self.own is not None:
            self._check_there(names)
        elif self._found is not None and self._found[0] > 0 and not self._is_as_found(*self._found, names):
            raise OwnershipError(
                f"job {self._job!r} was deleted, or started anew, by somebody else while this driver was starting; "
                "start again to go on with what is there"
            )

    def _is_as_found(self, newest: AttemptId, run: str | None, names: list[str]) -> bool:
        """Whether the claim that was found is still that run's; or is forgotten, since that has made many more."""
        now = self._run_of(newest)
        return now == run or (now is None and any(a > newest and self._is_of(a, {run}) for a in _claimed(names)))

    def _check_first(self, names: list[str]) -> None:
        """OwnershipError when there is a newer claim than this run knows of, and it is of a run that began later."""
        if self.own is None and self._found is None:
            return  # Nobody has looked before.
        newest, found = self._found or (AttemptId(0), None)
        # The run that was found may have gone on meanwhile; one of ours may have been made although the reply was lost.
        known: set[str | None] = {self._run} if self.own is not None else {self._run, found}
        for attempt in _claimed(names):
            is_newer = attempt > (self.own or newest)
            if is_newer and not self._is_of(attempt, known) and not self._is_withdrawn(attempt, names):
                raise self._overtaken(attempt)

    def _check_there(self, names: list[str]) -> None:
        """OwnershipError when what this driver has noted is gone, or somebody else has the same attempt: then the
        directory was deleted, perhaps with files that the next checkpoint would name, and may be another run's."""
        if self.own is None:
            return
        mine = [layout.claim_path(self.own)]
        if self._started is not None:
            mine.append(AttemptNote(self._started, self._lineage, "start").path)
        is_gone = any(path.rpartition("/")[2] not in names for path in mine)
        if is_gone or self._is_anothers(self.own, names):
            raise OwnershipError(
                f"job {self._job!r}: what this driver has noted about attempt {self.own} is gone: its checkpoint "
                "directory was deleted, or files in it were. It stops and commits nothing more; start it again"
            )

    def _is_anothers(self, attempt: AttemptId, names: list[str]) -> bool:
        """Whether a claim of this driver's is another run's by now. Where the claim does not tell, its notes do."""
        run = self._run_of(attempt)
        others = [n for name in names if (n := AttemptNote.parse(name)) is not None and n.lineage != self._lineage]
        return run != self._run and (run is not None or any(note.attempt == attempt for note in others))

    def _is_of(self, attempt: AttemptId, runs: set[str | None]) -> bool:
        """Whether one of these runs made the claim."""
        run = self._run_of(attempt)
        return bool(run) and run in runs

    def _is_withdrawn(self, attempt: AttemptId, names: list[str]) -> bool:
        """Whether the run that made the claim has given it up. What another has noted, whose directory was deleted and
        who had the same number there, says nothing of it."""
        for name in names:
            if layout.withdrawn_attempt(name) == attempt:
                with suppress(FileNotFoundError, CorruptCheckpoint):
                    if self._is_of(attempt, {read_record(self._storage, f"{layout.ATTEMPTS}/{name}").get("run")}):
                        return True
        return False

    def _run_of(self, attempt: AttemptId) -> str | None:
        """Which run made a claim; None: there is none, or nobody can say."""
        try:
            run: str | None = read_record(self._storage, layout.claim_path(attempt)).get("run")
        except (FileNotFoundError, CorruptCheckpoint):
            return None
        return run

    def _overtaken(self, newer: AttemptId) -> OwnershipError:
        if self.own is None:
            return OwnershipError(
                f"another driver has taken over job {self._job!r} with attempt {newer} while this one was starting; "
                "start again to take it over from that"
            )
        return OwnershipError(
            f"another driver has taken over job {self._job!r} with attempt {newer}; this one (attempt {self.own}) "
            "stops and commits nothing more"
        )
