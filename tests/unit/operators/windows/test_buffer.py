"""Rows that wait for their windows: found in the order in which they came, frozen by reference, written once."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from tests.seeds import seeds
from tests.states import Shelf, table_of
from tests.unit.operators import running
from weir.operators.base import Restored, RestoredInline
from weir.operators.windows import buffer as buffers
from weir.operators.windows import pieces
from weir.operators.windows.buffer import RowBuffer
from weir.operators.windows.event_time import AlignedWindows
from weir.operators.windows.kept import BufferLayout
from weir.operators.windows.pieces import MARK, ORDER, Piece
from weir.snapshot.parts import Progress, StatePart
from weir.state.columns.segments import store
from weir.state.frozen import RestoredPart, RestoredParts
from weir.state.place import StatePlace

SECOND_US = 1_000_000
SCHEMA = pa.schema([("n", pa.int64()), ("key", pa.string()), ("ts", pa.timestamp("us"))])
LAYOUT = BufferLayout(("key",), SCHEMA, "ts", buckets=AlignedWindows(10 * SECOND_US, 10 * SECOND_US))
STATE = "rows"

Row = tuple[int, str | None]


def new_buffer(place: StatePlace | None = None, *, index: int = 0, parallelism: int = 1) -> RowBuffer:
    return RowBuffer(LAYOUT, STATE, running.context(index, parallelism, place=place))


def batch_of(rows: Sequence[Row], time_s: int = 0) -> pa.RecordBatch:
    numbers, keys = zip(*rows, strict=True)
    times = [(time_s * SECOND_US + number) for number in numbers]
    return pa.record_batch(
        [pa.array(numbers), pa.array(keys, pa.string()), pa.array(times, pa.timestamp("us"))], SCHEMA
    )


def add(buffer: RowBuffer, batch: pa.RecordBatch) -> None:
    buffer.add(batch, buffer.times(batch))


def shown(found: Iterator[Piece]) -> dict[str | None, list[int]]:
    """The rows of each key, in their order. All rows of a key are in one piece."""
    rows: dict[str | None, list[int]] = {}
    for piece in found:
        keys, numbers = piece.rows.column("key").to_pylist(), piece.rows.column("n").to_pylist()
        slots: dict[str | None, int] = {}
        for key, number, slot in zip(keys, numbers, piece.slots.tolist(), strict=True):
            assert slots.setdefault(key, slot) == slot
            assert key not in rows or slots.keys() >= {key}
            rows.setdefault(key, []).append(number)
        assert len(set(slots.values())) == len(slots)
        assert (np.diff(piece.slots) >= 0).all()
    return rows


def settled(buffer: RowBuffer) -> dict[str | None, list[int]]:
    buffer.settle()
    return shown(buffer.all())


def written(buffer: RowBuffer, files: Shelf, prefix: str) -> StatePart:
    files.prefix = prefix
    frozen = buffer.freeze()
    part = frozen.write(files)
    frozen.confirmed(part)
    return part


def restored(parts: Sequence[StatePart], files: Shelf, own: range, *, numbered: int) -> Restored:
    size = 128 // len(parts)
    held = [RestoredPart(part, range(i * size, (i + 1) * size), files) for i, part in enumerate(parts)]
    inline = [RestoredInline(i, len(parts), Progress(0, rows_numbered=numbered)) for i in range(len(parts))]
    return Restored(inline, {STATE: RestoredParts(held, own)})


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many segments, many pieces, and merges that take long."""
    monkeypatch.setattr(buffers, "HEAD_ROWS_MAX", 7)
    monkeypatch.setattr(pieces, "PIECE_ROWS", 5)
    monkeypatch.setattr(store, "AT_ONCE_ROWS_MAX", 16)
    monkeypatch.setattr(store, "STEP_ROWS", 3)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("seed", seeds(12))
