"""Sessions that are sealed, come back, go to disk and are restored come out as if all had stayed in memory."""

from __future__ import annotations

import random
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import weir
from tests.seeds import seeds
from tests.unit.operators.windows.subtasks import SCHEMA, Result, Row, best_of
from tests.unit.operators.windows.subtasks import Subtasks as AnySubtasks
from weir.operators.aggregates import numbering
from weir.operators.windows.definition import WindowDefinition
from weir.operators.windows.event_time import SessionWindows
from weir.operators.windows.sessions import aggregate, heads, pieces, runs
from weir.operators.windows.sessions import store as session_store
from weir.operators.windows.sessions.aggregate import (
    STATE,
    SessionAggregate,
)
from weir.operators.windows.sessions.store import SessionStore
from weir.snapshot.watermarks import END_US
from weir.state.columns.segments import lot, merging, store

GAP_US = 10
KEYS = [None, *"abcdefgh"]
SUMS = {"n": weir.count(), "total": weir.sum("value"), "low": weir.min("value")}
ENDS = {
    **SUMS,
    "first": weir.first("value"),
    "last": weir.last("value"),
    "best": weir.top(2, by="key", columns=["value"]),  # all are equal: those that came first
}


def spec_of(
    *, lateness_us: int = 0, late: str | None = "late", aggregates: Any = SUMS, gap_us: int = GAP_US
) -> SessionAggregate:
    definition = WindowDefinition(SessionWindows(gap_us), ["key"], aggregates, SCHEMA, "ts")
    return SessionAggregate(definition, lateness_us, late)


# --- One thread, one dictionary ---------------------------------------------------------------------------


@dataclass
class Session:
    first: int
    last: int
    values: list[tuple[int, int]] = field(default_factory=list)
    """With the number of each row."""


class Model:
    """What sessions are, row by row."""

    def __init__(self, lateness_us: int, names: Iterable[str]) -> None:
        self._lateness_us = lateness_us
        self._names = list(names)
        self._watermark_us = -(1 << 62)
        self._open: dict[str | None, list[Session]] = {}
        self._changed: list[tuple[str | None, Session]] = []
        self.rows = self.rows_late = 0
        self.late: list[Row] = []

    def _ended_us(self, lateness_us: int = 0) -> int:
        return self._watermark_us - GAP_US - lateness_us

    def process(self, rows: Sequence[Row]) -> None:
        touched: list[tuple[str | None, Session]] = []
        for key, value, time in rows:
            held = self._open.setdefault(key, [])
            near = [s for s in held if s.first - time < GAP_US and time - s.last < GAP_US]
            near.sort(key=lambda session: session.first)
            whole = Session(min([time, *(s.first for s in near)]), max([time, *(s.last for s in near)]))
            whole.values = [v for session in near for v in session.values] + [(self.rows, value)]
            self.rows += 1
            self._open[key] = [s for s in held if s not in near] + [whole]
            touched = [(k, whole if s in near else s) for k, s in touched] + [(key, whole)]
        gone_us = self._ended_us(self._lateness_us)
        alone = {id(s): (k, s) for k, s in touched if s.last <= gone_us}
        for key, session in alone.values():
            self._open[key].remove(session)
        self.rows_late += sum(len(session.values) for _, session in alone.values())
        self.late += [row for row, (_, session) in zip(rows, touched, strict=True) if id(session) in alone]
        if self._lateness_us:
            self._changed += [(key, session) for key, session in touched if id(session) not in alone]

    def flush(self) -> list[Result]:
        changed = {id(s): (k, s) for k, s in self._changed if s.last <= self._ended_us() and s in self._open[k]}
        self._changed = []
        return [self._result(key, session) for key, session in changed.values()]

    def watermark(self, time_us: int) -> list[Result]:
        before_us, self._watermark_us = self._ended_us(), max(self._watermark_us, time_us)
        every = [(key, session) for key, held in self._open.items() for session in held]
        due = [(key, session) for key, session in every if before_us < session.last <= self._ended_us()]
        gone_us = self._ended_us(self._lateness_us)
        self._open = {key: [s for s in held if s.last > gone_us] for key, held in self._open.items()}
        return [self._result(key, session) for key, session in due]

    def _result(self, key: str | None, session: Session) -> Result:
        values = [value for _, value in sorted(session.values)]
        found = {"n": len(values), "total": sum(values), "low": min(values), "first": values[0], "last": values[-1]}
        found["best"] = best_of(values)
        return (key, session.first, session.last + GAP_US, *(found[name] for name in self._names))


