"""Each kind of state: its operator gives exactly the known answer, and an answer with one row less is another."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import weir
from weir import connectors
from weir.bench.state.job import KINDS
from weir.bench.state.kinds import STATE, CountedEntries, KnownResults, ResultSums
from weir.bench.state.numbers import Given
from weir.connectors.generator import SPLITS
from weir.testing import collect_local

ENTRIES = 10_000

BY_RESULTS = [name for name, kind in KINDS.items() if issubclass(kind, KnownResults)]
BY_STATE = [name for name, kind in KINDS.items() if issubclass(kind, CountedEntries)]


def given(rows: int) -> Given:
    """The first rows of a generator."""
    return Given({split: (rows - split + SPLITS - 1) // SPLITS for split in range(SPLITS)})


def results_of(kind: Any, rows: int) -> pa.Table:
    env = weir.Environment(parallelism=2)

    def read(name: str) -> weir.Stream:
        source = kind.sources[name]
        return env.read(connectors.Generator(rows, source.make, source.schema), uid=name)

    return collect_local(kind.build(read))


def summed(kind: Any, table: pa.Table) -> list[int]:
    fold = ResultSums(kind)
    for batch in table.to_batches():
        fold.add(batch, 0)
    answer: list[int] = fold.take()["answer"].tolist()
    return answer


@pytest.mark.parametrize("name", BY_RESULTS)
def test_all_results_of_a_drained_job_are_the_known_answer(name: str) -> None:
    kind: Any = KINDS[name](ENTRIES)
    rows = kind.fill_rows + 4_321
    answer = kind.answer(dict.fromkeys(kind.sources, given(rows))).tolist()
    table = results_of(kind, rows)
    assert summed(kind, table) == answer
    assert answer[0] > ENTRIES / 3
    assert summed(kind, table.slice(1)) != answer
    assert summed(kind, pa.concat_tables([table, table.slice(0, 1)])) != answer


def test_the_answer_knows_that_one_side_may_have_stopped_earlier() -> None:
    for name in ("join", "as-of"):
        kind: Any = KINDS[name](ENTRIES)
        rows = given(kind.fill_rows)
        both = kind.answer({"left": rows, "right": rows}).tolist()
        for side in ("left", "right"):
            less = {"left": rows, "right": rows, side: given(kind.fill_rows // 3)}
            assert kind.answer(less).tolist() != both


@pytest.mark.parametrize("name", ["batches", "agg"])
def test_entries_by_key_count_the_rows_that_they_were_given(name: str) -> None:
    kind: Any = KINDS[name](ENTRIES)
    table = pa.table({"key": [1, 2], "c00": [7, 7], "c11": pa.chunked_array([[3], [4]])})
    assert kind.counted(table) == 7


def test_a_process_function_counts_in_the_first_bytes_of_its_entries() -> None:
    kind: Any = KINDS["process"](ENTRIES)
    entries = [(5).to_bytes(8, "little") + b"rest", (300).to_bytes(8, "little")]
    assert kind.counted(pa.table({"key": [1, 2], "value": pa.array(entries, pa.binary())})) == 305


@pytest.mark.parametrize("name", BY_STATE)
def test_rows_fill_every_key_once_and_then_change_some(name: str) -> None:
    kind: Any = KINDS[name](ENTRIES)
    kind.only(0.01)
    make = kind.sources["source"].make
    filling = make(np.arange(ENTRIES)).column("key").to_numpy()
    assert sorted(filling) == list(range(ENTRIES))
    changed = make(np.arange(ENTRIES, ENTRIES + kind.rows_to_change(0.01))).column("key").to_numpy()
    assert changed.max() < ENTRIES // 100 and len(set(changed)) > 0.9 * ENTRIES // 100


def test_timers_that_a_checkpoint_still_holds_are_part_of_the_answer() -> None:
    kind: Any = KINDS["timers"](ENTRIES)
    table = results_of(kind, ENTRIES)
    fired, held = table.slice(0, 4_000), table.slice(4_000)
    in_state = held.rename_columns(["key", "time"])
    found = np.array(summed(kind, fired)) + kind.answer_in(in_state)
    assert found.tolist() == kind.answer({"source": given(ENTRIES)}).tolist()


def test_every_kind_has_an_operator_that_is_found_by_its_uid() -> None:
    for name, kind in KINDS.items():
        made = kind(ENTRIES)
        env = weir.Environment(parallelism=1)

        def read(source: str, made: Any = made, env: Any = env) -> weir.Stream:
            rows = made.sources[source]
            return env.read(connectors.Generator(1, rows.make, rows.schema), uid=source)

        made.build(read).write(connectors.Discard(), uid="sink")
        assert f"{STATE}" in env.explain(), name
