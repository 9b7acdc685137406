"""Operators in a row: who gets what, in which order, and what is counted."""

from __future__ import annotations

import pytest

from tests.unit.runtime.fakes import Recording, numbers, rows
from weir.ids import Uid
from weir.runtime.task.chain import Chain, Link


def chain_of(*operators: Recording) -> tuple[Chain, list[list[int]]]:
    out: list[list[int]] = []
    links = [Link(Uid(operator.name), operator.name, operator) for operator in operators]
    return Chain(links, lambda batch: out.append(numbers(batch))), out


def test_a_batch_goes_through_every_operator_to_the_end() -> None:
    calls: list[str] = []
    chain, out = chain_of(Recording("a", calls), Recording("b", calls))
    chain.process(rows(1, 2))
    assert calls == ["a takes [1, 2]", "b takes [1, 2]"]
    assert out == [[1, 2]]


def test_a_chain_without_operators_hands_batches_straight_on() -> None:
    chain, out = chain_of()
    chain.process(rows(1))
    chain.end()
    assert out == [[1]]


def test_a_flush_goes_from_the_first_to_the_last_so_that_nothing_stays_behind() -> None:
    chain, out = chain_of(Recording("a", [], holds=True), Recording("b", [], holds=True))
    chain.process(rows(1))
    chain.process(rows(2))
    assert out == []
    chain.flush()
    assert out == [[1], [2]]


def test_a_flush_is_needed_only_after_rows_went_in() -> None:
    chain, _ = chain_of(Recording("a", [], holds=True))
    assert not chain.holding
    chain.process(rows(1))
    assert chain.holding
    chain.flush()
    assert not chain.holding


def test_what_an_operator_puts_out_at_its_end_passes_those_behind_it_before_they_end() -> None:
    calls: list[str] = []
    chain, out = chain_of(Recording("a", calls, holds=True, at_end=[9]), Recording("b", calls, holds=True, at_end=[10]))
    chain.process(rows(1))
    chain.end()
    assert calls == ["a takes [1]", "b takes [1]", "a ends", "b takes [9]", "b ends"]
    assert out == [[1], [9], [10]]


def test_rows_and_bytes_are_counted_at_each_operator() -> None:
    chain, _ = chain_of(Recording("a", []), Recording("b", [], holds=True))
    chain.process(rows(1, 2, 3))
    first, second = (link.counters for link in chain.links)
    assert (first.rows_in, first.rows_out, first.bytes_in, first.bytes_out) == (3, 3, 24, 24)
    assert (second.rows_in, second.rows_out) == (3, 0)
    chain.flush()
    assert (second.rows_out, second.bytes_out) == (3, 24)


def test_empty_batches_go_no_further() -> None:
    calls: list[str] = []
    chain, out = chain_of(Recording("a", calls), Recording("b", calls))
    chain.process(rows())
    assert calls == ["a takes []"]
    assert out == []


def test_every_operator_is_closed_although_one_fails_to_and_the_first_error_is_raised() -> None:
    calls: list[str] = []
    operators = [Recording(name, calls) for name in "abc"]
    operators[0].close_error = ValueError("first")
    operators[1].close_error = ValueError("second")
    chain, _ = chain_of(*operators)
    with pytest.raises(ValueError, match="first"):
        chain.close()
    assert calls == ["a closes", "b closes", "c closes"]
