"""The command line itself: what it answers without Spark, and what it imports."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from weir.api import overrides
from weir.cli.main import application
from weir.version import __version__

JOB_COMMANDS = ["list", "status", "checkpoints", "cancel", "savepoint", "stop", "rescale"]
COMMANDS = ["run", "demo", "bench", *JOB_COMMANDS]
WORKLOADS = ["filter", "keyed-sum", "keyed-process", "keyed-batches", "latency", "recovery", "checkpoint-cost", "soak"]
WORKLOADS += ["checkpoint-store", "fan-in"]


def weir(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(application(), list(arguments))
    return result.exit_code, result.stdout, result.stderr


def test_the_version_is_told_with_those_of_what_it_stands_on() -> None:
    code, out, _ = weir("--version")
    assert code == 0
    assert out.startswith(f"weir {__version__}, Python 3.")
    assert "polars 2." in out


@pytest.mark.parametrize(
    "command", [[c] for c in COMMANDS] + [["bench", w] for w in WORKLOADS], ids=lambda command: " ".join(command)
)
def test_every_command_helps_with_an_example(command: list[str]) -> None:
    code, out, _ = weir(*command, "--help")
    assert code == 0
    assert command == ["bench"] or f"weir {' '.join(command)}" in out.split("Options")[0]


def test_a_number_of_keys_that_is_none_is_refused_where_it_is_typed() -> None:
    code, _, error = weir("bench", "keyed-sum", "--keys", "ten")
    assert code == 2
    assert "'ten' is not a number of keys" in " ".join(error.replace("│", " ").split())


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (("run", "job.py", "--from", ""), "--from"),
        (("run", "job.py", "--resume", "--at", ""), "--at"),
        (("run", "job.py", "--checkpoints", ""), "--checkpoints"),
        (("run", "job.py", "--master", ""), "--master"),
        (("stop", "words", "--savepoint", ""), "--savepoint"),
        (("savepoint", "words", ""), "[DIR]"),
        (("status", ""), "JOB"),
        (("cancel", "words", "--run", ""), "--run"),
        (("state", ""), "CHECKPOINT"),
        (("fsck", ""), "LOCATION"),
        (("check", "", "job.py"), "SAVEPOINT"),
        (("bench", "filter", "--work", ""), "--work"),
    ],
)
def test_an_empty_text_is_not_an_option_that_was_left_out(
    words: tuple[str, ...], name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    Path("job.py").write_text("open('ran', 'w')\n")
    code, _, error = weir(*words)
    assert code == 2 and f"{name} is an empty text" in error and "shell" in error
    assert not Path("ran").exists()


def test_a_script_may_be_given_empty_texts(tmp_path: Path) -> None:
    job = tmp_path / "job.py"
    job.write_text("import sys\nprint(sys.argv[1:])\n")
    code, out, error = weir("run", str(job), "--", "", "x")
    assert (code, out) == (0, "['', 'x']\n"), error


def test_an_unknown_workload_is_refused_with_those_that_exist_in_the_help() -> None:
    code, _, error = weir("bench", "nothing")
    assert code == 2
    assert "No such command 'nothing'" in error
    _, out, _ = weir("bench", "--help")
    assert all(workload in out for workload in WORKLOADS)


def test_the_command_line_imports_neither_spark_nor_its_own_commands_parts() -> None:
    code = (
        "import sys, weir; before = set(sys.modules); import weir.cli.main; new = set(sys.modules) - before;"
        "print([m for m in new if m.split('.')[0] in ('pyspark', 'polars', 'pyarrow', 'numpy')"
        " or m.startswith('weir.bench.')])"
    )
    environment = {"PYTHONPATH": ":".join(path for path in sys.path if path)}
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True)
    assert shown.stdout.strip() == "[]"


def test_options_hold_while_the_script_runs_and_no_longer(tmp_path: Path) -> None:
    script = tmp_path / "job.py"
    script.write_text(
        "import sys, pathlib\n"
        "from weir.api.overrides import current\n"
        "now = current()\n"
        "pathlib.Path(sys.argv[1]).write_text(\n"
        "    f'{now.resume} {now.parallelism} {now.checkpoints_to} {now.progress} {sys.argv[2:]}')\n"
    )
    seen = tmp_path / "seen"
    options = ["--resume", "-p", "3", "--checkpoints", "/there", "--no-progress"]
    code, _, _ = weir("run", str(script), *options, "--", str(seen), "--resume", "x")
    assert code == 0
    assert seen.read_text() == "True 3 /there False ['--resume', 'x']"
    assert overrides.current() == overrides.Overrides()


def test_without_options_the_scripts_own_settings_hold(tmp_path: Path) -> None:
    script = tmp_path / "job.py"
    script.write_text(
        "from weir.api.overrides import current\n"
        "now = current()\n"
        "assert (now.resume, now.parallelism, now.checkpoints_to) == (None, None, None), now\n"
    )
    assert weir("run", str(script))[0] == 0


def test_a_mistake_in_the_dataflow_is_a_panel_that_names_the_columns(tmp_path: Path) -> None:
    script = tmp_path / "job.py"
    script.write_text(
        "import polars as pl, weir\n"
        "bids = weir.Environment().from_collection([(1, 2)], 'auction long, price long')\n"
        "bids.filter(pl.col('prise') > 1)\n"
    )
    code, _, error = weir("run", str(script))
    assert code == 1
    assert "SchemaError" in error and "prise" in error and "price" in error
    assert "Traceback" not in error


def test_a_bug_of_the_script_shows_the_scripts_own_lines_only(tmp_path: Path) -> None:
    script = tmp_path / "job.py"
    script.write_text("def divide():\n    return 1 / 0\ndivide()\n")
    code, _, error = weir("run", str(script))
    assert code == 1
    assert "line 2, in divide" in error and "ZeroDivisionError" in error
    assert "cli.py" not in error and "exec(code" not in error


def test_a_scripts_own_exit_code_is_kept(tmp_path: Path) -> None:
    script = tmp_path / "job.py"
    script.write_text("raise SystemExit(7)\n")
    assert weir("run", str(script))[0] == 7


def test_a_script_that_is_not_there_is_named() -> None:
    code, _, error = weir("run", "nowhere.py")
    assert code == 1
    assert "nowhere.py" in error
