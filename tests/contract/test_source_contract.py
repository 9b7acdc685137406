"""One suite for every bounded source: the same rows always, and exactly the rest after a restore."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.contract.sources import CASES, SourceCase, collection_case, drain, generator_case, opened, positions
from weir.errors import DataError

PARALLELISMS = (1, 2, 3, 5)
SEEDS = range(8)


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest, tmp_path: Path) -> SourceCase:
    made = CASES[request.param](tmp_path)
    made.source.validate("the source")
    return made


@pytest.mark.parametrize("rows_max", [1, 7, 65_536])
@pytest.mark.parametrize("parallelism", PARALLELISMS)
def test_the_rows_are_the_same_whatever_the_parallelism_and_the_size_of_a_poll(
    case: SourceCase, parallelism: int, rows_max: int
) -> None:
    found = [row for reader in opened(case.source, parallelism=parallelism) for row in drain(reader, rows_max)]
    assert Counter(found) == Counter(case.rows)


def test_batches_have_the_declared_schema(case: SourceCase) -> None:
    for reader in opened(case.source, parallelism=2):
        while (batch := reader.poll(100)) is not None:
            assert batch.schema.equals(case.source.schema)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_restored_source_goes_on_exactly_where_it_was_at_any_parallelism(case: SourceCase, seed: int) -> None:
    """Stops at random points, several times, each time at another parallelism."""
    chance = random.Random(seed)
    found: list[tuple[object, ...]] = []
    restored = None
    for _ in range(4):
        readers = opened(case.source, parallelism=chance.choice(PARALLELISMS), restored=restored)
        for reader in readers:
            for _ in range(chance.randrange(3)):
                found += drain(reader, chance.choice((1, 3, 20, 200)), polls_max=chance.randrange(1, 4))
        restored = positions(readers)
        for reader in readers:
            drain(reader, 50, polls_max=2)  # after the position was taken: void
            reader.close()
    for reader in opened(case.source, parallelism=chance.choice(PARALLELISMS), restored=restored):
        found += drain(reader, 64)
    assert Counter(found) == Counter(case.rows)


def test_the_order_within_a_subtask_survives_a_restore(case: SourceCase) -> None:
    whole = [drain(reader, 10) for reader in opened(case.source, parallelism=2)]
    readers = opened(case.source, parallelism=2)
    first = [drain(reader, 10, polls_max=3) for reader in readers]
    rest = [drain(reader, 10) for reader in opened(case.source, parallelism=2, restored=positions(readers))]
    assert [a + b for a, b in zip(first, rest, strict=True)] == whole


def test_a_position_is_json_and_later_polls_do_not_change_it(case: SourceCase) -> None:
    (reader,) = opened(case.source, parallelism=1)
    drain(reader, 3, polls_max=2)
    position = reader.position()
    before = json.dumps(position)
    drain(reader, 3, polls_max=2)
    assert json.dumps(position) == before


def test_the_end_is_final_also_after_a_restore(case: SourceCase) -> None:
    readers = opened(case.source, parallelism=2)
    for reader in readers:
        drain(reader, 1000)
        assert reader.finished and reader.poll(10) is None and reader.finished
    for reader in opened(case.source, parallelism=3, restored=positions(readers)):
        assert reader.finished and reader.poll(10) is None


@pytest.mark.parametrize("parallelism", PARALLELISMS)
def test_a_source_knows_without_a_reader_whether_it_is_read_to_its_end(case: SourceCase, parallelism: int) -> None:
    readers = opened(case.source, parallelism=parallelism)
    for reader in readers:
        drain(reader, 1, polls_max=1)
    values = [part.value for part in positions(readers)]
    assert case.source.is_read_to_end(values) == all(reader.finished for reader in readers)
    for reader in readers:
        drain(reader, 1000)
    values = [part.value for part in positions(readers)]
    assert case.source.is_read_to_end(values)


@pytest.mark.parametrize("make", [generator_case, collection_case])
def test_a_source_that_has_other_rows_by_now_is_not_read_to_its_end(
    make: Callable[[int], Callable[[Path], SourceCase]], tmp_path: Path
) -> None:
    readers = opened(make(100)(tmp_path).source, parallelism=2)
    for reader in readers:
        drain(reader, 1000)
    assert not make(200)(tmp_path).source.is_read_to_end([part.value for part in positions(readers)])


def test_files_that_were_changed_since_are_looked_into_again_and_new_ones_are_not(tmp_path: Path) -> None:
    case = CASES["jsonl files"](tmp_path)
    case.source.validate("the source")
    readers = opened(case.source, parallelism=2)
    for reader in readers:
        drain(reader, 1000)
    values = [part.value for part in positions(readers)]
    (tmp_path / "in" / "new.jsonl").write_text('{"n": 1, "word": "a"}\n')
    case.source.validate("the source")
    assert case.source.is_read_to_end(values)
    with (tmp_path / "in" / "0.jsonl").open("a") as file:
        file.write('{"n": 1, "word": "a"}\n')
    case.source.validate("the source")
    assert not case.source.is_read_to_end(values)
    with pytest.raises(DataError, match="give the new content a new name"):
        opened(case.source, parallelism=2, restored=positions(readers))


def test_a_bounded_source_says_so_and_states_its_guarantee(case: SourceCase) -> None:
    assert case.source.bounded
    assert case.source.guarantee == "exactly_once"
    (reader,) = opened(case.source, parallelism=1)
    assert reader.wait_ms > 0
    assert reader.lag is None or isinstance(reader.lag, str)


def test_subtasks_without_a_position_of_their_own_are_no_obstacle(case: SourceCase) -> None:
    """A checkpoint may hold nothing for some subtasks of a larger, older parallelism."""
    readers = opened(case.source, parallelism=5)
    found = [row for reader in readers for row in drain(reader, 10, polls_max=1)]
    for reader in opened(case.source, parallelism=1, restored=positions(readers)):
        found += drain(reader, 100)
    assert Counter(found) == Counter(case.rows)
