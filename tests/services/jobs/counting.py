"""The job of tests/services/helpers.py as a script: GATE LOCATION ROWS. It always resumes, as a service would."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.services.helpers import build_environment, build_job


def main() -> None:
    gate, place, rows = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    env = build_environment(place)
    build_job(env, place, gate, rows=rows)
    print(env.run(resume=True, progress=False))


if __name__ == "__main__":
    main()
