"""Storage calls that are tried again: how often, how far apart, and what a repeated call makes of its own work."""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.unit.runtime.fakes import QueuedBackground
from tests.unit.runtime.stores import manifest
from weir.config import Settings
from weir.connectors.files.sink import FileSink
from weir.connectors.files.source import Files
from weir.errors import StorageFull, StorageUnavailable
from weir.ids import AttemptId, CheckpointId, Lineage, Uid
from weir.operators.base import OperatorContext
from weir.operators.sink import SinkOwner
from weir.runtime.storage.opening import open_storage, opener_of
from weir.runtime.storage.savepoints import SavepointDesk
from weir.runtime.storage.stores import files as storage_files
from weir.runtime.storage.stores.details import FileDetails
from weir.runtime.storage.stores.files import LocalStorage
from weir.runtime.storage.stores.memory import MemoryStorage
from weir.runtime.storage.stores.ranged_reads import ranged_file
from weir.runtime.storage.stores.retry import Patience, PatientStorage, patience_of

REMOTE = b"0123456789" * 200_000
PATIENCE = Patience(retries_max=3, initial_ms=100, maximum_ms=250)


class Scripted(MemoryStorage):
    """Fails as the script says, call by call: before its work, or after it."""

    def __init__(self, *script: str) -> None:
        super().__init__(1 << 20)
        self.script = list(script)
        self.calls = 0
        self.then: Callable[[], None] = lambda: None
        """What happens between a lost reply and the next try."""

    def detail(self, path: str) -> FileDetails:
        if not self.is_file(path):
            raise FileNotFoundError(path)
        return FileDetails(self.sizes("")[path])

    def create(self, path: str, data: bytes) -> bool:
        return self._play(lambda: super(Scripted, self).create(path, data))

    def move(self, source: str, target: str) -> None:
        self._play(lambda: super(Scripted, self).move(source, target))

    def read(self, path: str):  # type: ignore[no-untyped-def]
        return self._play(lambda: super(Scripted, self).read(path))

    def open_input(self, path: str) -> pa.NativeFile:
        self._play(lambda: None)
        return ranged_file(lambda start, end: self._play(lambda: REMOTE[start:end]), len(REMOTE))  # type: ignore[arg-type, return-value]

    def _play(self, act: Callable[[], object]) -> object:  # type: ignore[return]
        self.calls += 1
        step = self.script.pop(0) if self.script else "ok"
        if step == "full":
            raise StorageFull("no room")
        if step == "refused":
            raise StorageUnavailable("refused")
        result = act()
        if step == "lost":
            self.then()
            raise StorageUnavailable("no reply")
        return result


class Stand:
    def __init__(self, *script: str, patience: Patience = PATIENCE) -> None:
        self.inner = Scripted(*script)
        self.pauses_s: list[float] = []
        self.storage = PatientStorage(self.inner, patience, pause_s=self.pauses_s.append, draw=lambda: 1.0)


def test_a_call_is_tried_again_with_pauses_that_double_up_to_the_limit() -> None:
    stand = Stand("refused", "refused", "refused")
    assert stand.storage.create("claim", b"mine")
    assert stand.inner.calls == 4
    assert stand.pauses_s == [0.1, 0.2, 0.25]


def test_pauses_are_cut_by_up_to_half_so_that_callers_spread() -> None:
    rng = random.Random(1)
    pauses = [PATIENCE.pause_ms(1, rng.random()) for _ in range(1_000)]
    assert 50 <= min(pauses) < 55 and 95 < max(pauses) <= 100


def test_it_gives_up_after_the_named_number_of_tries_and_says_so() -> None:
    stand = Stand(*["refused"] * 10)
    with pytest.raises(StorageUnavailable, match=r"refused \(tried 4 times\)"):
        stand.storage.read("file")
    assert stand.inner.calls == 4


def test_no_retries_means_one_try_without_a_pause() -> None:
    stand = Stand("refused", patience=patience_of(Settings(storage_retries_max=0)))
    with pytest.raises(StorageUnavailable, match=r"^refused$"):
        stand.storage.read("file")
    assert stand.inner.calls == 1 and stand.pauses_s == []
    assert stand.storage.create("claim", b"mine")


@pytest.mark.parametrize(("step", "error"), [("full", StorageFull), ("ok", FileNotFoundError)])
def test_answers_are_not_tried_again(step: str, error: type[Exception]) -> None:
    stand = Stand(step)
    with pytest.raises(error):
        stand.storage.read("nothing")
    assert stand.inner.calls == 1


def test_a_create_whose_reply_was_lost_is_known_by_its_content() -> None:
    assert Stand("lost").storage.create("claim", b"mine") is True
    beaten = Stand("refused", "lost")
    beaten.inner.write("claim", b"theirs")
    assert beaten.storage.create("claim", b"mine") is False


def test_a_move_whose_reply_was_lost_has_happened() -> None:
    stand = Stand("lost")
    stand.inner.write("pending", b"rows")
    stand.storage.move("pending", "part")
    assert stand.inner.list("") == ["part"]


def test_a_move_of_a_file_that_never_was_is_refused_also_after_a_failure() -> None:
    with pytest.raises(FileNotFoundError):
        Stand("refused").storage.move("pending", "part")
    stand = Stand("refused")
    stand.inner.write("part", b"somebody else's")
    with pytest.raises(FileNotFoundError):
        stand.storage.move("pending", "part")


