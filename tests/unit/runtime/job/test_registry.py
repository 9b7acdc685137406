"""The list of running jobs: written for this user only, found by name, cleaned of what is gone."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from weir.errors import JobError
from weir.runtime.job.registry import JobEntry, entries, find_job, register, registry_directory, this_host, unregister
from weir.runtime.net.lines import Secret


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return tmp_path


def entry(name: str = "words", run: str = "0123456789abcdef", **more: object) -> JobEntry:
    made = JobEntry(name, run, os.getpid(), this_host(), "grpc://127.0.0.1:1", Secret("secret"), 1.0, "/checkpoints", 2)
    return replace(made, **more)  # type: ignore[arg-type]


def test_an_entry_comes_out_as_it_went_in_and_is_gone_when_it_is_removed(state: Path) -> None:
    assert entries() == []
    path = register(entry())
    assert path.parent == state / "weir" / "jobs" == registry_directory()
    assert entries() == [entry()]
    unregister(entry())
    unregister(entry())
    assert entries() == [] and list(path.parent.iterdir()) == []


def test_only_the_user_may_read_what_holds_a_token() -> None:
    registry_directory().mkdir(parents=True, mode=0o755)
    path = register(entry())
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert "token" not in entry().public and "secret" not in str(entry().public)


def test_without_a_variable_the_entries_are_in_the_home_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert registry_directory() == tmp_path / ".local" / "state" / "weir" / "jobs"


def test_a_job_whose_process_is_gone_is_ignored_and_its_entry_removed() -> None:
    gone = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True)
    stale = register(entry(pid=int(gone.stdout)))
    elsewhere = register(entry(run="another", pid=int(gone.stdout), host="another-host"))
    assert [found.host for found in entries()] == ["another-host"], "nobody knows here what runs there"
    assert elsewhere.exists() and not stale.exists()


LISTED = """
import os, sys
from weir.runtime.net.lines import Secret
from weir.runtime.job.registry import JobEntry, register, this_host
register(JobEntry("words", "run", os.getpid(), this_host(), "grpc://127.0.0.1:1", Secret("secret"), 1.0, None, 2))
print("listed", flush=True)
sys.stdin.read()
"""


def listed_job() -> subprocess.Popen[str]:
    """A process that has a job in the list."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    process = subprocess.Popen([sys.executable, "-c", LISTED], text=True, **pipes)  # type: ignore[call-overload]
    assert process.stdout.readline() == "listed\n"
    return process  # type: ignore[no-any-return]


def test_a_killed_job_is_not_listed_even_when_its_process_id_is_anothers_by_now() -> None:
    with listed_job() as process:
        (found,) = entries()
        assert found.pid == process.pid
        process.kill()
    path = registry_directory() / found.file_name
    reused = path.with_name(replace(found, pid=os.getpid()).file_name)
    reused.write_text(path.read_text().replace(str(found.pid), str(os.getpid())))
    assert entries() == []
    assert not path.exists() and not reused.exists()


def test_the_next_job_that_starts_removes_the_entries_of_killed_ones() -> None:
    with listed_job() as process:
        process.kill()
    half = registry_directory() / f"words-{process.pid}-run.{process.pid}.new"
    half.write_text("{")
    path = register(entry("sums"))
    assert list(registry_directory().iterdir()) == [path]


def test_a_job_that_runs_stays_listed_whoever_looks() -> None:
    with listed_job() as process:
        assert [found.pid for found in entries()] == [process.pid]
        register(entry("sums"))
        assert sorted(found.name for found in entries()) == ["sums", "words"]
        process.kill()


def test_files_that_are_no_entries_are_left_alone() -> None:
    register(entry())
    for name, text in (("a.json", "{"), ("b.json", "[]"), ("c.json", '{"name": "x"}')):
        (registry_directory() / name).write_text(text)
    assert entries() == [entry()]


def test_a_job_is_found_by_its_name_and_if_need_be_by_run_or_process() -> None:
    register(entry())
    register(entry("other job/1"))
    assert find_job("words") == entry() and find_job("other job/1").name == "other job/1"
    register(entry(run="fedcba9876543210"))
    with pytest.raises(
        JobError, match=r"2 jobs are named 'words': .*01234567.*fedcba98.*Say which with --run or --pid"
    ):
        find_job("words")
    assert find_job("words", run="fed").run == "fedcba9876543210"
    with pytest.raises(JobError, match="no job 'words' has that run or process id; there are"):
        find_job("words", pid=1)


def test_a_job_that_is_not_there_is_answered_with_those_that_are() -> None:
    with pytest.raises(JobError, match="no job named 'words' runs; this user runs no job"):
        find_job("words")
    register(entry("sums"))
    with pytest.raises(JobError, match=r"no job named 'words' runs; there are: sums \(run 01234567"):
        find_job("words")