def test_rows_of_a_key_are_found_in_their_order_whatever_is_sealed_marked_forgotten_filed_and_restored(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dice = random.Random(seed)
    if seed % 3 == 0:  # all keys have one hash
        monkeypatch.setattr(buffers, "places", lambda hashes, max_parallelism: np.zeros(len(hashes), np.uint64))
    place = running.on_disk(str(tmp_path), "1KB") if seed % 2 else None
    buffer, files = new_buffer(place), Shelf()
    expected: dict[str | None, list[int]] = {}
    complete: tuple[StatePart, dict[str | None, list[int]], int] | None = None
    number = 0
    for step in range(60):
        rows = [(number + i, dice.choice(["a", "b", "c", None, "d" * 12])) for i in range(dice.randrange(1, 6))]
        number += len(rows)
        add(buffer, batch_of(rows, time_s=dice.randrange(30)))
        for n, key in rows:
            expected.setdefault(key, []).append(n)
        if dice.random() < 0.2:
            frozen = buffer.freeze()
            if dice.random() < 0.7:
                files.prefix = f"{step}-"
                part = frozen.write(files)
                frozen.confirmed(part)
                complete = part, {key: list(held) for key, held in expected.items()}, buffer.numbered
        if dice.random() < 0.3:
            buffer.settle()
            change = buffer.mark if dice.random() < 0.5 else buffer.forget
            for piece in buffer.all():
                some = np.flatnonzero(np.array([dice.random() < 0.3 for _ in range(len(piece))]))
                if len(some):
                    change(piece, some)
                    if change == buffer.forget:
                        gone = set(piece.rows.column("n").take(pa.array(some)).to_pylist())
                        expected = {key: [n for n in held if n not in gone] for key, held in expected.items()}
        if dice.random() < 0.1 and complete is not None:
            part, expected, numbered = complete
            expected = {key: list(held) for key, held in expected.items()}
            buffer = new_buffer(running.on_disk(str(tmp_path), "1KB") if seed % 2 else None)
            buffer.restore(restored([part], files, range(128), numbered=numbered))
        if dice.random() < 0.3:
            assert settled(buffer) == {key: held for key, held in expected.items() if held}
            key = dice.choice(["a", None])
            orders = buffer.orders(batch_of([(0, key)]))
            assert shown(buffer.of_keys(orders)).get(key, []) == expected.get(key, [])
    assert settled(buffer) == {key: held for key, held in expected.items() if held}


def test_what_was_frozen_is_as_it_was_although_rows_come_change_and_go() -> None:
    buffer = new_buffer()
    add(buffer, batch_of([(0, "a"), (1, "b"), (2, "a")]))
    frozen = buffer.freeze()
    add(buffer, batch_of([(3, "a")]))
    buffer.settle()
    for piece in buffer.all():
        buffer.forget(piece, np.flatnonzero(piece.numbers < 2))
        buffer.mark(piece, np.flatnonzero(piece.numbers == 2))
    later = buffer.freeze()
    buffer.drop([0])
    assert sorted(table_of(frozen).column("n").to_pylist()) == [0, 1, 2]
    table = table_of(later).sort_by("n")
    assert [table.column(name).to_pylist() for name in ("n", MARK, ORDER)] == [[2, 3], [1, 0], [2, 3]]
    assert not buffer


def test_freezing_sorts_nothing_and_copies_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    buffer = new_buffer()
    add(buffer, batch_of([(0, "a"), (1, "b")]))

    def no_work(*given: object) -> None:
        raise AssertionError("rows were looked at while the stream waited")

    with monkeypatch.context() as patch:
        for name in ("hash_keys", "take_rows", "places"):
            patch.setattr(buffers, name, no_work)
        frozen = buffer.freeze()
    assert sorted(table_of(frozen).column("n").to_pylist()) == [0, 1]


def test_a_checkpoint_writes_what_has_come_since_the_one_before() -> None:
    buffer, files = new_buffer(), Shelf()
    add(buffer, batch_of([(i, f"key {i}") for i in range(20_000)]))
    written(buffer, files, "1-")
    before = files.put_bytes
    add(buffer, batch_of([(i, f"key {i}") for i in range(20_000, 20_010)]))
    part = written(buffer, files, "2-")
    assert files.put_bytes - before < before / 50
    again = new_buffer()
    again.restore(restored([part], files, range(128), numbered=20_010))
    assert again.numbered == 20_010 and sum(map(len, settled(again).values())) == 20_010


@pytest.mark.parametrize("parallelism", [1, 3])
def test_rows_of_two_subtasks_are_dealt_out_to_others_by_key(parallelism: int, tmp_path: Path) -> None:
    files, rows = Shelf(), [(i, f"key {i % 50}") for i in range(1_000)]
    batch, parts = batch_of(rows), []
    groups = np.array(new_buffer().orders(batch) >> np.uint64(57), np.int64)
    for index in range(2):
        buffer = new_buffer(index=index, parallelism=2)
        add(buffer, batch.take(pa.array(np.flatnonzero(groups // 64 == index))))
        parts.append(written(buffer, files, f"{index}-"))
    found: dict[str | None, list[int]] = {}
    for index in range(parallelism):
        own = range(-(-index * 128 // parallelism), -(-(index + 1) * 128 // parallelism))
        buffer = new_buffer(running.on_disk(str(tmp_path)), index=index, parallelism=parallelism)
        buffer.restore(restored(parts, files, own, numbered=500))
        add(buffer, batch_of([(1_000, "key 0")]))
        buffer.settle()
        last = shown(buffer.of_keys(buffer.orders(batch_of([(0, "key 0")])))).get("key 0", [])
        assert last[-1:] == [1_000]
        own_rows = settled(buffer)
        assert not own_rows.keys() & found.keys() - {"key 0"}
        found |= {key: held for key, held in own_rows.items() if key != "key 0" or len(held) > 1}
    assert found == {f"key {k}": [i for i in range(1_000) if i % 50 == k] + [1_000] * (k == 0) for k in range(50)}


def test_with_a_limit_rows_lie_in_files_and_not_in_memory(tmp_path: Path) -> None:
    buffer = new_buffer(running.on_disk(str(tmp_path), "100KB"))
    for start in range(0, 20_000, 500):
        add(buffer, batch_of([(i, f"key {i % 997}") for i in range(start, start + 500)]))
        held = sum(
            s.kept.holding.size_bytes for s in buffer.store.between(-(1 << 60), 1 << 60) if not s.kept.holding.path
        )
        assert held + buffer._head_bytes < 100_000
    assert sum(map(len, settled(buffer).values())) == 20_000


def test_only_so_many_rows_lie_as_they_came() -> None:
    buffer = new_buffer()
    for start in range(0, 2 * buffers.HEAD_ROWS_MAX, 10_000):
        add(buffer, batch_of([(i, "a") for i in range(start, start + 10_000)]))
        assert start + 10_000 - len(buffer.store) < buffers.HEAD_ROWS_MAX