# --- The operator -------------------------------------------------------------------------------------


class Subtasks(AnySubtasks):
    """They emit sessions in the order of their ends, unless these are too many for the memory."""

    def _emitted(self, calls: Sequence[Callable[[Any], Any]]) -> list[Result]:
        found = super()._emitted(calls)
        if self.parallelism == 1 and runs.DUE_ROWS_MAX > 1_000:
            assert [row[2] for row in found] == sorted(row[2] for row in found) or self.spec.lateness_us
        return found


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything that happens to much state happens to little."""
    monkeypatch.setattr(store, "AT_ONCE_ROWS_MAX", 20)
    monkeypatch.setattr(store, "STEP_ROWS", 10)
    monkeypatch.setattr(merging, "SEGMENT_BYTES_MAX", 600)
    monkeypatch.setattr(lot, "SEGMENT_BYTES_MAX", 600)
    monkeypatch.setattr(pieces, "PIECE_ROWS", 3)
    monkeypatch.setattr(pieces, "BUCKET_US_MIN", 3)
    monkeypatch.setattr(aggregate, "MOVED_SESSIONS_MAX", 4)
    monkeypatch.setattr(runs, "DUE_ROWS_MAX", 4)
    monkeypatch.setattr(runs, "_SAMPLE_ROWS", 2)
    monkeypatch.setattr(session_store, "COMPACTED_SLOTS_MIN", 4)


def run_both(seed: int, spec: SessionAggregate, directory: Path | None, *, disorder_us: int = 25) -> int:
    """Rows, watermarks, snapshots and restores at random; each call's results are compared. How many there were."""
    dice = random.Random(seed)
    model = Model(spec.lateness_us, spec.of.aggregates)
    subtasks = Subtasks(spec, 1, directory=directory)
    now_us, count, frozen = 0, 0, []
    rescales = dice.random() < 0.5
    for _ in range(150):
        now_us += dice.choice([0, 1, 2, 8])
        what = dice.random()
        if what < 0.6:
            disorders = [dice.randrange(disorder_us * dice.choice([1, 1, 4]) + 1) for _ in range(dice.randint(1, 12))]
            rows = [(dice.choice(KEYS), dice.randrange(100), now_us - d) for d in disorders]
            model.process(rows)
            assert not subtasks.process(rows)
        elif what < 0.8:
            assert Counter(model.flush()) == Counter(subtasks.flush())
            time_us = now_us - dice.randrange(disorder_us + 1)
            expected = model.watermark(time_us)
            count += len(expected)
            assert Counter(subtasks.watermark(time_us)) == Counter(expected)
        else:
            assert Counter(model.flush()) == Counter(subtasks.flush())
            if what < 0.96:
                frozen += enumerate(subtasks.freeze())
            else:
                parallelism = dice.randint(1, 3) if rescales else 1
                subtasks, frozen = Subtasks(spec, parallelism, directory=directory, before=subtasks), []
        if frozen and dice.random() < 0.3:  # the thread that writes snapshots has come so far
            index, part = frozen.pop(0)
            written = subtasks.written(index, part)
            if dice.random() < 0.5:
                part.states[STATE].confirmed(written)
    assert Counter(model.flush()) == Counter(subtasks.flush())
    assert Counter(model.watermark(END_US)) == Counter(subtasks.watermark(END_US))
    assert model.rows_late == subtasks.rows_late
    if spec.late is not None:
        late = [(row["key"], row["value"]) for batch in subtasks.late for row in batch.to_pylist()]
        assert Counter((key, value) for key, value, _ in model.late) == Counter(late)
    subtasks.freeze()
    assert not subtasks.watermark(END_US)
    assert all(operator._runs.is_empty for operator in subtasks.operators)
    return count


