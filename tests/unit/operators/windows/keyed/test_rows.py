"""Count windows, and global windows that purge, against a plain computation: whatever is sealed, adopted, filed, put
together, restored and dealt out to others between batches."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import weir
from tests.seeds import seeds
from tests.states import Shelf, split_by_owner, table_of
from tests.unit.operators import running
from weir.operators.base import Operator, OperatorSpec, Restored, RestoredInline, key_group_range
from weir.operators.windows import buffer as buffers
from weir.operators.windows import counts
from weir.operators.windows.counts import CountedRows
from weir.operators.windows.event_time import CountWindows, GlobalWindows
from weir.operators.windows.functions import ProcessFunctionOfWindow
from weir.operators.windows.keyed import chunks, head, stretches
from weir.operators.windows.keyed import rows as keyed
from weir.operators.windows.rows import WindowRows
from weir.snapshot.parts import Inline, StatePart
from weir.snapshot.watermarks import END_US
from weir.state.columns.segments import lot, store
from weir.state.frozen import FrozenState, RestoredPart, RestoredParts

SCHEMA = pa.schema([("n", pa.int64()), ("key", pa.string())])
STATE = "rows"
KEYS = ["a", "b", None, "d" * 12, *(f"seldom {i}" for i in range(12))]
GROUPS = 128

Row = tuple[int, str | None]
Rows = list[int]
Windows = list[tuple[str | None, str]]


def as_text(rows: Any, window: weir.Window) -> Any:
    assert set(rows["key"].to_list()) == {window.key}
    return window.key, " ".join(map(str, rows["n"].to_list()))


FUNCTION = ProcessFunctionOfWindow(("key",), SCHEMA, None, as_text, "key string, rows string")


class EveryThird(weir.Trigger):
    """At three rows, when event time has moved on, and by the clock."""

    every_ms = 10

    def fires(self, window: weir.WindowState) -> bool:
        return window.cause != "rows" or window.new_rows >= 3


def counted(size: int | None, every: int) -> OperatorSpec:
    return CountedRows(CountWindows(size, every), FUNCTION)


def purged(trigger: weir.Trigger) -> OperatorSpec:
    return WindowRows(GlobalWindows(), FUNCTION, None, trigger=trigger.purging())


@dataclass
class Reference:
    """What has come and not gone, by key."""

    windows: CountWindows | None
    rows: dict[str | None, Rows] = field(default_factory=dict)
    had: dict[str | None, int] = field(default_factory=dict)

    def process(self, batch: list[Row]) -> Windows:
        return self._counted(batch) if self.windows is not None else self._purged(batch)

    def _counted(self, batch: list[Row]) -> Windows:
        assert self.windows is not None
        found: Windows = []
        for n, key in batch:
            held = self.rows.setdefault(key, [])
            held.append(n)
            self.had[key] = self.had.get(key, 0) + 1
            if self.had[key] % self.windows.every == 0:
                size = len(held) if self.windows.size is None else self.windows.size
                found.append((key, " ".join(map(str, held[-size:]))))
                if self.windows.size is not None:
                    self.rows[key] = held[max(len(held) - (size - self.windows.every), 0) :]
        return found

    def _purged(self, batch: list[Row]) -> Windows:
        for n, key in batch:
            self.rows.setdefault(key, []).append(n)
        return self.fired({key for _, key in batch if len(self.rows[key]) >= 3})

    def fired(self, keys: set[str | None]) -> Windows:
        return [(key, " ".join(map(str, self.rows.pop(key)))) for key in keys if self.rows.get(key)]


@dataclass
class Complete:
    """A checkpoint, and what was there then."""

    parts: list[StatePart]
    inline: list[Inline | None]
    reference: Reference


class Run:
    """All subtasks of one operator."""

    def __init__(self, spec: OperatorSpec, directory: Path, memory: str | None) -> None:
        self._spec = spec
        self._directory = directory
        self._memory = memory
        self.files = Shelf()
        self.operators: list[Operator] = []
        self.out: list[pa.RecordBatch] = []
        self._frozen = 0

    def start(self, parallelism: int, complete: Complete | None = None) -> None:
        self.operators = []
        for index in range(parallelism):
            place = None if self._memory is None else running.on_disk(str(self._directory), self._memory)
            operator = self._spec.make()
            restored = None
            if complete is not None:
                count = len(complete.parts)
                held = [
                    RestoredPart(part, key_group_range(i, count, GROUPS), self.files)
                    for i, part in enumerate(complete.parts)
                ]
                inline = [RestoredInline(i, count, known) for i, known in enumerate(complete.inline)]
                restored = Restored(inline, {STATE: RestoredParts(held, key_group_range(index, parallelism, GROUPS))})
            operator.open(running.context(index, parallelism, place=place), restored)
            self.operators.append(operator)

    def process(self, rows: list[Row]) -> None:
        numbers, keys = zip(*rows, strict=True)
        batch = pa.record_batch([pa.array(numbers), pa.array(keys, pa.string())], SCHEMA)
        for owner, part in split_by_owner(batch, ["key"], len(self.operators), GROUPS):
            self.operators[owner].process(part, self.out.append)

    def freeze(self) -> list[tuple[FrozenState, Inline | None]]:
        found = [operator.freeze() for operator in self.operators]
        return [(frozen.states[STATE], frozen.inline) for frozen in found]

    def write(self, frozen: list[tuple[FrozenState, Inline | None]], reference: Reference) -> Complete:
        parts = []
        for index, (state, _) in enumerate(frozen):
            self._frozen += 1
            self.files.prefix = f"{self._frozen}-{index}-"
            parts.append(state.write(self.files))
        for (state, _), part in zip(frozen, parts, strict=True):
            state.confirmed(part)
        return Complete(parts, [inline for _, inline in frozen], reference)

    def took(self) -> Windows:
        found = [tuple(row.values()) for batch in self.out for row in batch.to_pylist()]
        self.out.clear()
        return found  # type: ignore[return-value]


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few rows are many."""
    for module, name, value in (
        (chunks, "LOOSE_MAX", 3),
        (chunks, "SMALL_ROWS", 4),
        (chunks, "CHUNK_ROWS_MAX", 16),
        (head, "GONE_ROWS_MIN", 3),
        (head, "NEW_ROWS_MAX", 9),
        (head, "PIECE_ROWS", 4),
        (keyed, "PIECE_ROWS", 7),
        (keyed, "SPARE_KEYS", 2),
        (keyed, "HEAD_ROWS_MAX", 11),
        (stretches, "ROOM_MIN", 1),
        (stretches, "PLACES_MIN", 4),
        (counts, "FIRED_ROWS_MAX", 5),
        (store, "AT_ONCE_ROWS_MAX", 16),
        (store, "TENDED_ROWS", 3),
        (store, "TENDED_AT_ONCE_ROWS_MAX", 8),
        (lot, "SEGMENT_BYTES_MAX", 200),
    ):
        monkeypatch.setattr(module, name, value)


