"""`weir state`, `weir fsck` and `weir check`: what they show, and when they fail."""

from __future__ import annotations

import errno
import io
import json
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from tests.unit.api.test_upgrade import checkpoint as checkpoint  # the fixture
from tests.unit.runtime.stores import store_of
from weir.cli import fsck
from weir.cli import jobs as jobs_cli
from weir.cli import state as state_cli
from weir.cli.main import application
from weir.errors import StorageUnavailable
from weir.runtime.storage.stores.files import LocalStorage

NEW_JOB = """
import weir
from weir.connectors import Discard
env = weir.Environment(parallelism=1)
rows = env.from_collection([("a", 1)], "key string, value long", uid="rows")
rows.key_by("key").agg(n=weir.count(), uid="agg").write(Discard(), uid="three")
env.run("job")
raise SystemExit("the job was started")
"""


def invoke(*arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(application(), [str(argument) for argument in arguments])
    return result.exit_code, result.output


def test_state_lists_every_state(checkpoint: Path) -> None:
    code, output = invoke("state", checkpoint, "--json")
    found = {(row["uid"], row["state"]): row for row in json.loads(output)}
    assert code == 0
    assert set(found) >= {("agg", "aggregate"), ("process", "kept"), ("batches", "state")}
    assert found["process", "kept"]["schema"].startswith("key_group int")
    code, output = invoke("state", checkpoint)
    assert code == 0
    assert "aggregate" in output


def test_state_of_something_else_is_a_clear_error(tmp_path: Path) -> None:
    code, output = invoke("state", tmp_path)
    assert code == 1
    assert "is no savepoint" in " ".join(output.replace("│", " ").split())


def test_fsck_names_files_of_the_users_and_does_not_mind_them(tmp_path: Path) -> None:
    store_of(LocalStorage(str(tmp_path / "job"))).adopt("run-1", resume=False)
    (tmp_path / "README").touch()
    (tmp_path / "job" / "thesis.txt").touch()
    code, output = invoke("fsck", tmp_path)
    assert code == 0
    for name in ("README", "thesis.txt"):
        assert f"{name} was not written by Weir" in output
    result = CliRunner().invoke(application(), ["fsck", str(tmp_path), "--json"])
    assert [report["strays"] for report in json.loads(result.stdout)] == [["thesis.txt"]]


def test_check_says_what_a_changed_job_would_lose_and_does_not_start_it(checkpoint: Path, tmp_path: Path) -> None:
    script = tmp_path / "job.py"
    script.write_text(NEW_JOB)
    code, output = invoke("check", checkpoint, script, "--json")
    found = {(row["uid"], row["state"]): row["becomes"] for row in json.loads(output)}
    assert code == 1
    assert found["agg", "aggregate"] == "evolved"
    assert found["agg", "aggregate.sum"] == "dropped"
    assert found["rows", "(position)"] == "restored"
    assert found["process", "kept"] == "dropped"
    code, output = invoke("check", checkpoint, script)
    assert code == 1
    assert "--allow-dropped-state" in output


def test_check_of_a_script_without_a_job_says_so(checkpoint: Path, tmp_path: Path) -> None:
    script = tmp_path / "job.py"
    script.write_text("x = 1\n")
    code, output = invoke("check", checkpoint, script)
    assert code == 1
    assert "without starting a job" in " ".join(output.split())


def test_state_of_a_plain_file_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    code, output = invoke("state", tmp_path / "file")
    assert code == 1
    assert "is no savepoint" in " ".join(output.replace("│", " ").split()) and "Errno" not in output


@pytest.mark.parametrize("location", ["{}/nowhere", "{}", "{}/file", "s3://", "nonsense://x", "s3://AKIA:x/y@bucket"])
def test_fsck_tells_that_it_could_not_look_from_damage(location: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    code, output = invoke("fsck", location.format(tmp_path))
    assert code == 2 and "AKIA" not in output


def test_fsck_of_storage_that_is_away_could_not_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(self: LocalStorage, path: str) -> list[str]:
        raise StorageUnavailable("the disk is away") from OSError(errno.EACCES, "so not asked again")

    monkeypatch.setattr(LocalStorage, "list", away)
    assert invoke("fsck", tmp_path)[0] == 2


def test_fsck_finds_damage_also_where_names_hold_brackets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a terminal, where names are put into a line that says what is read."""
    monkeypatch.setattr(fsck, "Console", lambda **_: Console(file=io.StringIO(), force_terminal=True))
    place = tmp_path / "m[" / "bold] [red"
    store = store_of(LocalStorage(str(place / "job[red]")))
    store.adopt("run-1", resume=False)
    store.claim()
    assert invoke("fsck", place)[0] == 0
    assert invoke("fsck", place / "job[red]")[0] == 0
    (place / "job[red]" / "job.json").write_text("{")
    assert invoke("fsck", place)[0] == 1


def test_tables_show_brackets_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    state_cli._show([{"uid": "totals[/]", "state": "[red]kept"}], "State in [/x]", "nothing")
    jobs_cli._table(["job"], [["words[/]"]])
    shown = capsys.readouterr().out
    assert all(name in shown for name in ("totals[/]", "[red]kept", "[/x]", "words[/]"))
