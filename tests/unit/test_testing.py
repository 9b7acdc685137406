"""The harness for users' tests: it runs what Spark would run, crashes when asked, and is the same run every time."""

from __future__ import annotations

import threading
from collections import Counter
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

import weir
from tests.seeds import seeds
from weir import connectors as io
from weir.errors import ConfigError, PlanError, UserCodeError
from weir.testing import LocalResult, collect_local, run_local

ROWS = [(n, n % 7, n % 100) for n in range(400)]
SCHEMA = "id long, key long, value long"


class Total(weir.ProcessFunction):
    count = weir.ValueState("long", default=0)

    def process(self, row: Any, context: Any) -> Any:
        self.count.set(self.count.get() + 1)
        yield (row.key, self.count.get())


def job(parallelism: int = 3) -> weir.Environment:
    """Plain rows, running totals and a row-wise function, through shuffles and a broadcast."""
    env = weir.Environment(parallelism=parallelism, settings=weir.Settings(channel_batches_max=1))
    rows = env.from_collection(ROWS, SCHEMA, uid="rows").filter(pl.col("value") != 3)
    rows.rebalance().with_columns(value=pl.col("value") + 1).print(uid="plain")
    rows.key_by("key").agg(n=weir.count(), total=weir.sum("value"), uid="agg").print(uid="totals")
    rows.key_by("key").process(Total(), "key long, n long", uid="process").print(uid="counts")
    rows.broadcast().select("id", parallelism=2).print(uid="copies")
    return env


def check(result: LocalResult) -> None:
    kept = [row for row in ROWS if row[2] != 3]
    assert Counter(map(tuple, pl.DataFrame(result["plain"]).rows())) == Counter((i, k, v + 1) for i, k, v in kept)
    sizes = Counter(key for _, key, _ in kept)
    assert Counter(pl.DataFrame(result["counts"]).rows()) == Counter(
        (k, n) for k in sizes for n in range(1, sizes[k] + 1)
    )
    last = pl.DataFrame(result["totals"]).sort("n").group_by("key").last().sort("key").rows()
    assert last == [(k, sizes[k], sum(v for _, key, v in kept if key == k)) for k in sorted(sizes)]
    assert Counter(result["copies"]["id"].to_pylist()) == Counter({i: 2 for i, _, _ in kept})


def test_a_job_gives_what_its_sinks_were_given_by_uid() -> None:
    result = run_local(job())
    check(result)
    assert (result.restarts, result.checkpoints) == (0, 1)
    rows_out = {operator["uid"]: operator["rows_out"] for operator in result.operators}
    assert rows_out["rows"] == len(ROWS)


@pytest.mark.parametrize("seed", seeds(8))
def test_however_batches_are_split_and_steps_ordered_the_answer_is_the_same(seed: int) -> None:
    check(run_local(job(), seed=seed))


@pytest.mark.parametrize("turn", [1, 6, 9, 14, 20, 27, 35, 45])
def test_a_crash_at_any_turn_changes_nothing(turn: int) -> None:
    result = run_local(job(), crash_at=turn, checkpoint_every=3, seed=turn)
    check(result)
    assert result.restarts == 1


def test_several_crashes_change_nothing_either() -> None:
    result = run_local(job(), crash_at=[10, 11, 30, 60], checkpoint_every=5, seed=5)
    check(result)
    assert result.restarts == 4
    assert result.checkpoints > 1


def test_a_crash_before_the_first_checkpoint_starts_from_the_beginning() -> None:
    result = run_local(job(), crash_at=8, checkpoint_every=1_000_000, seed=1)
    check(result)
    assert (result.restarts, result.checkpoints) == (1, 1)


def test_a_crash_after_the_end_never_happens() -> None:
    result = run_local(job(), crash_at=1_000_000)
    assert result.restarts == 0


def test_the_same_seed_is_the_same_run() -> None:
    first, second = (run_local(job(), seed=3, crash_at=20, checkpoint_every=4) for _ in range(2))
    assert (first.turns, first.checkpoints) == (second.turns, second.checkpoints)
    assert first["counts"].equals(second["counts"])
    assert run_local(job(), seed=4, crash_at=20, checkpoint_every=4).turns != first.turns


def test_a_function_that_takes_a_batch_for_the_whole_is_found_out_by_some_seed() -> None:
    def biggest(batch: pl.DataFrame) -> pl.DataFrame:
        return batch.select(pl.col("value").max())

    def maxima(seed: int | None) -> list[int]:
        env = weir.Environment(parallelism=1)
        rows = env.from_collection(ROWS, SCHEMA)
        return collect_local(rows.map_batches(biggest, "value long", kind="polars"), seed=seed)["value"].to_pylist()

    assert maxima(None) == [99]
    assert any(maxima(seed) != [99] for seed in range(3))


