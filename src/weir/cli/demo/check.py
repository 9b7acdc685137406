"""Whether the demo's committed counts are right: each word's, and each of them once.

Comes in: the output directory and the true counts. Goes out: a verdict in numbers.
Reads committed files only, as any other reader would.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import polars as pl


@dataclass(frozen=True)
class Verdict:
    """What the committed files say, against what is true."""

    words: int
    """All words, by the largest committed count of each."""
    distinct: int
    rows: int
    lost: int
    """Words that were never counted."""
    duplicated: int
    """Words that were counted twice, and running counts that were committed twice."""

    @property
    def exact(self) -> bool:
        return self.lost == 0 and self.duplicated == 0


def verify(path: str | Path, truth: Mapping[str, int]) -> Verdict:
    """Read every committed file below `path`, Parquet with the columns word and n."""
    files = sorted(str(file) for file in Path(path).glob("*.parquet"))
    frame = pl.concat([pl.read_parquet(file) for file in files]) if files else _empty()
    return verdict_of(frame, truth)


def verdict_of(frame: pl.DataFrame, truth: Mapping[str, int]) -> Verdict:
    """Running counts only grow: a word's largest is its total, and no count may come twice.

    >>> verdict_of(pl.DataFrame({"word": ["a", "a", "b"], "n": [1, 3, 1]}), {"a": 3, "b": 2})
    Verdict(words=4, distinct=2, rows=3, lost=1, duplicated=0)
    """
    known = pl.DataFrame({"word": list(truth), "true": list(truth.values())}, {"word": pl.String, "true": pl.Int64})
    largest = frame.group_by("word").agg(n=pl.max("n").cast(pl.Int64))
    both = known.join(largest, on="word", how="full", coalesce=True).fill_null(0)
    difference = both["true"] - both["n"]
    repeated = frame.height - frame.unique(["word", "n"]).height
    return Verdict(
        words=int(both["n"].sum()),
        distinct=largest.height,
        rows=frame.height,
        lost=int(difference.clip(lower_bound=0).sum()),
        duplicated=int((-difference).clip(lower_bound=0).sum()) + repeated,
    )


def _empty() -> pl.DataFrame:
    return pl.DataFrame({"word": [], "n": []}, {"word": pl.String, "n": pl.Int64})
