"""How many seeds random tests run: half of them with every change, all of them in `make test-seeds`."""

from __future__ import annotations

import os

ALL_SEEDS = "WEIR_ALL_SEEDS"
"""The environment variable that asks for all."""


def seeds(count: int) -> range:
    """Of so many seeds, those to run now."""
    return range(count if os.environ.get(ALL_SEEDS) else -(-count // 2))
