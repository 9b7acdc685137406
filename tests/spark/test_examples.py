"""Every example runs and says what it should, on one shared Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest

from weir.cli.script import run_script

EXAMPLES = Path(__file__).parents[2] / "examples"

SAYS = {
    "connected_components.py": ["nodes in", "0         ┆ 100"],
    "word_count.py": ["the    ┆ 8000", "word-count: finished"],
    "running_totals_fast.py": ["process_batches:", "times as many"],
    "upgrade_with_savepoint.py": ["version 1: stopped", "version 2: finished", "60000 of 60000 clicks, 60000 of"],
    "running_totals.py": ["hash by account (2 → 2)", "0       ┆ 400"],
    "process_function.py": ["anna spent 900.00, usually 25.00", "ben spent 60.00, usually 6.50"],
    "kill_and_resume.py": ["kill-and-resume: finished"],
    "spark_sql_in_the_middle.py": ["Munich"],
}
ARGUMENTS = {"word_count.py": ["{}"], "kill_and_resume.py": ["{}", "20000"]}
ARGUMENTS |= {"running_totals_fast.py": ["200000"], "upgrade_with_savepoint.py": ["{}"]}


def test_every_example_is_tested() -> None:
    assert {path.name for path in EXAMPLES.glob("*.py")} <= SAYS.keys()


@pytest.mark.parametrize("name", sorted(path.name for path in EXAMPLES.glob("*.py")))
def test_an_example_runs_and_says_what_it_should(
    name: str, embedded: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_script(EXAMPLES / name, [part.format(tmp_path) for part in ARGUMENTS.get(name, [])])
    said = capsys.readouterr().out
    assert [text for text in SAYS[name] if text not in said] == []


def test_the_resumable_example_counts_every_click_once(embedded: Any, tmp_path: Path) -> None:
    run_script(EXAMPLES / "kill_and_resume.py", [str(tmp_path), "20000"])
    counts = pl.read_parquet(tmp_path / "counts" / "*.parquet")
    assert counts.group_by("page").agg(pl.max("n"))["n"].to_list() == [20] * 1_000