@pytest.mark.parametrize("is_on_disk", [False, True], ids=["heap", "disk"])
@pytest.mark.parametrize("lateness_us", [0, 5, 60])
@pytest.mark.parametrize("seed", seeds(10))
def test_whatever_becomes_of_the_head_sessions_come_out_as_if_it_had_stayed(
    seed: int, lateness_us: int, is_on_disk: bool, small: None, tmp_path: Path
) -> None:
    spec = spec_of(lateness_us=lateness_us, late="late" if seed % 2 else None)
    assert run_both(seed, spec, tmp_path if is_on_disk else None) > 10


@pytest.mark.parametrize("is_on_disk", [False, True], ids=["heap", "disk"])
@pytest.mark.parametrize("lateness_us", [0, 30])
@pytest.mark.parametrize("seed", seeds(6))
def test_with_the_sizes_of_production_they_come_out_in_the_order_of_their_ends(
    seed: int, lateness_us: int, is_on_disk: bool, tmp_path: Path
) -> None:
    assert run_both(seed, spec_of(lateness_us=lateness_us), tmp_path if is_on_disk else None) > 10


@pytest.mark.parametrize("is_on_disk", [False, True], ids=["heap", "disk"])
@pytest.mark.parametrize("lateness_us", [0, 30])
@pytest.mark.parametrize("seed", seeds(5))
def test_the_first_and_the_last_row_of_a_session_are_those_that_came_first_and_last(
    seed: int, lateness_us: int, is_on_disk: bool, small: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(numbering, "BATCH_ROWS_MAX", 2)
    spec = spec_of(aggregates=ENDS, lateness_us=lateness_us, late="late" if seed % 3 == 0 else None)
    assert run_both(seed, spec, tmp_path if is_on_disk else None) > 10


def test_a_session_that_a_snapshot_is_still_writing_comes_out_although_many_end_in_a_later_bucket(
    small: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(aggregate, "HEAD_SHARE", 1_000)
    subtasks = Subtasks(spec_of(aggregates={"n": weir.count()}), 1, directory=tmp_path)
    subtasks.process([(f"key {number}", 1, 20) for number in range(20)])
    subtasks.written(0, subtasks.freeze()[0])
    subtasks.process([("early", 1, 12)])
    subtasks.freeze()
    expected = [("early", 12, 22, 1), *((f"key {number}", 20, 30, 1) for number in range(20))]
    assert Counter(subtasks.watermark(40)) == Counter(expected)


# --- What a snapshot is -----------------------------------------------------------------------------------


def three_sessions_in_pieces(subtasks: Subtasks) -> None:
    """Of "a" two, of which the first was added to between snapshots, out of order; and one of null."""
    for times in ([0, 3, 40], [12, 21], [5], []):
        if times:
            subtasks.process([(key, time, time) for key in ("a", None) for time in times if key or time < 20])
        subtasks.freeze()


TABLE = [("a", 0, 21, 5, 41, 0), ("a", 40, 40, 1, 40, 40), (None, 0, 12, 4, 20, 0)]


@pytest.mark.parametrize("aggregates", [SUMS, {**SUMS, "best": weir.top(1, by="value")}], ids=["rules", "expressions"])
def test_the_state_table_shows_whole_sessions_although_they_lie_in_pieces(
    aggregates: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "RATIO", 0)  # nothing is merged
    subtasks = Subtasks(spec_of(aggregates=aggregates), 1, directory=None)
    three_sessions_in_pieces(subtasks)
    (frozen,) = subtasks.freeze()
    written = subtasks.shelf.tables(subtasks.written(0, frozen))
    for tables in [frozen.states[STATE].tables(), *([written] if aggregates is SUMS else [])]:
        rows = [list(row.values())[1:7] for table in tables for row in table.to_pylist()]
        assert sorted(map(tuple, rows), key=str) == sorted(TABLE, key=str)
    if aggregates is not SUMS:
        assert sum(table.num_rows for table in written) > 3


@pytest.mark.parametrize("parallelism", [1, 3])
@pytest.mark.parametrize("is_on_disk", [False, True], ids=["heap", "disk"])
def test_the_one_table_that_earlier_versions_have_written_is_taken_over(
    parallelism: int, is_on_disk: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = Subtasks(spec_of(), 1, directory=None)
    three_sessions_in_pieces(before)
    monkeypatch.setattr(Subtasks, "written", lambda self, index, frozen: frozen.states[STATE].export(self.shelf))
    directory = tmp_path if is_on_disk else None
    subtasks = Subtasks(spec_of(), parallelism, directory=directory, before=before)
    subtasks.process([("a", 100, 30)])
    expected = [("a", 0, 40, 6, 141, 0), ("a", 40, 50, 1, 40, 40), (None, 0, 22, 4, 20, 0)]
    assert sorted(subtasks.watermark(END_US), key=str) == sorted(expected, key=str)


def test_a_snapshot_looks_at_no_session_on_the_stream_s_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    subtasks = Subtasks(spec_of(), 1, directory=None)
    subtasks.process([(key, 1, 1) for key in KEYS])
    with monkeypatch.context() as context:
        for looked_at in ("alive", "starts", "lasts", "keys", "hashes", "numbers"):
            context.setattr(session_store.SessionStore, looked_at, None)
        (frozen,) = subtasks.freeze()
    assert sum(table.num_rows for table in frozen.states[STATE].tables()) == len(KEYS)


def test_of_few_sessions_that_had_rows_a_checkpoint_writes_little() -> None:
    subtasks, sizes = Subtasks(spec_of(), 1, directory=None), []
    for keys in (range(20_000), range(0, 20_000, 100)):
        subtasks.process([(str(key), 1, 1) for key in keys])
        (frozen,) = subtasks.freeze()
        before = subtasks.shelf.put_bytes
        frozen.states[STATE].confirmed(subtasks.written(0, frozen))
        sizes.append(subtasks.shelf.put_bytes - before)
    assert sizes[1] * 20 < sizes[0]


def test_a_large_head_is_freed_by_the_thread_that_writes_the_next_snapshot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heads, "FREED_SLOTS_MAX", 4)
    subtasks = Subtasks(spec_of(), 1, directory=None)
    subtasks.process([(key, 1, 1) for key in KEYS])
    (frozen,) = subtasks.freeze()
    subtasks.written(0, frozen)
    index = weakref.ref(subtasks.operators[0]._runs._heads[0]._store._index)
    (frozen,) = subtasks.freeze()
    assert index() is not None
    frozen.states[STATE].discard(lambda: None)
    assert index() is None
    assert len(subtasks.watermark(END_US)) == len(KEYS)


def test_many_sessions_are_not_moved_when_most_are_over_and_their_memory_is_given_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(session_store, "COMPACTED_SLOTS_MIN", 4)
    monkeypatch.setattr(aggregate, "MOVED_SESSIONS_MAX", 10)
    monkeypatch.setattr(heads, "FREED_SLOTS_MAX", 4)
    subtasks = Subtasks(spec_of(), 1, directory=None)
    for time_us in range(3):
        subtasks.process([(f"{time_us} {number}", 1, time_us) for number in range(20)])
    (operator,) = subtasks.operators
    moved = weakref.ref(operator._store._index)
    sizes: list[int] = []
    compact = SessionStore.compact
    monkeypatch.setattr(SessionStore, "compact", lambda store: (sizes.append(len(store)), compact(store)))
    assert len(subtasks.watermark(GAP_US + 1)) == 40
    assert not len(operator._store)
    subtasks.process([("2 5", 1, 3)])
    ended = [(key, count) for key, _, _, count, *_ in subtasks.watermark(GAP_US + 3)]
    assert Counter(ended) == Counter([("2 5", 2), *((f"2 {number}", 1) for number in range(20) if number != 5)])
    for _ in range(20):
        subtasks.process([("other", 1, 100)])
    assert moved() is None
    assert max(sizes, default=0) <= 10
