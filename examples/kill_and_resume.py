"""A job that outlives its driver: run it, kill it at any moment, run it again, and nothing is lost or counted twice.

    weir run examples/kill_and_resume.py --resume     # Ctrl-C, or kill -9, whenever you like
    weir run examples/kill_and_resume.py --resume     # goes on from the last checkpoint

With --resume a first run starts from the beginning; without it, Weir refuses to overwrite another run's checkpoints.
"""

import sys
import tempfile
from pathlib import Path

import numpy as np

import weir
from weir import connectors as io

directory = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(tempfile.gettempdir()) / "weir-kill-and-resume"
events = int(sys.argv[2]) if len(sys.argv) > 2 else 2_000_000


def clicks(numbers: np.ndarray) -> dict[str, np.ndarray]:
    return {"page": numbers * 7_919 % 1_000}


env = weir.Environment(parallelism=2, checkpoints=weir.Checkpoints(every="1s", to=str(directory / "checkpoints")))
(
    env.generate(events, clicks, "page long", rate=100_000, uid="clicks")
    .key_by("page")
    .agg(n=weir.count(), uid="counts")
    .write(io.FileSink(directory / "counts", format="parquet"), uid="out")
)
print(env.run("kill-and-resume"))
print("The counts are in", directory / "counts")
