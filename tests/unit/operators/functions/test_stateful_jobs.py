"""Whole jobs with states of every kind, crashed at any turn: they count every row once."""

from __future__ import annotations

from collections import Counter
from typing import Any

import polars as pl
import pytest

import weir
from weir.testing import run_local

COUNT = 300
PARALLELISM = 3


class Numbered:
    """Numbers the rows of its subtask, and remembers the names of keys that were broadcast."""

    seen = weir.OperatorListState("long", redistribute="split")
    names = weir.BroadcastState("long", "string")

    def __call__(self, row: Any) -> Any:
        self.seen.add(row.id)
        self.names.put(row.key, f"key {row.key}")
        return row.id, row.key, len(self.seen.get()), len(self.names)


class Everything(weir.ProcessFunction):
    all = weir.ListState("long")
    by_digit = weir.MapState("long", "long", default=0)
    greatest = weir.ReducingState("long", max)
    objects = weir.ValueState(weir.Pickled(), default=frozenset(), ttl=weir.Ttl("1d"))
    total = weir.AggregatingState("long", create=int, add=lambda so_far, value: so_far + value)

    def process(self, row: Any, context: Any) -> Any:
        self.all.add(row.id)
        self.by_digit[row.id % 10] += 1
        self.greatest.add(row.id)
        self.objects.set(self.objects.get() | {row.id})
        self.total.add(row.id)
        facts = (sum(self.by_digit.values()), len(self.objects.get()), len(set(self.all.get())))
        yield row.key, len(self.all.get()), *facts, self.greatest.get(), self.total.get()


def job() -> weir.Environment:
    env = weir.Environment(parallelism=PARALLELISM, settings=weir.Settings(channel_batches_max=1))
    rows = env.from_collection([(n, n % 7) for n in range(COUNT)], "id long, key long", uid="rows").rebalance()
    rows.map(Numbered(), "id long, key long, number long, names long", uid="numbered").print(uid="numbers")
    keyed = "key long, n long, digits long, objects long, distinct long, greatest long, total long"
    rows.key_by("key").process(Everything(), keyed, uid="everything").print(uid="facts")
    return env


@pytest.mark.parametrize("turn", [3, 5, 9, 13, 18, 25, 30])
def test_a_crash_at_any_turn_changes_nothing(turn: int) -> None:
    result = run_local(job(), crash_at=[turn, turn + 3], checkpoint_every=3, seed=turn)
    assert result.restarts == 2
    numbers = pl.DataFrame(result["numbers"])
    assert sorted(numbers["id"].to_list()) == list(range(COUNT))
    # Each subtask has numbered its rows from one on, without a gap.
    counts = Counter(numbers["number"].to_list())
    assert sorted(counts) == list(range(1, max(counts) + 1)) and counts[1] <= PARALLELISM
    assert all(counts[n] >= counts[n + 1] for n in counts)
    facts = pl.DataFrame(result["facts"])
    assert facts.filter(pl.any_horizontal(pl.col("digits", "objects", "distinct") != pl.col("n"))).is_empty()
    last = facts.sort("n").group_by("key").last().sort("key").select("key", "n", "greatest", "total").rows()
    expected = {key: [n for n in range(COUNT) if n % 7 == key] for key in range(7)}
    assert last == [(key, len(ids), max(ids), sum(ids)) for key, ids in expected.items()]


class Totals:
    total = weir.ValueState("long", default=0)
    seen = weir.OperatorListState("long")

    def __call__(self, row: Any) -> Any:
        self.total.value += row.id
        self.seen.add(row.id)
        return row.key, row.id, self.total.value


class Doubled(Totals):
    def __call__(self, row: Any) -> Any:
        yield from [super().__call__(row)] * 2


class FirstThree:
    left = weir.MapState("string", "long", default=3)

    def __call__(self, row: Any) -> bool:
        self.left["left"] -= 1
        return self.left["left"] >= 0


def last_ids(row: Any, state: Any) -> Any:
    state.ids.add(row.id)
    return row.key, row.id, sum(state.ids.get())