def in_order(windows: Windows) -> dict[str | None, list[str]]:
    """By key: those of a key come out in their order."""
    found: dict[str | None, list[str]] = {}
    for key, rows in windows:
        found.setdefault(key, []).append(rows)
    return found


def table_rows(frozen: list[tuple[FrozenState, Inline | None]]) -> Rows:
    return sorted(n for state, _ in frozen for n in table_of(state).column("n").to_pylist())


def against_the_reference(run: Run, reference: Reference, dice: random.Random, steps: int) -> None:
    number = 0
    complete: Complete | None = None
    late: list[tuple[list[tuple[FrozenState, Inline | None]], Reference]] = []
    run.start(dice.randint(1, 3))
    for step in range(steps):
        some = KEYS if dice.random() < 0.3 else KEYS[:4]
        rows = [(number + i, dice.choice(some)) for i in range(dice.choice([1, 3, 8, 30]))]
        number += len(rows)
        run.process(rows)
        assert in_order(run.took()) == in_order(reference.process(rows)), f"step {step}"
        if reference.windows is None and dice.random() < 0.15:
            by_clock = dice.random() < 0.5
            for operator in run.operators:
                if by_clock:
                    operator.tick(step, run.out.append)
                else:
                    operator.watermark(step, run.out.append)
            assert in_order(run.took()) == in_order(reference.fired(set(reference.rows))), f"step {step}"
        if dice.random() < 0.3:
            frozen = run.freeze()
            if dice.random() < 0.3:  # looked at before anybody has made segments of it
                assert table_rows(frozen) == sorted(n for held in reference.rows.values() for n in held)
            late.append((frozen, copy.deepcopy(reference)))
        if late and dice.random() < 0.4:
            frozen, then = late.pop(0)
            assert table_rows(frozen) == sorted(n for held in then.rows.values() for n in held)
            complete = run.write(frozen, then)
        if late and dice.random() < 0.1:
            late.pop()  # a snapshot that nobody writes
        if complete is not None and dice.random() < 0.1:
            late.clear()
            run.start(dice.choice([len(run.operators), dice.randint(1, 3)]), complete)
            restored = copy.deepcopy(complete.reference)
            reference.rows, reference.had = restored.rows, restored.had


