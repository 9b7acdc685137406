"""The workload `nexmark`: the queries of examples/nexmark, each compared with a batch answer to the same question.

Comes in: a query's name and a number of events. Goes out: how fast they were processed,
and whether exactly the true rows were committed.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa

import weir
from weir.bench.epochs import Arrays, Epoch
from weir.bench.harness import BenchOptions, BenchReport, bench
from weir.bench.nexmark.answers import ANSWERS, Answer
from weir.bench.nexmark.events import Digests, Events, digests
from weir.errors import ConfigError

PER_SECOND = 1_000_000
"""Events in a second of event time, unless told otherwise."""

_PLACES = ("examples/nexmark", "../../examples/nexmark")
"""Where the queries are, from the package's own directory: in an installed package, and in the repository."""


def query_page(name: str) -> ModuleType:
    """The page of a query, as a module that is not known by its name: so its functions travel to tasks by value."""
    if name not in ANSWERS:
        known = ", ".join(sorted(ANSWERS, key=lambda known: int(known[1:])))
        raise ConfigError(f"nexmark: there is no query {name!r}; there are {known}")
    root = Path(weir.__file__).parent
    for place in _PLACES:
        path = root / place / f"{name}.py"
        if path.exists():
            spec = importlib.util.spec_from_file_location(f"nexmark_{name}", path)
            assert spec is not None and spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
            return module
    raise ConfigError(f"nexmark: the page of {name}, examples/nexmark/{name}.py, is not installed")


def run_nexmark(options: BenchOptions, query: str, *, per_second: int = PER_SECOND) -> BenchReport:
    page, answer = query_page(query), ANSWERS[query]
    with bench(options, f"nexmark-{query}") as it:
        found = build(page, it.environment, options.events, directory=it.directory, events_per_second=per_second)
        columns = tuple(name for name in found.columns if answer.weight is None or not name.startswith("window_"))
        fold = partial(Updates, answer.keys) if answer.keys else partial(RowDigests, columns, answer.weight)
        found.write(it.sink(fold), uid="sink")
        run = it.run()
        committed = (last_updates if answer.keys else sum_of_rows)(run.epochs)
        true = true_summary(answer, Events(0, options.events, per_second), columns)
        rows = sum(epoch.rows for epoch in run.epochs)
        return it.report(run, verified=committed == true, rows_out=rows, results=committed[1], true_results=true[1])


def build(page: ModuleType, env: weir.Environment, events: int, *, directory: Path, **options: Any) -> weir.Stream:
    """The query's stream; a side input that it needs is made below `directory` beforehand."""
    if hasattr(page, "write_side_input"):
        options["side_input"] = directory / "side_input.parquet"
        page.write_side_input(options["side_input"])
    stream: weir.Stream = page.query(env, events, **options)
    return stream


Summary = tuple[int, int]
"""The sum of the digests of rows, modulo 2**64, and how many rows there are."""


def true_summary(answer: Answer, events: Events, columns: Sequence[str]) -> Summary:
    total, count = 0, 0
    for piece in answer.rows(events):
        sum_of_piece, rows = _summary(piece.select(columns), answer.weight)
        total, count = total + sum_of_piece, count + rows
    return total % (1 << 64), count


def _summary(rows: pl.DataFrame, weight: str | None) -> Summary:
    if weight is None:
        return _sum(digests(rows)), len(rows)
    weights = rows.get_column(weight).to_numpy().astype(np.uint64)
    return _sum(digests(rows.drop(weight)) * weights), _sum(weights)


class RowDigests:
    """Sums up the digests of rows, and counts them; with `weight`, each as often as that column says."""

    def __init__(self, columns: Sequence[str], weight: str | None = None) -> None:
        self._columns, self._weight = list(columns), weight
        self._sum, self._rows = 0, 0

    def add(self, batch: pa.RecordBatch, now_ns: int) -> None:
        total, count = _summary(pl.DataFrame(batch.select(self._columns)), self._weight)
        self._sum += total
        self._rows += count

    def take(self) -> Arrays:
        arrays: Arrays = {"sum": np.array([self._sum % (1 << 64)], np.uint64), "rows": np.array([self._rows])}
        self._sum, self._rows = 0, 0
        return arrays


def sum_of_rows(epochs: Sequence[Epoch]) -> Summary:
    total = sum(int(epoch.arrays["sum"][0]) for epoch in epochs)
    return total % (1 << 64), sum(int(epoch.arrays["rows"][0]) for epoch in epochs)


class Updates:
    """Keeps the digest of each key's newest row."""

    def __init__(self, keys: Sequence[str]) -> None:
        self._keys = list(keys)
        self._pieces: list[tuple[Digests, Digests]] = []

    def add(self, batch: pa.RecordBatch, now_ns: int) -> None:
        frame = pl.DataFrame(batch)
        self._pieces.append((digests(frame.select(self._keys)), digests(frame)))

    def take(self) -> Arrays:
        keys, rows = _newest(self._pieces)
        self._pieces = []
        return {"keys": keys, "digests": rows}


def last_updates(epochs: Sequence[Epoch]) -> Summary:
    """Epochs come by checkpoint, and a key from one subtask."""
    _, rows = _newest([(epoch.arrays["keys"], epoch.arrays["digests"]) for epoch in epochs])
    return _sum(rows), len(rows)


def _newest(pieces: Sequence[tuple[Digests, Digests]]) -> tuple[Digests, Digests]:
    if not pieces:
        return np.empty(0, np.uint64), np.empty(0, np.uint64)
    keys, rows = (np.concatenate(part) for part in zip(*pieces, strict=True))
    last = pl.DataFrame({"key": keys, "row": rows}).unique("key", keep="last")
    return last["key"].to_numpy(), last["row"].to_numpy()


def _sum(values: Digests) -> int:
    return int(np.add.reduce(values, dtype=np.uint64))
