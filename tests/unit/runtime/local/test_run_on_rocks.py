"""Whole jobs with the rocksdb backend: crashes and random schedules change nothing, and no directory is left."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import weir
from tests.seeds import seeds
from weir.testing import run_local

ROWS = [(n, f"key {n % 23}") for n in range(600)]


class Kept(weir.ProcessFunction):
    count = weir.ValueState("long", default=0)
    seen = weir.ListState("long")
    by_digit = weir.MapState("long", "long", default=0)

    def process(self, row: Any, context: Any) -> Any:
        self.count.set(self.count.get() + 1)
        self.seen.add(row.n)
        self.by_digit.put(row.n % 10, self.by_digit.get(row.n % 10) + 1)
        yield (row.key, self.count.get(), len(self.seen.get()), sum(self.by_digit.values()))


@pytest.mark.parametrize("seed", seeds(4))
def test_every_row_counts_once_whatever_crashes(seed: int, tmp_path: Path) -> None:
    settings = weir.Settings(channel_batches_max=1, backend=weir.RocksDb("8MB", directory=str(tmp_path)))
    env = weir.Environment(parallelism=2, settings=settings)
    rows = env.from_collection(ROWS, "n long, key string", uid="rows")
    rows.key_by("key").process(Kept(), "key string, n long, listed long, mapped long", uid="kept").print(uid="out")
    result = run_local(env, crash_at=[16 + seed, 26], checkpoint_every=3, seed=seed)
    assert result.restarts >= 1
    sizes = Counter(key for _, key in ROWS)
    expected = Counter((key, n, n, n) for key in sizes for n in range(1, sizes[key] + 1))
    assert Counter(pl.DataFrame(result["out"]).rows()) == expected
    assert list(tmp_path.iterdir()) == []
