"""The keyed process function: Python code with state, one row at a time.

Comes in: batches of rows that belong to this subtask's key groups. Goes out: batches
of what the function gave, in the order of the rows. The loops below are the hot path
of every row-wise job: they look nothing up and catch nothing per row.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from inspect import isgeneratorfunction
from typing import Any

import pyarrow as pa

from weir.errors import PlanError, WeirError
from weir.operators.base import Operator, OperatorContext, OperatorSpec, Restored
from weir.operators.functions import (
    ProcessContext,
    ProcessFunction,
    States,
    declared_states,
    keyed_states,
    operator_states,
    state_verdict,
)
from weir.operators.keyed_rows import KeyedRowOperator, key_schema_of
from weir.operators.row_codec import Rows, RowWriter, spread
from weir.operators.user_code import operator_label, user_code_error
from weir.schema import parse_schema
from weir.state.backend import Key, declare
from weir.state.descriptor_base import StateDescriptor
from weir.state.key_codec import KeyCodec


class ProcessRows(OperatorSpec):
    """Call a ProcessFunction, or a plain function of (row, state), with each row at its key."""

    def __init__(
        self,
        keys: Sequence[str],
        function: ProcessFunction | Callable[[Any, Any], Any],
        schema: str | pa.Schema,
        state: Mapping[str, StateDescriptor] | None = None,
    ) -> None:
        self.keys = tuple(keys)
        self.function = function
        self.output = parse_schema(schema)
        self.declared = declared_states(function, state)
        self.key_schema: pa.Schema | None = None
        """Known once `schema` has seen the input."""

    def schema(self, inputs: Sequence[pa.Schema]) -> pa.Schema:
        self.key_schema = key_schema_of(self.keys, inputs[0])
        return self.output

    def make(self) -> Operator:
        if self.key_schema is None:
            raise PlanError("process: its input schema is not known; call schema() before make()")
        return _Process(self, self.key_schema)

    @property
    def states(self) -> tuple[str, ...]:
        return tuple(descriptor.name or "" for descriptor in self.declared.values())

    def verdict(self, state: str, stored: pa.Schema) -> str:
        if self.key_schema is None:
            raise PlanError("process: its input schema is not known; call schema() before verdict()")
        return state_verdict(self.declared, state, stored, keys=KeyCodec(self.key_schema).schema)


class _Process(KeyedRowOperator):
    def __init__(self, spec: ProcessRows, key_schema: pa.Schema) -> None:
        super().__init__(key_schema, operator_states(spec.declared))
        self._declared = keyed_states(spec.declared)
        self._output = spec.output
        # Subtasks may share one process, and what a function keeps for itself must not be shared.
        self._function = copy.deepcopy(spec.function) if isinstance(spec.function, ProcessFunction) else spec.function
        self._opened = False

    def open(self, context: OperatorContext, restored: Restored | None) -> None:
        super().open(context, restored)
        self._writer = RowWriter(self._output, operator_label(context))
        function = self._function
        if isinstance(function, ProcessFunction):
            self._call: Callable[[Any, Any], Any] = function.process
            self._given: Any = ProcessContext(context, self.backend.cursor, self.backend.shown)
            for attribute, handle in self._handles.items():
                setattr(function, attribute, handle)
            try:
                function.open(self._given)
            except Exception as error:
                raise user_code_error(error, context, doing="open()") from None
            self._opened = True
        else:
            self._call = function
            self._given = States(self._handles)
        self._run = self._run_generator if isgeneratorfunction(self._call) else self._run_function

    def declare(self) -> None:
        keyed = {name: declare(self.backend, state) for name, state in self._declared.items()}
        self._handles = {**keyed, **self.operator_states.handles}

    def convert(self, piece: pa.RecordBatch) -> pa.RecordBatch | None:
        rows = self.read(piece)
        results: list[Any] = []
        keys = self.keys(piece)
        self.backend.begin(keys)
        try:
            self._run(keys, rows, results)
        except Exception as error:
            raise self.failure(error, rows) from None
        self.backend.end()
        return self._writer.write(results) if results else None

    def _run_generator(self, keys: list[Key], rows: Rows, results: list[Any]) -> None:
        call, given, cursor, append = self._call, self._given, self.backend.cursor, results.append
        for row, cursor.key in zip(rows, keys):
            for result in call(row, given):
                append(result)

    def _run_function(self, keys: list[Key], rows: Rows, results: list[Any]) -> None:
        call, given, cursor, append = self._call, self._given, self.backend.cursor, results.append
        extend = results.extend
        for row, cursor.key in zip(rows, keys):
            result = call(row, given)
            kind = type(result)
            if kind is tuple:
                append(result)
            elif kind is list:
                extend(result)
            else:
                extend(spread(result))

    def close(self) -> None:
        function = self._function
        try:
            if self._opened and isinstance(function, ProcessFunction):
                function.close()
        except WeirError:
            raise
        except Exception as error:
            raise user_code_error(error, self.context, doing="close()") from None
        finally:
            super().close()
