"""A function object with states, as one subtask runs it.

Comes in: the function that a job was built with, what it declares, and for states by key a
backend. Goes out: a copy of it with handles in the place of its states, and their
snapshots. A function that keeps nothing stays what it is.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

from weir.errors import CheckpointError, JobError, PlanError, WeirError
from weir.operators.base import OperatorContext, Restored
from weir.operators.functions.declared import (
    FunctionStates,
    check_window,
    keyed_states,
    operator_states,
    states_of_class,
)
from weir.operators.functions.hooks import STATE as HOOK_STATE
from weir.operators.functions.hooks import HookedFunction
from weir.operators.user_code import operator_label, user_code_error, user_traceback
from weir.state.backend import Backend, declare
from weir.state.declared.base import StateDescriptor
from weir.state.declared.kinds import KeyedState, OperatorState
from weir.state.frozen import FrozenState, RestoredState
from weir.state.operator_state import OperatorStates


class StatefulFunction:
    """One subtask's own copy of a function; its states are empty until `attach`."""

    def __init__(self, function: Any, states: FunctionStates, *, is_fresh: bool = False) -> None:
        """`is_fresh`: the object is the subtask's own already."""
        self.states = states
        # Subtasks may share one process, and what a function keeps must not be shared.
        self.function = copy.deepcopy(function) if states.is_own and not is_fresh else function
        self.handles: dict[str, Any] = {}
        """By attribute, or by the name that `open` gave."""
        self._operator_states = OperatorStates(operator_states(states.declared))
        self._names = {*states.names}
        self._unclaimed: dict[str, RestoredState] = {}
        """What the checkpoint holds and nothing has declared yet."""
        self._backend: Backend | None = None
        self._hooked: HookedFunction | None = None
        self._opening = self._is_open = False

    # --- Getting ready ---

    def attach(
        self,
        context: OperatorContext,
        held: Mapping[str, RestoredState],
        backend: Backend | None = None,
        *,
        by_key: Callable[[KeyedState], Any] | None = None,
    ) -> None:
        """Put handles in the place of the states, and take over what a checkpoint holds. `backend`: for those by key;
        or `by_key`, which makes something else of them."""
        self._context, self._backend = context, backend
        self._by_key = by_key if by_key is not None or backend is None else partial(declare, backend)
        self.handles |= self._operator_states.handles
        if self._by_key is not None:
            keyed = keyed_states(self.states.declared)
            self.handles |= {attribute: self._by_key(state) for attribute, state in keyed.items()}
        if self.states.is_held:
            for attribute, handle in self.handles.items():
                setattr(self.function, attribute, handle)
        self._unclaimed = dict(held)
        with self._labelled():
            for name in self.states.names:
                self._take_over(name)
            if not self.states.opens:
                self._check_unclaimed()
        if self.states.hooks is not None:
            self._hooked = HookedFunction(self.function, self.states.hooks, context)
            if HOOK_STATE in held:
                with self._labelled():
                    self._hooked.restore(held[HOOK_STATE])

    def open(self, given: Any) -> None:
        """Call the function's own `open`, if it has one, with what it is given; it may declare states."""
        if self.states.opens:
            self._opening = True
            try:
                self.function.open(given)
            except CheckpointError as error:
                raise self._with_label(error) from None
            except JobError as error:
                where = f"{operator_label(self._context)} failed in open()"
                text = f"{where}: {error.message}\n{user_traceback(error)}"
                raise type(error)(text, without_rows=where) from None
            except Exception as error:
                raise user_code_error(error, self._context, doing="open()") from None
            finally:
                self._opening = False
            with self._labelled():
                self._check_unclaimed()
        self._is_open = True

    def state(self, name: str, descriptor: StateDescriptor) -> Any:
        """The handle of a state that `open` declares, with what the checkpoint holds of it."""
        self._check_declaration(name, descriptor)
        named = descriptor.named(name)
        self._names.add(name)
        if isinstance(named, OperatorState):
            handle: Any = self._operator_states.add(named)
        elif isinstance(named, KeyedState) and self._by_key is not None:
            handle = self._by_key(named)
        else:
            raise PlanError(
                f"context.state: {name!r} is a {type(named).__name__}, which needs a key: call the function behind "
                "key_by(…), or declare an OperatorListState or a BroadcastState"
            )
        self.handles[name] = handle
        self._take_over(name)
        return handle

    @property
    def call(self) -> Callable[[Any], Any]:
        """The function of one row, which a plain one is given its states with."""
        function = self.function
        if not self.states.is_given:
            return function  # type: ignore[no-any-return]
        given = States(self.handles)
        return lambda row: function(row, given)

    # --- Snapshots, and the end ---

    def freeze(self) -> dict[str, FrozenState]:
        """The states that are not the backend's."""
        frozen = self._operator_states.freeze()
        if self._hooked is not None:
            frozen |= self._hooked.freeze()
        return frozen

    def close(self) -> None:
        """Call the function's own `close`, if it has one and was opened."""
        if not (self._is_open and self.states.closes):
            return
        self._is_open = False
        try:
            self.function.close()
        except WeirError:
            raise
        except Exception as error:
            raise user_code_error(error, self._context, doing="close()") from None

    # --- Details ---

    def _check_declaration(self, name: Any, descriptor: Any) -> None:
        if not self._opening:
            raise PlanError(f"context.state({name!r}, …): states are declared in open(), before the first row")
        if not isinstance(name, str) or not name:
            raise PlanError(f"context.state: the name of a state is a string that is not empty, found {name!r}")
        if not isinstance(descriptor, StateDescriptor):
            raise PlanError(f"context.state: {name!r} must be a ValueState or another state, found {descriptor!r}")
        if descriptor.name not in (None, name):
            raise PlanError(
                f"context.state: one state has two names, {name!r} and {descriptor.name!r}; leave out name="
            )
        check_window(name, descriptor, of_windows=self.states.of_windows)
        if name in self._names:
            raise PlanError(f"context.state: state {name!r} is declared twice; state is matched by name, so rename one")
        if name in self.states.reserved:
            raise PlanError(f"context.state: {name!r} is a state of the operator's own; choose another")

    def _take_over(self, name: str) -> None:
        held = self._unclaimed.pop(name, None)
        if held is None:
            return
        if name in self._operator_states.names:
            self._operator_states.restore({name: held})
        elif self._backend is not None and name != HOOK_STATE:
            self._backend.restore({name: held})

    def _check_unclaimed(self) -> None:
        if not self._unclaimed or self._context.may_drop_state:
            return
        check_none_dropped(self._unclaimed, self._names)

    @contextmanager
    def _labelled(self) -> Any:
        try:
            yield
        except CheckpointError as error:
            raise self._with_label(error) from None

    def _with_label(self, error: CheckpointError) -> CheckpointError:
        return type(error)(f"{operator_label(self._context)}: {error.message}")


