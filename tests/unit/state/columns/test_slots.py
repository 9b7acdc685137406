"""State in slots: frozen without a copy, read while it changes, written as changes only."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pytest

from tests.seeds import seeds
from tests.states import Shelf, table_of
from weir.snapshot.parts import StatePart
from weir.state.columns import slots as slot_snapshot
from weir.state.columns.slots import FrozenSlots, SlotChanges
from weir.state.frozen import GONE_COLUMN, KEY_GROUP_COLUMN
from weir.state.keys.hashing import hash_keys
from weir.state.keys.index import KeyIndex

GROUPS = 128
KEYS = pa.schema([("key", pa.string())])


class Table:
    """A table of text and number by key, in Python lists, whose changes are under test."""

    def __init__(self, *, forgets: bool = False) -> None:
        self.index = KeyIndex(KEYS)
        self.rows: list[tuple[str, int, bool]] = []
        self.forgets = forgets
        fields = [(KEY_GROUP_COLUMN, pa.int32()), *KEYS, ("text", pa.string()), ("number", pa.int64())]
        schema = pa.schema([*fields, *([(GONE_COLUMN, pa.bool_())] if forgets else [])])
        self.changes = SlotChanges(schema, keys=1, max_parallelism=GROUPS, read=self.read)

    def read(self, slots: Any) -> list[pa.Array]:
        rows = [self.rows[slot] for slot in slots]
        columns = [pa.array([row[0] for row in rows], pa.string()), pa.array([row[1] for row in rows], pa.int64())]
        return [*columns, pa.array([row[2] for row in rows], pa.bool_())] if self.forgets else columns

    def set(self, values: dict[str, int | None]) -> None:
        columns = [pa.array(list(values), pa.string())]
        slots = self.index.slots(columns, hash_keys(columns))
        with self.changes.changing(slots, len(self.index)):
            self.rows += [("", 0, True)] * (len(self.index) - len(self.rows))
            for slot, value in zip(slots, values.values(), strict=True):
                self.rows[slot] = (f"text {value}", value or 0, value is None)

    def freeze(self) -> FrozenSlots:
        return self.changes.freeze(self.index.freeze())

    @property
    def model(self) -> dict[str, int]:
        keys = self.index.keys()[0].to_pylist()
        return {key: row[1] for key, row in zip(keys, self.rows, strict=True) if not (self.forgets and row[2])}


def content(table: pa.Table) -> dict[str, int]:
    assert GONE_COLUMN not in table.schema.names
    for batch in table.to_batches():
        groups = batch[KEY_GROUP_COLUMN].to_pylist()
        assert groups == sorted(groups)
    found = dict(zip(table["key"].to_pylist(), table["number"].to_pylist(), strict=True))
    assert len(found) == table.num_rows
    assert table["text"].to_pylist() == [f"text {number}" for number in table["number"].to_pylist()]
    return found


def test_what_was_frozen_stays_while_its_slots_change_again_and_again() -> None:
    table = Table()
    table.set({"a": 1, "b": 2})
    first = table.freeze()
    table.set({"b": 3, "c": 4})
    second = table.freeze()
    table.set({"a": 5, "b": 6})
    assert content(table_of(first)) == {"a": 1, "b": 2}
    assert content(table_of(second)) == {"a": 1, "b": 3, "c": 4}
    assert content(table_of(table.freeze())) == {"a": 5, "b": 6, "c": 4}


def test_only_what_changed_since_the_confirmed_snapshot_is_written() -> None:
    table, shelf = Table(), Shelf()
    table.set({f"key {i}": i for i in range(50_000)})
    first = table.freeze()
    part = first.write(shelf)
    first.released()
    first.confirmed(part)
    whole_bytes, shelf.put_bytes, shelf.prefix = shelf.put_bytes, 0, "second-"
    table.set({f"key {i}": -i for i in range(0, 50_000, 100)})
    second = table.freeze()
    changed = second.write(shelf)
    assert shelf.put_bytes < 0.05 * whole_bytes
    assert set(part.files) < set(changed.files)
    assert content(pa.concat_tables(shelf.tables(changed))) == table.model


def test_a_snapshot_that_was_not_confirmed_is_built_upon_by_nobody() -> None:
    table, shelf = Table(), Shelf()
    table.set({"a": 1})
    base = table.freeze()
    base.confirmed(base.write(shelf))
    table.set({"b": 2})
    shelf.prefix = "aborted-"
    aborted = table.freeze().write(shelf)
    table.set({"c": 3})
    shelf.prefix = "next-"
    part = table.freeze().write(shelf)
    assert not any("aborted" in file.path for file in part.files.values())
    assert any("aborted" in file.path for file in aborted.files.values())
    assert content(pa.concat_tables(shelf.tables(part))) == {"a": 1, "b": 2, "c": 3}


def test_nothing_is_written_when_nothing_changed() -> None:
    table, shelf = Table(), Shelf()
    table.set({"a": 1})
    base = table.freeze()
    part = base.write(shelf)
    base.confirmed(part)
    assert table.freeze().write(shelf) == part


def test_changes_are_written_anew_once_they_outgrow_the_state(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slot_snapshot, "WHOLE_ROWS_MIN", 0)
    table, shelf = Table(), Shelf()
    wholes = []
    for number in range(12):
        # All keys, then half of them again and again: one and a half times the state is still not written anew.
        table.set({f"key {i}": number for i in range(50 if number else 100)})
        shelf.prefix = f"{number}-"
        frozen = table.freeze()
        part = frozen.write(shelf)
        frozen.confirmed(part)
        frozen.released()
        wholes.append(len(part.files) == part.detail["whole"])
        assert content(pa.concat_tables(shelf.tables(part))) == table.model
    assert wholes == [True, False] * 6


def test_a_part_is_restored_by_the_owners_of_its_key_groups_alone() -> None:
    table, shelf = Table(), Shelf()
    table.set({f"key {i}": i for i in range(1_000)})
    base = table.freeze()
    base.confirmed(base.write(shelf))
    shelf.prefix = "next-"
    table.set({f"key {i}": -i for i in range(300)})
    part = table.freeze().write(shelf)
    found: dict[str, int] = {}
    for own in (range(50), range(50, 128)):
        for piece in shelf.tables(part, range(128), own):
            assert set(piece[KEY_GROUP_COLUMN].to_pylist()) <= set(own)
            found.update(content(piece))
    assert found == table.model


@dataclass
class Taken:
    """A snapshot under way, and what it must come to."""

    frozen: FrozenSlots
    model: dict[str, int]
    part: StatePart | None = None


@pytest.mark.parametrize("seed", seeds(30))
def test_any_order_of_changes_freezes_reads_confirmations_and_losses_gives_what_was_frozen(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    dice = random.Random(seed)
    monkeypatch.setattr(slot_snapshot, "WHOLE_ROWS_MIN", dice.choice([0, 50, 1_000]))
    monkeypatch.setattr(slot_snapshot, "PIECE_ROWS", dice.choice([3, 16_384]))
    monkeypatch.setattr(slot_snapshot, "UNCONFIRMED_MAX", dice.choice([1, 2, 8]))
    table, shelf, under_way = Table(forgets=dice.random() < 0.5), Shelf(), list[Taken]()
    for step in range(120):
        act = dice.random()
        if act < 0.5:
            picked = {f"k{dice.randrange(60)}": step for _ in range(dice.randrange(1, 12))}
            table.set({key: None if table.forgets and dice.random() < 0.3 else value for key, value in picked.items()})
        elif act < 0.7 and len(under_way) < 4:
            under_way.append(Taken(table.freeze(), table.model))
        elif under_way:
            taken = dice.choice(under_way)
            if taken.part is None:
                shelf.prefix = f"{step}-"
                taken.part = taken.frozen.write(shelf)
                assert content(table_of(taken.frozen)) == taken.model
                taken.frozen.released()
                continue
            assert content(pa.concat_tables(shelf.tables(taken.part))) == taken.model
            # As the coordinator does: completed in order, and what is older is given up.
            if dice.random() < 0.7:
                taken.frozen.confirmed(taken.part)
                under_way = under_way[under_way.index(taken) + 1 :]
            else:
                under_way.remove(taken)
