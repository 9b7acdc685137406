"""Co-groups: what a function makes of the rows of both sides of each key and window.

Comes in: rows of the left side at input 0, of the right side at input 1. Goes out: what the
function makes of them, once the watermark has passed a window's end, and again when late
rows have come. State: the rows of both sides by panes, and what the function itself keeps.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from weir.errors import PlanError, SchemaError, WeirError
from weir.operators.base import Course, Emit, Frozen, OperatorContext, OperatorSpec, Restored
from weir.operators.batches.results import Results
from weir.operators.expressions.polars_bridge import to_polars
from weir.operators.functions.declared import states_of
from weir.operators.functions.window_calls import StatefulCall
from weir.operators.joins.base import LEFT, RIGHT, Half, Late, late_sides
from weir.operators.joins.output import Pieces
from weir.operators.joins.panes import RunPanes, rows_verdict
from weir.operators.joins.side import JoinSide, check_same_keys, gathered
from weir.operators.joins.window import WindowedJoin, bounds, window_fields
from weir.operators.user_code import operator_label, user_code_error
from weir.operators.windows.definition import END, START
from weir.operators.windows.event_time import TimeWindows
from weir.schema import parse_schema
from weir.state.columns.segments.segment import Segment
from weir.state.declared.base import StateDescriptor
from weir.state.keys.codec import KeyCodec
from weir.state.keys.columns import plain_type
from weir.state.keys.hashing import take_rows
from weir.state.keys.index import KeyIndex
from weir.state.keys.xxhash64 import Ints

CALLS_AT_ONCE = 1_024
"""Of the function, before others may run."""


class CoGroup(OperatorSpec):
    """What a function makes of the rows of both sides of each key and window. `state`: of a plain function."""

    def __init__(
        self,
        left: JoinSide,
        right: JoinSide,
        windows: TimeWindows,
        function: Callable[..., Any],
        schema: str | pa.Schema,
        *,
        late: Late = (None, None),
        lateness_us: int = 0,
        state: Mapping[str, StateDescriptor] | None = None,
    ) -> None:
        if not callable(function):
            raise PlanError(f"expected a function of two frames, found {function!r}")
        self.left, self.right = left, right
        self.windows = windows
        self.function = function
        self.declared = parse_schema(schema)
        self.late: Late = late
        self.lateness_us = lateness_us
        self.kept = states_of(function, "co_group", state, keyed=True, reserved=(LEFT, RIGHT), of_windows=True)
        """What the function keeps."""

    def schema(self, inputs: Sequence[pa.Schema]) -> pa.Schema:
        self.left.check()
        self.right.check()
        check_same_keys(self.left, self.right)
        if taken := {START, END} & {*self.declared.names}:
            raise SchemaError(f"a window has a column {sorted(taken)[0]!r} of its own; rename the function's")
        return self.output

    def sides(self, inputs: Sequence[pa.Schema]) -> Mapping[str, pa.Schema]:
        return late_sides(self.left, self.right, self.late)

    @cached_property
    def output(self) -> pa.Schema:
        return pa.schema([*self.declared, *window_fields(self.left)])

    @cached_property
    def key_schema(self) -> pa.Schema:
        """Of the function's state: the keys are called what they are on the left side."""
        return pa.schema([(key, plain_type(self.left.schema.field(key).type)) for key in self.left.keys])

    def make(self) -> CoGroupOperator:
        return CoGroupOperator(self)

    @property
    def states(self) -> tuple[str, ...]:
        return (LEFT, RIGHT, *self.kept.names)

    @property
    def declares_in_open(self) -> bool:
        return self.kept.opens

    def verdict(self, state: str, stored: pa.Schema) -> str:
        if state not in (LEFT, RIGHT):
            return self.kept.verdict(state, stored, KeyCodec(self.key_schema).schema)
        return rows_verdict(stored, (self.left if state == LEFT else self.right).stored)


@dataclass(frozen=True)
class _KeyedRows:
    """The rows of a window by key: of each side a frame with each key's rows together, and where each key begins."""

    index: KeyIndex
    sides: Sequence[tuple[Any, Ints]]

    def frames(self, slot: int) -> list[Any]:
        return [frame[int(starts[slot]) : int(starts[slot + 1])] for frame, starts in self.sides]


