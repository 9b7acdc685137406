"""What every state backend promises of the parts that it writes: each holds what was frozen, whatever became of those
before it. Some are confirmed, some late, some never; and some are restored, to go on from there.

A failing run names its seed: it alone decides what happens.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.contract.state_backends import MAX_PARALLELISM, Maker, backends
from tests.contract.test_state_freezing_contract import STATES, World, check
from tests.seeds import seeds
from tests.states import FrozenTable, Shelf
from weir.snapshot.parts import StatePart
from weir.state.backend import declare
from weir.state.declared import changed
from weir.state.frozen import FrozenState, RestoredPart, RestoredParts

STEPS = 60
ALL_GROUPS = range(MAX_PARALLELISM)


@pytest.fixture(params=backends())
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Maker:
    return Maker(backends()[request.param], tmp_path)


class Job(World):
    """A world whose states are written, and restored."""

    def __init__(self, make: Maker, seed: int) -> None:
        super().__init__(make, seed)
        self.make = make
        self.shelf = Shelf()
        self.written = 0
        self.open: list[dict[str, tuple[FrozenState, StatePart]]] = []
        """Written, and neither complete nor given up."""

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self.random.choices([self.batch, self.snapshot, self.settle, self.restart], [12, 4, 4, 1])[0]()

    def snapshot(self) -> dict[str, dict[int, Any]]:
        """Freeze, and write. What was there."""
        frozen = dict(self.backend.freeze())
        expected = {name: {key: _copy(value) for key, value in held.items()} for name, held in self.model.items()}
        # The stream goes on while it is written.
        self.batch()
        self.written += 1
        self.shelf.prefix = f"{self.written}-"
        parts: dict[str, tuple[FrozenState, StatePart]] = {}
        for name, state in frozen.items():
            self.shelf.prefix = f"{self.written}-{name}-"
            exported = self.random.random() < 0.2
            if exported:
                state.keep_for_export()
            parts[name] = state, state.write(self.shelf)
            if exported:
                self.shelf.prefix = f"{self.written}-{name}-exported-"
                check({name: _tables(self.shelf, state.export(self.shelf))}, expected)
            state.discard(lambda: None)
            state.released()
        check({name: _tables(self.shelf, part) for name, (_, part) in parts.items()}, expected)
        self.open.append(parts)
        return expected

    def settle(self) -> None:
        """One that was written becomes complete, which makes those before it obsolete; or it is given up."""
        if not self.open:
            return
        index = self.random.randrange(len(self.open))
        if self.random.random() < 0.3:
            del self.open[index]
            return
        for state, part in self.open[index].values():
            state.confirmed(part)
        del self.open[: index + 1]

    def restart(self) -> None:
        """Go on from what is written now."""
        expected = self.snapshot()
        parts = self.open.pop()
        self.open = []
        self.backend.close()
        self.backend = self.make()
        self.handles = {state.name or "": declare(self.backend, state) for state in STATES}
        self.backend.restore(
            {
                name: RestoredParts([RestoredPart(part, ALL_GROUPS, self.shelf)], ALL_GROUPS)
                for name, (_, part) in parts.items()
            }
        )
        # A snapshot is followed by a batch that it does not hold.
        self.model = {name: self.found(name) for name in self.model}
        assert self.model == {n: {k: v for k, v in held.items() if v != {}} for n, held in expected.items()}

    def found(self, name: str) -> dict[int, Any]:
        """What handles say that there is now."""
        held: dict[int, Any] = {}
        for number, key in enumerate(self.backend.keys([pa.array(range(60))])):
            self.backend.cursor.key = key
            handle = self.handles[name]
            value = dict(handle.items()) if name == "map" else handle.get()
            if value not in (None, [], {}):
                held[number] = value
        return held


def _copy(value: Any) -> Any:
    return value.copy() if isinstance(value, (list, dict)) else value


def _tables(shelf: Shelf, part: StatePart) -> FrozenState:
    return FrozenTable(lambda: pa.concat_tables(shelf.tables(part)))


@pytest.mark.parametrize("list_rows", [32_768, 7], ids=["usual", "small"])
@pytest.mark.parametrize("seed", seeds(6))
def test_each_part_holds_what_was_frozen_whatever_became_of_those_before(
    make: Maker, seed: int, list_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(changed, "LIST_ROWS", list_rows)
    monkeypatch.setattr(changed, "LISTED_ROWS_LEAST", 2 * list_rows)
    monkeypatch.setattr(changed, "SET_ROWS", 3 * list_rows)
    monkeypatch.setattr(changed, "FILES_MAX", 6)
    monkeypatch.setattr(changed, "CHANGED_RATIO", 4)
    job = Job(make, seed)
    job.run(STEPS)
    job.restart()
    job.snapshot()
    job.backend.close()
