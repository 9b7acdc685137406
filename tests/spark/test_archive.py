"""What earlier versions have written is read by this one: checkpoints of a killed job, and a savepoint, with every kind
of state, on both backends. tests/archive keeps them; tests/spark/jobs/archived.py says how they were made.
"""

from __future__ import annotations

import json
import tarfile
from collections import Counter
from pathlib import Path

import pytest

from tests.spark.jobs import archived

ARCHIVES = sorted((Path(__file__).parents[1] / "archive").glob("*.tar.gz"))
LAST_COUNTS = ("totals", "reduced")
"""Running results: their last rows count."""
AT_THE_END = ("totals", "reduced", "sessions", "remembered")
"""What comes out behind the last row only, so that nothing of it was out before the savepoint."""


def extracted(archive: Path, place: Path) -> str:
    """The archive in a directory of its own; the backend that it was made with."""
    with tarfile.open(archive) as files:
        files.extractall(place, filter="data")
    return archive.name.removesuffix(".tar.gz").rpartition("-")[2]


def results(place: Path) -> dict[str, list[str]]:
    return {directory.name: rows_of(directory) for directory in sorted((place / "out").iterdir())}


def rows_of(directory: Path) -> list[str]:
    rows = Counter(line for part in directory.glob("*.jsonl") for line in part.read_text(encoding="utf-8").splitlines())
    if directory.name not in LAST_COUNTS:
        return sorted(rows.elements())
    found = sorted((json.loads(row) for row in rows), key=lambda row: row["n"])
    return sorted(json.dumps(row, sort_keys=True) for row in {row["key"]: row for row in found}.values())


@pytest.fixture(scope="module")
def expected(embedded: object, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """What an uninterrupted run gives."""
    place = tmp_path_factory.mktemp("uninterrupted")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        archived.build("heap", rate=None).run("archived")
    found = results(place)
    assert len(found["remembered"]) == archived.KEYS and len(found["as_of"]) == archived.ROWS
    return found


def test_there_is_an_archive_of_each_backend() -> None:
    assert {name.name.rpartition("-")[2] for name in ARCHIVES} == {"heap.tar.gz", "rocksdb.tar.gz"}


@pytest.mark.parametrize("archive", ARCHIVES, ids=lambda archive: archive.name)
def test_a_job_goes_on_from_the_checkpoints_of_an_earlier_version(
    archive: Path, expected: dict[str, list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = extracted(archive, tmp_path)
    monkeypatch.chdir(tmp_path)
    result = archived.build(backend, rate=None).run("archived", resume=True)
    assert result.status == "finished"
    assert results(tmp_path) == expected


@pytest.mark.parametrize("archive", ARCHIVES, ids=lambda archive: archive.name)
def test_a_job_starts_from_a_savepoint_of_an_earlier_version(
    archive: Path, expected: dict[str, list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = extracted(archive, tmp_path / "archive")
    (savepoint,) = (tmp_path / "archive" / "saved").iterdir()
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    archived.build(backend, rate=None).run("again", from_savepoint=str(savepoint))
    found = results(tmp_path / "elsewhere")
    assert {name: found[name] for name in AT_THE_END} == {name: expected[name] for name in AT_THE_END}