def test_state_kept_outside_of_state_is_found_out_by_a_crash() -> None:
    class Forgetful(weir.ProcessFunction):
        def __init__(self) -> None:
            self.seen: dict[int, int] = {}

        def process(self, row: Any, context: Any) -> Any:
            self.seen[row.key] = self.seen.get(row.key, 0) + 1
            yield (row.key, self.seen[row.key])

    def counts(**options: Any) -> Counter[Any]:
        env = weir.Environment(parallelism=2)
        rows = env.from_collection(ROWS, SCHEMA, uid="rows")
        stream = rows.key_by("key").process(Forgetful(), "key long, n long", uid="forgetful")
        return Counter(pl.DataFrame(collect_local(stream, seed=2, **options)).rows())

    assert any(counts(crash_at=turn, checkpoint_every=3) != counts() for turn in (12, 15, 18))


def test_a_function_that_cannot_be_sent_to_a_task_is_refused() -> None:
    lock = threading.Lock()
    env = weir.Environment(parallelism=1)
    env.from_collection(ROWS, SCHEMA).map(lambda row: (row.id, lock.locked()), "n long, b boolean").print()
    with pytest.raises(PlanError, match="cannot be sent to tasks"):
        run_local(env)


def test_an_error_of_the_users_function_is_raised_as_it_is() -> None:
    env = weir.Environment(parallelism=2)
    env.from_collection(ROWS, SCHEMA).map(lambda row: 1 // (row.id - 7), "n long", uid="bad").print()
    with pytest.raises(UserCodeError, match=r"bad[\s\S]*ZeroDivisionError"):
        run_local(env)


def test_a_plan_will_do_as_well() -> None:
    check(run_local(job(2).plan()))


def test_a_job_without_rows_ends_with_empty_tables_of_the_right_schema() -> None:
    env = weir.Environment(parallelism=2)
    env.from_collection([], SCHEMA).key_by("key").count(uid="count").print(uid="out")
    result = run_local(env)
    assert result["out"].num_rows == 0
    assert result["out"].schema.names == ["key", "count"]


def test_an_unknown_uid_names_those_that_exist() -> None:
    with pytest.raises(KeyError, match=r"no sink has the uid 'out'.*\['copies', 'counts', 'plain', 'totals'\]"):
        run_local(job())["out"]


def test_a_source_without_end_is_refused() -> None:
    env = weir.Environment(parallelism=1)
    env.generate(None, lambda n: {"n": n}, "n long").print()
    with pytest.raises(PlanError, match="without end"):
        run_local(env)


def test_a_source_that_keeps_to_the_real_clock_is_waited_for() -> None:
    numbers = weir.Environment(parallelism=2).generate(40, lambda n: {"n": n}, "n long", rate=2_000)
    assert sorted(collect_local(numbers)["n"].to_pylist()) == list(range(40))


def test_checkpoints_more_often_than_every_turn_are_refused() -> None:
    with pytest.raises(ConfigError, match="checkpoint_every=0"):
        run_local(job(), checkpoint_every=0)


def test_real_sinks_are_written_to_and_a_collects_rows_are_in_the_result(tmp_path: Path) -> None:
    env = weir.Environment(parallelism=2)
    rows = env.from_collection(ROWS, SCHEMA, uid="rows")
    rows.write(io.FileSink(tmp_path / "out"), uid="files")
    rows.write(io.Collect(), uid="collected")
    result = run_local(env, crash_at=[15, 30], checkpoint_every=4, seed=3, real_sinks=True)
    assert result.restarts == 2
    assert sorted(pl.read_parquet(tmp_path / "out" / "*.parquet").rows()) == ROWS
    assert sorted(pl.DataFrame(result["collected"]).rows()) == ROWS
    assert isinstance(result["collected"], pa.Table)


def test_sinks_are_left_alone_unless_they_are_asked_for(tmp_path: Path) -> None:
    env = weir.Environment(parallelism=2)
    env.from_collection(ROWS, SCHEMA).write(io.FileSink(tmp_path / "out"), uid="files")
    assert run_local(env)["files"].num_rows == len(ROWS)
    assert not (tmp_path / "out").exists()


def test_the_settings_of_the_environment_hold_for_one_stream_too() -> None:
    env = weir.Environment(parallelism=1, settings=weir.Settings(batch_rows_max=1))
    numbers = env.from_collection(list(range(5)), "n long")
    sizes = numbers.map_batches(lambda frame: pl.DataFrame({"size": [len(frame)]}), "size long", kind="polars")
    assert collect_local(sizes)["size"].to_pylist() == [1] * 5
