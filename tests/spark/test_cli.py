"""The `weir` command as people use it: in a process of its own, with its own Spark."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
from typer.testing import CliRunner

from weir.cli.demo.check import verify
from weir.cli.demo.words import MakeLines
from weir.cli.main import application

ROOT = Path(__file__).parents[2]
TIMEOUT_S = 180


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-c", "from weir.cli.main import main; main()", *arguments]


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT / "src"), "COLUMNS": "200"}


def weir(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(*arguments), capture_output=True, text=True, env=environment(), timeout=TIMEOUT_S, check=False
    )


def test_the_demo_kills_a_worker_and_verifies_what_was_committed(tmp_path: Path) -> None:
    done = weir("demo", "--words", "1000000", "--output", str(tmp_path / "demo"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "kill -9" in done.stdout
    assert "recovered" in done.stdout and "from checkpoint" in done.stdout
    assert "verified: every word counted exactly once" in done.stdout
    assert "25,000 lines/s are the demo's own pace" in done.stdout
    last = done.stdout.splitlines()[-1]
    assert last.startswith("At full speed this machine counts ") and last.endswith(" s, verified")
    verdict = verify(tmp_path / "demo" / "counts", MakeLines().true_counts(100_000))
    assert (verdict.words, verdict.lost, verdict.duplicated) == (1_000_000, 0, 0)


def test_a_benchmark_prints_exactly_one_json_line_also_on_another_master() -> None:
    done = weir("bench", "keyed-sum", "--events", "200000", "--json", "--master", "local[3]", "--parallelism", "3")
    assert done.returncode == 0, done.stderr
    (line,) = done.stdout.splitlines()
    report = json.loads(line)
    assert report["verified"] is True
    assert report["workload"] == "keyed-sum"
    assert report["parallelism"] == 3
    assert done.stderr == ""


def test_ctrl_c_cancels_and_resume_goes_on_without_loss(
    embedded: Any, tmp_path: Path, eventually: Callable[..., Any]
) -> None:
    """The whole process group gets the signal, as from a terminal."""
    script = str(ROOT / "examples" / "kill_and_resume.py")
    arguments = ["run", script, "--resume", "--", str(tmp_path), "500000"]
    first = subprocess.Popen(
        command(*arguments),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment(),
        start_new_session=True,
    )
    eventually(lambda: list((tmp_path / "counts").glob("*.parquet")) or first.poll() is not None, within_s=TIMEOUT_S)
    os.killpg(first.pid, signal.SIGINT)
    said, _ = first.communicate(timeout=TIMEOUT_S)
    assert first.returncode == 130, said
    assert "Interrupted" in said and "Traceback" not in said

    second = CliRunner().invoke(application(), arguments)
    assert second.exit_code == 0, second.output
    counts = pl.read_parquet(tmp_path / "counts" / "*.parquet")
    assert counts.group_by("page").agg(pl.max("n"))["n"].to_list() == [500] * 1_000
    assert counts.height == counts.unique(["page", "n"]).height


def test_a_function_that_raises_is_shown_with_its_own_traceback_and_row(embedded: Any, tmp_path: Path) -> None:
    script = tmp_path / "job.py"
    script.write_text(
        "import weir\n"
        "def halve(row):\n"
        "    return 1 / row.n\n"
        "env = weir.Environment(parallelism=1)\n"
        "env.from_collection([(2,), (0,)], 'n long').map(halve, 'half double', uid='halves').print()\n"
        "env.run('halves')\n"
    )
    result = CliRunner().invoke(application(), ["run", str(script)])
    assert result.exit_code == 1
    assert "ZeroDivisionError" in result.stderr and "in halve" in result.stderr
    assert "halves" in result.stderr
    assert "worker.py" not in result.stderr and "chain.py" not in result.stderr
