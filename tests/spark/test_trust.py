"""What users do to a job's directories between two runs: nothing is lost, repeated or replaced in silence."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import weir
from tests.conftest import poll
from tests.spark.helpers import numbers, open_gate, part_bytes, slow_settings
from weir import connectors as io
from weir.errors import CheckpointError, ConfigError, OwnershipError

ROWS = 40_000
PATIENCE_S = 120.0

Start = Callable[..., Any]


@pytest.fixture
def start(embedded: Any, tmp_path: Path) -> Iterator[Start]:
    """`start(**how)` submits the job once more; what still runs at the end is cancelled."""
    jobs: list[Any] = []

    def start(name: str = "trusted", *, rows: int | None = ROWS, **how: Any) -> Any:
        checkpoints = weir.Checkpoints(every="200ms", to=str(tmp_path / "checkpoints"))
        env = weir.Environment(parallelism=2, checkpoints=checkpoints, settings=slow_settings(), spark=embedded)
        sink = io.FileSink(tmp_path / "out", "jsonl")
        numbers(env, tmp_path, rows).select("n", uid="only-n").write(sink, uid="out")
        jobs.append(env.submit(name, **how))
        return jobs[-1]

    yield start
    for job in jobs:
        job.cancel()


def visible(directory: Path) -> list[int]:
    """What a stranger reads: every file that is no part of Weir's own."""
    files = [path for path in directory.glob("*") if path.is_file()]
    return [json.loads(line)["n"] for path in files for line in path.read_text().splitlines()]


def check_exactly(directory: Path, rows: int) -> None:
    seen = Counter(visible(directory))
    repeated = [n for n, times in seen.items() if times > 1]
    lost = [n for n in range(rows) if n not in seen]
    assert (len(lost), len(repeated), len(seen)) == (0, 0, rows)


def interrupted(job: Any, directory: Path) -> None:
    """The job has committed some rows, and is cancelled."""
    poll(lambda: (len(job.checkpoints()) >= 4 and visible(directory)) or job.error, PATIENCE_S)
    assert job.error is None
    job.cancel()


def manifests(directory: Path) -> list[Path]:
    return sorted((directory / "checkpoints" / "trusted").rglob("chk-*/manifest.json"))


def test_a_resume_whose_checkpoints_were_lost_replaces_no_row(start: Start, tmp_path: Path) -> None:
    interrupted(start(resume=True), tmp_path / "out")
    before = part_bytes(tmp_path / "out")
    shutil.rmtree(tmp_path / "checkpoints")
    with pytest.raises(OwnershipError, match=r"checkpoints are not where the job looks for them.*Checkpoints.to"):
        start(resume=True)
    assert part_bytes(tmp_path / "out") == before


def test_committed_output_may_be_compacted_between_two_runs(start: Start, tmp_path: Path) -> None:
    interrupted(start(), tmp_path / "out")
    parts = sorted((tmp_path / "out").glob("part-*"))
    (tmp_path / "out" / "compacted.jsonl").write_text("".join(part.read_text() for part in parts))
    for part in parts:
        part.unlink()
    open_gate(tmp_path)
    assert start(resume=True).wait(PATIENCE_S) == "finished"
    check_exactly(tmp_path / "out", ROWS)


def test_a_newest_manifest_that_is_gone_is_missed_and_going_back_is_an_explicit_act(
    start: Start, tmp_path: Path
) -> None:
    interrupted(start(), tmp_path / "out")
    *_, older, newest = manifests(tmp_path)
    newest.unlink()
    before = part_bytes(tmp_path / "out")
    with pytest.raises(CheckpointError, match=rf"{newest.parent.name}/manifest.json is gone.*--at"):
        start(resume=True)
    assert part_bytes(tmp_path / "out") == before
    with pytest.warns(UserWarning, match=r"writes again: what sink 'out' has committed in checkpoints"):
        back = start(resume=True, at=older.parent.name)
    open_gate(tmp_path)
    assert back.wait(PATIENCE_S) == "finished"
    assert set(visible(tmp_path / "out")) == set(range(ROWS)), "some twice, as it was said; none lost"
    with pytest.raises(CheckpointError, match="no checkpoint 77777"):
        start(resume=True, at="chk-77777")


@pytest.mark.parametrize("name", [".", "..", "..."])
def test_a_job_name_is_no_way_out_of_the_checkpoint_directory(start: Start, name: str) -> None:
    with pytest.raises(ConfigError, match="not dots alone"):
        start(name)
