"""What may be declared, and what a wrong declaration says."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from weir.errors import ConfigError, PlanError, SchemaError
from weir.state.declared.base import StateDescriptor
from weir.state.declared.kinds import (
    AggregatingState,
    BroadcastState,
    ListState,
    MapState,
    OperatorListState,
    Pickled,
    ReducingState,
    Ttl,
    ValueState,
)

EVERY: list[StateDescriptor] = [
    ValueState("long", default=1, ttl=Ttl("1h")),
    ListState("long", default=[1]),
    MapState("string", Pickled()),
    ReducingState("long", max),
    AggregatingState("long", create=int, add=max),
    OperatorListState("long", "union"),
    BroadcastState("long", "string"),
]


@pytest.mark.parametrize("state", EVERY, ids=lambda state: type(state).__name__)
def test_descriptors_travel_compare_and_take_the_attributes_name(state: StateDescriptor) -> None:
    assert pickle.loads(pickle.dumps(state)) == state
    named = state.named("total")
    assert (named.name, state.name, named == state) == ("total", None, False)
    assert named.named("other") is named
    assert {state.named("total"), named} == {named}


@pytest.mark.parametrize("state", EVERY, ids=lambda state: type(state).__name__)
def test_a_descriptor_has_no_value_of_its_own(state: StateDescriptor) -> None:
    handle: Any = state.named("total")
    uses: list[Callable[[], Any]] = [
        handle.clear,
        lambda: handle.get(1) if hasattr(handle, "key_type") else handle.get(),
    ]
    if hasattr(handle, "key_type"):
        uses += [lambda: handle[1], lambda: len(handle), lambda: 1 in handle, lambda: list(handle), handle.items]
    for use in uses:
        with pytest.raises(PlanError, match="state 'total' has no value here"):
            use()


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: ListState("long", default=["x"]), SchemaError, r"ListState: the default 'x' \(str\) is not a bigint"),
        (lambda: MapState("long", "long", default="x"), SchemaError, "MapState: the default 'x'"),
        (lambda: MapState("array<long>", "long"), SchemaError, "rows cannot be keyed by type list"),
        (lambda: MapState(pa.timestamp("us", "Europe/Berlin"), "long"), SchemaError, "ambiguous when clocks change"),
        (lambda: MapState(Pickled(), "long"), SchemaError, "expected a key type such as 'long'"),  # type: ignore[arg-type]
        (lambda: ValueState(Pickled), SchemaError, r"write Pickled\(\), with parentheses"),  # type: ignore[arg-type]
        (lambda: ValueState("long", ttl="1h"), PlanError, r"expected ttl=Ttl\(…\), found '1h'"),  # type: ignore[arg-type]
        (lambda: ValueState("long", migrate=1), PlanError, "migrate must be a function, found 1"),  # type: ignore[arg-type]
        (lambda: ValueState("long", name=""), PlanError, "a name is a string that is not empty"),
        (lambda: ReducingState("long", 1), PlanError, "function must be a function, found 1"),  # type: ignore[arg-type]
        (lambda: OperatorListState("long", "all"), PlanError, "must be 'split' or 'union', found 'all'"),  # type: ignore[arg-type]
        (lambda: Ttl("0s"), ConfigError, "too short"),
        (lambda: Ttl("soon"), ConfigError, "Ttl: 'soon' is not a duration"),
        (lambda: Ttl("1s", refresh="never"), ConfigError, "refresh must be 'write' or 'read'"),  # type: ignore[arg-type]
    ],
)
def test_wrong_declarations_are_refused(make: Callable[[], Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        make()
