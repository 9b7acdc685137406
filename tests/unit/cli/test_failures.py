"""Errors as panels: what they say, and which exit code follows."""

from __future__ import annotations

import io

import pytest
import typer
from rich.console import Console

from weir.cli.failures import frames_from, hint_for, panel_of, readable_errors
from weir.errors import JobFailed, OwnershipError, SchemaError, SlotsMissing, UserCodeError, WeirError


def text_of(error: WeirError) -> str:
    console = Console(width=100, record=True, file=io.StringIO())
    console.print(panel_of(error))
    return console.export_text()


def test_a_panel_names_the_kind_the_message_and_what_to_do() -> None:
    text = text_of(SlotsMissing("the job needs 8 slots, and 2 are there"))
    assert "SlotsMissing" in text
    assert "needs 8 slots" in text
    assert "--parallelism" in text


def test_an_error_that_names_the_ways_out_gets_no_hint_that_may_be_none() -> None:
    """A start that was refused with --resume is not told to use it."""
    assert hint_for(OwnershipError("the directory holds output whose checkpoints are elsewhere")) is None


def test_the_brackets_of_a_message_are_not_taken_for_markup() -> None:
    assert "Stream[word string]" in text_of(SchemaError("expected Stream[word string]"))


def test_a_users_traceback_is_shown_line_by_line() -> None:
    text = text_of(UserCodeError('map (uid "m") raised:\n  File "job.py", line 3, in f\nZeroDivisionError: division'))
    assert 'File "job.py", line 3, in f' in text
    assert "ZeroDivisionError: division" in text


def test_the_most_specific_hint_is_given() -> None:
    assert "columns" in (hint_for(SchemaError("x")) or "")
    assert "--resume" in (hint_for(JobFailed("x")) or "")
    assert hint_for(WeirError("x")) is None


def test_an_error_of_ours_becomes_exit_code_1_without_a_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit) as caught, readable_errors(debug=False):
        raise SchemaError("there is no column 'prise'")
    assert caught.value.exit_code == 1
    shown = capsys.readouterr().err
    assert "there is no column 'prise'" in shown
    assert "Traceback" not in shown


def test_debug_lets_the_error_through() -> None:
    with pytest.raises(SchemaError), readable_errors(debug=True):
        raise SchemaError("x")


def test_an_interrupt_becomes_exit_code_130() -> None:
    with pytest.raises(typer.Exit) as caught, readable_errors(debug=False):
        raise KeyboardInterrupt
    assert caught.value.exit_code == 130


def test_a_scripts_traceback_starts_at_the_script() -> None:
    def ours() -> None:
        exec(compile("def theirs():\n    1 / 0\ntheirs()\n", "script.py", "exec"), {})

    try:
        ours()
    except ZeroDivisionError as error:
        found = frames_from(error.__traceback__, "script.py")
        assert found is not None
        assert found.tb_frame.f_code.co_filename == "script.py"
        assert found.tb_lineno == 3
        assert frames_from(error.__traceback__, "other.py") is error.__traceback__