def test_a_move_of_what_is_gone_is_handed_on_so_that_an_earlier_one_is_made_sure_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All tries of a commit moved the part and failed to sync; the next commit finds it gone."""
    storage = PatientStorage(LocalStorage(str(tmp_path)), Patience(1, initial_ms=1, maximum_ms=1))
    storage.write("pending/part", b"rows")
    synced: list[str] = []

    def failing(path: str) -> None:
        raise OSError(errno.EIO, "no")

    monkeypatch.setattr(storage_files, "_sync_directory", failing)
    with pytest.raises(StorageUnavailable):
        storage.move("pending/part", "part")
    monkeypatch.setattr(storage_files, "_sync_directory", synced.append)
    with pytest.raises(FileNotFoundError):
        storage.move("pending/part", "part")
    assert synced == [str(tmp_path)] and storage.read("part").to_pybytes() == b"rows"


def test_a_move_whose_reply_was_lost_is_not_known_by_what_others_put_in_its_place() -> None:
    stand = Stand("lost")
    stand.inner.write("pending", b"rows")
    # Its reader compacts the output before the move is tried again.
    stand.inner.then = lambda: stand.inner.write("part", b"many more rows")
    with pytest.raises(FileNotFoundError):
        stand.storage.move("pending", "part")
    assert stand.inner.list("") == ["part"]


def test_a_move_never_takes_anothers_file_for_its_own() -> None:
    stand = Stand("refused")
    stand.inner.write("pending", b"rows")
    stand.inner.write("part", b"other rows")
    with pytest.raises(FileExistsError):
        stand.storage.move("pending", "part")
    assert stand.inner.read("pending").to_pybytes() == b"rows"


def test_a_pause_stays_at_its_longest_however_often_a_call_has_failed() -> None:
    assert Patience(10**6, 100, 10_000).pause_ms(5_000, 1.0) == 10_000


def test_a_local_path_that_may_not_be_written_is_refused_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    pauses: list[float] = []
    storage = PatientStorage(LocalStorage(str(tmp_path)), PATIENCE, pause_s=pauses.append)
    with pytest.raises(StorageUnavailable, match=r"^write .*file where a directory is needed"):
        storage.write("file/below", b"x")
    assert pauses == []


def test_local_disks_are_asked_again_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = [OSError(errno.EIO, "the disk stutters")]
    honest = os.fsync
    monkeypatch.setattr(os, "fsync", lambda file: honest(file) if not broken else _raise(broken.pop()))
    open_storage(tmp_path / "root", create=False, patience=PATIENCE).write("file", b"x")
    assert not broken and (tmp_path / "root" / "file").read_bytes() == b"x"


def test_reading_a_part_of_a_remote_file_is_tried_again_too() -> None:
    stand = Stand("ok", "refused", "refused", "ok", *["refused"] * 10)
    with stand.storage.open_input("remote") as file:
        assert stand.inner.calls == 1
        assert file.read(4) == REMOTE[:4]
        assert stand.inner.calls == 4 and stand.pauses_s == [0.1, 0.2]
        with pytest.raises(StorageUnavailable, match=r"refused \(tried 4 times\)"):
            file.read()


def _raise(error: OSError) -> None:
    raise error


# --- Where the settings reach ------------------------------------------------------------------------------


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The local storage's calls, all of which fail."""
    made: list[str] = []

    def fail(name: str) -> Callable[..., Any]:
        def act(self: LocalStorage, path: str, *rest: Any) -> Any:
            made.append(name)
            raise StorageUnavailable("away")

        return act

    for name in ("create", "write", "details"):
        monkeypatch.setattr(LocalStorage, name, fail(name))
    return made


ONCE = Settings(storage_retries_max=0)
TWICE = Settings(storage_retries_max=1, storage_retry_delay="1ms")


@pytest.mark.parametrize(("settings", "times"), [(ONCE, 1), (TWICE, 2)])
def test_a_job_s_settings_reach_its_sinks_its_sources_and_its_savepoints(
    settings: Settings, times: int, calls: list[str], tmp_path: Path
) -> None:
    sink = FileSink(str(tmp_path / "out"), format="jsonl")
    owner = SinkOwner("job", Lineage("l"), Uid("u"), "out", resume=True, settings=settings)
    with pytest.raises(StorageUnavailable):
        sink.adopt(owner, lambda: None)
    assert calls == ["create"] * times
    calls.clear()

    context = OperatorContext("job", Uid("u"), "n", 0, 1, 128, AttemptId(1), settings=settings)
    writer = sink.writer()
    writer.open(context, None)
    writer.write(pa.record_batch({"n": [1]}))
    with pytest.raises(StorageUnavailable):
        writer.prepare(CheckpointId(1))()
    assert calls == ["write"] * times
    calls.clear()

    (tmp_path / "in").mkdir()
    reader = Files(str(tmp_path / "in"), format="text", watch="1s").reader()
    with pytest.raises(StorageUnavailable):
        reader.open(context, None)
    assert calls == ["details"] * times
    calls.clear()

    background = QueuedBackground()
    desk = SavepointDesk(background, opener_of(settings))
    desk.publish(str(tmp_path / "savepoint"), manifest(1, 1), lambda result: None)
    with pytest.raises(StorageUnavailable):
        background.take(0)[0]()
    assert calls == ["create"] * times
