"""The queue of timers against a plain set, and its tables."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.contract.state_backends import Maker, backends
from tests.states import as_restored, table_of
from weir.errors import ProtocolViolation
from weir.state.timers.keyed import KeyedTimers
from weir.state.timers.queue import TimerQueue
from weir.state.timers.tables import EVENT, PROCESSING, timer_schema, timer_verdict

KEYS = pa.schema([("k", pa.int64())])


@pytest.mark.parametrize("seed", range(20))
def test_whatever_is_set_and_deleted_what_is_due_comes_once_in_the_order_of_times(seed: int) -> None:
    rng = random.Random(seed)
    queue, model = TimerQueue(), set[tuple[int, int]]()
    for _ in range(2_000):
        time_us, key = rng.randrange(60), rng.randrange(30)
        action = rng.random()
        if action < 0.6:
            queue.add(time_us, key)
            model.add((time_us, key))
        elif action < 0.95:
            queue.discard(time_us, key)
            model.discard((time_us, key))
        else:
            times = queue.due(time_us, rng.choice([1, 5, 100]))
            assert times == sorted(times)
            rest = {timer for timer in model if timer[0] <= (times[-1] if times else -1)}
            assert {(t, key) for t in times for key in queue.pop(t)} == rest
            model -= rest
        assert queue.count == len(model)
        assert queue.next_us == min((timer[0] for timer in model), default=None)


def test_timers_that_are_put_off_again_and_again_take_no_more_room() -> None:
    queue = TimerQueue()
    for time_us in range(100_000):
        queue.add(time_us + 1_000_000, "key")
        queue.discard(time_us + 999_999, "key")
    assert queue.count == 1
    assert len(queue._times) < 5_000


@pytest.mark.parametrize("backend", backends())
class TestTables:
    def timers(self, backend: str, tmp_path: Path, keys: pa.Schema = KEYS, own: range = range(128)) -> Any:
        made = Maker(backends()[backend], tmp_path)(keys, own)
        return made, KeyedTimers(made, keys, max_parallelism=128, own=own)

    def test_a_snapshot_is_what_was_there_whatever_changes_afterwards(self, backend: str, tmp_path: Path) -> None:
        made, timers = self.timers(backend, tmp_path)
        keys = made.keys([pa.array([*range(20), None])])
        for i, key in enumerate(keys):
            timers.event.add(i % 2, key)
        timers.processing.add(7, keys[0])
        frozen = timers.freeze()
        for i, key in enumerate(keys):
            timers.event.add(1, key)
            timers.event.discard(i % 2, key)
        timers.event.pop(0)
        table = table_of(frozen)
        frozen.released()
        rows = {(row["k"], row["time"].microsecond, row["domain"]) for row in table.to_pylist()}
        expected = {(k, i % 2, EVENT) for i, k in enumerate([*range(20), None])} | {(0, 7, PROCESSING)}
        assert rows == expected
        assert table.num_rows == len(expected)
        assert table.schema == timer_schema(KEYS)

    def test_they_move_to_other_subtasks_with_their_keys(self, backend: str, tmp_path: Path) -> None:
        keys = pa.schema([("time", pa.string()), ("b", pa.timestamp("us"))])
        made, timers = self.timers(backend, tmp_path / "old", keys)
        columns = [pa.array([f"k{i}" for i in range(50)]), pa.array(range(50), pa.timestamp("us"))]
        for i, key in enumerate(made.keys(columns)):
            timers.event.add(1_000 + i, key)
        table = table_of(timers.freeze())
        found = 0
        for index, own in enumerate([range(43), range(43, 128)]):
            part = table.filter([group in own for group in table.column(0).to_pylist()])
            other, again = self.timers(backend, tmp_path / str(index), keys, own)
            again.restore(as_restored({"timers": [part]})["timers"])
            found += again.event.count
            for time_us in again.event.due(10_000, 1_000):
                (key,) = again.event.pop(time_us)
                assert other.shown(key)[0] == f"k{time_us - 1_000}"
        assert found == 50
        _, wrong = self.timers(backend, tmp_path / "wrong", keys, range(10))
        with pytest.raises(ProtocolViolation, match="but this subtask owns 0 to 9"):
            wrong.restore(as_restored({"timers": [table]})["timers"])


def test_timers_by_other_keys_are_not_restored() -> None:
    assert timer_verdict(KEYS, timer_schema(KEYS)) == "same"
    assert "its columns are" in timer_verdict(pa.schema([("other", pa.int64())]), timer_schema(KEYS))
    assert timer_schema(pa.schema([("time", pa.int64())])).names[-2:] == ["_time", "domain"]