class CoGroupOperator(WindowedJoin):
    """Calls the function once for each key of a window."""

    def __init__(self, spec: CoGroup) -> None:
        self._spec = spec
        left = RunPanes(spec.left, spec.windows, is_left=False, keeps_nulls=True)
        right = RunPanes(spec.right, spec.windows, is_left=False, keeps_nulls=True)
        halves = Half(left, late=spec.late[0]), Half(right, late=spec.late[1])
        super().__init__(*halves, spec.windows, lateness_us=spec.lateness_us)

    def open(self, context: OperatorContext, restored: Restored | None) -> None:
        spec = self._spec
        if spec.kept.may_be_keyed:
            # They share its memory with the rows.
            context = replace(context, place=context.place.shared_by(2))
        states = {} if restored is None else restored.states
        self._call = StatefulCall(
            spec.function,
            spec.kept,
            keys=spec.key_schema.names,
            schema=spec.key_schema,
            context=context,
            held={name: state for name, state in states.items() if name not in (LEFT, RIGHT)},
            refusal=None,
        )
        super().open(context, restored)
        self._results = Results(spec.declared, label=operator_label(context))

    def freeze(self) -> Frozen:
        frozen = super().freeze()
        return replace(frozen, states={**frozen.states, **self._call.freeze()})

    def close(self) -> None:
        if hasattr(self, "_call"):
            self._call.close()

    def _fire(
        self,
        window: tuple[int, int],
        left: Sequence[Segment],
        right: Sequence[Segment],
        out: Emit,
        *,
        new: Sequence[Segment] | None = None,
    ) -> Course:
        rows = self._by_key(left, right)
        slots = self._changed(rows.index, left, right, new)
        pieces = Pieces(out)
        for count, number in enumerate(self._call.at(_keys(rows.index, slots), [window[0]] * len(slots)), 1):
            for result in self._results_of(rows.frames(slots[number]), rows.index, slots[number]):
                if result.num_rows:
                    arrays = [*result.columns, *bounds(window_fields(self._spec.left), window, result.num_rows)]
                    pieces.add(pa.RecordBatch.from_arrays(arrays, schema=self._spec.output))
            if count % CALLS_AT_ONCE == 0:
                yield
        pieces.flush()
        return None

    def _over(self, window: tuple[int, int], left: Sequence[Segment], right: Sequence[Segment]) -> None:
        if self._call.has_window_states:
            index, _ = self._slots([run.batch for run in left], [run.batch for run in right])
            self._call.over(index.keys(), np.full(len(index), window[0], np.int64))

    def _by_key(self, left: Sequence[Segment], right: Sequence[Segment]) -> _KeyedRows:
        sides = (self._spec.left, self._spec.right)
        batches = [
            gathered([run.batch for run in runs]) if runs else pa.RecordBatch.from_pylist([], side.schema)
            for side, runs in zip(sides, (left, right), strict=True)
        ]
        index, slots = self._slots(batches[:1], batches[1:])
        return _KeyedRows(
            index,
            [
                _grouped(batch, side.times(batch), of, len(index))
                for side, batch, of in zip(sides, batches, slots, strict=True)
            ],
        )

    def _slots(self, left: Sequence[pa.RecordBatch], right: Sequence[pa.RecordBatch]) -> tuple[KeyIndex, list[Ints]]:
        """All keys of these batches, and for each of them its rows' slots."""
        index = KeyIndex(self._spec.key_schema)
        sides = [*((self._spec.left, batch) for batch in left), *((self._spec.right, batch) for batch in right)]
        return index, [
            index.slots([_plain_column(column) for column in side.key_columns(batch)])
            if batch.num_rows
            else np.empty(0, np.int64)
            for side, batch in sides
        ]

    def _changed(
        self, index: KeyIndex, left: Sequence[Segment], right: Sequence[Segment], new: Sequence[Segment] | None
    ) -> Sequence[int]:
        """The keys that new rows are of; without new rows, all."""
        if new is None:
            return range(len(index))
        slots: set[int] = set()
        for side, runs in ((self._spec.left, left), (self._spec.right, right)):
            for run in runs:
                if any(run is other for other in new):
                    slots.update(index.slots([_plain_column(c) for c in side.key_columns(run.batch)]).tolist())
        return sorted(slots)

    def _results_of(self, frames: Sequence[Any], index: KeyIndex, slot: int) -> list[pa.RecordBatch]:
        try:
            found = self._call.function(frames[0], frames[1])
            many = isinstance(found, (list, tuple)) or hasattr(found, "__next__")
            return [self._results.checked(result) for result in (found if many else [found]) if result is not None]
        except WeirError:
            raise
        except Exception as error:
            key = tuple(column[0].as_py() for column in _keys(index, [slot]))
            raise user_code_error(error, self._context, key=key, doing="co_group") from None


def _keys(index: KeyIndex, slots: Sequence[int]) -> list[pa.Array]:
    return index.keys(np.array(slots, np.int64))


def _grouped(batch: pa.RecordBatch, times: Ints, slots: Ints, count: int) -> tuple[Any, Ints]:
    """A frame with each key's rows together, by time, and where each key begins."""
    order = np.lexsort((times, slots))
    starts = np.searchsorted(slots[order], np.arange(count + 1))
    return to_polars(take_rows(batch, order)), starts


def _plain_column(column: pa.Array) -> pa.Array:
    return column.dictionary_decode() if pa.types.is_dictionary(column.type) else column
