"""Functions of whole batches: Arrow, Polars or pandas.

Comes in: batches. Goes out: what the function made of them, checked against the
declared schema. The function sees batches as the stream happens to be cut.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pyarrow as pa

from weir.errors import PlanError, WeirError
from weir.operators.base import Emit, Frozen, Operator, OperatorContext, OperatorSpec, Restored
from weir.operators.batches.results import BatchKind, Results, check_kind, given
from weir.operators.functions.declared import states_of
from weir.operators.functions.opening import FunctionContext
from weir.operators.functions.row_codec import emit
from weir.operators.functions.stateful import StatefulFunction
from weir.operators.user_code import operator_label, user_code_error
from weir.schema import format_schema, parse_schema


class MapBatches(OperatorSpec):
    """Call a function with each batch. It returns a batch, a table, a frame, an iterable of these, or None."""

    def __init__(self, function: Callable[[Any], Any], schema: str | pa.Schema, kind: BatchKind = "arrow") -> None:
        if not callable(function):
            raise PlanError(f"map_batches: expected a function of one batch, found {function!r}")
        check_kind(kind, "map_batches")
        self.function = function
        self.output = parse_schema(schema)
        self.kind: BatchKind = kind
        self.declared = states_of(function, "map_batches")

    def schema(self, inputs: Sequence[pa.Schema]) -> pa.Schema:
        return self.output

    def make(self) -> Operator:
        return _MapBatches(self)

    @property
    def states(self) -> tuple[str, ...]:
        return self.declared.names

    @property
    def declares_in_open(self) -> bool:
        return self.declared.opens

    def verdict(self, state: str, stored: pa.Schema) -> str:
        return self.declared.verdict(state, stored)


class _MapBatches(Operator):
    def __init__(self, spec: MapBatches) -> None:
        self._stateful = StatefulFunction(spec.function, spec.declared)
        self._function = self._stateful.function
        self._schema = spec.output
        self._kind = spec.kind

    def open(self, context: OperatorContext, restored: Restored | None) -> None:
        self._context = context
        self._results = Results(self._schema, label=operator_label(context))
        self._stateful.attach(context, {} if restored is None else restored.states)
        self._stateful.open(FunctionContext(context, self._stateful.state))

    def freeze(self) -> Frozen:
        return Frozen(states=self._stateful.freeze())

    def close(self) -> None:
        self._stateful.close()

    def process(self, batch: pa.RecordBatch, out: Emit) -> None:
        if not batch.num_rows:
            return
        try:
            results = _as_iterable(self._function(given(batch, self._kind)))
            for result in results:
                if result is not None:
                    emit(self._results.checked(result), out)
        except WeirError:
            raise
        except Exception as error:
            what = f"a batch of {batch.num_rows} rows ({format_schema(batch.schema)})"
            raise user_code_error(error, self._context, doing=what) from None


def _as_iterable(results: Any) -> Iterable[Any]:
    if isinstance(results, (list, tuple)) or hasattr(results, "__next__"):
        return results  # type: ignore[no-any-return]
    return (results,)
