"""The state table of timers: key group, keys, time, domain.

Comes in: the keys' schema, and columns. Goes out: schemas, tables, and whether a stored one
fits. Holds nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias

import numpy as np
import pyarrow as pa

from weir.state.frozen import KEY_GROUP_COLUMN
from weir.state.keys.codec import KeyCodec
from weir.state.keys.hashing import hash_keys, key_groups
from weir.state.keys.xxhash64 import Ints

TIMERS = "timers"
"""The name of the state."""

TimeDomain: TypeAlias = Literal["event", "processing"]
EVENT: TimeDomain = "event"
PROCESSING: TimeDomain = "processing"
DOMAINS = (EVENT, PROCESSING)


def timer_schema(key_schema: pa.Schema) -> pa.Schema:
    """The table of timers; a key column of the same name pushes `time` to `_time`."""
    taken = set(key_schema.names)
    return pa.schema(
        [
            pa.field(KEY_GROUP_COLUMN, pa.int32(), nullable=False),
            *KeyCodec(key_schema).schema,
            pa.field(_free("time", taken), pa.timestamp("us"), nullable=False),
            pa.field(_free("domain", taken), pa.string(), nullable=False),
        ]
    )


def timer_verdict(key_schema: pa.Schema, stored: pa.Schema) -> str:
    """OperatorSpec.verdict for timers."""
    expected = timer_schema(key_schema)
    if stored.names == expected.names and stored.types == expected.types:
        return "same"
    return (
        f"its columns are {', '.join(stored.names)}, and the timers of this function have {', '.join(expected.names)}"
    )


def timer_table(
    schema: pa.Schema, columns: Sequence[pa.Array], times: Ints, domain: TimeDomain, *, max_parallelism: int
) -> pa.Table:
    """Timers of one domain, sorted by key group."""
    groups = key_groups(hash_keys(columns), max_parallelism)
    order = pa.array(np.argsort(groups, kind="stable"))
    instants = pa.array(times, pa.int64()).view(pa.timestamp("us"))
    arrays = [pa.array(groups), *columns, instants, pa.repeat(pa.scalar(domain), len(times))]
    return pa.table([array.take(order) for array in arrays], schema=schema)


def _free(name: str, taken: set[str]) -> str:
    while name in taken:
        name = f"_{name}"
    return name