def keyed_job(backend: Any) -> weir.Environment:
    settings = weir.Settings(channel_batches_max=1)
    env = weir.Environment(parallelism=PARALLELISM, settings=settings, backend=backend)
    rows = env.from_collection([(n, n % 7) for n in range(COUNT)], "id long, key long", uid="rows").rebalance()
    keyed, totals = rows.key_by("key"), "key long, id long, total long"
    keyed.map(Totals(), totals, uid="map").print(uid="mapped")
    keyed.flat_map(Doubled(), totals, uid="flat-map").print(uid="doubled")
    keyed.map(last_ids, totals, state={"ids": weir.ListState("long")}, uid="plain").print(uid="listed")
    keyed.filter(FirstThree(), uid="filter").print(uid="first")
    return env


@pytest.mark.parametrize("turn", [4, 9, 16, 25])
@pytest.mark.parametrize("backend", ["heap", "rocksdb"])
def test_keyed_row_functions_count_every_row_once(turn: int, backend: str) -> None:
    result = run_local(keyed_job(backend), crash_at=[turn, turn + 3], checkpoint_every=3, seed=turn)
    assert result.restarts == 2
    sums: Counter[int] = Counter()
    expected = []
    for n in range(COUNT):
        sums[n % 7] += n
        expected.append((n % 7, n, sums[n % 7]))
    # Rows of a key come in their order, since one reader hands them out.
    final = {key: total for key, _, total in expected}
    for uid, times in (("mapped", 1), ("doubled", 2), ("listed", 1)):
        rows = result[uid].to_pylist()
        assert sorted(row["id"] for row in rows) == sorted(list(range(COUNT)) * times)
        assert {key: max(r["total"] for r in rows if r["key"] == key) for key in range(7)} == final
    assert Counter(result["first"]["key"].to_pylist()) == dict.fromkeys(range(7), 3)


class Kept:
    """Numbers rows in a plain attribute, which only its hooks keep, and counts keys in a state that open declares."""

    def __init__(self) -> None:
        self.numbers: list[int] = []

    def open(self, context: Any) -> None:
        self.keys = context.state("keys", weir.ListState("long"))

    def __call__(self, row: Any) -> Any:
        self.numbers.append(row.id)
        self.keys.add(row.id)
        return row.id, row.key, len(self.keys.get()), len(self.numbers)

    def snapshot_state(self) -> Any:
        return self.numbers

    def restore_state(self, values: Any) -> None:
        (self.numbers,) = values


class KeptBehind(Kept):
    snapshot_type = "array<long>"
    snapshot_state = None  # type: ignore[assignment]

    def snapshot_state_async(self) -> Any:
        numbers = tuple(self.numbers)
        return lambda: list(numbers)


@pytest.mark.parametrize("turn", [4, 9, 16, 25])
@pytest.mark.parametrize("kind", [Kept, KeptBehind])
def test_hooks_and_states_of_open_count_every_row_once(turn: int, kind: Any) -> None:
    env = weir.Environment(parallelism=PARALLELISM, settings=weir.Settings(channel_batches_max=1))
    rows = env.from_collection([(n, n % 7) for n in range(COUNT)], "id long, key long", uid="rows").rebalance()
    schema = "id long, key long, of_key long, of_subtask long"
    rows.key_by("key").map(kind(), schema, uid="kept").print(uid="out")
    result = run_local(env, crash_at=[turn, turn + 3], checkpoint_every=3, seed=turn)
    assert result.restarts == 2
    kept = pl.DataFrame(result["out"])
    assert sorted(kept["id"].to_list()) == list(range(COUNT))
    for (key,), some in kept.group_by("key"):
        assert sorted(some["of_key"].to_list()) == list(range(1, 1 + len(range(int(key), COUNT, 7))))  # type: ignore[call-overload]
    # Each subtask has numbered its rows from one on, without a gap.
    counts = Counter(kept["of_subtask"].to_list())
    assert sorted(counts) == list(range(1, max(counts) + 1)) and counts[1] <= PARALLELISM
    assert all(counts[n] >= counts[n + 1] for n in counts)


def test_a_hook_that_returns_what_cannot_be_kept_ends_the_job_with_its_name() -> None:
    class Bad(Kept):
        def snapshot_state(self) -> Any:
            return set(self.numbers)

    env = weir.Environment(parallelism=1)
    rows = env.from_collection([(1, 1)], "id long, key long", uid="rows")
    schema = "id long, key long, of_key long, of_subtask long"
    rows.key_by("key").map(Bad(), schema, uid="bad").print(uid="out")
    with pytest.raises(
        weir.errors.WeirError, match=r"\(uid 'bad'\): snapshot_state\(\) of Bad returned what cannot be"
    ):
        run_local(env, checkpoint_every=1)
