"""A user's first hour, in an environment where nothing is installed but Weir and what it asks for: `make test-plain`.

Every step is a command that a user would type, in an empty directory; its output is checked, and the last line counts.
"""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parents[1]
WEIR = str(Path(sys.executable).parent / "weir")
WITHIN_S = 120.0

CLICKS = """
import weir
from weir import connectors as io

env = weir.Environment(parallelism=2, checkpoints=weir.Checkpoints(every="200ms", to="checkpoints"))
clicks = env.generate(100_000, lambda n: {"page": n % 100}, "page long", rate=5_000, uid="clicks")
clicks.key_by("page").count("n", uid="counts").write(io.FileSink("clicks"), uid="out")
env.run("clicks")
"""

READ = """
import sys
import weir
from pyspark.sql import SparkSession

spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
table = weir.state.read(spark, sys.argv[1], uid="counts")
print("pages:", table.count(), "clicks:", table.groupBy().sum("n#0" if "n#0" in table.columns else "n").first()[0])
"""


def main() -> int:
    steps = [no_pandas, readme, resumed, whole, savepoint, state, started_from, demo]
    with tempfile.TemporaryDirectory() as place:
        os.chdir(place)
        os.environ["PYSPARK_PYTHON"] = sys.executable
        for step in steps:
            print(f"==> {(step.__doc__ or step.__name__).splitlines()[0]}", flush=True)
            step()
    print(f"{len(steps)} passed, 0 failed")
    return 0


def no_pandas() -> None:
    """pandas is not there, nor what tests use"""
    found = [name for name in ("pandas", "pytest", "greenlet") if importlib.util.find_spec(name) is not None]
    assert not found, f"this environment has {found}"


def readme() -> None:
    """the job of the README, as it stands there"""
    code = re.search(r"## A job\n\n```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    assert code is not None
    Path("totals.py").write_text(code.group(1), encoding="utf-8")
    run(sys.executable, "totals.py")
    import polars as pl

    newest = pl.read_parquet("out/*.parquet").group_by("auction").agg(pl.max("n"))
    assert (newest.height, newest["n"].sum()) == (100, 798_000), newest


def resumed() -> None:
    """weir run --resume of the finished job"""
    assert "finished" in run(WEIR, "run", "--resume", "totals.py")


def whole() -> None:
    """weir fsck"""
    assert "whole" in run(WEIR, "fsck", "checkpoints/totals")


def savepoint() -> None:
    """weir run in one terminal; weir list, status, savepoint and stop in another"""
    Path("clicks.py").write_text(CLICKS, encoding="utf-8")
    with open("clicks.log", "wb") as log, subprocess.Popen([WEIR, "run", "clicks.py"], stdout=log, stderr=log) as job:
        try:
            eventually(lambda: "running" in run(WEIR, "status", "clicks", fails=True))
            assert "clicks" in run(WEIR, "list")
            run(WEIR, "savepoint", "clicks", "saved")
            run(WEIR, "stop", "clicks", "--no-savepoint")
            assert job.wait(WITHIN_S) == 0, Path("clicks.log").read_text(encoding="utf-8")
        finally:
            job.kill()


def state() -> None:
    """weir.state.read and weir state on that savepoint"""
    Path("read.py").write_text(READ, encoding="utf-8")
    said = run(sys.executable, "read.py", str(next(Path("saved").iterdir())))
    assert re.search(r"pages: [1-9]\d* clicks: [1-9]", said), said
    assert "counts" in run(WEIR, "state", str(next(Path("saved").iterdir())))


def started_from() -> None:
    """another job from that savepoint, to its end"""
    code = CLICKS.replace('"checkpoints"', '"more"').replace('FileSink("clicks")', 'FileSink("again")')
    Path("again.py").write_text(code.replace("rate=5_000, ", ""), encoding="utf-8")
    run(WEIR, "run", "again.py", "--from", str(next(Path("saved").iterdir())))
    import polars as pl

    newest = pl.read_parquet("again/*.parquet").group_by("page").agg(pl.max("n"))
    assert newest["n"].unique().to_list() == [1_000], newest


def demo() -> None:
    """weir demo, small"""
    said = run(WEIR, "demo", "--words", "500000")
    assert re.search(r"lost\s+0\b", said), said
    assert re.search(r"duplicated\s+0\b", said), said
    assert "Warning" not in said, said


def run(*command: str, fails: bool = False) -> str:
    """What a command prints; it must not fail, unless it may."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=WITHIN_S * 2)
    said = done.stdout + done.stderr
    assert fails or done.returncode == 0, f"{' '.join(command)} ended with {done.returncode}:\n{said}"
    return said


def eventually(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + WITHIN_S
    while not condition():
        assert time.monotonic() < deadline_s, "not so in time"


if __name__ == "__main__":
    sys.exit(main())
