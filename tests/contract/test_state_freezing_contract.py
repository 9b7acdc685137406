"""What every state backend promises of frozen states: they stay as they were, whatever happens to the live one.

A failing run names its seed: it alone decides what happens.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.contract.state_backends import Maker, backends
from tests.seeds import seeds
from tests.states import as_restored, table_of
from weir.state.backend import Backend, declare
from weir.state.declared.kinds import KeyedState, ListState, MapState, ReducingState, ValueState
from weir.state.frozen import KEY_GROUP_COLUMN, FrozenState

STATES: tuple[KeyedState, ...] = (
    ValueState("long", name="value"),
    ListState("long", name="list"),
    MapState("long", "long", name="map"),
    ReducingState("long", lambda a, b: a + b, name="sum"),
)
STEPS = 400


@pytest.fixture(params=backends())
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Maker:
    return Maker(backends()[request.param], tmp_path)


class World:
    """A backend, and what plain dictionaries say that it holds."""

    def __init__(self, make: Maker, seed: int) -> None:
        self.random = random.Random(seed)
        self.backend: Backend = make()
        self.handles = {state.name or "": declare(self.backend, state) for state in STATES}
        self.model: dict[str, dict[int, Any]] = {name: {} for name in self.handles}
        self.alive: list[tuple[dict[str, FrozenState], dict[str, dict[int, Any]]]] = []

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self.random.choices([self.batch, self.freeze, self.look, self.release], [10, 2, 2, 2])[0]()

    def batch(self) -> None:
        numbers = [self.random.randrange(60) for _ in range(self.random.choice([1, 5, 200]))]
        keys = self.backend.keys([pa.array(numbers)])
        self.backend.begin(keys)
        for number, key in zip(numbers, keys):
            self.backend.cursor.key = key
            self.change(number)
        self.backend.end()

    def change(self, number: int) -> None:
        name = self.random.choice(list(self.handles))
        handle, held = self.handles[name], self.model[name]
        value = self.random.randrange(1_000)
        if self.random.random() < 0.25:
            handle.clear()
            held.pop(number, None)
        elif name == "value":
            assert handle.get() == held.get(number)
            handle.set(value)
            held[number] = value
        elif name == "list":
            assert handle.get() == held.get(number, [])
            handle.add(value)
            held.setdefault(number, []).append(value)
        elif name == "sum":
            handle.add(value)
            held[number] = held.get(number, 0) + value
            assert handle.get() == held[number]
        else:
            self.change_map(number, value % 4, value)

    def change_map(self, number: int, entry: int, value: int) -> None:
        handle, held = self.handles["map"], self.model["map"]
        assert dict(handle.items()) == held.get(number, {})
        if self.random.random() < 0.5:
            handle.put(entry, value)
            held.setdefault(number, {})[entry] = value
        else:
            handle.remove(entry)
            held.get(number, {}).pop(entry, None)

    def freeze(self) -> None:
        if len(self.alive) < 4:
            copies = {name: {key: _copy(value) for key, value in held.items()} for name, held in self.model.items()}
            self.alive.append((dict(self.backend.freeze()), copies))

    def look(self) -> None:
        if self.alive:
            frozen, expected = self.random.choice(self.alive)
            check(frozen, expected)

    def release(self) -> None:
        """In any order: a checkpoint may be given up while an older one is still being written."""
        if self.alive:
            frozen, _ = self.alive.pop(self.random.randrange(len(self.alive)))
            for state in frozen.values():
                state.released()


def _copy(value: Any) -> Any:
    return value.copy() if isinstance(value, (list, dict)) else value


def check(frozen: dict[str, FrozenState], expected: dict[str, dict[int, Any]]) -> None:
    for name, state in frozen.items():
        table = table_of(state)
        for batch in table.to_batches():
            groups = batch.column(KEY_GROUP_COLUMN).to_pylist()
            assert groups == sorted(groups)
        keys, values = table.column("k").to_pylist(), table.column("value").to_pylist()
        found: dict[int, Any] = {}
        if name == "map":
            for key, entry, value in zip(keys, table.column("map_key").to_pylist(), values):
                assert entry not in found.setdefault(key, {})
                found[key][entry] = value
        else:
            assert len(set(keys)) == len(keys)
            found = dict(zip(keys, values))
        assert found == {key: value for key, value in expected[name].items() if value != {}}


@pytest.mark.parametrize("seed", seeds(12))
def test_frozen_states_stay_as_they_were_while_the_live_one_changes(make: Maker, seed: int) -> None:
    world = World(make, seed)
    world.run(STEPS)
    for frozen, expected in world.alive:
        check(frozen, expected)
    frozen = dict(world.backend.freeze())
    check(frozen, world.model)

    again = make()
    handles = {state.name or "": declare(again, state) for state in STATES}
    again.restore(as_restored({name: [table_of(state)] for name, state in frozen.items()}))
    for number, key in enumerate(again.keys([pa.array(range(60))])):
        again.cursor.key = key
        assert handles["value"].get() == world.model["value"].get(number)
        assert handles["list"].get() == world.model["list"].get(number, [])
        assert handles["sum"].get() == world.model["sum"].get(number)
        assert dict(handles["map"].items()) == world.model["map"].get(number, {})
    world.backend.close()
    again.close()
