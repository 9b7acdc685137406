"""Count words, the classic: lines → words → key by word → count → Parquet.

    python examples/word_count.py            # or: weir run examples/word_count.py

Every count that changes becomes a row, so the newest row of a word holds its total. Splitting whole batches with a
Polars expression is what makes it fast; `flat_map` with a Python function would do too.
"""

import sys
import tempfile

import polars as pl

import weir
from weir import connectors as io

LINES = [
    "the stream goes over the weir and the weir does not stop the stream",
    "what goes over the weir goes over it once",
    "the barrier goes with the stream and the stream goes on",
]


def split(lines: pl.DataFrame) -> pl.DataFrame:
    return lines.select(word=pl.col("line").str.split(" ").explode())


directory = sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp(prefix="word-count-")

env = weir.Environment(parallelism=2, checkpoints=weir.Checkpoints(every="1s"))
lines = env.from_collection([(line,) for line in LINES * 1_000], "line string", uid="lines")
(
    lines.map_batches(split, "word string", kind="polars", uid="words")
    .key_by("word")
    .agg(n=weir.count(), uid="counts")
    .write(io.FileSink(f"{directory}/counts", format="parquet"), uid="out")
)
print(env.run("word-count"))

counts = pl.read_parquet(f"{directory}/counts/*.parquet").group_by("word").agg(pl.max("n")).sort("n", "word")
print(counts.reverse().head(5))
print("The rows are in", directory)
