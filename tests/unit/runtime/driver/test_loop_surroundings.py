"""What surrounds the snapshots: deletion, names, damage, crashes in the middle of a create, and the end of a driver."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.runtime.driving import Stage, noting, two_tasks
from tests.unit.runtime.fakes import FaultyStorage, QueuedBackground, run_all
from tests.unit.runtime.job.test_asks import plan_at
from tests.unit.runtime.job.test_handle import ObedientCluster
from tests.unit.runtime.stores import LIFE, claimed, manifest, store_of
from weir.config import Checkpoints, ExponentialDelay, JobConfig, NoRestart, Settings
from weir.errors import ConfigError
from weir.ids import CheckpointId
from weir.runtime.driver.notices import AttemptFailed
from weir.runtime.driver.retirement_desk import RetirementDesk
from weir.runtime.driver.verdicts import Failed
from weir.runtime.job import handle as job_module
from weir.runtime.job import launch
from weir.runtime.job.handle import Job
from weir.runtime.storage.layout import new_lineage
from weir.runtime.storage.opening import open_storage
from weir.runtime.storage.stores.files import LocalStorage

# --- Deletion --------------------------------------------------------------------------------------------


def test_retirements_follow_each_other_and_never_overlap() -> None:
    _, store = claimed()
    background = QueuedBackground()
    desk = RetirementDesk(store, background)
    for checkpoint in (1, 2, 3):
        store.publish(manifest(checkpoint, 1))
        desk.retire(CheckpointId(checkpoint))
        assert len(background.waiting) == 1, "the first one still runs"
    run_all(background)
    assert store.listing().valid == (3,)


# --- Names -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [".", "..", "..."])
def test_a_job_name_of_dots_is_refused_before_anything_is_touched(name: str, tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("x")
    config = JobConfig(name, Checkpoints(to=str(tmp_path / "checkpoints")))
    with pytest.raises(ConfigError, match="not dots alone"):
        launch.submit(two_tasks(), config, session=object())  # type: ignore[arg-type]
    assert os.listdir(tmp_path) == ["thesis.txt"]


# --- Retries and damage ----------------------------------------------------------------------------------


def test_checkpoints_complete_without_any_retries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_module, "SparkCluster", ObedientCluster)
    settings = Settings(storage_retries_max=0, commit_retries_max=0)
    uri = str(tmp_path / "checkpoints" / "job")
    config = JobConfig("job", Checkpoints(every=None, to=uri), NoRestart(), settings)
    storage = launch._storage(config, open_storage)[0]
    job = Job(
        plan_at(2),
        config,
        run="run",
        session=None,  # type: ignore[arg-type]
        store=store_of(storage, new_lineage()),
        opener=open_storage,
        storage_uri=uri,
    )
    job.start()
    try:
        assert job.trigger_checkpoint(30) == 1
    finally:
        job.cancel()


@pytest.mark.parametrize("kind", ["start", "completed"])
def test_a_damaged_note_ends_the_job_by_name_and_uses_up_no_restarts(kind: str) -> None:
    storage = FaultyStorage()
    first = store_of(storage)
    first.adopt("run-0", resume=False)
    first.publish(manifest(1, first.claim().attempt))
    note = f"attempts/0000000001.{LIFE}.{kind}"
    storage.write(note, storage.read(note).to_pybytes()[:10])
    stage = Stage(storage=storage, resume=True, run="run-1", restart=ExponentialDelay()).begin()
    assert isinstance(stage.ended.verdict, Failed)
    (failure,) = stage.said(AttemptFailed)
    assert f"{note} (10 bytes) is not what was written" in failure.error and not failure.restarts


# --- A real crash: the process ends between two writes ---------------------------------------------------

CRASH = """
import builtins, errno, os, sys
from weir.runtime.storage.stores import files as storage_files
from weir.runtime.storage.stores.files import LocalStorage
directory, nth = sys.argv[1], int(sys.argv[2])
def refused(*names): raise OSError(errno.EPERM, "no hard links here")
os.link = refused
writes = 0
class Crashing:
    def __init__(self, file): self.file = file
    def __enter__(self): return self
    def __exit__(self, *error): self.file.close()
    def __getattr__(self, name): return getattr(self.file, name)
    def write(self, data):
        global writes
        writes += 1
        if writes == nth:
            self.file.write(bytes(data)[:3])
            os._exit(9)
        return self.file.write(data)
def opened(path, mode="r", *more, **options):
    file = builtins.open(path, mode, *more, **options)
    return Crashing(file) if "w" in mode or "x" in mode else file
storage_files.open = opened
LocalStorage(directory).create("chk-1/manifest.json", b"a whole manifest")
"""


@pytest.mark.parametrize("nth", [1, 2, 3])
def test_a_crash_in_the_middle_of_create_leaves_all_or_nothing_without_hard_links_too(nth: int, tmp_path: Path) -> None:
    command = [sys.executable, "-c", CRASH, str(tmp_path), str(nth)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    code = subprocess.run(command, env=environment, check=False).returncode
    assert code == 9 if nth == 1 else code in (0, 9)
    storage = LocalStorage(str(tmp_path))
    if storage.list("chk-1"):
        assert storage.read("chk-1/manifest.json").to_pybytes() == b"a whole manifest"
    assert storage.create("chk-1/manifest.json", b"a whole manifest")


# --- The end ---------------------------------------------------------------------------------------------


def test_a_driver_that_was_overtaken_before_its_last_note_is_not_finished_and_tidies_nothing_up() -> None:
    stage = noting()
    finished: list[object] = []
    sink = stage.plan.vertices[-1].operators[-1].spec
    sink.finish = lambda *given: finished.append(given)  # type: ignore[method-assign, union-attr]
    successor = store_of(stage.storage)
    successor.adopt("run-2", resume=True)
    successor.claim()
    run_all(stage.background)
    assert isinstance(stage.ended.verdict, Failed)
    assert "another driver has taken over job 'job' with attempt 2" in stage.ended.verdict.error
    assert finished == [], "what is pending belongs to the successor"
