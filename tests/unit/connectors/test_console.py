"""Rows on standard output, and rows nowhere."""

from __future__ import annotations

import pyarrow as pa
import pytest

from tests.contract.sinks import SCHEMA, context, rows
from weir.connectors import Discard, Stdout
from weir.errors import SchemaError


def test_rows_are_printed_at_once_one_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    writer = Stdout().writer()
    writer.open(context(), None)
    writer.write(rows(1, 2))
    assert capsys.readouterr().out == '{"n":1,"word":"w1"}\n{"n":2,"word":"w2"}\n'


def test_each_line_names_its_subtask_when_there_are_several(capsys: pytest.CaptureFixture[str]) -> None:
    writer = Stdout().writer()
    writer.open(context(index=1, parallelism=2), None)
    writer.write(rows(1, 2))
    assert capsys.readouterr().out == '1> {"n":1,"word":"w1"}\n1> {"n":2,"word":"w2"}\n'


def test_no_more_than_the_limit_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    writer = Stdout(limit=3).writer()
    writer.open(context(), None)
    for _ in range(3):
        writer.write(rows(1, 2))
    assert len(capsys.readouterr().out.splitlines()) == 3


def test_stdout_says_that_rows_may_repeat_and_refuses_what_it_cannot_show() -> None:
    assert Stdout().guarantee == "at_least_once"
    Stdout().check(SCHEMA, "out")
    with pytest.raises(SchemaError, match="'out'"):
        Stdout().check(pa.schema([("x", pa.list_(pa.binary()))]), "out")


def test_discard_prints_and_keeps_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    writer = Discard().writer()
    writer.open(context(), None)
    writer.write(rows(1, 2))
    assert capsys.readouterr().out == ""