def kept_by_end(
    end: Any, kind: type | None, context: OperatorContext, restored: Restored | None
) -> StatefulFunction | None:
    """A reader or a writer with its states restored; None: it has neither states nor hooks. `kind`: the class that is
    said to have them, so that the driver knows."""
    found = states_of_class(type(end), operator_label(context))
    if not found.names:
        return None
    if kind is None:
        name = type(end).__name__
        raise PlanError(
            f"{operator_label(context)}: {name} keeps {found.names[0]!r}, which its source or sink does not say: write "
            f"reader_class = {name} in the source, or writer_class = {name} in the sink"
        )
    held: Mapping[str, RestoredState] = {} if restored is None else restored.states
    kept = StatefulFunction(end, found, is_fresh=True)
    # What is not declared any more may be dropped; if it may not, the driver has refused it.
    kept.attach(context, {name: state for name, state in held.items() if name in found.names})
    return kept


def check_none_dropped(dropped: Collection[str], known: Collection[str]) -> None:
    """Refuse a checkpoint that holds what neither the class nor open() declares."""
    if dropped:
        raise CheckpointError(
            f"the checkpoint holds state {(held := min(dropped))!r}, which the function does not declare "
            f"({', '.join(sorted(known)) or 'none'}). If it was renamed, give the new one name={held!r}; if it is not "
            "wanted any more, drop it with allow_dropped_state=True (weir run --allow-dropped-state)"
        )


class States:
    """The states of a plain function, as attributes."""

    def __init__(self, handles: Mapping[str, Any]) -> None:
        self.__dict__.update(handles)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"there is no state {name!r}; declared are: {', '.join(self.__dict__) or 'none'}")
