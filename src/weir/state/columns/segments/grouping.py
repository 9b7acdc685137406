"""Rows of one key and time in several segments: which they are, and how they become one.

Comes in: sorted rows. Goes out: their groups, and rows of which no key has two of one time.
Where all is said by a rule for each column, anybody can do it who reads a checkpoint; what
needs more than that is its operator's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from weir.state.columns.kernels import FixedKernel, Rule, is_fixed_width
from weir.state.columns.segments.rows import ChainRule, Combine, Mask, SegmentLayout, SortedRows, joined
from weir.state.keys.columns import BytesColumn, plain_type, read_column, without_views
from weir.state.keys.hashing import take_rows
from weir.state.keys.index import KeyIndex
from weir.state.keys.xxhash64 import Ints, Words

PIECE_ROWS = 32_768
"""Rows, of all segments together, that are put into one order at once."""


@dataclass(frozen=True)
class EqualRows:
    """Rows of which those of one key and time follow each other, the oldest first."""

    rows: SortedRows
    firsts: Ints
    """The first row of each group."""
    of: Ints
    """For each row, which group it is in."""

    @property
    def lasts(self) -> Ints:
        """The last row of each group."""
        return np.append(self.firsts[1:], len(self.of)) - 1


def grouped(rows: SortedRows, keys: Sequence[str]) -> EqualRows | None:
    """The groups of rows in their order; None: each is alone."""
    same = _same_places(rows)
    at = np.flatnonzero(same)
    if not len(at):
        return None
    columns = [rows.batch.column(key) for key in keys]
    if not np.logical_and.reduce([equal_at(column, at, at + 1) for column in columns]).all():
        # Another key has the same hash.
        numbers = KeyIndex(pa.schema([(key, plain_type(c.type)) for key, c in zip(keys, columns)])).slots(columns)
        apart = np.lexsort((numbers, rows.times, rows.order))
        rows, numbers = rows.take(apart), numbers[apart]
        same = _same_places(rows) & (numbers[1:] == numbers[:-1])
    begins = np.concatenate((np.ones(1, np.bool_), ~same))
    return EqualRows(rows, np.flatnonzero(begins), np.cumsum(begins) - 1)


def chained(rows: SortedRows, keys: Sequence[str], chain: ChainRule) -> EqualRows | None:
    """The same where rows of a key belong together that are less than the gap apart; they are put into the order of
    time, key by key."""
    if not (rows.order[1:] == rows.order[:-1]).any():
        return None
    columns = [rows.batch.column(key) for key in keys]
    numbers = KeyIndex(pa.schema([(key, plain_type(c.type)) for key, c in zip(keys, columns)])).slots(columns)
    starts, ends = (rows.batch.column(name).to_numpy() for name in (chain.first, chain.last))
    at = np.lexsort((ends, starts, numbers, rows.order))
    rows, numbers, starts = rows.take(at), numbers[at], starts[at]
    frame = pl.DataFrame({"key": numbers, "end": ends[at]})
    reached = frame.select(pl.col("end").cum_max().over("key")).to_series().to_numpy()
    begins = np.ones(len(rows), np.bool_)
    begins[1:] = (numbers[1:] != numbers[:-1]) | (starts[1:] - reached[:-1] >= chain.gap_us)
    return EqualRows(rows, np.flatnonzero(begins), np.cumsum(begins) - 1)


def in_key_ranges(sources: Sequence[Callable[[], SortedRows]]) -> Iterator[list[SortedRows]]:
    """The rows of all of them in stretches of the same keys, of about PIECE_ROWS together. They are asked for anew for
    each stretch: what is on disk need not stay in memory."""
    ends = [(int(rows.order[0]), int(rows.order[-1]), len(rows)) for of in sources if len(rows := of())]
    for low, high in key_ranges(ends):
        found = [rows.slice(*between(rows.order, low, high)) for of in sources if len(rows := of())]
        if any(map(len, found)):
            yield [rows for rows in found if len(rows)]


def key_ranges(ends: Sequence[tuple[int, int, int]]) -> Iterator[tuple[int, int]]:
    """Ranges of orders, both ends included, that have about PIECE_ROWS of the rows each. `ends`: of each source its
    lowest order, its highest, and how many rows it has."""
    if not ends:
        return
    count = 1 + sum(rows for _, _, rows in ends) // PIECE_ROWS
    low, high = min(first for first, _, _ in ends), max(last for _, last, _ in ends)
    step = (high - low) // count + 1
    for first in range(low, high + 1, step):
        yield first, min(first + step - 1, high)


def between(order: Words, low: int, high: int) -> tuple[int, int]:
    """Where the rows are whose order is in this range, both included."""
    start = np.searchsorted(order, np.uint64(low))
    return int(start), int(np.searchsorted(order, np.uint64(high), side="right"))


def at_orders(rows: SortedRows, wanted: Words) -> SortedRows:
    """The rows that have one of these orders, each of which is given once."""
    starts = np.searchsorted(rows.order, wanted)
    counts = np.searchsorted(rows.order, wanted, side="right") - starts
    ends = np.cumsum(counts)
    total = int(ends[-1]) if len(ends) else 0
    return rows.take(np.repeat(starts - (ends - counts), counts) + np.arange(total))


def stretches(order: Words, rows: int) -> Iterator[tuple[int, int]]:
    """Where sorted rows can be cut into about so many each: no key is on both sides.

    >>> list(stretches(np.array([1, 4, 4, 4, 7, 9], np.uint64), 2))
    [(0, 4), (4, 6)]
    """
    start = 0
    while start < len(order):
        last = order[min(start + rows, len(order)) - 1]
        stop = int(np.searchsorted(order, last, side="right"))
        yield start, stop
        start = stop


def together(parts: Sequence[SortedRows], layout: SegmentLayout) -> SortedRows:
    """The rows of several, the oldest first, in one order."""
    rows = joined(parts)
    return rows if len(parts) == 1 else rows.take(layout.arranged(rows.order, rows.times))


def by_rules(rules: Mapping[str, Rule], chain: ChainRule | None = None) -> Combine:
    """Rows of one key and time, or of one chain, become one, by a rule for each column that is no key."""

    def combined(rows: SortedRows) -> SortedRows:
        schema = rows.batch.schema
        keys = [name for name in schema.names if name not in rules]
        groups = grouped(rows, keys) if chain is None else chained(rows, keys, chain)
        if groups is None:
            return rows
        rows, firsts = groups.rows, groups.firsts
        merged = take_rows(rows.batch, firsts)
        for name, rule in rules.items():
            at = schema.get_field_index(name)
            if rule in ("earliest", "latest"):
                column = _chosen(rows.batch.column(at), rows.batch.column(at + 1), groups, rule)
            else:
                column = _merged(rows.batch.column(at), groups, rule, name)
            merged = merged.set_column(at, schema.field(at), column)
        return SortedRows(rows.order[firsts], rows.times[firsts], merged)

    return combined


def _chosen(column: pa.Array, numbers: pa.Array, groups: EqualRows, rule: Rule) -> pa.Array:
    """Of each group the value with the least or the greatest number."""
    by_number = np.lexsort((numbers.to_numpy(), groups.of))
    return column.take(pa.array(by_number[groups.firsts if rule == "earliest" else groups.lasts]))


def _merged(column: pa.Array, groups: EqualRows, rule: Rule, name: str) -> pa.Array:
    count = len(groups.firsts)
    if rule in ("first", "last"):
        return column.take(pa.array(groups.firsts if rule == "first" else groups.lasts))
    if is_fixed_width(column.type):
        kernel = FixedKernel([column.type], [rule], name)
        kernel.merge(groups.of, [column], count=count)
        return kernel.read(np.arange(count))[0]
    value = pl.col("value")
    how = {"add": pl.when(value.count() > 0).then(value.sum()), "min": value.min(), "max": value.max()}[rule]
    frame = pl.DataFrame([pl.Series("of", groups.of), pl.Series("value", column)])
    found = frame.group_by("of", maintain_order=True).agg(how.alias("value")).get_column("value")
    return found.to_arrow(compat_level=pl.CompatLevel.oldest()).cast(column.type)


def _same_places(rows: SortedRows) -> Mask:
    same: Mask = rows.order[1:] == rows.order[:-1]
    same &= rows.times[1:] == rows.times[:-1]
    return same


def equal_at(column: pa.Array, rows: Ints, others: Ints) -> Mask:
    """Whether these rows of a key column have the same key as those, as `KeyIndex` sees it."""
    column = without_views(column.dictionary_decode() if pa.types.is_dictionary(column.type) else column)
    arrays = [column.take(pa.array(which)) for which in (rows, others)]
    one, other = map(read_column, arrays)
    if isinstance(one, BytesColumn) or isinstance(other, BytesColumn):
        same: Mask = pc.fill_null(pc.equal(*arrays), False).to_numpy(zero_copy_only=False)
    else:
        same = one.values == other.values
        same = same if same.ndim == 1 else np.logical_and.reduce(same, axis=1)
    if one.valid is None and other.valid is None:
        return same
    valid = np.ones(len(rows), np.bool_)
    here, there = (valid if side.valid is None else side.valid for side in (one, other))
    alike: Mask = np.where(here & there, same, here == there)
    return alike
