"""The keyed job of tests/spark/helpers.py as a user's script: DIRECTORY ROWS [--resume] [--rocksdb].

Prints the result of the run; the test that started it may kill it at any time.
"""

from __future__ import annotations

import sys
from pathlib import Path

import weir
from tests.spark.helpers import build_job, slow_settings


def main() -> None:
    directory, rows = Path(sys.argv[1]), int(sys.argv[2])
    env = weir.Environment(
        parallelism=2,
        checkpoints=weir.Checkpoints(every="100ms", to=str(directory / "checkpoints")),
        settings=slow_settings(),
        backend=weir.RocksDb("32MB", directory=str(directory / "local")) if "--rocksdb" in sys.argv else None,
        name="counting",
    )
    build_job(env, directory, rows=rows)
    print(env.run(resume="--resume" in sys.argv, progress=False))


if __name__ == "__main__":
    main()
