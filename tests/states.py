"""Frozen and restored states as tables, for tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa

from weir.state.frozen import FrozenState, RestoredState, RestoredTables


def table_of(frozen: FrozenState) -> pa.Table:
    """A frozen state as one table."""
    return pa.concat_tables(frozen.tables())


def as_restored(tables: Mapping[str, Sequence[pa.Table]]) -> dict[str, RestoredState]:
    """Tables, as an operator or a backend is given them."""
    return {name: RestoredTables(parts) for name, parts in tables.items()}