def is_one_hash(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    if seed % 3 == 1:  # all keys have one hash
        monkeypatch.setattr(
            buffers, "places", lambda hashes, groups: (hashes & np.uint64(GROUPS - 1)) << np.uint64(64 - 7)
        )


MEMORY = [None, "1KB", None, "200KB"]


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("seed", seeds(24))
@pytest.mark.parametrize(("size", "every"), [(5, 5), (7, 3), (1, 1), (4, 1), (40, 40), (30, 7), (None, 6)])
def test_count_windows_come_out_whatever_happens_in_between(
    seed: int, size: int | None, every: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_one_hash(seed, monkeypatch)
    run = Run(counted(size, every), tmp_path, MEMORY[seed % 4])
    against_the_reference(run, Reference(CountWindows(size, every)), random.Random(seed), 80)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("seed", seeds(24))
def test_global_windows_that_purge_come_out_whatever_happens_in_between(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_one_hash(seed, monkeypatch)
    run, reference = Run(purged(EveryThird()), tmp_path, MEMORY[seed % 4]), Reference(None)
    against_the_reference(run, reference, random.Random(seed), 100)
    for operator in run.operators:
        operator.watermark(END_US, run.out.append)
    assert in_order(run.took()) == in_order(reference.fired(set(reference.rows)))
    assert table_rows(run.freeze()) == []


def fed(spec: OperatorSpec, rows: list[Row], out: Callable[[pa.RecordBatch], None]) -> Operator:
    operator = spec.make()
    operator.open(running.context(), None)
    operator.process(pa.record_batch(list(map(pa.array, zip(*rows, strict=True))), SCHEMA), out)
    return operator


def test_freezing_looks_at_no_row(monkeypatch: pytest.MonkeyPatch) -> None:
    operator = fed(counted(3, 3), [(i, f"key {i % 7}") for i in range(100)], [].append)

    def no_work(*given: object) -> None:
        raise AssertionError("rows were looked at while the stream waited")

    with monkeypatch.context() as patch:
        for module in (buffers, head, chunks, keyed):
            for name in ("hash_keys", "take_rows", "places", "placed"):
                if hasattr(module, name):
                    patch.setattr(module, name, no_work)
        patch.setattr(pa, "concat_batches", no_work)
        frozen = operator.freeze()
    assert table_of(frozen.states[STATE]).num_rows == sum(len(range(key, 100, 7)) % 3 for key in range(7))


def test_windows_come_out_while_nobody_has_made_segments_of_a_snapshot(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[pa.RecordBatch] = []
    operator = fed(counted(4, 4), [(i, f"key {i % 5}") for i in range(15)], found.append)
    frozen = operator.freeze()
    with monkeypatch.context() as patch:
        patch.setattr(head.SealedHead, "pieces", lambda self: 1 / 0)
        operator.process(
            pa.record_batch([pa.array(range(15, 20)), pa.array([f"key {i}" for i in range(5)])], SCHEMA), found.append
        )
    assert sorted(row["rows"] for batch in found for row in batch.to_pylist()) == sorted(
        f"{i} {i + 5} {i + 10} {i + 15}" for i in range(5)
    )
    assert sorted(table_of(frozen.states[STATE]).column("n").to_pylist()) == list(range(15))
    assert table_of(operator.freeze().states[STATE]).num_rows == 0


def test_a_checkpoint_writes_what_has_come_since_the_one_before() -> None:
    files = Shelf()
    operator = fed(counted(100, 100), [(i, f"key {i}") for i in range(20_000)], [].append)
    for prefix, most in (("1-", 10_000_000), ("2-", 10_000)):
        before, files.prefix = files.put_bytes, prefix
        state = operator.freeze().states[STATE]
        part = state.write(files)
        state.confirmed(part)
        assert files.put_bytes - before < most
        operator.process(pa.record_batch([pa.array(range(10)), pa.array(["one"] * 10)], SCHEMA), [].append)


def test_keys_without_rows_are_forgotten() -> None:
    operator = fed(counted(2, 2), [(0, "a")], [].append)
    for start in range(0, 5 * keyed.SPARE_KEYS, 1_000):
        keys = [f"key {start + i // 2}" for i in range(1_000)]
        operator.process(pa.record_batch([pa.array(range(1_000)), pa.array(keys)], SCHEMA), [].append)
        assert len(operator._rows._index) <= keyed.SPARE_KEYS + 1_000  # type: ignore[attr-defined]
    found: list[pa.RecordBatch] = []
    operator.process(pa.record_batch([pa.array([1]), pa.array(["a"])], SCHEMA), found.append)
    assert found[0].to_pylist() == [{"key": "a", "rows": "0 1"}]


def test_rows_that_a_trigger_had_let_out_without_purging_do_not_come_again_when_it_purges() -> None:
    rows = [(i, "a") for i in range(3)]
    spec = WindowRows(GlobalWindows(), FUNCTION, None, trigger=EveryThird())
    before = fed(spec, rows, [].append)
    before.process(pa.record_batch([pa.array([3]), pa.array(["a"])], SCHEMA), [].append)
    run = Run(purged(EveryThird()), Path(), None)
    run.operators = [before]
    run.start(1, run.write(run.freeze(), Reference(None)))
    run.process([(4, "a"), (5, "a")])
    assert in_order(run.took()) == {"a": ["3 4 5"]}
