"""What a command says before Spark starts, with a Spark that only seems to start."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from weir.cli import session as cli_session
from weir.cli.main import application
from weir.cli.session import spark_on
from weir.runtime.spark import session as runtime_session
from weir.runtime.spark.session import embedded_session

JOB = "from weir.runtime.spark.session import embedded_session\nembedded_session(2)\nembedded_session(2)\n"
"""What two jobs of a script do, one after the other."""


@pytest.fixture(autouse=True)
def seeming_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    spark = SimpleNamespace(stop=lambda: None)
    monkeypatch.setattr(runtime_session, "_session", None)
    monkeypatch.setattr(runtime_session, "_start", lambda slots, name: spark)
    monkeypatch.setattr(runtime_session, "_alive", lambda session: session is spark)
    monkeypatch.setattr(runtime_session, "slots", lambda session: 4)
    monkeypatch.setattr(cli_session, "_start", lambda master, name: spark)


def run(tmp_path: Path, *options: str) -> str:
    script = tmp_path / "job.py"
    script.write_text(JOB)
    result = CliRunner().invoke(application(), ["run", str(script), *options])
    assert result.exit_code == 0, result.stderr
    return result.stderr


def test_a_run_says_once_that_spark_starts_also_without_a_terminal(tmp_path: Path) -> None:
    assert run(tmp_path) == "Starting Spark …\n"


def test_a_run_on_a_master_says_it_too(tmp_path: Path) -> None:
    assert run(tmp_path, "--master", "local[4]") == "Starting Spark …\n"


def test_a_run_without_progress_says_nothing(tmp_path: Path) -> None:
    assert run(tmp_path, "--no-progress") == ""


def test_a_script_that_needs_no_spark_hears_nothing_of_it() -> None:
    said: list[str] = []
    with spark_on(None, "idle", say=said.append):
        pass
    assert said == []


def test_what_starts_later_in_the_process_is_announced_to_nobody() -> None:
    said: list[str] = []
    with spark_on(None, "early", say=said.append):
        pass
    embedded_session(2)
    assert said == []
