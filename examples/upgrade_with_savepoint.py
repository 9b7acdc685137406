"""Stop a job with a savepoint, change its code, and go on from there: nothing is lost, nothing is counted twice.

    python examples/upgrade_with_savepoint.py [DIRECTORY]

The first version counts clicks as `int`. The second counts as `long`, also remembers each page's last click, and runs
on RocksDB with another parallelism. `weir check SAVEPOINT JOB.py` says beforehand what becomes of each state; on the
command line the same is `weir stop JOB --savepoint DIR` and `weir run JOB.py --from SAVEPOINT`.
"""

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

import weir
from weir import connectors as io

CLICKS = 60_000
directory = Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp(prefix="upgrade-"))


def clicks(numbers: np.ndarray) -> dict[str, np.ndarray]:
    return {"page": numbers % 100, "at": numbers}


# --- The first version ------------------------------------------------------------------------------------


class Count(weir.ProcessFunction):
    n = weir.ValueState("int", default=0)

    def process(self, click: Any, context: Any) -> Iterator[tuple[int, int]]:
        self.n.value += 1
        yield click.page, self.n.value


env = weir.Environment(parallelism=2, checkpoints=weir.Checkpoints(every="500ms", to=str(directory / "checkpoints")))
(
    env.generate(CLICKS, clicks, "page long, at long", rate=10_000, uid="clicks")
    .key_by("page")
    .process(Count(), "page long, n long", uid="counts")
    .write(io.FileSink(directory / "first", format="parquet"), uid="out")
)
job = env.submit("clicks")
while not job.checkpoints():
    job.wait(timeout=0.1)
savepoint = job.stop(str(directory / "savepoints"))
print("version 1:", job.status, "behind", savepoint)

# --- The second version -----------------------------------------------------------------------------------


class CountAndRemember(weir.ProcessFunction):
    n = weir.ValueState("long", default=0)  # every int is a long: the old values are taken over
    last = weir.ValueState("long")  # new: empty at first

    def process(self, click: Any, context: Any) -> Iterator[tuple[int, int, int]]:
        self.n.value += 1
        before, self.last.value = self.last.value, click.at
        yield click.page, self.n.value, click.at - before if before is not None else None


env = weir.Environment(
    parallelism=1, backend="rocksdb", checkpoints=weir.Checkpoints(every="500ms", to=str(directory / "checkpoints"))
)
(
    env.generate(CLICKS, clicks, "page long, at long", uid="clicks")
    .key_by("page")
    .process(CountAndRemember(), "page long, n long, since long", uid="counts")
    .write(io.FileSink(directory / "second", format="parquet"), uid="out")
)
print("version 2:", env.run("clicks-2", from_savepoint=savepoint).status)

# --- Both together ----------------------------------------------------------------------------------------

rows = [pl.read_parquet(directory / version / "*.parquet").select("page", "n") for version in ("first", "second")]
counted = pl.concat(rows)
print(f"{counted.height} of {CLICKS} clicks, {counted.n_unique()} of them different")
