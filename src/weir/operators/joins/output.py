"""What comes out of a join: the columns of both sides, and some of the join's own.

Comes in: rows of both sides side by side, or of one side alone. Goes out: batches of the
output schema, small ones put together. Never decides which rows belong together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, TypeAlias

import pyarrow as pa

from weir.errors import PlanError, SchemaError
from weir.operators.aggregates.state import BATCH_ROWS_MAX
from weir.operators.base import Emit
from weir.operators.joins.side import JoinSide, check_same_keys

How: TypeAlias = Literal["inner", "left", "right", "full"]

HOWS = ("inner", "left", "right", "full")


@dataclass(frozen=True, eq=False)
class JoinLayout:
    """Both sides of a join and what it makes of them.

    suffix: for columns of the right side that are called like one of the left side
    own:    the columns of the join itself, which come last
    """

    left: JoinSide
    right: JoinSide
    how: How = "inner"
    suffix: str = "_right"
    own: Sequence[pa.Field] = ()

    def check(self) -> None:
        """PlanError when these cannot be joined."""
        if self.how not in HOWS:
            raise PlanError(f"how={self.how!r}: a join is one of {', '.join(map(repr, HOWS))}")
        self.left.check()
        self.right.check()
        check_same_keys(self.left, self.right)
        self.output  # noqa: B018  (its names are checked as it is made)

    @property
    def keeps_left(self) -> bool:
        """Whether rows of the left side come out that have no partner."""
        return self.how in ("left", "full")

    @property
    def keeps_right(self) -> bool:
        return self.how in ("right", "full")

    @cached_property
    def output(self) -> pa.Schema:
        taken = {*self.left.schema.names, *(field.name for field in self.own)}
        if len(taken) < len(self.left.schema) + len(self.own):
            twice = next(field.name for field in self.own if field.name in self.left.schema.names)
            raise SchemaError(f"the join has a column {twice!r} of its own; rename that of the left side before")
        names = []
        for name in self.right.schema.names:
            chosen = name + self.suffix if name in taken else name
            if chosen in taken or chosen in names or (chosen != name and chosen in self.right.schema.names):
                raise SchemaError(
                    f"the right side's column {name!r} would be called {chosen!r}, which is taken; give another suffix="
                )
            names.append(chosen)
        left = [field.with_nullable(field.nullable or self.keeps_right) for field in self.left.schema]
        right = [
            field.with_name(name).with_nullable(field.nullable or self.keeps_left)
            for field, name in zip(self.right.schema, names, strict=True)
        ]
        return pa.schema([*left, *right, *self.own])

    def rows(
        self, left: pa.RecordBatch | None, right: pa.RecordBatch | None, own: Sequence[pa.Array]
    ) -> pa.RecordBatch:
        """Rows side by side; None: without partners on this side."""
        count = max(batch.num_rows for batch in (left, right) if batch is not None)
        arrays: list[pa.Array] = []
        for side, batch in ((self.left, left), (self.right, right)):
            arrays += [pa.nulls(count, f.type) for f in side.schema] if batch is None else batch.columns
        return pa.RecordBatch.from_arrays([*arrays, *own], schema=self.output)


class Pieces:
    """Puts small batches together before they go on."""

    def __init__(self, out: Emit) -> None:
        self._out = out
        self._held: list[pa.RecordBatch] = []
        self._rows = 0

    def add(self, batch: pa.RecordBatch) -> None:
        if self._rows + batch.num_rows > BATCH_ROWS_MAX:
            self.flush()
        self._held.append(batch)
        self._rows += batch.num_rows

    def flush(self) -> None:
        held, self._held, self._rows = self._held, [], 0
        if held:
            self._out(held[0] if len(held) == 1 else pa.concat_batches(held))
